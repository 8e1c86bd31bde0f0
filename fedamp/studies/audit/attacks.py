"""Statistics by which an adversary tells whether the canary was there, from what every round released.

If everything is as it is charged, the first one is the likelihood ratio, which no other beats (Neyman, Pearson 1933).
The others look where mistakes would show: hidden choices that are made once for the whole run, or always alike, and
units that take part more often, or in other rounds, than the schedule says.
"""

import numpy as np
from numpy.typing import NDArray

from fedamp.federation.check_in import log_mean
from fedamp.federation.plan import Plan

Statistic = NDArray[np.float64]
Attacks = dict[str, Statistic]

# Choices of a submodel that are looked at one by one, and rounds.
_SINGLE = 16


def attacks(ratios: NDArray[np.float64], plan: Plan) -> Attacks:
    """Every statistic of every repetition, by name.

    Args:
        ratios: [repetitions, rounds, choices], log-likelihood ratios.
        plan: what the adversary knows of it: schedule and kind of submodels.

    Returns:
        Statistics of shape [repetitions]; large ones speak for the canary.
    """
    rounds, choices = ratios.shape[1:]
    over_rounds = plan.check_in.log_likelihood_ratio
    hidden = log_mean(ratios, axis=2)
    found = {"likelihood ratio": over_rounds(hidden)}
    if choices > 1:
        by_choice = np.stack([over_rounds(ratios[:, :, choice]) for choice in range(choices)], axis=1)
        found["one hidden choice for the whole run"] = log_mean(by_choice, axis=1)
        found["the average choice"] = over_rounds(ratios.mean(2))
        if plan.submodels.choices_are_all:
            found |= {f"submodel {choice} always": by_choice[:, choice] for choice in range(min(choices, _SINGLE))}
    if plan.check_in.is_hidden:
        found["takes part in every round"] = hidden.sum(1)
        found |= {f"takes part in round {round_ + 1}": hidden[:, round_] for round_ in range(min(rounds, _SINGLE))}
    return found
