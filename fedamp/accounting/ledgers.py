"""Verification of a ledger and of a released bundle, from their files alone: ``python -m fedamp.accounting BUNDLE``.

It needs nothing that trains. ``docs/ledger.md`` explains the keys.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedamp.accounting.bounds import Array, Bounds
from fedamp.accounting.mechanism import from_json
from fedamp.accounting.numeric import delta_left
from fedamp.accounting.prefixes import epsilon_over_rounds
from fedamp.accounting.sampled import PRECISION

Json = Mapping[str, Any]
Verdict = Literal["pass", "caution", "fail"]
VERDICTS: tuple[Verdict, ...] = ("pass", "caution", "fail")

TOLERANCE = 1e-6  # relative: another machine adds in another order, and a text has so many digits
UNCHECKED = "units, group_size, clips, denominators, and whether the noise is the scenario's"
"""What the ledger alone does not show."""

_LAST = ("stopped_because", "files")
_EXCLUDED = {*_LAST, "releases", "head", "link"}


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


# The chain of digests: each link covers the link before and the next release, the head everything. It finds later
# changes. A forger may make the chain anew: a head that was written down elsewhere, or signed, shows that.


def link(previous: str, content: Json) -> str:
    """The link of a release; after an empty one, of a ledger's plan and cost."""
    return chained(previous, {key: value for key, value in content.items() if key not in _EXCLUDED})


def head(last: str, ledger: Json) -> str:
    """The head: of the last link, why the run stopped, and the digests of its files."""
    return chained(last, {key: ledger[key] for key in _LAST})


def chained(previous: str, content: Json) -> str:
    """SHA-256 of what came before and of content, as JSON with sorted keys."""
    return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def altered_ledger(ledger: Json) -> Iterator[str]:
    """The rounds and keys of a ledger that differ from its chain."""
    last = link("", ledger)
    for release in ledger["releases"]:
        if release["link"] != link(last, release):
            also = ", or a key that stands before releases," if release["round"] == 1 else ""
            yield f"ledger.json: releases: round {release['round']}{also} is not as it was written down"
        last = release["link"]
    if ledger["head"] != head(last, ledger):
        what = "stopped_because, files or the number of releases" if ledger["releases"] else "a key"
        yield f"ledger.json: head: {what} is not as it was written down"


# The numbers.


def ledger_checks(ledger: Json, by_round: Array | None = None) -> Iterator[Check]:
    """Compute a ledger's numbers again: each may be more than the cost, never less.

    Args:
        ledger: the content of ``ledger.json``.
        by_round: upper ends of epsilon after each round, where they do not follow from the mechanism alone.
    """
    # To the bit as the run did: draws of a sampled curve follow from delta's bits.
    delta = delta_left(ledger["delta"])
    mechanism, releases, planned = from_json(ledger["mechanism"]), ledger["releases"], ledger["rounds_planned"]
    private, precision = mechanism.is_private, ledger.get("precision", PRECISION)
    cost = mechanism.epsilon(delta, precision=precision)
    yield _bracket("whole run", "whole_run_epsilon", ledger["whole_run_epsilon"], cost)
    for whom in ("server", "nodes"):
        if seen := ledger.get(f"{whom}_mechanism"):
            cost = from_json(seen).epsilon(delta, precision=precision)
            yield _bracket(whom, f"epsilon_{whom}", ledger[f"epsilon_{whom}"], cost)
    if by_round is None and not private:
        by_round = np.full(planned, np.inf)
    elif by_round is None and mechanism.span == planned:
        by_round = epsilon_over_rounds(mechanism, delta, precision=precision)
    spent = [_epsilon(entry["epsilon_upper"]) for entry in releases]
    if by_round is None:
        missing = "the ledger does not say when a unit can have taken part; put scenario.yaml beside it"
        yield Check("releases", "fail", missing)
    else:
        each = [
            compared("releases", f"round {number}: epsilon_upper", upper, float(cost))
            for number, (upper, cost) in enumerate(zip(spent, by_round, strict=False), start=1)
        ]
        delta_told = f"{ledger['delta']:g}".replace("e-0", "e-")
        found = f"epsilon {_shown(spent[-1] if spent else 0.0)} at delta {delta_told} after the last one"
        yield next((check for check in each if not check.passed), Check("releases", "pass", found))
        if private:
            yield _guarantee(ledger, by_round)
    budget, most = ledger["budget_epsilon"], max(spent, default=0.0)
    over = f"{_shown(most)} exceeds {budget:g}" if budget is not None and most > budget else None
    yield Check.of("budget", "none was set" if budget is None else f"{_shown(most)} of {budget:g}", fail=over)


