"""Xiao, Wan, Devadas 2022, "Differentially Private Deep Learning with ModelMix".

Every step mixes the last two states with a fresh uniform weight in each coordinate, then adds the noisy clipped sum.
With the two states ``tau`` apart and step size ``eta``, one coordinate of the noise is N(0, sigma^2) plus an
independent uniform of width ``tau / eta``. Only ratios to the clipping norm c matter: ``noise_multiplier = sigma / c``
and ``width = tau / (eta c)``, with tau, eta, sigma and c in the units of the same (summed or averaged) update.

A wider gap than ``tau`` is taken to be at least as private as ``tau``, as the paper does without proof; the tests check
it on a grid. Nothing here bounds the hockey-stick divergence: there, one coordinate is *not* the worst case.

Divergences in nats, one for every order, shape (orders,). The paper states one direction (a person removed); the
mirror image about half the shift swaps both laws, so the other direction is not larger (Mironov, Talwar, Zhang 2019,
Theorem 5).
"""

import itertools
import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, logsumexp

from benchmarks.papers.bounds.arguments import Floats, check_count, check_orders, check_positive, check_probability
from benchmarks.papers.bounds.partitioning import poisson_rdp_of_moments

__all__ = [
    "is_convex_in_square",
    "laplace_rdp",
    "mixed_epsilon",
    "mixed_rdp",
    "one_coordinate_log_moment",
    "one_coordinate_rdp",
]

_TAIL = 12.0  # standard deviations kept on either side: exp(-12^2 / 2) = 5e-32
_MOST_POINTS = 4_000_000  # of one quadrature: 32 MB an array
_GRID = np.linspace(0.0, 1.0, 17)  # of the squared shift (shift, for Laplace noise), where convexity is checked
_ROUNDING = 1e-8  # of the largest value; the quadrature is good to 1e-12, second differences lose some of it


def one_coordinate_log_moment(noise_multiplier: float, width: float, order: float, shift: float = 1.0) -> float:
    """``h(shift)`` of the proof: log of the ``order``-th moment of the likelihood ratio in one coordinate.

    Args:
        width: of the uniform, in clipping norms, > 0.
        order: a real number > 1.
        shift: what the person adds to this coordinate, in clipping norms, >= 0.

    Raises:
        ValueError: if the quadrature would need too many points (``width`` or ``shift`` thousands of times the noise).
    """
    check_positive("noise_multiplier", noise_multiplier)
    check_positive("width", width)
    order = float(check_orders(order)[0])
    if not 0 <= shift < math.inf:
        raise ValueError(f"shift must be >= 0 and finite, got {shift}")
    z, step = _points(noise_multiplier, width, order, shift)
    log_integrand = order * _log_density(z - shift, noise_multiplier, width)
    log_integrand -= (order - 1) * _log_density(z, noise_multiplier, width)
    return float(logsumexp(log_integrand) + math.log(step))


def one_coordinate_rdp(noise_multiplier: float, width: float, orders: ArrayLike, rate: float = 1.0) -> Floats:
    """One coordinate that takes the whole norm, Poisson sampled, at any real order: **not a proved bound**.

    At whole orders it is Theorem 4.1. Between them the binomial sum behind that theorem does not exist, so that nothing
    says that one coordinate is the worst case. It is here for comparison: the epsilons of section 4.3 come out with
    orders 1.25 and 1.5 only.

    Args:
        width: of the uniform, in clipping norms, >= 0; 0 is the Gaussian mechanism, for which every order is proved
            (Mironov, Talwar, Zhang 2019).
        orders: real numbers > 1.
        rate: in [0, 1].

    Raises:
        ValueError: as :func:`one_coordinate_log_moment`.
    """
    check_positive("noise_multiplier", noise_multiplier)
    if not 0 <= width < math.inf:
        raise ValueError(f"width must be >= 0 and finite, got {width}")
    check_probability("rate", rate)
    divergences = []
    for order in check_orders(orders):
        z, step = _points(noise_multiplier, width, order, 1.0)
        out = _log_density(z, noise_multiplier, width)
        with np.errstate(divide="ignore"):  # rates 0 and 1
            sampled = np.logaddexp(np.log1p(-rate), np.log(rate) + _log_density(z - 1, noise_multiplier, width) - out)
        divergences.append((logsumexp(order * sampled + out) + math.log(step)) / (order - 1))
    return np.array(divergences)


