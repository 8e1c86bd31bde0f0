"""The cost of choosing among runs: what a sweep charges for it, and what a full account would charge."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedamp.accounting import Compose, Repeat, epsilon_from_rdp
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import best_of_geometric, finite
from fedamp.runs.run import Run

ORDERS = np.arange(2.0, 257.0)

NOT_CHARGED = (
    "Nothing is charged for choosing: each run's ledger charges that run alone. Scores on public records add nothing "
    "to what the runs released. But the choice of the best run depends on every run that was scored."
)
UNKNOWN = (
    "The joint cost of the runs is not computed: a seed is known, a run has no privacy, or the runs protect different "
    "units or use a different delta."
)
ALTERNATIVES = (
    "Choosing costs nothing if the runs train on public records; then train once on the private ones. Scores on "
    "private records would be further releases, each with its own noise and charge."
)


def cost_of_choosing(runs: Sequence[Run]) -> dict[str, Any]:
    """The cost of publishing which run was best, beyond what each run's ledger charges for that run alone.

    Returns:
        ``charged``: always 0. ``all_runs_epsilon``: at most the joint cost of all runs; it covers any choice among
        them. ``random_stop_epsilon``: at most the cost of the best run alone, if the number of runs were geometric with
        this mean. Both are None if runs have different guarantees, a known seed or no noise. ``delta``; ``in_words``.
    """
    promises = {tuple(map(str, run.promise.values())) for run in runs}
    number, charged_delta = len(runs), runs[0].ledger.delta if runs else None
    all_runs = random_stop = None
    words = [NOT_CHARGED]
    if len(promises) == 1 and all(run.is_private and not run.has_known_seed for run in runs):
        counts = Counter(run.ledger.mechanism for run in runs)
        delta = delta_left(runs[0].ledger.delta, number)
        together = Compose(tuple(Repeat(mechanism, count) for mechanism, count in counts.items()))
        divergences = np.max([mechanism.rdp(ORDERS) for mechanism in counts], axis=0)
        all_runs = finite(together.epsilon(delta).upper)
        best_alone = best_of_geometric(ORDERS, divergences, number)
        random_stop = finite(epsilon_from_rdp(ORDERS, best_alone, delta))
    if all_runs is None:
        words.append(UNKNOWN)
    else:
        words.append(
            f"If all runs trained on the same private records, the choice is covered by their joint cost: epsilon = "
            f"{all_runs:.4g} at delta = {charged_delta:g} for all {number}. The chosen run's own epsilon does not "
            "cover it."
        )
        if random_stop is not None:
            words.append(
                f"With a random number of runs (geometric, {number} on average), settings drawn at random and only the "
                f"best run published, epsilon would be {random_stop:.4g} (Papernot and Steinke 2022)."
            )
    return {
        "charged": 0,
        "runs": number,
        "delta": charged_delta,
        "all_runs_epsilon": all_runs,
        "random_stop_epsilon": random_stop,
        "in_words": [*words, ALTERNATIVES],
    }
