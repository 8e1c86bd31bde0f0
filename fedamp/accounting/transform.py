"""The add direction of Rényi divergences, through the Laplace transform of the likelihood ratio.

The add direction needs E[X^-b], b = order - 1. Means of copies have no closed form there, and the published shortcut
(Dong, Chen and Özgür 2025, Lemma 3.18) is not an upper bound: at noise multiplier 1, two copies, order 2 it gives
0.55017 for 0.56904. But

    E[X^-b] = 1 / Gamma(b) * integral over u > 0 of u^(b-1) E[exp(-u X)] du,

and E[exp(-u mean(X_1..X_n))] = E[exp(-u X / n)]^n: one integral over one variable, whatever the number of copies.
exp(-u x) is convex and decreasing in x, so a bound on the transform is a bound on the moment.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array
from fedamp.accounting.moments import log_factorials, log_sum

GRID = np.exp(np.arange(-16.0, 64.0, 0.02))  # u; enough for every order that is worth using


_LEAST_NOISE = 0.04
"""Below this noise multiplier (epsilon above 300) exp(-uX) <= 1 is bound enough: X leaves the floating-point range."""


class Transform(NamedTuple):
    """Upper bounds at an array of u > 0: of ``log E exp(-u X)``, and of the same plus u (accurate where it is tiny)."""

    log: Array
    excess: Array

    @staticmethod
    def from_excess(u: Array, excess: Array) -> "Transform":
        return Transform(excess - u, excess)

    @staticmethod
    def from_log(u: Array, log: Array) -> "Transform":
        return Transform(log, log + u)


Function = Callable[[Array], Transform]


def mean(inner: Function, copies: int, of: int, u: Array) -> Transform:
    """Of (X_1 + ... + X_copies + (of - copies)) / of."""
    part = inner(u / of)
    return Transform(copies * part.log - u * ((of - copies) / of), copies * part.excess)


def thin(inner: Function, rate: float, u: Array) -> Transform:
    """Of (1 - rate) + rate X."""
    if rate == 0:
        return Transform(-u, np.zeros_like(u))
    part = inner(rate * u)
    return Transform(part.log - (1 - rate) * u, part.excess)


def mixture(parts: list[Transform], weights: tuple[float, ...]) -> Transform:
    """Of a law drawn with the given weights."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.array(weights))[:, None]
    log = log_sum(np.stack([part.log for part in parts]) + logs, axis=0)
    small = np.stack([np.minimum(part.excess, 1.0) for part in parts])
    excess = np.log1p(np.tensordot(np.array(weights), np.expm1(small), axes=1))
    tiny = np.max(np.stack([part.excess for part in parts]), axis=0) < 1
    return Transform(log, np.where(tiny, excess, log_sum(np.stack([p.excess for p in parts]) + logs, axis=0)))


def from_nodes(log_weights: Array, log_ratios: Array, u: Array) -> Transform:
    """Of a law given by quadrature nodes: ``log_weights`` and ``log_ratios`` of shape (n,), ``u`` of shape (m,)."""
    log = np.empty_like(u)
    excess = np.empty_like(u)
    ratios, weights = np.exp(np.minimum(log_ratios, 600.0)), np.exp(log_weights)
    for chunk in np.array_split(np.arange(len(u)), max(1, len(u) * len(ratios) // 2_000_000)):
        product = u[chunk, None] * ratios
        log[chunk] = log_sum(log_weights - product)
        gap = exponential_remainder(product) @ weights
        excess[chunk] = log_remainder(gap - u[chunk]) + gap
    if np.max(log_ratios) > 600:  # the mean of X is not held by the nodes; exp(-uX) is at most 1
        excess = u
    small = u < 0.5
    return Transform(np.where(small, excess - u, log), np.where(small, excess, log + u))


def exponential_remainder(x: Array) -> Array:
    """exp(-x) - 1 + x for x >= 0, accurate near 0."""
    near = np.minimum(x, 0.02)
    series = near * near * (0.5 - near * (1 / 6 - near * (1 / 24 - near * (1 / 120 - near / 720))))
    return np.where(x < 0.02, series, np.expm1(-x) + x)


def log_remainder(x: Array) -> Array:
    """log(1 + x) - x for x > -1, accurate near 0."""
    series = -x * x * (0.5 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x * (1 / 6 - x / 7)))))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.abs(x) < 0.005, series, np.log1p(np.maximum(x, -1.0)) - x)