@lru_cache(maxsize=4096)
def is_convex_in_square(noise_multiplier: float, width: float, order: float, largest: float = 1.0) -> bool:
    """Whether ``g(x) = h(sqrt x)`` looks convex on ``[0, largest^2]``: what Theorem 4.1 and Corollary 4.1 rest on.

    The paper calls it a "simple calculation"; this checks second differences on a grid of 17 points, to 1e-8 of the
    largest value. It was found to hold for every noise multiplier in 0.1..8 with widths 0.01..30 and orders 2..20, and
    on a coarser grid for 0.02..4, 0.001..1000 and 2..256.
    """
    shifts = largest * np.sqrt(_GRID)
    values = np.array([one_coordinate_log_moment(noise_multiplier, width, order, float(v)) for v in shifts])
    return _is_convex(values)


def mixed_rdp(
    noise_multiplier: float, width: float, orders: ArrayLike, rate: float = 1.0, linf_coordinates: int = 1
) -> Floats:
    """Theorem 4.1 and, for ``linf_coordinates = p > 1``, Corollary 4.1: one step under Poisson sampling at ``rate``.

    The worst case puts the whole norm into one coordinate, or, if the l-infinity norm is clipped to ``1 / sqrt(p)``
    clipping norms, equally into ``p``. The corollary prints the divisor ``1 - a`` where it means ``a - 1``.

    Args:
        orders: integers >= 2.
        rate: in [0, 1].

    Raises:
        ValueError: if the worst case cannot be confirmed for these parameters (:func:`is_convex_in_square`).
    """
    check_positive("noise_multiplier", noise_multiplier)
    check_positive("width", width)
    order = check_orders(orders, integer=True)
    coordinates = check_count("linf_coordinates", linf_coordinates)
    shift = 1 / math.sqrt(coordinates)
    powers = np.arange(int(order.max()) + 1)
    log_moments = np.zeros(len(powers))
    for power in powers[2:]:
        if not is_convex_in_square(noise_multiplier, width, float(power), shift):
            raise ValueError(
                f"noise_multiplier {noise_multiplier} and width {width} are not expected: at order {power} the worst "
                f"case of Theorem 4.1 is not confirmed, because g(x) = h(sqrt x) is not convex"
            )
        log_moments[power] = coordinates * one_coordinate_log_moment(noise_multiplier, width, float(power), shift)
    return poisson_rdp_of_moments(log_moments, rate, order)


