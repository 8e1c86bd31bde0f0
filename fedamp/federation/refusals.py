"""Refuse keys of a scenario that cannot be combined: one needs a fact, and another one breaks it.

Schemes and sections of extensions say which facts they need and break (:mod:`fedamp.federation.facts`). This module
says it for the core's other keys, and compares. So n needing and m breaking keys take n + m lines, not n x m. A scheme
that states nothing breaks every fact that its family can break. docs/matrix.md lists all facts.
"""

import json
from collections.abc import Iterator
from typing import Any, get_args

from fedamp.base.section import Section
from fedamp.extension import keys, offered
from fedamp.federation import facts
from fedamp.federation.choices import FAMILIES, scheme_of, schemes_of
from fedamp.federation.facts import AnyScenario, Claim, Declared, ScenarioFact, Stance
from fedamp.federation.first_releases import asked_releases
from fedamp.federation.norms import AdaptiveClip
from fedamp.federation.optional import check_charged

Claimed = tuple[str, Claim]
"""Path of a key, and a claim about it."""


def _is_natural(scenario: AnyScenario) -> bool:
    """Say whether a column names the client of each record."""
    return getattr(getattr(scenario.data, "partition", None), "scheme", "") == "natural"


def _is_external(scenario: AnyScenario) -> bool:
    """Say whether a custom Flower app reads the records."""
    return bool(scenario.data.name == "external")


def _by_record(scenario: AnyScenario) -> bool:
    """Say whether the unit of privacy is a record."""
    return bool(scenario.privacy.unit == "sample")


def _is_local(scenario: AnyScenario) -> bool:
    """Say whether some parameters stay with their client."""
    return bool(scenario.model.local)


def _is_rehearsal(scenario: AnyScenario) -> bool:
    """Say whether the run rehearses a larger federation."""
    return scenario.privacy.noise_cohort is not None


_LEFT_OUT = "left out"

NEEDS: tuple[Claim, ...] = (
    Claim(facts.RECORDS_DEALT, "data.clients", _LEFT_OUT, lambda scenario: scenario.data.clients is not None),
    Claim(facts.RECORDS_HAVE_CLIENTS, "privacy.unit", "sample", lambda scenario: not _by_record(scenario)),
    Claim(facts.ONE_GRADIENT, "privacy.unit", "client", _by_record),
    Claim(facts.TRAINED_HERE, "model.name", "external", lambda scenario: scenario.model.name != "external"),
    Claim(facts.TRAINED_HERE, "client.max_records", _LEFT_OUT, lambda scenario: bool(scenario.client.max_records)),
    *(
        Claim(fact, "data.name", "data that fedamp reads", _is_external)
        for fact in (facts.WHOLE_MODEL, facts.UNIT_IS_CLIENT)
    ),
    *(
        Claim(fact, "model.local", _LEFT_OUT, _is_local)
        for fact in (
            facts.UNIT_IS_CLIENT,
            facts.WHOLE_MODEL,
            facts.TRAINED_HERE,
            facts.SIMULATED,
            facts.ONE_MACHINE,
        )
    ),
    Claim(facts.GROUPS_CHARGED, "privacy.group_size", "1", lambda scenario: scenario.privacy.group_size > 1),
    *(
        Claim(fact, "privacy.noise_cohort", _LEFT_OUT, _is_rehearsal)
        for fact in (
            facts.SEED_PUBLIC,
            facts.NOISE_INDEPENDENT,
            facts.SERVER_ADDS_NOISE,
            facts.NOISE_ALONE,
            facts.ROUNDS_ALONE,
            facts.SIMULATED,
            facts.NOBODY_PAYS,
        )
    ),
)
"""Facts that keys of the core need."""

