"""Each combination of a key that needs a fact and one that breaks it is refused, and the page lists all facts."""

import re

import pytest

from fedamp.accounting import Gaussian
from fedamp.errors import ScenarioError
from fedamp.extension import keys, offered
from fedamp.federation import facts, refusals
from fedamp.federation.choices import FAMILIES, scheme_of, schemes_of
from fedamp.federation.facts import ScenarioFact
from fedamp.federation.first_releases import first_releases
from fedamp.federation.optional import OptionalSection, check_charged
from tests.documentation import ROOT
from tests.federations import small

PAGE = ROOT / "docs" / "matrix.md"
START, END = "<!-- facts -->\n", "<!-- end of facts -->\n"

BANDED = "privacy.noise={scheme: banded, bands: 2}"
SPACED = "check_in={scheme: spaced, k: 2, gap: 2}"
SECURE = "aggregation={scheme: secure}"
MIXING = "mixing={width: 0.1}"
REHEARSAL = ("privacy={clip: 0.1, noise_multiplier: 1, noise_cohort: 900}", "known_seed=true")
CANARIES = "privacy={clip: 0.1, noise_multiplier: 1, canaries: 9}"
EXTERNAL = ("data={name: external, clients: 60}", "model={name: external}")
SCAFFOLD = "client.scaffold=true"
LOCAL = "model={name: mlp, local: [output]}"
MEANS = "data.transform=[{name: standardise, mean: private, range: [0, 1], noise_multiplier: 20}]"


def evaluated(more: str = "") -> str:
    return f"evaluation={{on: clients, noise_multiplier: 20{more}}}"


ASKED = (
    "questions={ask: {all: {ask: count}}}",
    *("rounds=1", "check_in={scheme: all}", "server={}", "privacy={clip: 1, noise_multiplier: 1}"),
    'model={name: "statistics:answers", options: {cells: 1}}',
)