def gaussian(noise_multiplier: float, u: Array) -> Transform:
    """Of X = exp(z/s - 1/(2 s^2)), z standard normal: trapezoid sums centred where the integrand is largest."""
    s = noise_multiplier
    if s < _LEAST_NOISE:
        return Transform.from_log(u, np.zeros_like(u))
    small = u < 0.5
    excess = np.zeros_like(u)
    if small.any():
        excess[small] = from_nodes(*_gaussian_nodes(s, -9.0, 2 / s + 9.0), u[small]).excess
    log = excess - u
    if not small.all():
        log[~small] = _gaussian_saddle(s, u[~small])
    return Transform(log, np.where(small, excess, log + u))


def _gaussian_saddle(s: float, u: Array) -> Array:
    """log E exp(-u X) about the saddle z* = -s W, where W exp(W) = u exp(-1/(2 s^2)) / s^2 (Lambert's W)."""
    target = np.log(u) - 0.5 / s**2 - 2 * np.log(s)
    log_w = np.where(target > 1, np.log(np.maximum(target, 1.0)), target)
    for _ in range(8):
        log_w -= (np.exp(log_w) + log_w - target) / (np.exp(log_w) + 1)
    w = np.exp(log_w)

    def drop(x: Array) -> Array:
        return np.asarray(x * x / 2 + s * s * w[:, None] * (np.expm1(np.minimum(x / s, 700.0)) - x / s))

    ends = []
    for sign in (-1.0, 1.0):
        low, high = np.zeros_like(w), np.full_like(w, 9.0)
        for _ in range(30):
            middle = (low + high) / 2
            far = drop(sign * middle[:, None])[:, 0] > 40
            low, high = np.where(far, low, middle), np.where(far, middle, high)
        ends.append(sign * high)
    nodes = int(min(4000, max(128, 80 / s)))
    step = (ends[1] - ends[0]) / nodes
    x = ends[0][:, None] + step[:, None] * np.arange(nodes + 1)
    return np.asarray(-s * s * w * (w / 2 + 1) + np.log(np.exp(-drop(x)).sum(axis=1) * step / np.sqrt(2 * np.pi)))


def times_gaussian(noise_multiplier: float, inner: Function, u: Array) -> Transform:
    """Of the product of a Gaussian mechanism's ratio and an independent one: E exp(-u X Y) = E over X of the
    transform of Y at u X.
    """
    s = noise_multiplier
    if s < _LEAST_NOISE:
        return Transform.from_log(u, np.zeros_like(u))
    table = inner(GRID)
    log = np.empty_like(GRID)
    small = GRID < 0.5
    for chunk in np.array_split(np.flatnonzero(~small), 16):
        lowest = -s * np.log(GRID[chunk[-1]]) - 9.0  # the integrand's largest point is right of -s log u
        log_weights, log_ratios = _gaussian_nodes(s, min(lowest, -9.0), 9.0)
        values = _interpolate(GRID[chunk, None] * np.exp(log_ratios), table)
        log[chunk] = np.logaddexp(log_sum(log_weights + values.log), -lowest * lowest / 2)  # what is left of the nodes
    near = GRID[small, None]
    log_weights, log_ratios = _gaussian_nodes(s, -9.0, 2 / s + 9.0)
    values = _interpolate(near * np.exp(log_ratios), table)
    # E[exp(-u(X-1)) exp(excess(uX))] - 1, as a sum of two terms >= 0; the second one's factors are joined before they
    # overflow.
    with np.errstate(divide="ignore"):
        gap = values.log + np.log(-np.expm1(-values.excess))
    gain = np.sum(np.exp(log_weights + near + gap), axis=1)
    excess = np.log1p(np.expm1(gaussian(s, GRID[small]).excess) + gain)
    log[small] = excess - GRID[small]
    full = log + GRID
    full[small] = excess
    return _interpolate(u, Transform(log, full))


def _gaussian_nodes(s: float, low: float, high: float) -> tuple[Array, Array]:
    """Trapezoid nodes of the Gaussian mechanism's ratio: log weights and log ratios."""
    step = min(0.25, s / 4)
    z = np.arange(low, high, step)
    return -z * z / 2 + np.log(step / np.sqrt(2 * np.pi)), z / s - 0.5 / s**2


