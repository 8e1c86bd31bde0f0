"""Verification of a ledger: is every number in it at least the recomputed cost of its mechanism?

``ledger.json`` is enough. Files beside it are checked against it; no training records are read.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedamp.accounting.verify import (
    ENDED,
    TOLERANCE,
    UNCHECKED,
    Check,
    Verdict,
    ledger_checks,
    mechanism_check,
    rounds_check,
    worst,
)
from fedamp.base.numbers import power
from fedamp.base.reading import regular
from fedamp.errors import RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.plan import weakness
from fedamp.federation.scenario import Scenario
from fedamp.federation.submodels import Part
from fedamp.population.account import known_to
from fedamp.population.store import Population
from fedamp.runs.chain import altered
from fedamp.runs.folder import RunFolder
from fedamp.runs.ledger import WRITTEN_BY, differences, digest, of_auto, plan_of
from fedamp.runs.records import Bracket, LedgerRecord, RoundRecord, Summary, reports

ENDS = ("value", "lower", "upper", "people_lower", "people_upper")  # of an estimate
SHOWN = 5  # of the complaints of a check
CLAIMED = ("epsilon", "released_rounds_epsilon", "delta", "noise_multiplier", "has_known_seed", "stopped_because")


def checks_json(checks: Sequence[Check]) -> dict[str, Any]:
    """As JSON; the verdict of all checks is the worst one."""
    each = [{"name": it.name, "verdict": it.verdict, "fine": it.passed, "found": it.found} for it in checks]
    return {"verdict": worst(checks), "fine": worst(checks) == "pass", "checks": each}


def complaint(checks: Sequence[Check], verdict: Verdict = "fail") -> str | None:
    """One line about the checks with a verdict; None if no check has it."""
    return "; ".join(f"{check.name}: {check.found}" for check in checks if check.verdict == verdict) or None


def verify_ledger(path: Path, head: str | None = None) -> list[Check]:
    """Compute a ledger's numbers again, and find changes since the run: no check fails if nothing was changed.

    ``path`` is a run folder, or a ``ledger.json``; files beside it are checked against it. ``head`` is of the ledger's
    chain, as it was written down elsewhere; default: any. RunFolderError: there is no ledger, or it cannot be read.
    """
    file = RunFolder(path).ledger if path.is_dir() else path
    files = RunFolder(file.parent)
    if not file.is_file():
        merged = files.certificate.is_file()
        expected = "the runs that this model was merged from" if merged else "a run folder, or a ledger.json"
        raise RunFolderError(f"{file}: no such ledger; expected: {expected}")
    ledger = LedgerRecord.read(file)
    try:
        return list(_checks(ledger, files, head))
    except (ArithmeticError, MemoryError, RecursionError, ValueError) as error:
        raise RunFolderError(f"{file}: damaged ledger: what it says cannot be charged ({error})") from None


def _checks(ledger: LedgerRecord, files: RunFolder, head: str | None) -> Iterator[Check]:
    complaints = list(altered(files))
    if head not in (None, ledger.head):
        complaints.append(f"ledger.json: head: {ledger.head}, but {head} was written down")
    yield Check.of("chain", f"head {ledger.head}", fail=_listed(complaints))
    yield _mechanism(ledger)
    yield rounds_check(ledger.content())
    try:
        yield from ledger_checks(ledger.content(), _by_round(ledger, files))
    except ScenarioError as error:
        yield Check("releases", "fail", str(error))
    weak = weakness(ledger.delta, ledger.units)
    yield Check.of("delta", f"{power(ledger.delta)} for {ledger.units} units", caution=weak)
    if ledger.evaluation is not None:
        yield evaluation_check(ledger)
    if (told := ledger.population) is not None:
        file = reader.load(files.scenario).privacy.population if files.scenario.is_file() else None
        if file is None or not Path(file).is_file():
            yield Check("population", "caution", f"use {told.use} of population {told.id}, whose file is not here")
        else:
            yield known_to(Population(Path(file)).read(), files.path, told.content())
    yield Check("noise", "caution" if ledger.has_known_seed else "pass", ledger.rehearsal or ledger.noise_seed)
    if files.rounds.is_file() or files.summary.is_file():
        summary = Summary.read(files.summary) if files.summary.is_file() else None
        complaints = list(contradictions(ledger, summary, files.read_rounds()))
        yield Check.of("claim", "the files beside the ledger say the same", fail=_listed(complaints))
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


def evaluation_check(ledger: LedgerRecord) -> Check:
    """Whether the estimates of an evaluation follow from its noisy sums, and these have the noise that is charged."""
    asked, wrong, missing = ledger.evaluation, None, None
    assert asked is not None, "the ledger has an evaluation"
    each = [(entry.round - 1, entry.evaluated) for entry in ledger.releases if not asked.at_end and entry.evaluated]
    if asked.at_end and ledger.final_evaluation is not None:
        each = [(len(ledger.releases), ledger.final_evaluation)]
    for round_, found in each:
        again = asked.evaluated(round_, np.array(found.sums), found.deviation, found.units)
        numbers = (
            [[getattr(one, key) for key in ENDS] for one in found.estimates],
            [[getattr(one, key) for key in ENDS] for one in again.estimates],
        )
        if found.round != round_ or found.deviation < (asked.noise_multiplier or 0) or len(found.sums) != asked.cells:
            wrong = f"of the model of round {found.round}: another round, or less noise, than is charged"
        elif len(numbers[0]) != len(numbers[1]) or not np.allclose(*numbers, rtol=TOLERANCE, atol=TOLERANCE):
            wrong = f"of the model of round {found.round}: its numbers do not follow from its noisy sums"
    ended, released = ledger.stopped_because in ENDED, len(ledger.releases)
    if len(each) < (int(ended) if asked.every == "end" else released // asked.every):
        missing = f"charged, and {len(each)} released"
    said = f"{len(each)} released, with noise of multiplier {asked.noise_multiplier:g}"
    return Check.of("evaluation", said, caution=missing, fail=wrong)


def contradictions(ledger: LedgerRecord, summary: Summary | None, rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Where summary.json or rounds.jsonl contradicts the ledger's guarantee and cost: file, key, both values."""
    for key in CLAIMED if summary else ():
        value, found = getattr(summary, key), getattr(ledger, key)
        said = value.upper if isinstance(value, Bracket) else value
        if said != found:
            yield f"summary.json: {key}: {said}, but ledger.json says {found}"
    for record, entry in zip(rounds, ledger.releases, strict=False):
        # Another version, or machine, that resumed a run may have charged a little more.
        if record.epsilon_upper < entry.epsilon_upper * (1 - TOLERANCE):
            said = f"epsilon_upper: {record.epsilon_upper}, but ledger.json says {entry.epsilon_upper}"
            yield f"rounds.jsonl: round {record.round}: {said}"


