"""An auditor's look at a ledger: is every number in it at least what its own mechanism costs, computed again?

It needs ``ledger.json`` alone. What lies beside it is checked against it; no records are read.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedamp.accounting import epsilon_over_rounds
from fedamp.base.numbers import at_most, power
from fedamp.errors import RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.plan import Plan, make_plan, weakness
from fedamp.noise.gaussian import delta_left
from fedamp.runs.chain import altered
from fedamp.runs.checks import Check
from fedamp.runs.folder import RunFolder
from fedamp.runs.ledger import WRITTEN_BY, differences, digest, planned
from fedamp.runs.records import LedgerRecord, Summary, reports
from fedamp.runs.run import TOLERANCE, contradictions

SHOWN = 5  # of what was altered

# What follows from the scenario alone. The number of units is taken from the ledger, because the records are not here.
_FROM_SCENARIO = {
    *("scenario_sha256", "scenario", "unit", "group_size", "adjacency", "delta", "budget_epsilon"),
    *("amplification_charged", "parts", "rounds_planned", "mechanism"),
}


def verify_ledger(path: Path, head: str | None = None) -> list[Check]:
    """Compute a ledger's numbers again, and see whether anything was altered since the run wrote it down.

    Args:
        path: a run folder, or a ``ledger.json``; what lies beside it is checked against it.
        head: of the ledger's chain, as it was written down elsewhere; left out: any will do.

    Returns:
        What was looked at; nothing of it is wrong where nothing was changed.

    Raises:
        RunFolderError: there is no ledger, or it cannot be read.
    """
    file = RunFolder(path).ledger if path.is_dir() else path
    files = RunFolder(file.parent)
    if not file.is_file():
        merged = files.certificate.is_file()
        accepted = "the runs that this model was merged from" if merged else "a run folder, or a ledger.json"
        raise RunFolderError(f"{file}: no such ledger; expected: {accepted}")
    ledger = LedgerRecord.read(file)
    try:
        return [_chain(ledger, files, head), *_checks(ledger, files)]
    except (ArithmeticError, MemoryError, RecursionError, ValueError) as error:
        raise RunFolderError(f"{file}: damaged ledger: what it says cannot be charged ({error})") from None


def _checks(ledger: LedgerRecord, files: RunFolder) -> Iterator[Check]:
    yield _mechanism(ledger)
    yield _rounds(ledger)
    cost = ledger.mechanism.epsilon(delta_left(ledger.delta)).upper
    yield _compared("whole run", "whole_run_epsilon", ledger.whole_run_epsilon.upper, cost)
    yield from _releases(ledger, files)
    yield _budget(ledger)
    weak = weakness(ledger.delta, ledger.units)
    yield Check("delta", "caution" if weak else "fine", weak or f"{power(ledger.delta)} for {ledger.units} units")
    yield Check("noise", "caution" if ledger.has_known_seed else "fine", ledger.noise_seed)
    if files.rounds.is_file() or files.summary.is_file():
        yield _said(ledger, files)
    if files.rounds.is_file():
        yield _reports(files)
    if files.scenario.is_file():
        yield _scenario(ledger, files)
    if files.model.is_file():
        yield _model(ledger, files)


def _chain(ledger: LedgerRecord, files: RunFolder, head: str | None) -> Check:
    if ledger.head is None:
        none = f"none: {ledger.written_by} made none, so that nothing shows whether a file was altered"
        return Check("chain", "wrong" if head else "caution", none)
    complaints = list(altered(files))
    if head not in (None, ledger.head):
        complaints.append(f"ledger.json: head: {ledger.head}, but {head} was written down")
    if complaints:
        return Check("chain", "wrong", _listed(complaints))
    if files.rounds.is_file() and None in (entry.record for entry in ledger.releases):
        return Check(
            "chain", "caution", f"head {ledger.head}; it covers no line of rounds that an older version played"
        )
    return Check("chain", "fine", f"head {ledger.head}")


def _listed(complaints: list[str]) -> str:
    more = [f"and {len(complaints) - SHOWN} more"] if len(complaints) > SHOWN else []
    return "; ".join(complaints[:SHOWN] + more)


def _said(ledger: LedgerRecord, files: RunFolder) -> Check:
    """What summary.json and rounds.jsonl say of what the ledger says."""
    summary = Summary.read(files.summary) if files.summary.is_file() else None
    complaints = list(contradictions(ledger, summary, files.read_rounds()))
    if complaints:
        return Check("claim", "wrong", _listed(complaints))
    return Check("claim", "fine", "the files beside the ledger say what it says")


def _mechanism(ledger: LedgerRecord) -> Check:
    in_words = str(ledger.mechanism)
    # Another version may have other words for the same mechanism; what is charged is the mechanism.
    if ledger.written_by == WRITTEN_BY and ledger.mechanism_in_words != in_words:
        return Check("mechanism", "wrong", f"mechanism_in_words says another one than: {in_words}")
    noise = set(_noise_multipliers(ledger.mechanism.to_json()))
    for part in ledger.parts if ledger.mechanism.is_private else ():
        if part.noise_multiplier not in noise:
            said = f"the noise multiplier {part.noise_multiplier} of part {part.name!r}"
            return Check("mechanism", "wrong", f"{said} is not in it")
    return Check("mechanism", "fine", in_words)


def _rounds(ledger: LedgerRecord) -> Check:
    try:
        ledger.check_rounds(ledger.rounds_planned)
    except ValueError as error:
        return Check("rounds", "wrong", str(error))
    found = f"{len(ledger.releases)} released of {ledger.rounds_planned} planned"
    if ledger.stopped_because in ("failed", "diverged"):
        return Check("rounds", "caution", f"{found}; the run {ledger.stopped_because}")
    return Check("rounds", "fine", found)


def _releases(ledger: LedgerRecord, files: RunFolder) -> Iterator[Check]:
    try:
        spent = _spent(ledger, files)
    except ScenarioError as error:
        yield Check("releases", "wrong", str(error))
        return
    yield _each_release(ledger, spent)
    if ledger.mechanism.is_private:
        yield _guarantee(ledger, spent)


def _guarantee(ledger: LedgerRecord, spent: NDArray[np.float64]) -> Check:
    """What is guaranteed however the run was stopped: all rounds' cost, or that of those which the budget pays for."""
    last = int(np.searchsorted(spent, ledger.budget_epsilon or math.inf, side="right"))
    cost, released = float(spent[last - 1]) if last else 0.0, len(ledger.releases)
    if ledger.guaranteed_epsilon is not None and ledger.guaranteed_epsilon < cost * (1 - TOLERANCE):
        return _compared("guarantee", "guaranteed_epsilon", ledger.guaranteed_epsilon, cost)
    cost = max(cost, ledger.guaranteed_epsilon or 0.0)
    stop = ledger.stopped_because or "not finished"
    if released >= last:
        return Check("guarantee", "fine", f"epsilon {_shown(cost)}; when it stopped was decided before it began")
    if stop in ("finished", "budget"):
        return Check("guarantee", "wrong", f"stopped_because is {stop}, but after round {released} of {last}")
    if released == 0:
        return Check("guarantee", "fine", "epsilon 0.000: nothing was released, so there was nothing to stop for")
    seen = f"{stop} after round {released}, perhaps for what was seen by then"
    return Check("guarantee", "caution", f"epsilon {_shown(cost)}, what all {last} rounds cost: {seen}")


