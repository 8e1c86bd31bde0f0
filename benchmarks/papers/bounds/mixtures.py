"""Two mixtures of unit Gaussians on a line: the pair to which most worst cases of the papers reduce.

A mixture is given by its probabilities and its means, both of shape (components,), the means in standard deviations of
the noise. The trapezoidal rule in the log domain converges geometrically for these integrands; the step is chosen so
that its relative error is below 1e-12.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

Floats = NDArray[np.float64]

_TAIL = 10.0  # standard deviations kept beyond every tilted mean: exp(-10^2 / 2) = 2e-22
_KEEP = 50.0  # an integrand this far (in nats) below its peak is left out


def sampled_gaussian_rdp(noise_multiplier: float, rate: float, orders: ArrayLike, size: int = 1) -> Floats:
    """Schuchardt et al. 2024, Theorem 4.2 (tight): a Poisson sample with Gaussian noise, a group of ``size`` people.

    The batch holds i people of the group with binomial probability, and they move its output by at most i clipping
    norms. The larger of both directions, at real orders > 1, shape (orders,).
    """
    group = binomial(size, rate), np.arange(size + 1) / noise_multiplier
    nobody = np.array([1.0]), np.array([0.0])
    return np.maximum(renyi_of_mixtures(orders, *group, *nobody), renyi_of_mixtures(orders, *nobody, *group))


def binomial(trials: int, rate: float) -> Floats:
    """Probabilities of 0, 1, ..., ``trials`` successes; scipy's own overflow at the smallest rates."""
    hits = np.arange(trials + 1.0)
    log_choose = gammaln(trials + 1) - gammaln(hits + 1) - gammaln(trials - hits + 1)
    return np.asarray(np.exp(log_choose + xlogy(hits, rate) + xlog1py(trials - hits, -rate)))


def renyi_of_mixtures(
    orders: ArrayLike, probabilities: Floats, means: Floats, other_probabilities: Floats, other_means: Floats
) -> Floats:
    """Rényi divergence ``D_order(first || second)`` in nats, shape (orders,), of two mixtures of unit Gaussians.

    Args:
        orders: real numbers > 1.
        probabilities, means: the first mixture, each of shape (components,).
        other_probabilities, other_means: the second mixture.
    """
    first, second = _log_ratio(probabilities, means), _log_ratio(other_probabilities, other_means)
    low, high = float(np.min(means)), float(np.max(means))
    other_low, other_high = float(np.min(other_means)), float(np.max(other_means))
    other_span = other_high - other_low

    def divergence(order: float) -> float:
        # The derivative of the log integrand lies between these two tilts, minus z: beyond them it is a Gaussian tail.
        left = min(0.0, order * low - (order - 1) * other_high) - _TAIL
        right = max(0.0, order * high - (order - 1) * other_low) + _TAIL
        # Zeros of a mixture are pi / span away from the real line; the second mixture, to a negative power, narrows
        # the peak of the integrand by its curvature, at most (order - 1) span^2 / 4.
        span = max(high - low, other_span)
        step = min(
            0.25, math.pi / (10 * span) if span > 0 else 1.0, 0.6 / math.sqrt(1 + (order - 1) * other_span**2 / 4)
        )
        return _log_integral(lambda z: order * first(z) + (1 - order) * second(z), left, right, step) / (order - 1)

    return np.array([max(0.0, divergence(order)) for order in np.atleast_1d(np.asarray(orders, dtype=float))])


def _log_ratio(probabilities: Floats, means: Floats) -> Callable[[Floats], Floats]:
    """``z -> log(mixture density / unit Gaussian density)`` at ``z`` of shape (points,)."""
    present = np.asarray(probabilities) > 0
    log_probabilities, shifts = np.log(np.asarray(probabilities)[present]), np.asarray(means)[present]
    offsets = log_probabilities - shifts**2 / 2

    def log_ratio(z: Floats) -> Floats:
        return np.asarray(logsumexp(offsets[:, None] + shifts[:, None] * np.atleast_1d(z), axis=0))

    return log_ratio


def _log_integral(log_factor: Callable[[Floats], Floats], left: float, right: float, step: float) -> float:
    """``log E[exp(log_factor(z))]`` for z standard normal, leaving out what is negligible."""

    def log_integrand(z: Floats) -> Floats:
        return log_factor(z) - z**2 / 2 - math.log(2 * math.pi) / 2

    coarse = np.linspace(left, right, int((right - left) / 0.25) + 2)
    values = log_integrand(coarse)
    kept = np.flatnonzero(values > values.max() - _KEEP)
    # One coarse step more on either side, because the peak may lie between two coarse points.
    start, stop = coarse[max(kept[0] - 1, 0)], coarse[min(kept[-1] + 1, len(coarse) - 1)]
    fine = np.arange(start, stop + step, step)
    return float(logsumexp(log_integrand(fine)) + math.log(step))