def _listed(complaints: list[str]) -> str:
    more = [f"and {len(complaints) - SHOWN} more"] if len(complaints) > SHOWN else []
    return "; ".join(complaints[:SHOWN] + more)


def _mechanism(ledger: LedgerRecord) -> Check:
    found = mechanism_check(ledger.content())
    # Another version may describe the same mechanism in other words.
    if ledger.written_by == WRITTEN_BY and ledger.mechanism_in_words != found.found and found.passed:
        return Check("mechanism", "fail", f"mechanism_in_words says another one than: {found.found}")
    return found


def _by_round(ledger: LedgerRecord, files: RunFolder) -> NDArray[np.float64] | None:
    """The cost after each round by the scenario's plan, where the mechanism alone does not say it."""
    if ledger.epsilon_follows or not files.scenario.is_file():
        return None
    return plan_of(ledger, reader.load(files.scenario)).charge.epsilon_by_round


def scenario_check(ledger: LedgerRecord, file: Path, is_public: bool = False) -> Check:
    """Whether a scenario is the one that was charged; a public one lacks paths, and may lack what it is planned with.

    The number of units that people's data decide is the ledger's: no records are read.
    """
    try:
        scenario = reader.load(file)
        plan = plan_of(ledger, scenario)
        different = differences(ledger, plan, scenario, ledger.frozen_sha256)
        caution, wrong = of_auto(ledger, plan, scenario)
        if "parts" in different and scenario.privacy.clip == "auto" and _but_for_clips(ledger.parts, plan.parts):
            different.remove("parts")  # noise is relative to the clip, so no cost depends on which one is chosen
            mine, now = (", ".join(f"{part.clip:g}" for part in parts) for parts in (ledger.parts, plan.parts))
            caution = caution or f"clip: auto chose {mine}; this version chooses {now}, at the same cost"
    except (ScenarioError, ValueError) as error:
        missing = f"cannot be planned{' here' * is_public} ({error})"
        return Check("scenario", "caution" if is_public else "fail", f"{file.name} {missing}")
    passed = f"{file.name} is the one that was charged"
    if _counted(scenario) is None:
        passed += f", for {ledger.units} units as the ledger says: they are counted in the data"
    elif ledger.units != _counted(scenario):
        different.append("units")
    if is_public and "scenario_sha256" in different:
        different.remove("scenario_sha256")
        caution = caution or "its paths were left out, so its digest cannot be compared; what it charges is the same"
    wrong = f"{file.name} gives another {', '.join(different)}" if different else wrong
    return Check.of("scenario", passed, caution, wrong)


def _but_for_clips(parts: Sequence[Part], others: Sequence[Part]) -> bool:
    """Whether parts are the same, where every clip of one is the other's times one number."""
    ratio = parts[0].clip / others[0].clip
    return len(parts) == len(others) and all(
        replace(part, clip=other.clip) == other and math.isclose(part.clip, other.clip * ratio, rel_tol=1e-9)
        for part, other in zip(parts, others, strict=True)
    )


def _counted(scenario: Scenario) -> int | None:
    """The number of units that a scenario itself says."""
    found = getattr(scenario.data, "clients", None)
    return found if isinstance(found, int) and scenario.privacy.unit == "client" else None


def model_check(ledger: LedgerRecord, files: RunFolder) -> Check:
    """Whether ``model.safetensors`` is the model of the last release."""
    name, releases = files.model.name, ledger.releases
    try:
        found = digest(load_file(regular(files.model)))
    except (OSError, SafetensorError) as error:
        return Check("model", "fail", f"{name} cannot be read ({' '.join(str(error).split())})")
    rounds = [entry.round for entry in releases if entry.digest == found]
    if releases and releases[-1].digest == found:
        return Check("model", "pass", f"{name} is the one of round {len(releases)}")
    if rounds and ledger.stopped_because not in ENDED:
        return Check("model", "caution", f"{name} is the one of round {rounds[-1]} of {len(releases)}")
    return Check("model", "fail", f"{name} is not the one that the last release names")
