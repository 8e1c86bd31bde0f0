"""Which parts of a scenario cannot be combined, and why: one table, from which docs/strategies.md is written.

A scheme refuses by itself what its own keys cannot be (:meth:`CheckIn.check`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedamp.data.partition import NaturalPartition
from fedamp.federation.check_in import MinSeparation, SpacedCheckIn
from fedamp.federation.noise import BandedNoise, BufferedNoise
from fedamp.federation.norms import AdaptiveClip
from fedamp.federation.submodels import NoSubmodels
from fedamp.federation.terms import SecureAggregation

Asked = Any
"""A scenario, in :mod:`fedamp.federation.scenario`, which imports this module."""


@dataclass(frozen=True)
class Refusal:
    """A combination of keys that is refused.

    Attributes:
        what: the combination, for people.
        refused: whether a scenario has it.
        line: why, with what was found and what is accepted.
        example: keys and values that show it.
    """

    what: str
    refused: Callable[[Asked], bool]
    line: str | Callable[[Asked], str]
    example: tuple[str, ...]


def refuse(asked: Asked) -> None:
    """ValueError for the first combination of the table that a scenario has; one line."""
    for each in REFUSALS:
        if each.refused(asked):
            raise ValueError(each.line if isinstance(each.line, str) else each.line(asked))


def _is_natural(asked: Asked) -> bool:
    return isinstance(getattr(asked.data, "partition", None), NaturalPartition)


def _separation(asked: Asked) -> Any:
    """Number of classes or gap, ``auto``, or None for a scheme without."""
    return asked.check_in.separation if isinstance(asked.check_in, MinSeparation) else None


def _key(asked: Asked) -> str:
    return f"check_in.{asked.check_in.separation_key}"


def _is_banded(asked: Asked) -> bool:
    return isinstance(asked.privacy.noise, BandedNoise)


def _rehearses(asked: Asked) -> bool:
    return asked.privacy.noise_cohort is not None


def _is_secure(asked: Asked) -> bool:
    return isinstance(asked.aggregation, SecureAggregation)


def _unaudited(asked: Asked) -> str:
    """What the attack on canaries does not cover, the first key; empty: it covers all."""
    keys = {
        "aggregation.scheme: secure": _is_secure(asked),
        "federation.hosts": asked.federation.hosts is not None,
        "data: external": asked.data.name == "external",
        "submodels": not isinstance(asked.submodels, NoSubmodels),
        "mixing": asked.mixing is not None,
        "an adaptive privacy.clip": isinstance(asked.privacy.clip, AdaptiveClip),
        "privacy.noise_multiplier: 0": asked.privacy.noise_multiplier == 0,
        "privacy.noise_cohort": _rehearses(asked),
        "evaluation in rounds": asked.evaluation is not None and _in_rounds(asked),
        f"check_in.scheme: {asked.check_in.scheme}": asked.check_in.scheme in ("batches", "classes"),
        "model.local": bool(asked.model.local),
        "server.optimizer: adam": asked.server.optimizer != "sgd",
    }
    return next((key for key, found in keys.items() if found), "")


def _with_external(key: str, expected: str, example: str) -> Refusal:
    section, _, name = key.partition(".")

    def found(asked: Asked) -> Any:
        return getattr(getattr(asked, section), name) or "left out"

    return Refusal(
        f"`data: external` with another `{key}` than {expected}",
        lambda asked: asked.data.name == "external" and found(asked) != expected,
        lambda asked: f"{key} must be {expected} with external data, got {found(asked)}: the app trains its model",
        ("data={name: external, clients: 60}", "model={name: external}", example),
    )


def _with_local(
    what: str, refused: Callable[[Asked], bool], key: str | Callable[[Asked], str], expected: str, *example: str
) -> Refusal:
    def line(asked: Asked) -> str:
        found = key if isinstance(key, str) else key(asked)
        return f"model.local keeps parameters with their client, not with {found}; expected: {expected}"

    return Refusal(
        f"`model.local` with {what}",
        lambda asked: bool(asked.model.local) and refused(asked),
        line,
        ("model={name: mlp, local: [output]}", *example),
    )


def _evaluated(
    what: str, refused: Callable[[Asked], bool], line: str | Callable[[Asked], str], *example: str, more: str = ""
) -> Refusal:
    return Refusal(
        f"`evaluation` {what}",
        lambda asked: asked.evaluation is not None and refused(asked),
        line,
        (f"evaluation={{on: clients, noise_multiplier: 20{more}}}", *example),
    )


def _in_rounds(asked: Asked) -> bool:
    return not asked.evaluation.at_end


_BANDED = "privacy.noise={scheme: banded, bands: 2}"
_SPACED = "check_in={scheme: spaced, k: 2, gap: 2}"
_SECURE = "aggregation={scheme: secure}"
_MIXING = "mixing={width: 0.1}"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "`data.clients` with a natural partition",
        lambda asked: _is_natural(asked) and asked.data.clients is not None,
        "data.clients must be left out with a natural partition: the column names each record's client",
        ("data={name: npz, path: ., clients: 60, partition: {scheme: natural}}",),
    ),
    Refusal(
        "clients without `data.clients`, where no column names them",
        lambda asked: not _is_natural(asked) and asked.data.clients is None and asked.privacy.unit == "client",
        "data.clients is required: the number of clients among which the records are partitioned",
        ("data={name: npz, path: ., partition: {scheme: iid}}",),
    ),
    _with_external("model.name", "external", "model={name: logistic}"),
    _with_external("submodels.scheme", "none", "submodels={scheme: disjoint, count: 2}"),
    _with_external("privacy.unit", "client", "privacy.unit=sample"),
    _with_external("client.max_records", "left out", "client.max_records=9"),
    _with_external("aggregation.scheme", "plain", "aggregation={scheme: secure}"),
    Refusal(
        "`privacy.unit: sample` with several local steps",
        lambda asked: (
            asked.privacy.unit == "sample" and (asked.client.steps not in (None, 1) or asked.client.epochs is not None)
        ),
        "client.steps must be 1 (or left out) when privacy.unit is sample: one gradient a record",
        ("privacy.unit=sample", "client={steps: 2}"),
    ),
    Refusal(
        "`auto` for the classes or the gap of a check-in, with independent noise",
        lambda asked: not _is_banded(asked) and _separation(asked) == "auto",
        lambda asked: f"{_key(asked)}: auto follows from privacy.noise {{scheme: banded}}; expected: a number",
        ("check_in={scheme: spaced, k: 2}",),
    ),
    Refusal(
        "banded noise with a check-in without classes or gap",
        lambda asked: _is_banded(asked) and _separation(asked) is None,
        lambda asked: (
            "privacy.noise: banded noise needs check_in {scheme: classes} or {scheme: spaced}, got "
            f"{asked.check_in.scheme}: a unit's rounds must be at least as far apart as the bands"
        ),
        ("check_in={scheme: balanced, k: 2}", _BANDED),
    ),
    Refusal(
        "buffered noise without spaced check-in of a given gap",
        lambda asked: (
            isinstance(asked.privacy.noise, BufferedNoise)
            and (not isinstance(asked.check_in, SpacedCheckIn) or asked.check_in.gap == "auto")
        ),
        (
            "privacy.noise: rows of all rounds meet in buffered noise; expected: check_in {scheme: spaced} with a "
            "number as gap, or scheme banded"
        ),
        (_SPACED, "privacy.noise={scheme: buffered}", "check_in.gap=auto"),
    ),
    Refusal(
        "banded noise with `mixing`",
        lambda asked: _is_banded(asked) and asked.mixing is not None,
        ("privacy.noise: mixing hides a round beside independent noise only; expected: independent"),
        (_SPACED, _BANDED, _MIXING, "server={momentum: 0}"),
    ),
    Refusal(
        "banded noise with an adaptive clipping norm",
        lambda asked: _is_banded(asked) and isinstance(asked.privacy.clip, AdaptiveClip),
        (
            "privacy.noise: noise of earlier rounds fits a fixed clipping norm; expected: privacy.clip a number or "
            "auto, or independent noise"
        ),
        (_SPACED, _BANDED, "privacy.clip={initial: 0.1}"),
    ),
    Refusal(
        "`classes` or `spaced` check-in, which banded noise needs, with `privacy.group_size` above 1",
        lambda asked: _separation(asked) is not None and asked.privacy.group_size > 1,
        "privacy.group_size: what groups cost with classes or spaced check-in is not known; expected: 1",
        (_SPACED, "privacy.group_size=2"),
    ),
    Refusal(
        "more bands than the classes or the gap of a check-in",
        lambda asked: (
            _is_banded(asked)
            and "auto" not in (_separation(asked), bands := asked.privacy.noise.bands)
            and bands > _separation(asked)
        ),
        lambda asked: (
            f"privacy.noise.bands must be at most {_key(asked)} ({_separation(asked)}), got {asked.privacy.noise.bands}"
        ),
        (_SPACED, "privacy.noise={scheme: banded, bands: 3}"),
    ),
    Refusal(
        "banded noise with `noise_multiplier: 0`",
        lambda asked: _is_banded(asked) and asked.privacy.noise_multiplier == 0,
        "privacy.noise: noise_multiplier 0 adds none; expected: scheme independent",
        (_SPACED, _BANDED, "privacy.noise_multiplier=0"),
    ),
    Refusal(
        "`auto` for both the bands and the gap, with a given `noise_multiplier`",
        lambda asked: (
            _is_banded(asked)
            and _separation(asked) == asked.privacy.noise.bands == "auto"
            and asked.privacy.noise_multiplier != "auto"
        ),
        lambda asked: (
            f"privacy.noise.bands and {_key(asked)}: auto compare the noise at one budget; expected: "
            "noise_multiplier auto with epsilon, or a number of bands"
        ),
        ("check_in={scheme: spaced, k: 2}", "privacy.noise={scheme: banded}"),
    ),
    Refusal(
        "secure aggregation with banded noise",
        lambda asked: _is_secure(asked) and _is_banded(asked),
        ("aggregation: a node that drops out takes earlier noise with it; expected: privacy.noise independent"),
        (_SECURE, _SPACED, _BANDED),
    ),
    Refusal(
        "secure aggregation with `mixing`",
        lambda asked: _is_secure(asked) and asked.mixing is not None,
        "aggregation: the server knows the noise of mixing; expected: no mixing, or scheme plain",
        (_SECURE, _MIXING, "server={momentum: 0}"),
    ),
    Refusal(
        "secure aggregation where a unit may live on several nodes",
        lambda asked: (
            _is_secure(asked) and (asked.federation.hosts == "trusted" or 0 in asked.federation.hosted.values())
        ),
        "aggregation: each unit must live on one node; expected in federation.hosts: ids by name",
        (_SECURE, "federation.hosts=trusted"),
    ),
    Refusal(
        "`aggregation.nodes` other than those of `federation.hosts`",
        lambda asked: (
            _is_secure(asked)
            and bool(asked.federation.hosted)
            and asked.aggregation.nodes not in ("auto", len(asked.federation.hosted))
        ),
        lambda asked: (
            f"aggregation.nodes is {asked.aggregation.nodes}, but federation.hosts names {len(asked.federation.hosted)}"
        ),
        ("aggregation={scheme: secure, nodes: 5}", "federation.hosts={a: 0-29, b: 30-59}"),
    ),
    Refusal(
        "check-ins drawn by the nodes, without secure aggregation",
        lambda asked: not _is_secure(asked) and asked.check_in.drawn_by == "node",
        (
            "check_in.drawn_by: node hides nothing from a server that sees each node's sum; expected: "
            "aggregation: {scheme: secure}"
        ),
        ("check_in={scheme: balanced, k: 3, drawn_by: node}",),
    ),
    Refusal(
        "batches drawn by the nodes",
        lambda asked: not asked.check_in.units_are_independent and asked.check_in.drawn_by == "node",
        "check_in.drawn_by: node draws the rounds of each node's units apart; expected: server, for batches of a size",
        ("check_in={scheme: batches, size: 3, drawn_by: node}", _SECURE),
    ),
    Refusal(
        "`submodels.shared_clip` with `clip: auto`",
        lambda asked: asked.privacy.clip == "auto" and getattr(asked.submodels, "shared_clip", None) is not None,
        "submodels.shared_clip must be left out with privacy.clip: auto: it is both parts' norm",
        ("submodels={scheme: disjoint, count: 2, shared_clip: 0.2}", "privacy.clip=auto"),
    ),
    Refusal(
        "`privacy.noise_cohort` with a secret seed",
        lambda asked: _rehearses(asked) and not asked.known_seed,
        "privacy.noise_cohort is a rehearsal, which protects nobody; expected: known_seed: true (--known-seed)",
        ("privacy={clip: 0.1, noise_multiplier: 1, noise_cohort: 900}", "known_seed=false"),
    ),
    Refusal(
        "`privacy.noise_cohort` with mixing, bands, secure aggregation, nodes, population, evaluation or private means",
        lambda asked: (
            _rehearses(asked)
            and (
                _is_secure(asked)
                or _is_banded(asked)
                or bool(asked.mixing or asked.federation.hosts or asked.privacy.population or asked.evaluation)
                or asked.data.statistics is not None
            )
        ),
        "privacy.noise_cohort rehearses plain simulations with independent noise alone; expected: it is left out",
        ("privacy={clip: 0.1, noise_multiplier: 1, noise_cohort: 900}", "known_seed=true", _SECURE),
    ),
    Refusal(
        "private means under secure aggregation",
        lambda asked: _is_secure(asked) and asked.data.statistics is not None,
        "data.transform standardise with mean: private needs aggregation: {scheme: plain}; expected here: numbers",
        ("data.transform=[{name: standardise, mean: private, range: [0, 1], noise_multiplier: 20}]", _SECURE),
    ),
    Refusal(
        "`privacy.canaries` with anything but whole models in a simulation, hidden rounds, fixed norms, noise, and SGD",
        lambda asked: asked.privacy.canaries > 0 and bool(_unaudited(asked)),
        lambda asked: f"privacy.canaries cannot be attacked with {_unaudited(asked)}; expected: fedamp audit SCENARIO",
        ("privacy={clip: 0.1, noise_multiplier: 1, canaries: 9}", _SECURE),
    ),
    Refusal(
        "mixing with momentum or Adam",
        lambda asked: asked.mixing is not None and (asked.server.optimizer != "sgd" or asked.server.momentum > 0),
        lambda asked: (
            "mixing needs server.optimizer sgd without momentum, got "
            + (
                f"momentum {asked.server.momentum:g}"
                if asked.server.optimizer == "sgd"
                else str(asked.server.optimizer)
            )
            + ": each round's noise would show again in the next model, and the mixing hides it only once"
        ),
        (_MIXING, "server={momentum: 0.5}"),
    ),
    Refusal(
        "mixing with an adaptive clipping norm",
        lambda asked: asked.mixing is not None and isinstance(asked.privacy.clip, AdaptiveClip),
        (
            "mixing needs a number or auto for privacy.clip: what the width hides is relative to the clipping norm, "
            "which an adaptive norm would change after it was charged"
        ),
        (_MIXING, "server={momentum: 0}", "privacy.clip={initial: 0.1}"),
    ),
    Refusal(
        "a width of mixing for a round after the last one",
        lambda asked: asked.mixing is not None and asked.mixing.steps[-1][0] > asked.rounds,
        lambda asked: f"mixing.width names round {asked.mixing.steps[-1][0]}, but rounds is {asked.rounds}",
        ("mixing={width: [[1, 0.1], [9, 0.2]]}", "server={momentum: 0}"),
    ),
    _evaluated(
        "with `privacy.unit: sample`",
        lambda asked: asked.privacy.unit == "sample",
        "evaluation holds out records of each client, and here each is a unit; expected: privacy.unit client",
        "privacy.unit=sample",
        "client={}",
    ),
    _evaluated(
        "with external data",
        lambda asked: asked.data.name == "external",
        "evaluation holds out records that fedamp reads; expected: data of another name than external",
        "data={name: external, clients: 60}",
        "model={name: external}",
    ),
    _evaluated(
        "with `model.local`",
        lambda asked: bool(asked.model.local),
        "evaluation scores the global model, and model.local keeps parameters with their client; expected: one of both",
        "model={name: mlp, local: [output]}",
    ),
    _evaluated(
        "in rounds, with banded noise",
        lambda asked: _in_rounds(asked) and _is_banded(asked),
        "evaluation.every: a round has one release under banded noise; expected: end, or independent noise",
        _SPACED,
        _BANDED,
        more=", every: 1",
    ),
    _evaluated(
        "in rounds, with `mixing`",
        lambda asked: _in_rounds(asked) and asked.mixing is not None,
        "evaluation.every: mixing hides the model's sum alone; expected: end, or no mixing",
        _MIXING,
        more=", every: 1",
    ),
    _evaluated(
        "every so many rounds, and there are fewer",
        lambda asked: _in_rounds(asked) and asked.evaluation.every > asked.rounds,
        lambda asked: f"evaluation.every must be at most rounds ({asked.rounds}) or end, got {asked.evaluation.every}",
        more=", every: 9",
    ),
    _evaluated(
        "of `score`, with the squared error",
        lambda asked: "score" in asked.evaluation.metrics and asked.client.loss == "mean-squared-error",
        "evaluation.metrics: the squared error has no score of few records; expected: [loss]",
        "data={name: diabetes, clients: 60}",
        "client={loss: mean-squared-error}",
    ),
    _evaluated(
        "of `calibration`, with another loss than cross-entropy",
        lambda asked: "calibration" in asked.evaluation.metrics and asked.client.loss != "cross-entropy",
        lambda asked: f"evaluation.metrics: calibration needs client.loss cross-entropy, got {asked.client.loss}",
        "client={loss: binary-cross-entropy}",
        more=", metrics: [calibration]",
    ),
    _with_local(
        "`privacy.unit: sample`",
        lambda asked: asked.privacy.unit != "client",
        lambda asked: f"privacy.unit: {asked.privacy.unit}",
        "client",
        "privacy.unit=sample",
        "client={}",
    ),
    _with_local(
        "submodels",
        lambda asked: not isinstance(asked.submodels, NoSubmodels),
        lambda asked: f"submodels.scheme: {asked.submodels.scheme}",
        "none",
        "submodels={scheme: disjoint, count: 2}",
    ),
    _with_local(
        "a custom app",
        lambda asked: asked.data.name == "external",
        "data: external",
        "data that fedamp reads",
        "data={name: external, clients: 60}",
        "model={name: external, local: [output]}",
    ),
    _with_local(
        "a deployment",
        lambda asked: bool(asked.federation.hosts),
        "a deployment",
        "a simulation",
        "federation.hosts=trusted",
    ),
    _with_local(
        "a cluster of several machines",
        lambda asked: asked.engine.address is not None,
        "engine.address",
        "workers of one machine",
        "engine={kind: ray, address: auto}",
    ),
)
"""In the order in which they are looked for."""