def _each_release(ledger: LedgerRecord, spent: NDArray[np.float64]) -> Check:
    for number, (entry, cost) in enumerate(zip(ledger.releases, spent, strict=False), start=1):
        check = _compared("releases", f"round {number}: epsilon_upper", entry.epsilon_upper, cost)
        if not check.fine:
            return check
    last = ledger.releases[-1].epsilon_upper if ledger.releases else 0.0
    return Check("releases", "fine", f"epsilon {_shown(last)} at delta {power(ledger.delta)} after the last one")


def _spent(ledger: LedgerRecord, files: RunFolder) -> NDArray[np.float64]:
    """Upper end of what is spent after each round."""
    if not ledger.mechanism.is_private:
        return np.full(ledger.rounds_planned, np.inf)
    if ledger.epsilon_follows:
        return epsilon_over_rounds(ledger.mechanism, delta_left(ledger.delta))
    if not files.scenario.is_file():
        raise ScenarioError("when a unit can have taken part is not in the ledger; put scenario.yaml beside it")
    return _plan(ledger, files).epsilon_by_round


def _budget(ledger: LedgerRecord) -> Check:
    spent = max((entry.epsilon_upper for entry in ledger.releases), default=0.0)
    if ledger.budget_epsilon is None:
        return Check("budget", "fine", "none was set")
    if spent > ledger.budget_epsilon:
        return Check("budget", "wrong", f"{_shown(spent)} exceeds {ledger.budget_epsilon:g}")
    return Check("budget", "fine", f"{_shown(spent)} of {ledger.budget_epsilon:g}")


