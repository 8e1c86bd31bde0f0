"""Statistics by which an adversary tells whether the canary was there, from what every round released.

If everything is as it is charged, the first one is the likelihood ratio, which no other beats (Neyman, Pearson 1933).
The others look where mistakes would show: hidden choices that are made once for the whole run, or always alike, and
units that take part more often, or in other rounds, than the schedule says.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedamp import scenario
from fedamp.check_in import Stratified
from fedamp.plan import Plan

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
    hidden = _mean(ratios, axis=2)
    found = {"likelihood ratio": over_rounds(hidden, plan)}
    if choices > 1:
        by_choice = np.stack([over_rounds(ratios[:, :, choice], plan) for choice in range(choices)], axis=1)
        found["one hidden choice for the whole run"] = _mean(by_choice, axis=1)
        found["the average choice"] = over_rounds(ratios.mean(2), plan)
        if isinstance(plan.scenario.submodels, scenario.DisjointSubmodels):
            found |= {f"submodel {choice} always": by_choice[:, choice] for choice in range(min(choices, _SINGLE))}
    if not isinstance(plan.scenario.check_in, scenario.AllCheckIn):
        found["takes part in every round"] = hidden.sum(1)
        found |= {f"takes part in round {round_ + 1}": hidden[:, round_] for round_ in range(min(rounds, _SINGLE))}
    return found


def over_rounds(ratios: NDArray[np.float64], plan: Plan) -> Statistic:
    """Log-likelihood ratio of the whole run from those of its rounds, [repetitions, rounds], under a schedule."""
    match plan.scenario.check_in:
        case scenario.AllCheckIn():
            return ratios.sum(1)
        case scenario.PoissonCheckIn(rate=rate):
            stays_out = math.log1p(-rate) if rate < 1 else -math.inf
            return np.logaddexp(stays_out, math.log(rate) + ratios).sum(1)
        case scenario.BalancedCheckIn(k=k):
            return _mean_over_subsets(ratios, k)
        case scenario.StratifiedCheckIn(k=k):
            ends = np.cumsum(Stratified(plan.scenario.rounds, k).block_lengths())
            return np.sum([_mean(block, axis=1) for block in np.split(ratios, ends[:-1], axis=1)], axis=0)
    raise AssertionError("all schemes are named above")


def _mean_over_subsets(ratios: NDArray[np.float64], k: int) -> Statistic:
    """Log of the mean, over all sets of k rounds, of the product of their likelihood ratios."""
    rounds = ratios.shape[1]
    sums = np.full((k + 1, len(ratios)), -np.inf)  # log of the elementary symmetric polynomials of the rounds so far
    sums[0] = 0
    for round_ in range(rounds):
        sums[1:] = np.logaddexp(sums[1:], sums[:-1] + ratios[:, round_])
    return sums[k] - math.log(math.comb(rounds, k))


def _mean(logs: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Log of the mean of exponentials."""
    return np.logaddexp.reduce(logs, axis=axis) - math.log(logs.shape[axis])
