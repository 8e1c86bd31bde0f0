"""What it costs to choose among runs: nothing is charged for it, and what would be."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedamp.accounting import Compose, Repeat, epsilon_from_rdp
from fedamp.accounting.conversion import best_of_geometric
from fedamp.noise.gaussian import delta_left
from fedamp.runs.run import Run

ORDERS = np.arange(2.0, 257.0)


def cost_of_choosing(runs: Sequence[Run]) -> dict[str, Any]:
    """What showing which of some runs was best costs, beyond what each run's ledger charges for that run alone.

    Returns:
        ``charged``: what is charged for choosing; always 0. ``all_runs_epsilon``: what all runs cost together, at most;
        it covers whatever is chosen by what was seen of them. ``random_stop_epsilon``: what the best one would cost, at
        most, were nothing else shown and the number of runs geometric with as many on average. Both are None where the
        runs' promises differ, a seed is known, or a run is not private. ``delta``; ``in_words``.
    """
    promises = {tuple(map(str, run.promise.values())) for run in runs}
    together: dict[str, float | None] = {"all_runs_epsilon": None, "random_stop_epsilon": None}
    if len(promises) == 1 and all(run.is_private and not run.has_known_seed for run in runs):
        mechanisms = [run.ledger.mechanism for run in runs]
        delta = delta_left(runs[0].ledger.delta, len(runs))
        counts = Counter(mechanisms)
        all_runs = Compose(tuple(Repeat(mechanism, count) for mechanism, count in counts.items()))
        divergences = np.max([mechanism.rdp(ORDERS) for mechanism in counts], axis=0)
        random_stop = epsilon_from_rdp(ORDERS, best_of_geometric(ORDERS, divergences, len(runs)), delta)
        together = {
            "all_runs_epsilon": _finite(all_runs.epsilon(delta).upper),
            "random_stop_epsilon": _finite(random_stop),
        }
    answer = {"charged": 0, "runs": len(runs), "delta": runs[0].ledger.delta if runs else None, **together}
    return answer | {"in_words": _in_words(answer)}


def _in_words(answer: dict[str, Any]) -> list[str]:
    words = [
        "Nothing is charged for choosing: each run's ledger charges that run alone. Scores on public records add "
        "nothing to what the runs released. But which run is best depends on every run that was scored.",
    ]
    together, at_random = answer["all_runs_epsilon"], answer["random_stop_epsilon"]
    if together is None:
        words.append(
            "What the runs cost together is not computed: a seed is known, a run is without privacy, or their promises "
            "differ."
        )
    else:
        words.append(
            f"If all of them trained on the same private records, whoever sees the choice is covered by epsilon = "
            f"{together:.4g} at delta = {answer['delta']:g}, what all {answer['runs']} cost together, and not by the "
            "chosen run's own."
        )
        if at_random is not None:
            words.append(
                f"Had the number of runs been random (geometric, {answer['runs']} on average), their settings drawn at "
                f"random, and only the best run been shown, it would be {at_random:.4g} (Papernot and Steinke 2022)."
            )
    words.append(
        "Choosing costs nothing at all where the runs train on public records; then train once on the private ones. "
        "Scores on private records would be releases of their own, each to be noised and charged besides."
    )
    return words


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
