"""Two mixtures of unit Gaussians on a line: the pair that most worst cases of the papers reduce to.

A mixture is given by its probabilities and its means, both of shape (components,), the means in units of the noise's
standard deviation. Everything is evaluated by the trapezoidal rule in the log domain, which converges geometrically for
these integrands; the step is chosen so that its error is below 1e-12 (relative).
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr

from benchmarks.papers.bounds.arguments import Floats, check_orders

_TAIL = 10.0  # standard deviations kept beyond every tilted mean: exp(-10^2 / 2) = 2e-22
_KEEP = 50.0  # an integrand this far (in nats) below its peak is left out


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

    return np.array([max(0.0, divergence(order)) for order in check_orders(orders)])


def log_likelihood_ratio(z: Floats, probabilities: Floats, means: Floats) -> Floats:
    """``log(mixture density / unit Gaussian density)`` at ``z`` of shape (points,)."""
    return _log_ratio(probabilities, means)(np.asarray(z, dtype=float))


def inverse_log_likelihood_ratio(values: Floats, probabilities: Floats, means: Floats) -> Floats:
    """Where the log likelihood ratio of a mixture with means >= 0 reaches ``values`` of shape (points,).

    The ratio increases along the line. Values that it never reaches give a point 40 standard deviations outside all
    means, beyond which doubles see no mass.
    """
    log_ratio, targets = _log_ratio(probabilities, means), np.asarray(values, dtype=float)
    low = np.full(targets.shape, -40.0)
    high = np.full(targets.shape, float(np.max(means)) + 40.0)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = log_ratio(middle) > targets
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return (low + high) / 2


def delta_of_mixture(epsilon: float, probabilities: Floats, means: Floats) -> tuple[float, float]:
    """Hockey-stick divergences at ``epsilon`` >= 0 between a mixture with means >= 0 and the unit Gaussian at 0.

    The likelihood ratio increases along the line, so each divergence is a difference of Gaussian tails beyond one root.

    Returns:
        ``(H(mixture, Gaussian), H(Gaussian, mixture))``: the remove and the add direction.
    """
    log_ratio = _log_ratio(probabilities, means)
    return _above(epsilon, log_ratio, probabilities, means), _below(epsilon, log_ratio, probabilities, means)


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


def _above(epsilon: float, log_ratio: Callable[[Floats], Floats], probabilities: Floats, means: Floats) -> float:
    root = _root(lambda z: float(log_ratio(np.array([z]))[0]) - epsilon, float(np.max(means)))
    if root is None:
        return 0.0
    mixture = float(np.dot(probabilities, ndtr(np.asarray(means) - root)))
    return max(0.0, mixture - math.exp(epsilon) * float(ndtr(-root)))


def _below(epsilon: float, log_ratio: Callable[[Floats], Floats], probabilities: Floats, means: Floats) -> float:
    root = _root(lambda z: float(log_ratio(np.array([z]))[0]) + epsilon, float(np.max(means)))
    if root is None:
        return 0.0
    mixture = float(np.dot(probabilities, ndtr(root - np.asarray(means))))
    return max(0.0, float(ndtr(root)) - math.exp(epsilon) * mixture)


def _root(increasing: Callable[[float], float], largest_mean: float) -> float | None:
    """The zero of an increasing function, or None where the function keeps one sign as far as doubles reach."""
    if largest_mean <= 0:
        return None
    low, high = -1.0, 1.0
    while increasing(high) < 0:
        high *= 2
        if high > 1e8:
            return None
    while increasing(low) > 0:
        low *= 2
        if low < -1e8:
            return None
    return float(brentq(increasing, low, high, xtol=1e-14, rtol=1e-14))