BREAKS: tuple[Claim, ...] = (
    Claim(facts.RECORDS_DEALT, "data.partition", "another scheme", _is_natural),
    Claim(
        facts.RECORDS_HAVE_CLIENTS,
        "data.clients",
        "the number of clients",
        lambda scenario: scenario.data.clients is None and not _is_natural(scenario),
    ),
    Claim(facts.ONE_GRADIENT, "client.steps", "1", lambda scenario: scenario.client.steps not in (None, 1)),
    Claim(facts.ONE_GRADIENT, "client.epochs", _LEFT_OUT, lambda scenario: scenario.client.epochs is not None),
    Claim(facts.TRAINED_HERE, "data.name", "data that fedamp reads", _is_external),
    Claim(facts.UNIT_IS_CLIENT, "privacy.unit", "client", _by_record),
    Claim(facts.GLOBAL_MODEL, "model.local", _LEFT_OUT, _is_local),
    Claim(facts.SCORED, "client.loss", "another loss", lambda scenario: scenario.client.loss == "mean-squared-error"),
    Claim(facts.CLASS_SHARES, "client.loss", "cross-entropy", lambda scenario: scenario.client.loss != "cross-entropy"),
    *(
        Claim(fact, "privacy.clip", accepted, lambda scenario: isinstance(scenario.privacy.clip, AdaptiveClip))
        for fact, accepted in {facts.CLIP_FIXED: "a number or auto", facts.MODEL_ALONE: "a number or auto"}.items()
    ),
    Claim(facts.CLIPS_APART, "privacy.clip", "a number", lambda scenario: scenario.privacy.clip == "auto"),
    Claim(
        facts.NOISE_ADDED,
        "privacy.noise_multiplier",
        "above 0",
        lambda scenario: scenario.privacy.noise_multiplier == 0,
    ),
    Claim(
        facts.NOISE_FOLLOWS,
        "privacy.noise_multiplier",
        "auto with epsilon",
        lambda scenario: scenario.privacy.noise_multiplier != "auto",
    ),
    Claim(facts.OWN_NOISE, "privacy.noise_cohort", _LEFT_OUT, _is_rehearsal),
    Claim(facts.SHOWN_ONCE, "server.momentum", "0", lambda scenario: scenario.server.momentum > 0),
    *(
        Claim(
            fact,
            "server.optimizer",
            "sgd",
            lambda scenario, fact=fact: fact not in scenario.server.kind.keeps,  # type: ignore[misc]
        )
        for fact in (facts.SHOWN_ONCE, facts.LINEAR_STEP)
    ),
    Claim(facts.SEED_PUBLIC, "known_seed", "true", lambda scenario: not scenario.known_seed),
    Claim(facts.SIMULATED, "federation.hosts", _LEFT_OUT, lambda scenario: scenario.federation.hosts is not None),
    Claim(
        facts.ONE_NODE_EACH,
        "federation.hosts",
        "ids by name",
        lambda scenario: scenario.federation.hosts == "trusted" or 0 in scenario.federation.hosted_units.values(),
    ),
    Claim(facts.ONE_MACHINE, "engine.address", _LEFT_OUT, lambda scenario: scenario.engine.address is not None),
)
"""Facts that keys of the core break."""


def refuse_contradictions(scenario: AnyScenario) -> None:
    """Refuse a scenario with a key that breaks a fact that another one needs, or with numbers that do not fit.

    The validation of a scenario calls it last, so all keys have their types.

    Args:
        scenario: a whole :class:`fedamp.federation.scenario.Scenario`.

    Raises:
        ValueError: one line with both keys, what was found, the fact, and what is accepted.
    """
    stances = dict(_stances_by_path(scenario))
    for key in keys("sections"):
        if key in stances:
            is_asked = "." not in key  # a plan asks the sections at the top
            check_charged(key, stances[key] if is_asked else Stance(keeps=stances[key].keeps))
    for each in asked_releases(scenario):
        check_charged(each.path, each)
    for needing, need in _claims_of_needs(scenario, stances):
        for breaking, accepted in _keys_breaking(scenario, stances, need.fact):
            if breaking != needing:
                instead = need.accepted or _schemes_without(needing, need.fact)
                raise ValueError(
                    f"{_found_value(scenario, needing)} needs a fact that {_found_value(scenario, breaking)} breaks: "
                    f"{need.fact.sentence}; expected: {breaking} {accepted}, or {needing} {instead}"
                )
    for stance in stances.values():
        if isinstance(stance, Declared):
            stance.check_within(scenario)


