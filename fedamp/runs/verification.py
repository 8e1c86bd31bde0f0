"""Verify a ledger: every number in it must be at least the recomputed cost of its mechanism.

``ledger.json`` is enough. Files beside it are checked against it; no training records are read. What needs no packages
of training is in :mod:`fedamp.accounting.verify`, which also checks released bundles. This module adds the checks that
need a plan: scenario, parts, evaluation, summary. ``fedamp verify`` and ``Run.verify`` call it.
"""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedamp.accounting import Bounds
from fedamp.accounting.bounds import Method, Origin
from fedamp.accounting.verify import (
    ENDED,
    FILES,
    TOLERANCE,
    UNCHECKED,
    Bundle,
    Check,
    SideSumKeys,
    Verdict,
    compare_bracket,
    ledger_checks,
    ledger_keys,
    mechanism_check,
    rounds_check,
    side_sums,
    verify_bundle,
    worst_verdict,
)
from fedamp.base.numbers import power
from fedamp.base.reading import regular
from fedamp.errors import RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.contracts import charged_openly, told_schemes, without_tests
from fedamp.federation.plan import Plan, weak_delta
from fedamp.federation.scenario import Scenario
from fedamp.federation.side_sums import SideSum
from fedamp.federation.submodels import Part
from fedamp.models.custom import is_import_path
from fedamp.runs.chain import altered
from fedamp.runs.folder import RunFolder, reader_of
from fedamp.runs.ledger import WRITTEN_BY, assumptions, differences, digest, of_auto, plan_of
from fedamp.runs.records import (
    EVALUATED,
    EVALUATED_BY_APP,
    NOT_EVALUATED,
    Bracket,
    LedgerRecord,
    RoundRecord,
    Summary,
    last_quality,
    reports,
)

SHOWN = 5  # of the complaints of a check
CLAIMED = (
    *("epsilon", "released_rounds_epsilon", "epsilon_server", "epsilon_nodes", "delta", "noise_multiplier"),
    *("has_known_seed", "rehearsal", "unchecked", "stopped_because"),
)


