"""Verification of a ledger: is every number in it at least the recomputed cost of its mechanism?

``ledger.json`` is enough. Files beside it are checked against it; no training records are read.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedamp.accounting import epsilon_over_rounds
from fedamp.base.numbers import at_most, power
from fedamp.errors import RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.plan import weakness
from fedamp.noise.gaussian import delta_left
from fedamp.runs.chain import altered
from fedamp.runs.folder import RunFolder
from fedamp.runs.ledger import WRITTEN_BY, differences, digest, plan_of
from fedamp.runs.records import Bracket, LedgerRecord, RoundRecord, Summary, reports

TOLERANCE = 1e-6  # relative: another machine adds in another order, and a text has so many digits
SHOWN = 5  # of the complaints of a check
CLAIMED = ("epsilon", "released_rounds_epsilon", "delta", "noise_multiplier", "has_known_seed", "stopped_because")


Verdict = Literal["pass", "caution", "fail"]
VERDICTS: tuple[Verdict, ...] = ("pass", "caution", "fail")


@dataclass(frozen=True)
class Check:
    """One check: its subject, its verdict, and its finding; of a failure also the expectation.

    ``caution``: nothing is wrong, but a person who relies on the result must know the finding.
    """

    name: str
    verdict: Verdict
    found: str

    @classmethod
    def of(cls, name: str, passed: str, caution: str | None = None, fail: str | None = None) -> "Check":
        """The failure or caution, if it has a text; else it passes."""
        return cls(name, "fail" if fail else "caution" if caution else "pass", fail or caution or passed)

    @property
    def passed(self) -> bool:
        """Whether it passes without caution."""
        return self.verdict == "pass"


def checks_json(checks: Sequence[Check]) -> dict[str, Any]:
    """As JSON; the verdict of all checks is the worst one."""
    worst = max((check.verdict for check in checks), key=VERDICTS.index, default="pass")
    each = [{"name": it.name, "verdict": it.verdict, "fine": it.passed, "found": it.found} for it in checks]
    return {"verdict": worst, "fine": worst == "pass", "checks": each}


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
    yield _rounds(ledger)
    cost = ledger.mechanism.epsilon(delta_left(ledger.delta), precision=ledger.precision).upper
    yield _compared("whole run", "whole_run_epsilon", ledger.whole_run_epsilon.upper, cost)
    yield from _releases(ledger, files)
    weak = weakness(ledger.delta, ledger.units)
    yield Check.of("delta", f"{power(ledger.delta)} for {ledger.units} units", caution=weak)
    yield Check("noise", "caution" if ledger.has_known_seed else "pass", ledger.noise_seed)
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
        yield _scenario(ledger, files)
    if files.model.is_file():
        yield _model(ledger, files)


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
    mechanism, wrong = ledger.mechanism, None
    noise = set(_noise_multipliers(mechanism.to_json()))
    for part in ledger.parts if mechanism.is_private else ():
        if part.noise_multiplier not in noise:
            wrong = f"the noise multiplier {part.noise_multiplier} of part {part.name!r} is not in it"
    # Another version may describe the same mechanism in other words.
    if ledger.written_by == WRITTEN_BY and ledger.mechanism_in_words != str(mechanism):
        wrong = f"mechanism_in_words says another one than: {mechanism}"
    return Check.of("mechanism", str(mechanism), fail=wrong)


def _rounds(ledger: LedgerRecord) -> Check:
    try:
        ledger.check_rounds(ledger.rounds_planned)
    except ValueError as error:
        return Check("rounds", "fail", str(error))
    found = f"{len(ledger.releases)} released of {ledger.rounds_planned} planned"
    ended = ledger.stopped_because in ("failed", "diverged")
    return Check.of("rounds", found, caution=f"{found}; the run {ledger.stopped_because}" if ended else None)


def _releases(ledger: LedgerRecord, files: RunFolder) -> Iterator[Check]:
    try:
        by_round = _spent(ledger, files)
    except ScenarioError as error:
        yield Check("releases", "fail", str(error))
    else:
        each = [
            _compared("releases", f"round {number}: epsilon_upper", entry.epsilon_upper, cost)
            for number, (entry, cost) in enumerate(zip(ledger.releases, by_round, strict=False), start=1)
        ]
        last = ledger.releases[-1].epsilon_upper if ledger.releases else 0.0
        found = f"epsilon {_shown(last)} at delta {power(ledger.delta)} after the last one"
        yield next((check for check in each if not check.passed), Check("releases", "pass", found))
        if ledger.mechanism.is_private:
            yield _guarantee(ledger, by_round)
    budget, spent = ledger.budget_epsilon, max((entry.epsilon_upper for entry in ledger.releases), default=0.0)
    over = f"{_shown(spent)} exceeds {budget:g}" if budget is not None and spent > budget else None
    yield Check.of("budget", "none was set" if budget is None else f"{_shown(spent)} of {budget:g}", fail=over)


def _guarantee(ledger: LedgerRecord, spent: NDArray[np.float64]) -> Check:
    """The guarantee however the run was stopped: the cost of all rounds that the budget pays for."""
    last = int(np.searchsorted(spent, ledger.budget_epsilon or math.inf, side="right"))
    cost, released = float(spent[last - 1]) if last else 0.0, len(ledger.releases)
    if ledger.guaranteed_epsilon is not None and ledger.guaranteed_epsilon < cost * (1 - TOLERANCE):
        return _compared("guarantee", "guaranteed_epsilon", ledger.guaranteed_epsilon, cost)
    cost = max(cost, ledger.guaranteed_epsilon or 0.0)
    stop = ledger.stopped_because or "not finished"
    if released >= last:
        return Check("guarantee", "pass", f"epsilon {_shown(cost)}; the stop was decided before the run began")
    if stop in ("finished", "budget"):
        return Check("guarantee", "fail", f"stopped_because is {stop}, but after round {released} of {last}")
    if released == 0:
        return Check("guarantee", "pass", "epsilon 0.000: nothing was released, so no release decided the stop")
    early = f"{stop} after round {released}, perhaps because of its releases"
    return Check("guarantee", "caution", f"epsilon {_shown(cost)}, the cost of all {last} rounds: {early}")


def _spent(ledger: LedgerRecord, files: RunFolder) -> NDArray[np.float64]:
    if not ledger.mechanism.is_private:
        return np.full(ledger.rounds_planned, np.inf)
    if ledger.epsilon_follows:
        return epsilon_over_rounds(ledger.mechanism, delta_left(ledger.delta), precision=ledger.precision)
    if not files.scenario.is_file():
        raise ScenarioError("the ledger does not say when a unit can have taken part; put scenario.yaml beside it")
    return plan_of(ledger, reader.load(files.scenario)).epsilon_by_round


def _scenario(ledger: LedgerRecord, files: RunFolder) -> Check:
    name = files.scenario.name
    try:
        scenario = reader.load(files.scenario)
        different = differences(ledger, plan_of(ledger, scenario), scenario, ledger.frozen_sha256)
    except (ScenarioError, ValueError) as error:
        return Check("scenario", "fail", f"{name} cannot be planned ({error})")
    wrong = f"{name} gives another {', '.join(different)}" if different else None
    return Check.of("scenario", f"{name} is the one that was charged", fail=wrong)


def _model(ledger: LedgerRecord, files: RunFolder) -> Check:
    name, releases = files.model.name, ledger.releases
    try:
        found = digest(load_file(files.model))
    except (OSError, SafetensorError) as error:
        return Check("model", "fail", f"{name} cannot be read ({' '.join(str(error).split())})")
    rounds = [entry.round for entry in releases if entry.digest == found]
    if releases and releases[-1].digest == found:
        return Check("model", "pass", f"{name} is the one of round {len(releases)}")
    if rounds and ledger.stopped_because not in ("finished", "budget"):
        return Check("model", "caution", f"{name} is the one of round {rounds[-1]} of {len(releases)}")
    return Check("model", "fail", f"{name} is not the one that the last release names")


def _compared(name: str, what: str, claimed: float, cost: float) -> Check:
    """A ledger may claim more than the cost (its accountant may be looser), never less."""
    both = f"{what} is {_exactly(claimed)}; computed again it is"
    if claimed < cost * (1 - TOLERANCE):
        return Check(name, "fail", f"{both} {_exactly(cost)}")
    looser = claimed > cost * (1 + TOLERANCE)
    return Check(name, "pass", f"{both} less, {_exactly(cost)}" if looser else f"epsilon {_shown(cost)}")


def _noise_multipliers(mechanism: Any) -> Iterator[float]:
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
