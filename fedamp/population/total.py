"""What several runs cost together, from their ledgers alone: for people whom no population's file lists."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedamp.accounting import Bounds, Compose, Mechanism, from_json
from fedamp.accounting.arithmetic import crossing, delta_left
from fedamp.accounting.search import LARGEST_EPSILON, Budget
from fedamp.accounting.verify import Bundle, altered_ledger
from fedamp.errors import RunFolderError


def total(runs: Sequence[Path], delta: float | None = None) -> dict[str, Any]:
    """The cost of several runs for somebody who is in all of them. RunFolderError: a ledger is missing, altered,
    without noise or given twice.

    Args:
        runs: run folders, released folders or zips; each run once.
        delta: in (0, 1); default: the largest of the runs.

    Returns:
        ``fixed``: the bracket of epsilon if all runs were fixed before the first; ``adaptive_epsilon``: the smallest
        budget that pays for them if each was chosen after seeing the others, infinite above 70; ``runs``, ``delta``.
    """
    ledgers = [ledger_of(run) for run in runs]
    heads = [ledger["head"] for ledger in ledgers]
    if again := next((run for run, head in zip(runs, heads, strict=True) if heads.count(head) > 1), None):
        raise RunFolderError(f"{again}: stands twice; expected: each run once")
    mechanisms = [from_json(ledger["mechanism"]) for ledger in ledgers]
    for run, ledger, mechanism in zip(runs, ledgers, mechanisms, strict=True):
        if not mechanism.is_private or ledger.get("rehearsal"):
            raise RunFolderError(f"{run}: {ledger.get('rehearsal') or 'trained without noise'}; expected: private runs")
        for key in ("unit", "group_size", "adjacency"):  # who has many records is in a run by record many times
            if ledger[key] != ledgers[0][key]:
                raise RunFolderError(f"{run}: {key} {ledger[key]}; expected: {ledgers[0][key]}, as {runs[0]}")
    chosen = max(float(ledger["delta"]) for ledger in ledgers) if delta is None else delta
    try:
        left = delta_left(Budget(1.0, chosen).delta, len(runs))
    except ValueError as error:
        raise RunFolderError(f"--delta: {error}") from None
    together = mechanisms[0] if len(mechanisms) == 1 else Compose(tuple(mechanisms))
    fixed: Bounds = together.epsilon(left)
    names = [{"run": str(run), "epsilon": m.epsilon(left).to_json()} for run, m in zip(runs, mechanisms, strict=True)]
    return {"runs": names, "delta": chosen, "fixed": fixed.to_json(), "adaptive_epsilon": adaptive(mechanisms, chosen)}


def adaptive(mechanisms: Sequence[Mechanism], delta: float) -> float | None:
    """The smallest epsilon of a budget that pays for these uses of the same people, to 1e-3; None: above 70."""

    def excess(epsilon: float, sampled: bool = False) -> float:
        budget = Budget(max(epsilon, 1e-6), delta)
        shares = [budget.share(each, sampled) for each in mechanisms]
        return 2.0 if math.inf in shares else sum(shares) * (1 + 1e-12)

    found = crossing(lambda epsilon: excess(min(epsilon, LARGEST_EPSILON)), 1.0, LARGEST_EPSILON, 1e-3)[1]
    while found < math.inf and excess(found / 1.002, sampled=True) <= 1:  # hidden rounds cost a little less if sampled
        found /= 1.002
    return found if found <= LARGEST_EPSILON else None


def ledger_of(run: Path) -> dict[str, Any]:
    try:
        with Bundle(run) as bundle:
            ledger = bundle.json("ledger.json")
        wrong = next(altered_ledger(ledger), None)
    except (LookupError, TypeError, ValueError) as error:
        raise RunFolderError(f"{run}: no ledger that can be read ({' '.join(str(error).split())})") from None
    if wrong:
        raise RunFolderError(f"{run}: {wrong}")
    return ledger