def _interpolate(u: Array, table: Transform) -> Transform:
    """Between grid points both fields are convex in u, so straight lines are upper bounds; so is what is held beyond
    the ends.
    """
    log = np.interp(u, GRID, table.log)
    excess = np.interp(u, GRID, table.excess)
    below = u < GRID[0]
    excess = np.where(below, table.excess[0] * u / GRID[0], excess)
    small = u < 0.5
    return Transform(np.where(small, excess - u, log), np.where(small, excess, log + u))


def from_moments(log_raw: Array, log_negative: Array, u: Array) -> Transform:
    """From moments alone: exp(-ux) <= 1 - ux + (ux)^2/2 near 0; beyond, exp(-ux) <= (c/(e u x))^c for every c > 0
    (Chernoff).

    Args:
        log_raw: log E[X^a], a = 0..A (only a = 2 is used).
        log_negative: log E[X^-b], b = 0..A-1.
    """
    second = np.exp(min(log_raw[2], 700.0))
    turn = np.minimum(u, 1 / second)  # the parabola's lowest point; the transform decreases in u
    excess = log_remainder(turn * turn * second / 2 - turn) + turn * turn * second / 2
    log = excess - turn
    c = np.arange(1, len(log_negative))
    chernoff = np.min(c * (np.log(c) - 1 - np.log(u)[:, None]) + log_negative[1:], axis=1)
    log = np.minimum(log, chernoff)
    return Transform(log, np.where(u <= 1 / second, np.minimum(excess, log + u), log + u))


def smallest(first: Transform, second: Transform) -> Transform:
    """The better of two bounds at each u."""
    return Transform(np.minimum(first.log, second.log), np.minimum(first.excess, second.excess))


def negative_moments(function: Function, count: int) -> Array:
    """log E[X^-b] for b = 0..count-1, +inf where the grid does not hold the integral.

    Computed as 1 + integral of u^(b-1) (E[exp(-uX)] - exp(-u)) / Gamma(b), so that costs near 0 keep their relative
    accuracy, by a trapezoid sum over log u. The integrand is log-concave there, which bounds the tail.
    """
    values = function(GRID)
    v, step = np.log(GRID[::2]), 0.04
    with np.errstate(divide="ignore"):
        gap = (values.log + np.log(-np.expm1(-np.maximum(values.excess, 0.0))))[::2]
    integrand = _powers(count)[:, None] * v + gap
    total = log_sum(integrand) + np.log(step) + _trapezoid_error(_powers(count), step)
    with np.errstate(invalid="ignore"):
        last, slope = integrand[:, -1], (integrand[:, -2] - integrand[:, -1]) / step
    with np.errstate(divide="ignore"):
        tail = np.where(slope > 0, last - np.log(np.maximum(slope, 1e-300)), np.inf)
    tail = np.where(np.isneginf(last), -np.inf, tail)
    moment = np.logaddexp(total, tail) - log_factorials(count)[_powers(count) - 1]
    result = np.where(moment < -1, np.log1p(np.exp(np.minimum(moment, 0.0))), np.logaddexp(0.0, moment))
    result = np.where(tail > total - 7, np.inf, result)
    # log E[X^-b] is convex in b: straight lines between the powers that were computed are upper bounds.
    known = np.concatenate([[0], _powers(count)])
    with np.errstate(invalid="ignore"):
        between = np.interp(np.arange(count), known, np.concatenate([[0.0], result]))
    return np.where(np.isnan(between), np.inf, between)


def _trapezoid_error(powers: NDArray[np.int64], step: float) -> Array:
    """What to add to the log of a trapezoid sum over log u of u^b exp(-u x), at every x: it errs by a share of
    2 |Gamma(b + iw) / Gamma(b)|, w = 2 pi / step, bounded by Euler's product and the integral below its logarithm.
    """
    b, w = powers.astype(np.float64), 2 * np.pi / step
    share = 2 * np.exp(-(np.pi * w - b * np.log1p((w / b) ** 2) - 2 * w * np.arctan(b / w)) / 2)
    return np.asarray(
        -np.log1p(-(1 + (w / b) ** 2) * share)
    )  # 1 + ...: what it does to differences between values of x


@lru_cache(maxsize=8)
def _powers(count: int) -> NDArray[np.int64]:
    """The powers b at which negative moments are computed: all up to 32, then steps of 4 %, and the last."""
    spread = 32 * 1.04 ** np.arange(0, 1 + np.log(max(count, 33) / 32) / np.log(1.04))
    powers = np.unique(np.concatenate([np.arange(1, 33), spread.astype(np.int64), [count - 1]]))
    return np.asarray(powers[(powers >= 1) & (powers < count)])