def mechanism_check(ledger: Json) -> Check:
    """Whether the noise of every part of the model is in the mechanisms that are charged, and how it is correlated."""
    mechanism, wrong = from_json(ledger["mechanism"]), None
    others = {key: from_json(ledger[key]) for key in ("server_mechanism", "nodes_mechanism") if ledger.get(key)}
    charged = {"it": mechanism} | others
    for name, each in charged.items():
        noise = set(_values(each.to_json(), "noise_multiplier"))
        for part in ledger["parts"] if mechanism.is_private else ():
            if part["noise_multiplier"] not in noise:
                wrong = f"the noise multiplier {part['noise_multiplier']} of part {part['name']!r} is not in {name}"
    told = list(ledger["noise_coefficients"])
    if any(coefficients != told for coefficients in _values(mechanism.to_json(), "coefficients")):
        wrong = f"noise_coefficients are {told}, but not in it"
    if any(len(told) >= classes for classes in _values(mechanism.to_json(), "classes")):
        wrong = f"noise_coefficients are of {len(told) + 1} bands, more than the classes in it"
    return Check.of("mechanism", str(mechanism), fail=wrong)


def rounds_check(ledger: Json) -> Check:
    """Whether rounds 1, 2, 3, .. are released once each, and no more of them than planned."""
    numbers, planned = [entry["round"] for entry in ledger["releases"]], ledger["rounds_planned"]
    found = f"{len(numbers)} released of {planned} planned"
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) > planned:
        return Check("rounds", "fail", f"its rounds are not 1, 2, 3, ... each once, up to at most {planned}")
    ended = ledger["stopped_because"] in ("failed", "diverged")
    return Check.of("rounds", found, caution=f"{found}; the run {ledger['stopped_because']}" if ended else None)


def compared(name: str, what: str, claimed: float, cost: float) -> Check:
    """A ledger may claim more than the cost (its accountant may be looser), never less."""
    both = f"{what} is {_exactly(claimed)}; computed again it is"
    if claimed < cost * (1 - TOLERANCE):
        return Check(name, "fail", f"{both} {_exactly(cost)}")
    looser = claimed > cost * (1 + TOLERANCE)
    return Check(name, "pass", f"{both} less, {_exactly(cost)}" if looser else f"epsilon {_shown(cost)}")


def _bracket(name: str, what: str, claimed: Json, cost: Bounds) -> Check:
    """Both ends: an upper one may be more than computed again, a lower one less (of a looser accountant)."""
    upper, lower = compared(name, what, _epsilon(claimed["upper"]), cost.upper), _epsilon(claimed["lower"])
    if not upper.passed or math.isclose(lower, cost.lower, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        return upper
    both = f"the lower end of {what} is {_exactly(lower)}; computed again it is {_exactly(cost.lower)}"
    return Check(name, "fail" if lower > cost.lower else "caution", both)


def _guarantee(ledger: Json, spent: Array) -> Check:
    """The guarantee however the run was stopped: the cost of all rounds that the budget pays for."""
    last = int(np.searchsorted(spent, ledger["budget_epsilon"] or math.inf, side="right"))
    cost, released = float(spent[last - 1]) if last else 0.0, len(ledger["releases"])
    told = ledger["guaranteed_epsilon"]
    if told is not None and told < cost * (1 - TOLERANCE):
        return compared("guarantee", "guaranteed_epsilon", told, cost)
    cost = max(cost, told or 0.0)
    stop = ledger["stopped_because"] or "not finished"
    if released >= last:
        return Check("guarantee", "pass", f"epsilon {_shown(cost)}; the stop was decided before the run began")
    if stop in ("finished", "budget"):
        return Check("guarantee", "fail", f"stopped_because is {stop}, but after round {released} of {last}")
    if released == 0:
        return Check("guarantee", "pass", "epsilon 0.000: nothing was released, so no release decided the stop")
    early = f"{stop} after round {released}, perhaps because of its releases"
    return Check("guarantee", "caution", f"epsilon {_shown(cost)}, the cost of all {last} rounds: {early}")


def worst(checks: Sequence[Check]) -> Verdict:
    """The verdict of all checks."""
    return max((check.verdict for check in checks), key=VERDICTS.index, default="pass")


def _values(mechanism: Any, key: str) -> Iterator[Any]:
    """The values of a key in an expression and those in it."""
    if isinstance(mechanism, dict):
        if key in mechanism:
            yield mechanism[key]
        mechanism = list(mechanism.values())
    if isinstance(mechanism, list):
        for inner in mechanism:
            yield from _values(inner, key)


def _epsilon(value: float | None) -> float:
    return math.inf if value is None else value  # JSON has no infinity


def _shown(epsilon: float) -> str:
    if math.isinf(epsilon):
        return "infinite (no noise)"
    return f"{math.ceil(epsilon * 1000 * (1 - 1e-12)) / 1000:,.3f}"  # up, except for what multiplying rounded


def _exactly(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.6g}"