def checks_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Write checks as JSON; the verdict of all checks is the worst one."""
    each = [{"name": it.name, "verdict": it.verdict, "fine": it.passed, "found": it.found} for it in checks]
    return {"verdict": worst_verdict(checks), "fine": worst_verdict(checks) == "pass", "checks": each}


def complaint(checks: Sequence[Check], verdict: Verdict = "fail") -> str | None:
    """Write one line about the checks with a verdict; None if no check has it."""
    return "; ".join(f"{check.name}: {check.found}" for check in checks if check.verdict == verdict) or None


def verify_ledger(path: Path, head: str | None = None) -> list[Check]:
    """Compute a ledger's numbers again, and find changes since the run: no check fails if nothing was changed.

    Args:
        path: a run folder, or a ``ledger.json``; files beside it are checked against it.
        head: of the ledger's chain, as it was written down elsewhere; default: any.

    Returns:
        Checks with a verdict each; a changed file or a number that is too small is a failure, not an exception.

    Raises:
        RunFolderError: there is no ledger, or it cannot be read.
    """
    file = RunFolder(path).ledger if path.is_dir() else path
    files = RunFolder(file.parent)
    if not file.is_file():
        other = reader_of(file.parent)
        expected = other.verified_by if other else "a run folder, or a ledger.json"
        raise RunFolderError(f"{file}: no such ledger; expected: {expected}")
    ledger = LedgerRecord.read(file)
    try:
        return list(_checks_of(ledger, files, head))
    except (ArithmeticError, MemoryError, RecursionError, ValueError) as error:
        raise RunFolderError(f"{file}: damaged ledger: its mechanism cannot be charged ({error})") from None


def verify_release(path: Path, public_key: str | None = None, head: str | None = None) -> list[Check]:
    """Check a released bundle as :func:`fedamp.accounting.verify.verify_bundle`, the model's numbers, and the plan.

    Args:
        path: a folder or a zip.
        public_key: of the server, received through a trusted channel; default: the bundle's own, with a caution.
        head: of the ledger's chain, as it was written down elsewhere; default: any.

    Raises:
        RunFolderError: there is no bundle.
    """
    try:
        checks = verify_bundle(path, public_key)
    except ValueError as error:
        raise RunFolderError(str(error)) from None
    if worst_verdict(checks) == "fail":
        return checks
    with TemporaryDirectory() as folder, Bundle(path) as bundle:
        for name in FILES:
            with bundle.open_stream(name) as stream, (Path(folder) / name).open("wb") as copied:
                shutil.copyfileobj(stream, copied)
        files = RunFolder(Path(folder))
        ledger = LedgerRecord.read(files.ledger)
        if head not in (None, ledger.head):
            checks.append(Check("head", "fail", f"{ledger.head}, but {head} was written down"))
        scenario = scenario_check(ledger, Path(folder) / FILES[2], is_public=True)
        return [*checks, *side_sum_checks(ledger), scenario, model_check(ledger, files)]


def _checks_of(ledger: LedgerRecord, files: RunFolder, head: str | None) -> Iterator[Check]:
    """Yield the checks of a ledger in the order in which they are shown."""
    complaints = list(altered(files))
    if head not in (None, ledger.head):
        complaints.append(f"ledger.json: head: {ledger.head}, but {head} was written down")
    yield Check.of_failure("chain", f"head {ledger.head}", fail=_complaints_in_words(complaints))
    yield _check_mechanism(ledger)
    yield rounds_check(ledger.content())
    plan = None
    if files.scenario.is_file():
        with suppress(ScenarioError, ValueError):  # which the check of the scenario tells
            scenario = reader.load(files.scenario)
            if ledger.units == (_counted_units(scenario) or ledger.units):
                planned = plan_of(ledger, scenario)
                plan = planned if planned.charge.mechanism else None  # or ValueError: it cannot be charged
    try:
        by_round = plan.charge.epsilon_by_round if plan and not ledger.epsilon_follows else None
        yield from ledger_checks(ledger.content(), by_round)
    except ScenarioError as error:
        yield Check("releases", "fail", str(error))
    weak = weak_delta(ledger.delta, ledger.units)
    yield Check.of_failure("delta", f"{power(ledger.delta)} for {ledger.units} units", caution=weak)
    yield from side_sum_checks(ledger, plan)
    for name, key in ledger_keys().items():
        if (told := ledger.content().get(name)) is not None:
            yield key.check_run(told, files.path, plan and plan.scenario)
    if files.rounds.is_file() or files.summary.is_file():
        summary = Summary.read(files.summary) if files.summary.is_file() else None
        complaints = list(contradictions(ledger, summary, files.read_rounds()))
        further = list(_check_summary(ledger, summary, files, plan)) if summary else []
        complaints += [check.found for check in further if check.verdict == "fail"]
        caution = complaint(further, "caution")
        yield Check.of_failure(
            "claim", "the files beside the ledger say the same", caution, _complaints_in_words(complaints)
        )
    if files.rounds.is_file():
        # Units that did not report cost accuracy, not privacy: the noise is the same.
        scheduled, reported, failed = reports(files.read_rounds())
        found = f"{reported:,} of {scheduled:,} scheduled units ({reported / max(scheduled, 1):.1%})"
        found += f"; {failed:,} failed and count as zero" * (failed > 0)
        yield Check("reported", "caution" if reported < scheduled or failed else "pass", found)
    if files.scenario.is_file():
        yield scenario_check(ledger, files.scenario)
    else:
        yield Check("scenario", "caution", f"{files.scenario.name} is not here: {UNCHECKED} were not checked")
    if files.model.is_file():
        yield model_check(ledger, files)
    elif files.model.name in (ledger.files or ()):
        yield Check("model", "caution", f"{files.model.name} is not here, and was not compared with the last release")


def side_sum_checks(ledger: LedgerRecord, plan: Plan | None = None) -> Iterator[Check]:
    """Check that released side sums have the charged noise, and that what is said of them follows from them.

    Args:
        ledger: of the run.
        plan: of the run, where its scenario is here: it gives the expected number of units.
    """
    for key, side in side_sums().items():
        if (asked := getattr(ledger, key)) is not None:
            yield _side_sum_check(ledger, asked, side, plan)


def _side_sum_check(ledger: LedgerRecord, asked: SideSum, side: SideSumKeys, plan: Plan | None) -> Check:
    """Check the releases of one side sum: their round, noise and units, and what is said of them."""
    wrong, missing = None, None
    each = [(entry.round - 1, getattr(entry, side.in_round)) for entry in ledger.releases]
    if asked.at_end:
        each = [(len(ledger.releases), getattr(ledger, side.at_end))]
    released = [(round_, found) for round_, found in each if found is not None]
    for round_, found in released:
        again = asked.released(round_, np.array(found.sums), found.deviation, found.units)
        least, units = asked.noise_multiplier or 0.0, ledger.units if asked.at_end else plan and plan.expected_cohort
        exact = ledger.server_mechanism is not None or found.deviation == least  # the server adds exactly that
        asked_for = (found.round, found.units, len(found.sums)) == (round_, units or found.units, asked.number_of_cells)
        if not (asked_for and exact) or found.deviation < least:
            wrong = f"of the model of round {found.round}: another round, other units, or less noise, than is charged"
        elif not found.agrees(again, TOLERANCE):
            wrong = f"of the model of round {found.round}: its numbers do not follow from its noisy sums"
    due = int(ledger.stopped_because in ENDED) if asked.every == "end" else len(ledger.releases) // asked.every
    if len(released) < due:
        missing = f"charged, and {len(released)} released"
    said = f"{len(released)} released, with noise of multiplier {asked.noise_multiplier:g}"
    return Check.of_failure(asked.key, said, caution=missing, fail=wrong)


def contradictions(ledger: LedgerRecord, summary: Summary | None, rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Find where summary.json or rounds.jsonl contradicts the ledger, or one the other: file, key, both values.

    Args:
        ledger: what counts.
        summary: None: there is none.
        rounds: the lines of ``rounds.jsonl``.
    """
    sides = {each.in_round: each for each in side_sums().values()}
    wanted: dict[str, tuple[str, Any]] = {key: ("ledger.json", getattr(ledger, key)) for key in CLAIMED}
    wanted |= {key: ("ledger.json", ledger.last_of(side)) for key, side in sides.items()}
    of_rounds: dict[str, Any] = {"rounds_completed": len(rounds), "final": last_quality(rounds)}
    of_rounds["wall_seconds"] = sum(record.seconds for record in rounds)
    counts = ("clients_scheduled", "clients_trained", "clients_failed")
    of_rounds |= dict(zip(counts, reports(rounds), strict=True))
    wanted |= {"name": ("ledger.json", ledger.scenario)} | {key: ("rounds.jsonl", it) for key, it in of_rounds.items()}
    for key, (file, found) in wanted.items() if summary else ():
        value = getattr(summary, key)
        said = value.upper if isinstance(value, Bracket) and not isinstance(found, Bracket) else value
        if said != found:
            yield f"summary.json: {key}: {said}, but {file} says {found}"
    for record, entry in zip(rounds, ledger.releases, strict=False):
        for key in ("round", "epsilon_upper", *sides):
            said, found = getattr(record, key), getattr(entry, key)
            # Another version, or machine, that resumed a run may have charged a little more.
            if said != found and not (key == "epsilon_upper" and math.isclose(said, found, rel_tol=TOLERANCE)):
                yield f"rounds.jsonl: round {entry.round}: {key}: {said}, but ledger.json says {found}"
    measured = [record.loss is not None for record in rounds]
    if any(measured) > ledger.is_evaluated or (ledger.stopped_because in ENDED and any(measured) < ledger.is_evaluated):
        yield f"rounds.jsonl: {sum(measured)} models are evaluated, but ledger.json says: {ledger.assumptions}"