BROKEN: list[tuple[ScenarioFact, str, str, tuple[str, ...]]] = [
    # the fact, the key that needs it, the key that breaks it, and a scenario with both
    (
        facts.RECORDS_DEALT,
        "data.clients",
        "data.partition",
        ("data={name: npz, path: ., clients: 60, partition: {scheme: natural}}",),
    ),
    (
        facts.RECORDS_HAVE_CLIENTS,
        "privacy.unit",
        "data.clients",
        ("data={name: npz, path: ., partition: {scheme: iid}}",),
    ),
    (facts.TRAINED_HERE, "model.name", "data.name", (EXTERNAL[0], "model={name: logistic}")),
    (facts.WHOLE_MODEL, "data.name", "submodels", (*EXTERNAL, "submodels={scheme: disjoint, count: 2}")),
    (facts.UNIT_IS_CLIENT, "data.name", "privacy.unit", (*EXTERNAL, "privacy.unit=sample", "client={}")),
    (facts.TRAINED_HERE, "client.max_records", "data.name", (*EXTERNAL, "client.max_records=9")),
    (facts.TRAINED_HERE, "aggregation", "data.name", (*EXTERNAL, SECURE)),
    (facts.ONE_GRADIENT, "privacy.unit", "client.steps", ("privacy.unit=sample", "client={steps: 2}")),
    (facts.ONE_GRADIENT, "privacy.unit", "client.epochs", ("privacy.unit=sample", "client={epochs: 1}")),
    (facts.NOISE_HAS_BANDS, "check_in.gap", "privacy.noise", ("check_in={scheme: spaced, k: 2}",)),
    (facts.NOISE_HAS_BANDS, "check_in.classes", "privacy.noise", ("check_in={scheme: classes, k: 2}",)),
    (facts.ROUNDS_APART, "privacy.noise", "check_in", ("check_in={scheme: balanced, k: 2}", BANDED)),
    (
        facts.NOISE_HAS_BANDS,
        "check_in.gap",
        "privacy.noise",
        (SPACED, "privacy.noise={scheme: buffered}", "check_in.gap=auto"),
    ),
    (
        facts.ANY_ROUNDS_APART,
        "privacy.noise",
        "check_in",
        ("check_in={scheme: classes, k: 2, classes: 2}", "privacy.noise={scheme: buffered}"),
    ),
    (facts.ROUNDS_APART, "privacy.noise", "check_in", ("privacy.noise={scheme: buffered}",)),
    (facts.NOISE_INDEPENDENT, "mixing", "privacy.noise", (SPACED, BANDED, MIXING)),
    (facts.CLIP_FIXED, "privacy.noise", "privacy.clip", (SPACED, BANDED, "privacy.clip={initial: 0.1}")),
    (facts.GROUPS_CHARGED, "privacy.group_size", "check_in", (SPACED, "privacy.group_size=2")),
    (facts.NOISE_ADDED, "privacy.noise", "privacy.noise_multiplier", (SPACED, BANDED, "privacy.noise_multiplier=0")),
    (
        facts.NOISE_FOLLOWS,
        "check_in.gap",
        "privacy.noise_multiplier",
        ("check_in={scheme: spaced, k: 2}", "privacy.noise={scheme: banded}"),
    ),
    (
        facts.NOISE_FOLLOWS,
        "check_in.classes",
        "privacy.noise_multiplier",
        ("check_in={scheme: classes, k: 2}", "privacy.noise={scheme: banded}"),
    ),
    (facts.NOISE_INDEPENDENT, "aggregation", "privacy.noise", (SECURE, SPACED, BANDED)),
    (facts.SERVER_ADDS_NOISE, "mixing", "aggregation", (SECURE, MIXING)),
    (facts.ONE_NODE_EACH, "aggregation", "federation.hosts", (SECURE, "federation.hosts=trusted")),
    (facts.SUM_OF_ALL, "check_in.drawn_by", "aggregation", ("check_in={scheme: balanced, k: 3, drawn_by: node}",)),
    (
        facts.UNITS_INDEPENDENT,
        "check_in.drawn_by",
        "check_in",
        ("check_in={scheme: batches, size: 3, drawn_by: node}", SECURE),
    ),
    (
        facts.CLIPS_APART,
        "submodels.shared_clip",
        "privacy.clip",
        ("submodels={scheme: disjoint, count: 2, shared_clip: 0.2}", "privacy.clip=auto"),
    ),
    (facts.SEED_PUBLIC, "privacy.noise_cohort", "known_seed", (REHEARSAL[0], "known_seed=false")),
    (facts.SERVER_ADDS_NOISE, "privacy.noise_cohort", "aggregation", (*REHEARSAL, SECURE)),
    (facts.NOISE_ALONE, "privacy.noise_cohort", "mixing", (*REHEARSAL, MIXING)),
    (facts.NOISE_INDEPENDENT, "privacy.noise_cohort", "privacy.noise", (*REHEARSAL, SPACED, BANDED)),
    (facts.SIMULATED, "privacy.noise_cohort", "federation.hosts", (*REHEARSAL, "federation.hosts=trusted")),
    (facts.NOBODY_PAYS, "privacy.noise_cohort", "privacy.population", (*REHEARSAL, "privacy.population=people")),
    (facts.ROUNDS_ALONE, "privacy.noise_cohort", "evaluation", (*REHEARSAL, evaluated())),
    (facts.ROUNDS_ALONE, "privacy.noise_cohort", "data.transform", (*REHEARSAL, MEANS)),
    (facts.SERVER_ADDS_NOISE, "data.transform", "aggregation", (MEANS, SECURE)),
    (facts.SERVER_ADDS_NOISE, "privacy.canaries", "aggregation", (CANARIES, SECURE)),
    (facts.SIMULATED, "privacy.canaries", "federation.hosts", (CANARIES, "federation.hosts=trusted")),
    (facts.TRAINED_HERE, "privacy.canaries", "data.name", (CANARIES, *EXTERNAL)),
    (facts.WHOLE_MODEL, "privacy.canaries", "submodels", (CANARIES, "submodels={scheme: disjoint, count: 2}")),
    (facts.NOISE_ALONE, "privacy.canaries", "mixing", (CANARIES, MIXING)),
    (facts.CLIP_FIXED, "privacy.canaries", "privacy.clip", (CANARIES, "privacy.clip={initial: 0.1}")),
    (facts.NOISE_ADDED, "privacy.canaries", "privacy.noise_multiplier", (CANARIES, "privacy.noise_multiplier=0")),
    (facts.OWN_NOISE, "privacy.canaries", "privacy.noise_cohort", (*REHEARSAL, "privacy.canaries=9")),
    (facts.MODEL_ALONE, "privacy.canaries", "evaluation.every", (CANARIES, evaluated(", every: 1"))),
    (facts.UNITS_INDEPENDENT, "privacy.canaries", "check_in", (CANARIES, "check_in={scheme: batches, size: 3}")),
    (facts.UNITS_ALIKE, "privacy.canaries", "check_in", (CANARIES, "check_in={scheme: classes, k: 2, classes: 2}")),
    (facts.GLOBAL_MODEL, "privacy.canaries", "model.local", (CANARIES, LOCAL)),
    (facts.LINEAR_STEP, "privacy.canaries", "server.optimizer", (CANARIES, "server.optimizer=adam")),
    (facts.SHOWN_ONCE, "mixing", "server.momentum", (MIXING, "server={momentum: 0.5}")),
    (facts.SHOWN_ONCE, "mixing", "server.optimizer", (MIXING, "server={optimizer: adam}")),
    (facts.CLIP_FIXED, "mixing", "privacy.clip", (MIXING, "privacy.clip={initial: 0.1}")),
    (facts.UNIT_IS_CLIENT, "questions", "privacy.unit", (*ASKED, "privacy.unit=sample", "client={}")),
    (facts.TRAINED_HERE, "questions", "data.name", (*ASKED, EXTERNAL[0])),
    (facts.GLOBAL_MODEL, "questions", "model.local", (*ASKED, "model.local=[answers]")),
    (facts.WHOLE_MODEL, "questions", "submodels", (*ASKED, "submodels={scheme: disjoint, count: 2}")),
    (facts.UNIT_IS_CLIENT, "evaluation", "privacy.unit", (evaluated(), "privacy.unit=sample", "client={}")),
    (facts.TRAINED_HERE, "evaluation", "data.name", (evaluated(), *EXTERNAL)),
    (facts.GLOBAL_MODEL, "evaluation", "model.local", (evaluated(), LOCAL)),
    (facts.MODEL_ALONE, "privacy.noise", "evaluation.every", (evaluated(", every: 1"), SPACED, BANDED)),
    (facts.MODEL_ALONE, "mixing", "evaluation.every", (evaluated(", every: 1"), MIXING)),
    (
        facts.SCORED,
        "evaluation.metrics",
        "client.loss",
        (evaluated(), "data={name: diabetes, clients: 60}", "client={loss: mean-squared-error}"),
    ),
    (
        facts.CLASS_SHARES,
        "evaluation.metrics",
        "client.loss",
        (evaluated(", metrics: [calibration]"), "client={loss: binary-cross-entropy}"),
    ),
    (facts.UNIT_IS_CLIENT, "model.local", "privacy.unit", (LOCAL, "privacy.unit=sample", "client={}")),
    (facts.WHOLE_MODEL, "model.local", "submodels", (LOCAL, "submodels={scheme: disjoint, count: 2}")),
    (facts.TRAINED_HERE, "model.local", "data.name", (EXTERNAL[0], "model={name: external, local: [output]}")),
    (facts.SIMULATED, "model.local", "federation.hosts", (LOCAL, "federation.hosts=trusted")),
    (facts.ONE_MACHINE, "model.local", "engine.address", (LOCAL, "engine={kind: ray, address: auto}")),
    (facts.UNIT_IS_CLIENT, "client.scaffold", "privacy.unit", ("client={scaffold: true}", "privacy.unit=sample")),
    (facts.WHOLE_MODEL, "client.scaffold", "submodels", (SCAFFOLD, "submodels={scheme: disjoint, count: 2}")),
    (facts.GLOBAL_MODEL, "client.scaffold", "model.local", (SCAFFOLD, LOCAL)),
    (facts.TRAINED_HERE, "client.scaffold", "data.name", (SCAFFOLD, *EXTERNAL)),
    (facts.SIMULATED, "client.scaffold", "federation.hosts", (SCAFFOLD, "federation.hosts=trusted")),
    (facts.ONE_MACHINE, "client.scaffold", "engine.address", (SCAFFOLD, "engine={kind: ray, address: auto}")),
    (facts.SERVER_ADDS_NOISE, "client.scaffold", "aggregation", (SCAFFOLD, SECURE)),
    (facts.NOISE_INDEPENDENT, "client.scaffold", "privacy.noise", (SCAFFOLD, SPACED, BANDED)),
    (facts.SHOWN_ONCE, "mixing", "client.scaffold", (SCAFFOLD, MIXING)),
]

