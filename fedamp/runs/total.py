"""Compute the cost of several runs together, from their ledgers alone: for people whom no population's file lists.

``fedamp total`` shows it. Sweeps, merging and populations ask :func:`check_independent` before they add up costs. The
mechanisms of the ledgers are believed as they stand; ``fedamp verify`` checks them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from fedamp.accounting import Bounds, Compose, Mechanism, from_json
from fedamp.accounting.arithmetic import delta_left, level_crossing
from fedamp.accounting.search import LARGEST_EPSILON, Budget
from fedamp.accounting.verify import Bundle, altered_ledger, ledger_keys, side_sums
from fedamp.errors import RunFolderError


def total(runs: Sequence[Path], delta: float | None = None) -> dict[str, Any]:
    """Compute the cost of several runs for a person who takes part in all of them.

    Args:
        runs: run folders, released folders or zips; each run once.
        delta: in (0, 1); default: the largest of the runs.

    Returns:
        ``fixed``: the bracket of epsilon if all runs were fixed before the first; ``adaptive_epsilon``: the smallest
        budget that pays for them if each was chosen after seeing the others, None (infinite) above 70; ``runs``,
        ``delta``.

    Raises:
        RunFolderError: a ledger is missing, altered or without noise, the runs protect different units, or two of them
            are not independent (:func:`check_independent`).
    """
    ledgers = [ledger_of(run) for run in runs]
    mechanisms = [from_json(ledger["mechanism"]) for ledger in ledgers]
    for run, ledger, mechanism in zip(runs, ledgers, mechanisms, strict=True):
        if not mechanism.is_private or ledger.get("rehearsal"):
            raise RunFolderError(f"{run}: {ledger.get('rehearsal') or 'trained without noise'}; expected: private runs")
        for key in ("unit", "group_size", "adjacency"):  # who has many records is in a run by record many times
            if ledger[key] != ledgers[0][key]:
                raise RunFolderError(f"{run}: {key} {ledger[key]}; expected: {ledgers[0][key]}, as {runs[0]}")
    check_independent(list(zip(runs, ledgers, strict=True)))
    chosen = max(float(ledger["delta"]) for ledger in ledgers) if delta is None else delta
    try:
        left = delta_left(Budget(1.0, chosen).delta, len(runs))
    except ValueError as error:
        raise RunFolderError(f"--delta: {error}") from None
    together = mechanisms[0] if len(mechanisms) == 1 else Compose(tuple(mechanisms))
    fixed: Bounds = together.epsilon(left)
    names = [{"run": str(run), "epsilon": m.epsilon(left).to_json()} for run, m in zip(runs, mechanisms, strict=True)]
    return {"runs": names, "delta": chosen, "fixed": fixed.to_json(), "adaptive_epsilon": adaptive(mechanisms, chosen)}


def check_independent(ledgers: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    """Refuse ledgers that share a release, noise or hidden choices, or may do so.

    They are of one run, of copies of its folder that were both resumed, or of runs with one known seed. Such runs
    together cost more than the composition of their mechanisms, so nothing that adds up costs may accept them.

    Args:
        ledgers: each beside its folder.

    Raises:
        RunFolderError: one line with both folders, and what they have in common.
    """
    seen: dict[str, Path] = {}
    unknown = {_origin_of(ledger): folder for folder, ledger in ledgers if ledger.get("run") is None}
    for folder, ledger in ledgers:
        told = _identities_of(ledger)
        found = [(seen[key], f"have {what} in common") for key, what in told.items() if key in seen]
        if (other := unknown.get(_origin_of(ledger), folder)) != folder:
            found.append((other, "may have a seed in common, which an earlier version did not name"))
        if found:
            why = "so their costs do not add up; expected: each run once, no copies of a run, no known seed twice"
            raise RunFolderError(f"{folder} and {found[0][0]} {found[0][1]}, {why}")
        seen |= dict.fromkeys(told, folder)


def _identities_of(ledger: Mapping[str, Any]) -> dict[str, str]:
    """List what no two independent runs have in common, as JSON, each with its name."""
    side_releases = {
        side.words: [ledger.get(side.at_end), *(entry.get(side.in_round) for entry in ledger["releases"])]
        for side in side_sums().values()
    }
    found = {
        "a ledger": [ledger["head"]],
        "a seed": [ledger.get("run")],
        **{key.shared: [key.run_identity(ledger[name])] for name, key in ledger_keys().items() if ledger.get(name)},
        "a released model": [entry["digest"] for entry in ledger["releases"]],
        **{words: [each["sums"] for each in released if each] for words, released in side_releases.items()},
    }
    return {json.dumps(one): what for what, each in found.items() for one in each if one is not None}


def _origin_of(ledger: Mapping[str, Any]) -> str:
    """Return what copies of a run have in common, at least; a known seed may be that of another scenario."""
    return "known" if ledger["noise_seed"].startswith("known") else str(ledger["scenario_sha256"])


def adaptive(mechanisms: Sequence[Mechanism], delta: float) -> float | None:
    """Find the smallest epsilon of a budget that pays for these uses of the same people, to 1e-3 relative.

    Each use may be chosen after seeing the results of the others: a privacy filter adds up their shares of a budget
    (:class:`fedamp.accounting.search.Budget`).

    Args:
        mechanisms: of the uses.
        delta: of the budget, in (0, 1).

    Returns:
        The epsilon; None: it is above 70, the largest that a budget can have.
    """

    def excess(epsilon: float, sampled: bool = False) -> float:
        budget = Budget(max(epsilon, 1e-6), delta)
        shares = [budget.share_of_use(each, sampled) for each in mechanisms]
        return 2.0 if math.inf in shares else sum(shares) * (1 + 1e-12)

    found = level_crossing(lambda epsilon: excess(min(epsilon, LARGEST_EPSILON)), 1.0, LARGEST_EPSILON, 1e-3)[1]
    # Hidden rounds cost less if sampled, mostly a little: each step is twice the last one, and then half of it.
    steps, stride = 0, 1
    while found < math.inf and excess(found / 1.002 ** (steps + stride), sampled=True) <= 1:
        steps, stride = steps + stride, 2 * stride
    while (stride := stride // 2) > 0:
        if excess(found / 1.002 ** (steps + stride), sampled=True) <= 1:
            steps += stride
    found /= 1.002**steps
    return found if found <= LARGEST_EPSILON else None


def ledger_of(run: Path) -> dict[str, Any]:
    """Read the ledger of a run folder, a released folder or a zip, and check its chain.

    Raises:
        RunFolderError: there is none, or it was altered.
    """
    if run.is_file() and not is_zipfile(run):
        raise RunFolderError(f"{run}: is neither a folder nor a zip; expected: runs or releases, such as runs/*/")
    try:
        with Bundle(run) as bundle:
            ledger = bundle.read_json("ledger.json")
        wrong = next(altered_ledger(ledger), None)
    except (LookupError, TypeError, ValueError) as error:
        raise RunFolderError(f"{run}: no ledger that can be read ({' '.join(str(error).split())})") from None
    if wrong:
        raise RunFolderError(f"{run}: {wrong}")
    return ledger