def _reports(files: RunFolder) -> Check:
    """No matter of privacy: the noise stays what it was, but there is less beside it."""
    scheduled, reported, failed = reports(files.read_rounds())
    found = f"{reported:,} of {scheduled:,} scheduled units ({reported / max(scheduled, 1):.1%})"
    found += f"; {failed:,} failed and count as zero" * (failed > 0)
    return Check("reported", "caution" if reported < scheduled or failed else "fine", found)


def _plan(ledger: LedgerRecord, files: RunFolder) -> Plan:
    """The scenario's plan with the ledger's noise where it was calibrated, so that nothing is searched again."""
    asked = reader.load(files.scenario)
    if asked.privacy.noise_multiplier == "auto":
        noise = {"noise_multiplier": ledger.parts[-1].noise_multiplier}
        asked = asked.model_copy(update={"privacy": asked.privacy.model_copy(update=noise)})
    return make_plan(asked, ledger.units)


def _scenario(ledger: LedgerRecord, files: RunFolder) -> Check:
    name = files.scenario.name
    try:
        scenario = reader.load(files.scenario)
        asked = planned(_plan(ledger, files), scenario)
    except (ScenarioError, ValueError) as error:
        return Check("scenario", "wrong", f"{name} cannot be planned ({error})")
    different = differences(ledger, asked, _FROM_SCENARIO)
    if scenario.known_seed and not ledger.has_known_seed:
        different.append("noise_seed")
    if different:
        return Check("scenario", "wrong", f"{name} gives another {', '.join(different)}")
    return Check("scenario", "fine", f"{name} is the one that was charged")


def _model(ledger: LedgerRecord, files: RunFolder) -> Check:
    name = files.model.name
    try:
        found = digest(load_file(files.model))
    except (OSError, SafetensorError) as error:
        return Check("model", "wrong", f"{name} cannot be read ({' '.join(str(error).split())})")
    if not ledger.releases or ledger.releases[-1].digest != found:
        earlier = [entry.round for entry in ledger.releases if entry.digest == found]
        if earlier and ledger.stopped_because not in ("finished", "budget"):
            return Check("model", "caution", f"{name} is the one of round {earlier[-1]} of {len(ledger.releases)}")
        return Check("model", "wrong", f"{name} is not the one that the last release names")
    return Check("model", "fine", f"{name} is the one of round {len(ledger.releases)}")


def _compared(name: str, what: str, claimed: float, cost: float) -> Check:
    """A ledger may say more than a release costs (an older accountant was looser), never less."""
    if claimed < cost * (1 - TOLERANCE):
        return Check(name, "wrong", f"{what} is {_exactly(claimed)}; computed again it is {_exactly(cost)}")
    if claimed > cost * (1 + TOLERANCE):
        return Check(name, "fine", f"{what} is {_exactly(claimed)}; computed again it is less, {_exactly(cost)}")
    return Check(name, "fine", f"epsilon {_shown(cost)}")


def _noise_multipliers(mechanism: Any) -> Iterator[float]:
    """Every noise multiplier in a mechanism's JSON."""
    if isinstance(mechanism, dict):
        if "noise_multiplier" in mechanism:
            yield mechanism["noise_multiplier"]
        mechanism = list(mechanism.values())
    if isinstance(mechanism, list):
        for inner in mechanism:
            yield from _noise_multipliers(inner)


def _shown(epsilon: float) -> str:
    return "infinite (no noise)" if math.isinf(epsilon) else at_most(epsilon, 3)


def _exactly(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.6g}"