def _stances_by_path(scenario: AnyScenario) -> Iterator[tuple[str, Declared | Stance]]:
    """Yield the stances of schemes, of extensions' keys that are not left out, and of first releases, by path."""
    for key in dict.fromkeys([*FAMILIES, *keys("sections")]):
        value = value_at(scenario, key)
        if isinstance(value, Declared):
            yield key, value
        elif value is not None:
            (kind,) = offered("sections", key)
            yield key, next(iter(stated_stances(kind)), Stance())
    yield from ((each.path, each) for each in asked_releases(scenario))


def _claims_of_needs(scenario: AnyScenario, stances: dict[str, Declared | Stance]) -> Iterator[Claimed]:
    """Yield the keys that need some fact in this scenario."""
    for path, stance in stances.items():
        yield from ((f"{path}.{claim.key}".rstrip("."), claim) for claim in stance.needs if claim.when(scenario))
    yield from ((claim.key, claim) for claim in NEEDS if claim.when(scenario))


def _keys_breaking(
    scenario: AnyScenario, stances: dict[str, Declared | Stance], fact: ScenarioFact
) -> Iterator[tuple[str, str]]:
    """Yield the keys that break a fact, and what is accepted in their places."""
    for path, stance in stances.items():
        claims = [claim for claim in stance.breaks if claim.fact == fact]
        for claim in claims:
            if claim.when(scenario):
                yield f"{path}.{claim.key}".rstrip("."), claim.accepted or _LEFT_OUT
        if not claims and fact not in stance.keeps and (stance.concerns is None or fact in stance.concerns):
            yield path, _schemes_keeping(path, fact)
    yield from ((claim.key, claim.accepted) for claim in BREAKS if claim.fact == fact and claim.when(scenario))


def _schemes_keeping(path: str, fact: ScenarioFact) -> str:
    """Name the schemes of a family that keep a fact; for another key, say that it is left out."""
    return (
        _schemes_in_words(path, [each for each in schemes_of(path) if fact in each.keeps])
        if path in FAMILIES
        else _LEFT_OUT
    )


def _schemes_without(path: str, fact: ScenarioFact) -> str:
    """Name the schemes of a family that do not need a fact; for another key, say that it is left out."""
    if path not in FAMILIES:
        return _LEFT_OUT
    return _schemes_in_words(
        path, [each for each in schemes_of(path) if fact not in [claim.fact for claim in each.needs]]
    )


def _schemes_in_words(path: str, schemes: list[type[Declared]]) -> str:
    """Write the schemes that would be accepted."""
    return f"scheme {' or '.join(map(scheme_of, schemes))}" if schemes else "of another scheme"


def value_at(scenario: AnyScenario, path: str) -> Any:
    """Return the value of a key, by its path (``privacy.noise``); None for a key of a section without it."""
    for name in path.split("."):
        scenario = getattr(scenario, name, None)
    return scenario


def _found_value(scenario: AnyScenario, path: str) -> str:
    """Write a key and its value, for people."""
    value = value_at(scenario, path)
    for name in ("scheme", "name") if isinstance(value, Section) else ():
        if hasattr(value, name):
            return f"{path}.{name} {getattr(value, name)}"
    if isinstance(value, Section | dict | tuple):
        return path
    return f"{path} {json.dumps(value) if value is None or isinstance(value, bool) else value}"


def stated_stances(kind: Any) -> list[Any]:
    """Find the stances of an extension's key in its annotated type."""
    parts = [kind, *(part for each in get_args(kind) for part in (each, *get_args(each)))]
    return [
        each for each in parts if isinstance(each, Stance) or (isinstance(each, type) and issubclass(each, Declared))
    ]
