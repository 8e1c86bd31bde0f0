"""Compute the noise in the server's model, by which schemes of noise are compared.

It costs nothing, and looks at no data.

Choosing the bands of correlated noise (:attr:`fedamp.federation.plan.Plan.coefficients`) and ``fedamp privacy`` ask
here. The response of the optimizer (:meth:`fedamp.federation.optimizers.ServerOptimizer.step_response`) says how long a
round's noise stays in the model.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedamp.federation.optional import AnyPlan
from fedamp.noise import mean_noise


def root_mean_square(plan: AnyPlan) -> float:
    """Compute the root mean square, over rounds, of the noise in a coordinate of the server's model, in its first part.

    Args:
        plan: with noise.
    """
    return float(per_clip(plan) * plan.parts[0].clip)


def per_clip(plan: AnyPlan) -> float:
    """Compute :func:`root_mean_square` over the clipping norm.

    ``clip: auto`` shortens updates where noise grows; less noise in the model is then no gain by itself.
    """
    return _per_clip(plan, plan.optimizer.step_response(plan.scenario.rounds))


def noise_criterion(plan: AnyPlan) -> float:
    """Compute the criterion for choosing the bands of noise: the noise in the models.

    With ``clip: auto`` it is multiplied by the root of the noise multiplier, because updates are shortened by that
    root, up to where they are as long as may be.

    The noise is the geometric mean over the model that clients start from and the released one: an average hides noise
    that clients train on. Training pulls the model back before the noise of later rounds cancels that of one, so that
    much noise a round is worse. docs/research/correlated-noise.md has the measurements.
    """
    noise = _per_clip(plan, *plan.optimizer.step_responses(plan.scenario.rounds)) * plan.parts[0].clip
    return float(noise * (math.sqrt(plan.noise_multiplier) if plan.clipping.normalises else 1.0))


def _per_clip(plan: AnyPlan, *responses: NDArray[np.float64]) -> float:
    """Compute the noise in the models with these responses over the norm, for the plan of full size."""
    part = plan.full_size.parts[0]
    assert plan.noise, "within what is exact"
    return float(part.noise_multiplier / part.denominator * mean_noise(plan.coefficients, *responses))
