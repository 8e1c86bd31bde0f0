"""Adaptive clipping: the clipping norm follows a quantile of the update norms (Andrew et al. 2021)."""

import math

from fedamp import rng, scenario
from fedamp.plan import Plan


def adapt(plan: Plan, clip: scenario.AdaptiveClip, below: int, reported: int, round_: int) -> float:
    """The factor by which the clipping norm changes after a round (Andrew et al. 2021, section 2.1, geometric update).

    What is released is the sum over units of (1/2 if the update is below the norm, else -1/2), with Gaussian noise of
    its own, which the plan charges; a unit that failed adds nothing. It is divided by the public denominator.

    Args:
        plan: for its seed and its expected cohort.
        clip: quantile, learning rate and noise multiplier.
        below: number of units whose update was below the norm in every part.
        reported: number of units that reported.
        round_: number of the round.
    """
    noise = clip.noise_multiplier * rng.stream(plan.seed, "clip", round_).standard_normal() if plan.is_private else 0.0
    centred = (below - reported / 2 + noise) / plan.expected_cohort
    fraction = min(max(centred + 0.5, 0.0), 1.0)
    return math.exp(-clip.learning_rate * (fraction - clip.quantile))