def _check_summary(ledger: LedgerRecord, summary: Summary, files: RunFolder, plan: Plan | None) -> Iterator[Check]:
    """Check what the summary says that no other file has, and the accountant tells."""
    if any(not 0 <= record.accuracy <= 1 for record in files.read_rounds() if record.accuracy is not None):
        yield Check("claim", "caution", f"{files.rounds.name}: accuracy: not a share of the records")
    costs: dict[str, Bounds] = {}
    if plan is not None:
        costs["unamplified_epsilon"] = plan.charge.unamplified_epsilon
        rounds, nothing = min(len(ledger.releases), plan.last_round), Bounds(0.0, 0.0, Origin(Method.NOTHING))
        costs["epsilon"] = plan.charge.guaranteed_epsilon if ledger.has_left else nothing
        costs["released_rounds_epsilon"] = plan.charge.spent_epsilon(rounds) if ledger.has_left else nothing
    for key, cost in costs.items():
        by_another = ledger.written_by != WRITTEN_BY
        yield compare_bracket("claim", f"summary.json: {key}", getattr(summary, key).content(), cost, by_another)


def _complaints_in_words(complaints: list[str]) -> str:
    """Join the first few complaints into one line; None or empty: there are none."""
    more = [f"and {len(complaints) - SHOWN} more"] if len(complaints) > SHOWN else []
    return "; ".join(complaints[:SHOWN] + more)


def _check_mechanism(ledger: LedgerRecord) -> Check:
    """Check the expression, and the words that describe it."""
    found, told = mechanism_check(ledger.content()), ledger.mechanism_in_words
    if told == found.found or not found.passed:
        return found
    if ledger.written_by == WRITTEN_BY:
        return Check("mechanism", "fail", f"mechanism_in_words says another one than: {found.found}")
    return Check("mechanism", "caution", f"{found.found}; {ledger.written_by} says: {told}")


