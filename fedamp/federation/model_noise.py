"""Compute the noise in the server's model, by which schemes of noise are compared.

It costs nothing, and looks at no data.

Choosing the bands of correlated noise (:attr:`fedamp.federation.plan.Plan.coefficients`) and ``fedamp privacy`` ask
here. The response of the optimizer (:meth:`fedamp.federation.optimizers.ServerOptimizer.step_response`) says how long a
round's noise stays in the model.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedamp.federation.optional import AnyPlan
from fedamp.noise import norm_of


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


def path_noise(coefficients: Sequence[float], response: NDArray[np.float64]) -> float:
    """Return the root mean square, over the rounds, of the noise in the server's model.

    With A the Toeplitz matrix of the response and C that of the coefficients, it is norm(c) |A C^-1|_F / sqrt(rounds):
    both matrices are Toeplitz, so each diagonal holds one number.

    Args:
        coefficients: c_1, c_2, ..; none: independent noise.
        response: shape [rounds]: what one unit of a round's mean update has added to the model after 0, 1, .. further
            rounds.

    Returns:
        The noise for noise multiplier, clipping norm and denominator 1.

    Example:
        >>> plain_sums = np.ones(100)  # each update stays in the model
        >>> round(path_noise([], plain_sums), 2), round(path_noise([0.5, 0.375], plain_sums), 2)
        (7.11, 4.57)
    """
    filtered = response
    if coefficients:
        from scipy.signal import lfilter  # a slow import

        filtered = lfilter([1.0], [1.0, *coefficients], response)
    rounds = len(response)
    return norm_of(coefficients) * math.sqrt(float(np.arange(rounds, 0, -1) @ filtered**2) / rounds)


def mean_noise(coefficients: Sequence[float], *responses: NDArray[np.float64]) -> float:
    """Return the geometric mean of :func:`path_noise` over several models, which weighs the relative gain of each.

    Args:
        coefficients: c_1, c_2, ..
        responses: one array of shape [rounds] for each model.
    """
    return math.exp(math.fsum(math.log(path_noise(coefficients, each)) for each in responses) / len(responses))