UNFIT = {
    # numbers that do not fit each other
    "more bands than the gap": (SPACED, "privacy.noise={scheme: banded, bands: 3}"),
    "other nodes than hosts": ("aggregation={scheme: secure, nodes: 5}", "federation.hosts={a: 0-29, b: 30-59}"),
    "a width after the last round": ("mixing={width: [[1, 0.1], [9, 0.2]]}",),
    "fewer rounds than between evaluations": (evaluated(", every: 9"),),
}


def said(example: tuple[str, ...]) -> str:
    """The error of the reader for the small federation with these keys."""
    with pytest.raises(ScenarioError) as caught:
        small("server.momentum=0", *example)
    return str(caught.value).removeprefix("small: ")


@pytest.mark.parametrize(("fact", "needing", "breaking", "example"), BROKEN, ids=lambda each: str(each)[:60])
def test_a_key_that_breaks_what_another_needs_is_refused(fact, needing, breaking, example):
    line = said(example)
    assert re.fullmatch(
        rf"{needing}[^ ]*( \S+)? needs a fact that {breaking}[^ ]*( \S+)? breaks: {re.escape(fact.sentence)}; "
        rf"expected: {breaking}[^ ]* .+, or {needing}[^ ]* .+",
        line,
    ), line


@pytest.mark.parametrize("example", UNFIT.values(), ids=UNFIT)
def test_numbers_that_do_not_fit_are_refused(example):
    assert " needs a fact " not in said(example)