def scenario_check(ledger: LedgerRecord, file: Path, is_public: bool = False) -> Check:
    """Check that a scenario is the one that was charged.

    The number of units that people's data decide is the ledger's: no records are read.

    Args:
        ledger: of the run.
        file: the scenario.
        is_public: whether paths were left out of it, and perhaps what it is planned with.
    """
    try:
        scenario = reader.load(file)
        if ledger.units != (_counted_units(scenario) or ledger.units):  # no plan is made for that many
            return Check("scenario", "fail", f"{file.name} gives another units")
        plan = plan_of(ledger, scenario)
        different = differences(ledger, plan, scenario, ledger.frozen_sha256)
        caution, wrong = of_auto(ledger, plan, scenario)
        if "parts" in different and scenario.privacy.clip == "auto" and _but_for_clips(ledger.parts, plan.parts):
            different.remove("parts")  # noise is relative to the clip, so no cost depends on which one is chosen
            mine, now = (", ".join(f"{part.clip:g}" for part in parts) for parts in (ledger.parts, plan.parts))
            caution = caution or f"clip: auto chose {mine}; this version chooses {now}, at the same cost"
    except (ScenarioError, ValueError) as error:
        missing = f"cannot be planned{' here' * is_public} ({error})"
        if theirs := told_schemes(ledger.assumptions):  # perhaps their package is not here
            missing += f"; the ledger says: {'; '.join(theirs)}"
        return Check("scenario", "caution" if is_public else "fail", f"{file.name} {missing}")
    said = next((each for each in (EVALUATED, EVALUATED_BY_APP) if each in ledger.assumptions), NOT_EVALUATED)
    same = without_tests(ledger.assumptions) == without_tests(assumptions(plan, said))
    if not same or (said == EVALUATED_BY_APP) != (scenario.data.name == "external"):
        different += ["assumptions"] * (ledger.written_by == WRITTEN_BY)
        caution = caution or f"assumptions of {ledger.written_by}: {' '.join(ledger.assumptions)}"
    keys = {} if is_public else ledger_keys()
    other = [name for name, key in keys.items() if key.is_asked(scenario) == (getattr(ledger, name) is None)]
    different += [name for name in other if name not in different]
    if ledger.has_known_seed and ledger.run not in (None, plan.run_digest):  # a secret seed is not here
        different.append("run")
    if (ledger.frozen_sha256 is None) == is_import_path(scenario.model.name):
        different.append("frozen_sha256")
    passed = f"{file.name} is the one that was charged"
    if _counted_units(scenario) is None:
        passed += f", for {ledger.units} units as the ledger says: they are counted in the data"
    if is_public and "scenario_sha256" in different:
        different.remove("scenario_sha256")
        caution = caution or "its paths were left out, so its digest cannot be compared; the charge is the same"
    if different:
        openly = charged_openly(scenario) if "mechanism" in different else []
        wrong = "; ".join([f"{file.name} gives another {', '.join(different)}", *openly])
    return Check.of_failure("scenario", passed, caution, wrong)


def _but_for_clips(parts: Sequence[Part], others: Sequence[Part]) -> bool:
    """Say whether parts are the same, where every clip of one is the other's times one number."""
    ratio = parts[0].clip / others[0].clip
    return len(parts) == len(others) and all(
        replace(part, clip=other.clip) == other and math.isclose(part.clip, other.clip * ratio, rel_tol=1e-9)
        for part, other in zip(parts, others, strict=True)
    )


def _counted_units(scenario: Scenario) -> int | None:
    """Return the number of units that a scenario itself says; None: they are counted in the data."""
    found = getattr(scenario.data, "clients", None)
    return found if isinstance(found, int) and scenario.privacy.unit == "client" else None


def model_check(ledger: LedgerRecord, files: RunFolder) -> Check:
    """Check that ``model.safetensors`` is the model of the last release."""
    name, releases = files.model.name, ledger.releases
    try:
        model = load_file(regular(files.model))
        found, size = digest(model), sum(array.size for array in model.values())
    except (OSError, SafetensorError) as error:
        return Check("model", "fail", f"{name} cannot be read ({' '.join(str(error).split())})")
    if files.summary.is_file() and (told := Summary.read(files.summary).parameters) != size:
        return Check("model", "fail", f"summary.json: parameters: {told}, but {name} has {size}")
    rounds = [entry.round for entry in releases if entry.digest == found]
    if releases and releases[-1].digest == found:
        return Check("model", "pass", f"{name} is the one of round {len(releases)}")
    if rounds and ledger.stopped_because not in ENDED:
        return Check("model", "caution", f"{name} is the one of round {rounds[-1]} of {len(releases)}")
    return Check("model", "fail", f"{name} is not the one that the last release names")
