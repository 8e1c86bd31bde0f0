"""Adaptive clipping: the clipping norm follows a quantile of the update norms (Andrew et al. 2021)."""

import math

from fedamp import rng, scenario
from fedamp.plan import Plan

# The norm stays within these factors of the initial one, whatever the noise: far enough for any model, and near enough
# for float32.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-30, 2.0**30


def adapt(scale: float, plan: Plan, clip: scenario.AdaptiveClip, below: int, reported: int, round_: int) -> float:
    """The clipping norm after a round, over the initial one (Andrew et al. 2021, section 2.1, geometric update).

    What is released is the sum over the units that reported of (1/2 if the update is within the norm, else -1/2), with
    Gaussian noise of its own, which the plan charges. It is divided by the public denominator. An update that is not
    finite is not within the norm.

    Args:
        scale: the norm in this round, over the initial one.
        plan: for its seed and its expected cohort.
        clip: quantile, learning rate and noise multiplier.
        below: number of units whose update was within the norm in every part.
        reported: number of units that reported.
        round_: number of the round.
    """
    noise = clip.noise_multiplier * rng.stream(plan.seed, "clip", round_).standard_normal() if plan.is_private else 0.0
    centred = (below - reported / 2 + noise) / plan.expected_cohort
    fraction = min(max(centred + 0.5, 0.0), 1.0)
    scale *= math.exp(-clip.learning_rate * (fraction - clip.quantile))
    return min(max(scale, SMALLEST_SCALE), LARGEST_SCALE)