def test_every_fact_is_needed_and_broken_by_some_key_and_has_an_example():
    assert keys_by_fact().keys() == facts.FACTS == {fact for fact, *_ in BROKEN}
    assert all(needing and breaking for needing, breaking in keys_by_fact().values())


def test_every_key_that_needs_or_breaks_a_fact_has_an_example():
    for fact, sides in keys_by_fact().items():
        for place, listed in enumerate(sides):
            shown = {example[1 + place] for example in BROKEN if example[0] == fact}
            if fact == facts.MODEL_ALONE:  # each key that needs it also needs a fixed norm, which is told first
                shown.add("privacy.clip")
            assert {key.partition(" ")[0] for key in listed} <= shown, fact


def test_what_a_plug_in_does_not_declare_it_breaks():
    class Unknown(facts.Declared):
        """A section of somebody else."""

    scenario = small("server.momentum=0", MIXING)
    for fact in facts.FACTS:
        broken = [key for key, _ in refusals._keys_breaking(scenario, {"unknown": Unknown()}, fact)]
        assert broken[0] == "unknown"


def test_a_section_that_may_release_something_and_charges_nothing_is_refused():
    class Silent(OptionalSection):
        """It declares nothing."""

    class Harmless(OptionalSection):
        """It releases nothing, and hides nothing."""

        keeps = facts.FACTS

    class Paying(OptionalSection):
        """It releases something beside the rounds, and pays."""

        keeps = facts.FACTS - {facts.ROUNDS_ALONE}

        def releases_beside(self, plan):
            return (Gaussian(1.0),)

    for kept in (Harmless(), Paying(), facts.Stance(keeps=facts.FACTS)):
        check_charged("key", kept)
    for refused in (Silent(), facts.Stance(), facts.Stance(keeps=Paying.keeps)):
        with pytest.raises(ValueError, match=r"^key may release something, .* and charges nothing; expected: "):
            check_charged("key", refused)


def keys_by_fact() -> dict[ScenarioFact, tuple[list[str], list[str]]]:
    """List the keys that need each fact, and those that break it, for the table in docs/matrix.md.

    Returns:
        By fact, in order of its sentence: the paths that need it, and the paths that break it.
    """
    found: dict[ScenarioFact, tuple[list[str], list[str]]] = {}

    def add_key(place: int, fact: ScenarioFact, key: str) -> None:
        keys_ = found.setdefault(fact, ([], []))[place]
        keys_ += [key] if key not in keys_ else []

    for place, claims in enumerate((refusals.NEEDS, refusals.BREAKS)):
        for claim in claims:
            add_key(place, claim.fact, claim.key)
    kinds = [(path, f"{path} {scheme_of(each)}", each) for path in FAMILIES for each in schemes_of(path)]
    for path in keys("sections"):
        (kind,) = offered("sections", path)
        kinds += [(path, path, each) for each in refusals.stated_stances(kind)]
    kinds += [(kind.path, kind.path, kind) for kind in first_releases().values()]
    for path, name, kind in kinds:
        for place, claims in enumerate((kind.needs, kind.breaks)):
            for claim in claims:
                add_key(place, claim.fact, f"{path}.{claim.key}" if claim.key else name)
        claimed = [claim.fact for claim in kind.breaks]
        for fact in facts.FACTS if kind.concerns is None else kind.concerns:
            if fact not in kind.keeps and fact not in claimed:
                add_key(1, fact, name)
    return {fact: found[fact] for fact in sorted(found, key=lambda each: each.sentence)}


def table() -> str:
    def said(keys: list[str]) -> str:
        return ", ".join(f"`{key}`" for key in keys)

    rows = [
        f"| {fact.sentence} | {said(needing)} | {said(breaking)} |\n"
        for fact, (needing, breaking) in keys_by_fact().items()
    ]
    return "| fact | needed by | broken by |\n| --- | --- | --- |\n" + "".join(rows)


def test_the_page_lists_them_all():
    """To write it again: python -m tests.federation.test_refusals"""
    assert table() in PAGE.read_text()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + table() + END + rest.partition(END)[2])
