"""The noise in the server's model, by which schemes of noise are compared. It costs nothing, and looks at no data."""

import math

import numpy as np
from numpy.typing import NDArray

from fedamp.federation.optional import AnyPlan
from fedamp.noise import mean_noise


def root_mean_square(plan: AnyPlan) -> float:
    """Root mean square, over rounds, of the noise in a coordinate of the server's model, in its first part."""
    return float(per_clip(plan) * plan.parts[0].clip)


def per_clip(plan: AnyPlan) -> float:
    """:func:`root_mean_square` over the clipping norm: ``clip: auto`` shortens updates where noise grows, and then less
    noise in the model is no gain.
    """
    return _per_clip(plan, plan.optimizer.response(plan.scenario.rounds))


def error(plan: AnyPlan) -> float:
    """Criterion for choosing the bands of noise: the noise in the models, with ``clip: auto`` times the root of the
    noise multiplier.

    The noise is the geometric mean over the model that clients start from and the released one: an average hides noise
    that clients train on. Training pulls the model back before the noise of later rounds cancels that of one, so that
    much noise a round is worse. ``clip: auto`` shortens updates by the same root, up to where they are as long as may
    be; docs/research/correlated-noise.md has the measurements.
    """
    noise = _per_clip(plan, *plan.optimizer.responses(plan.scenario.rounds)) * plan.parts[0].clip
    return float(noise * (math.sqrt(plan.noise_multiplier) if plan.clipping.normalises else 1.0))


def _per_clip(plan: AnyPlan, *responses: NDArray[np.float64]) -> float:
    part = plan.full_size.parts[0]
    assert plan.noise, "within what is exact"
    return float(part.noise_multiplier / part.denominator * mean_noise(plan.coefficients, *responses))