def mixed_epsilon(
    noise_multiplier: float,
    width: float,
    steps: int,
    delta: float,
    orders: ArrayLike,
    rate: float = 1.0,
    linf_coordinates: int = 1,
) -> float:
    """Epsilon after ``steps`` steps: the smallest ``steps * rdp + log(1 / delta) / (order - 1)`` of ``orders``.

    Corollary 4.1 drops the factor ``steps``, which Theorem 4.1 has.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")
    order = check_orders(orders, integer=True)
    rdp = mixed_rdp(noise_multiplier, width, order, rate, linf_coordinates)
    return float(np.min(check_count("steps", steps) * rdp - math.log(delta) / (order - 1)))


def laplace_rdp(scale: float, width: float, orders: ArrayLike, rate: float = 1.0) -> Floats:
    """Remark C.1: the same with Laplace noise of ``scale`` and the l1 norm clipped, both in clipping norms.

    One coordinate is then the worst case because ``h`` itself is convex in the shift, which is checked on a grid.

    Raises:
        ValueError: if it does not look convex for these parameters.
    """
    check_positive("scale", scale)
    check_positive("width", width)
    order = check_orders(orders, integer=True)
    powers = np.arange(int(order.max()) + 1)
    log_moments = np.zeros(len(powers))
    for power in powers[2:]:
        values = np.array([_laplace_log_moment(scale, width, int(power), float(v)) for v in _GRID])
        if not _is_convex(values):
            raise ValueError(
                f"scale {scale} and width {width} are not expected: at order {power} the worst case of Remark C.1 is "
                f"not confirmed, because h is not convex"
            )
        log_moments[power] = values[-1]
    return poisson_rdp_of_moments(log_moments, rate, order)


def _points(noise_multiplier: float, width: float, order: float, shift: float) -> tuple[Floats, float]:
    """Equidistant points for the trapezoidal rule, and their distance."""
    # The order narrows the features of the integrand, an entire function, from s to s / sqrt(order) at most; the
    # trapezoidal rule then converges geometrically.
    step = noise_multiplier / (8 + 8 * math.sqrt(order))
    left, right = -width / 2 - _TAIL * noise_multiplier, width / 2 + order * shift + _TAIL * noise_multiplier
    if (right - left) / step > _MOST_POINTS:
        raise ValueError(
            f"noise_multiplier is too small for width {width}, order {order} and shift {shift}: the quadrature would "
            f"need {(right - left) / step:.0e} points, accepted are {_MOST_POINTS:.0e}; got {noise_multiplier}"
        )
    return np.arange(left, right + step, step), step


def _log_density(z: Floats, noise_multiplier: float, width: float) -> Floats:
    """Log density of a centred normal plus a uniform of ``width``, taken on the left, where the tails keep digits."""
    if width == 0:
        return np.asarray(-((z / noise_multiplier) ** 2) / 2 - math.log(noise_multiplier * math.sqrt(2 * math.pi)))
    left = -np.abs(z)
    high = log_ndtr((left + width / 2) / noise_multiplier)
    low = log_ndtr((left - width / 2) / noise_multiplier)
    return np.asarray(high + np.log(-np.expm1(low - high)) - math.log(width))


def _laplace_log_density(z: Floats, scale: float, width: float) -> Floats:
    """Log density of a centred Laplace plus a uniform of ``width``."""
    edge = width / 2
    distance = np.abs(z)
    within = np.minimum(distance, edge)
    inside = -(np.expm1((within - edge) / scale) + np.expm1(-(within + edge) / scale)) / 2
    outside = -(np.maximum(distance, edge) - edge) / scale + math.log(-math.expm1(-width / scale) / 2)
    return np.asarray(np.where(distance < edge, np.log(inside), outside) - math.log(width))


def _laplace_log_moment(scale: float, width: float, order: int, shift: float) -> float:
    """``h(shift)`` for Laplace noise: Gauss-Legendre between the kinks, and exact exponential tails beyond them."""
    kinks = np.unique([-width / 2, width / 2, shift - width / 2, shift + width / 2])
    node, weight = np.polynomial.legendre.leggauss(20)
    logs = []
    for low, high in itertools.pairwise(kinks):
        cells = math.ceil((high - low) * (1 + order) / scale) + 1
        edges = np.linspace(low, high, cells + 1)
        half = (edges[1:] - edges[:-1])[:, None] / 2
        z = edges[:-1, None] + half * (1 + node)
        log_integrand = order * _laplace_log_density(z - shift, scale, width)
        log_integrand -= (order - 1) * _laplace_log_density(z, scale, width)
        logs.append(logsumexp(log_integrand, b=half * weight))
    # Beyond the last kinks the ratio is constant, exp(+-shift / scale); the tail of an exponential is its density
    # times the scale.
    logs.append(order * shift / scale + float(_laplace_log_density(kinks[-1], scale, width)) + math.log(scale))
    logs.append(-order * shift / scale + float(_laplace_log_density(kinks[0], scale, width)) + math.log(scale))
    return float(logsumexp(logs))


def _is_convex(values: Floats) -> bool:
    """Whether second differences of equidistant ``values`` are not negative beyond rounding."""
    return bool(np.all(np.isfinite(values)) and np.diff(values, 2).min() >= -_ROUNDING * values.max())
