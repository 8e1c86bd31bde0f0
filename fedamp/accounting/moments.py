"""Moments of a likelihood ratio X, kept as logarithms of its central moments E[(X - 1)^j], j = 0..A.

Where the two laws are mirror images of each other (Gaussian, Laplace, randomised response, ModelMix) every central
moment is >= 0: given \\|log X\\|, X is x with probability 1/(1+x) and 1/x otherwise, and (x-1)^j (1 + (-1)^j x^(1-j)) /
(1+x) >= 0. Means, products, thinnings and mixtures keep that sign and are sums of terms >= 0: nothing cancels, whatever
the number of copies.

Every array here has shape (A + 1,), holds log E[(X - 1)^j] at index j, 0 at index 0 and -inf at index 1.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array
from fedamp.accounting.numeric import log_binomials, log_factorials, log_sum, repeated


def from_nodes(log_weights: Array, log_ratios: Array, highest: int) -> Array:
    """Central moments of a law given by quadrature nodes.

    Args:
        log_weights: log of the mass (under "out") at each node, shape (n,).
        log_ratios: log X at each node, shape (n,).
        highest: A >= 2.
    """
    below = log_ratios < 0
    with np.errstate(divide="ignore"):  # log |X - 1|, without overflow
        gaps = np.maximum(log_ratios, 0.0) + np.log(-np.expm1(-np.abs(log_ratios)))
    central = np.full(highest + 1, -np.inf)
    central[0] = 0.0
    powers = np.arange(2, highest + 1)[:, None]
    positive = log_sum(log_weights[~below] + powers * gaps[~below])
    negative = log_sum(log_weights[below] + powers * gaps[below])
    odd = powers[:, 0] % 2 == 1
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = positive + np.log1p(-np.exp(np.minimum(negative - positive, 0.0)))
    central[2:] = np.where(odd, np.where(np.isnan(difference), -np.inf, difference), np.logaddexp(positive, negative))
    return central


def raw(central: Array) -> Array:
    """log E[X^a] for a = 0..A: the binomial sum of the central moments."""
    with np.errstate(over="ignore"):
        excess = log_sum((log_binomials(len(central) - 1) + central)[:, 2:])
        return np.where(excess < 30, np.log1p(np.exp(np.minimum(excess, 30))), np.logaddexp(0.0, excess))


def multiply(first: Array, second: Array) -> Array:
    """Central moments of the product of two independent ratios.

    XY - 1 = (X - 1) + X (Y - 1), and E[(X-1)^m X^j] = E[(X-1)^m X^(j-1)] + E[(X-1)^(m+1) X^(j-1)].
    """
    highest = len(first) - 1
    joint = np.full((highest + 1, highest + 1), -np.inf)  # [j, m]: log E[(X-1)^m X^j], for m + j <= A
    joint[0] = first
    for j in range(1, highest + 1):
        joint[j, : highest + 1 - j] = np.logaddexp(joint[j - 1, : highest + 1 - j], joint[j - 1, 1 : highest + 2 - j])
    power = np.arange(highest + 1)
    remaining = power[:, None] - power[None, :]  # [l, j]: l - j
    terms = np.where(remaining >= 0, joint[power[None, :], np.maximum(remaining, 0)], -np.inf)
    return log_sum(log_binomials(highest) + terms + second)


def mixture(parts: list[Array], weights: tuple[float, ...]) -> Array:
    """A law drawn with the given weights, and the draw released."""
    with np.errstate(divide="ignore"):
        return log_sum(np.stack(parts) + np.log(np.array(weights))[:, None], axis=0)


def mean(central: Array, copies: int) -> Array:
    """(X_1 + ... + X_copies) / copies, the X_i independent: with C(u) = sum_j E[(X-1)^j] u^j / j!, the sum of n copies
    of X - 1 has C(u)^n, by repeated squaring.
    """
    factorials = log_factorials(len(central) - 1)
    summed = repeated(central - factorials, copies, convolve) + factorials
    return np.asarray(summed - np.arange(len(central)) * np.log(copies))


def convolve(first: Array, second: Array) -> Array:
    """Product of two power series given by the logs of their coefficients, cut at the same degree."""
    size = len(first)
    windows = sliding_window_view(np.concatenate([np.full(size - 1, -np.inf), second]), size)
    return log_sum(windows + first[::-1])


# Negative moments, through the Laplace transform.

_STEP = 0.04
_GRID = np.exp(np.arange(-16.0, 64.0, _STEP))
"""Of u; enough for every order that is worth using."""


class Transform(NamedTuple):
    """Upper bounds at an array of u > 0: of ``log E exp(-u X)``, and of the same plus u (accurate where it is tiny)."""

    log: Array
    excess: Array


def transform_from_nodes(u: Array, log_weights: Array, log_ratios: Array, infinite: float = 0.0) -> Transform:
    """Of a law with ``log_weights`` at ``log_ratios``, shape (n,), and P-mass ``infinite`` where X is infinite, or of
    one that is smaller in convex order.
    """
    ratios, weights, small = np.exp(np.minimum(log_ratios, 600.0)), np.exp(log_weights), u < 0.5
    log, excess = np.empty_like(u), np.empty_like(u)
    for rows in np.array_split(np.arange(len(u)), max(1, len(u) * len(ratios) // 1_000_000)):
        near, far = rows[small[rows]], rows[~small[rows]]
        gap = _exponential_remainder(u[near, None] * ratios) @ weights + infinite * u[near]
        excess[near] = _log_remainder(gap - u[near]) + gap
        log[far] = log_sum(log_weights - u[far, None] * ratios)
    if np.max(log_ratios) > 600:  # the mean of X is not held by the nodes; exp(-uX) is at most 1
        excess = u
    return Transform(np.where(small, excess - u, log), np.where(small, excess, log + u))


def transform_from_moments(log_raw: Array, log_negative: Array, u: Array) -> Transform:
    """From moments alone: exp(-ux) <= 1 - ux + (ux)^2/2 near 0; beyond, exp(-ux) <= (c/(e u x))^c for every c > 0
    (Chernoff).

    Args:
        log_raw: log E[X^a], a = 0..A (only a = 2 is used).
        log_negative: log E[X^-b], b = 0..A-1.
    """
    second = np.exp(min(log_raw[2], 700.0))
    turn = np.minimum(u, 1 / second)  # the parabola's lowest point; the transform decreases in u
    excess = _log_remainder(turn * turn * second / 2 - turn) + turn * turn * second / 2
    log = excess - turn
    c = np.arange(1, len(log_negative))
    chernoff = np.min(c * (np.log(c) - 1 - np.log(u)[:, None]) + log_negative[1:], axis=1)
    log = np.minimum(log, chernoff)
    return Transform(log, np.where(u <= 1 / second, np.minimum(excess, log + u), log + u))


def _exponential_remainder(x: Array) -> Array:
    """exp(-x) - 1 + x for x >= 0, accurate near 0."""
    near = np.minimum(x, 0.02)
    series = near * near * (0.5 - near * (1 / 6 - near * (1 / 24 - near * (1 / 120 - near / 720))))
    return np.where(x < 0.02, series, np.expm1(-x) + x)


def _log_remainder(x: Array) -> Array:
    """log(1 + x) - x for x > -1, accurate near 0."""
    series = -x * x * (0.5 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x * (1 / 6 - x / 7)))))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.abs(x) < 0.005, series, np.log1p(np.maximum(x, -1.0)) - x)


def negative_moments(transform: Callable[[Array], Transform], count: int) -> Array:
    """log E[X^-b] for b = 0..count-1, +inf where the grid does not hold the integral.

        E[X^-b] = 1 / Gamma(b) * integral over u > 0 of u^(b-1) E[exp(-u X)] du,

    computed as 1 + integral of u^(b-1) (E[exp(-uX)] - exp(-u)) / Gamma(b), so that costs near 0 keep their relative
    accuracy, by a trapezoid sum over log u. The integrand is log-concave there, which bounds the tail. (The published
    shortcut for means, Dong, Chen and Özgür 2025, Lemma 3.18, is not an upper bound.)
    """
    values = transform(_GRID)
    v = np.log(_GRID)
    with np.errstate(divide="ignore"):
        gap = values.log + np.log(-np.expm1(-np.maximum(values.excess, 0.0)))
    integrand = _powers(count)[:, None] * v + gap
    total = log_sum(integrand) + np.log(_STEP) + _trapezoid_error(_powers(count))
    with np.errstate(invalid="ignore"):
        last, slope = integrand[:, -1], (integrand[:, -2] - integrand[:, -1]) / _STEP
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


def _trapezoid_error(powers: NDArray[np.int64]) -> Array:
    """What to add to the log of a trapezoid sum over log u of u^b exp(-u x), at every x: it errs by a share of
    2 |Gamma(b + iw) / Gamma(b)|, w = 2 pi / step, bounded by Euler's product and the integral below its logarithm.
    """
    b, w = powers.astype(np.float64), 2 * np.pi / _STEP
    share = 2 * np.exp(-(np.pi * w - b * np.log1p((w / b) ** 2) - 2 * w * np.arctan(b / w)) / 2)
    # 1 + ...: what it does to differences between values of x.
    return np.asarray(-np.log1p(-(1 + (w / b) ** 2) * share))


@lru_cache(maxsize=8)
def _powers(count: int) -> NDArray[np.int64]:
    """The powers b at which negative moments are computed: all up to 32, then steps of 4 %, and the last."""
    spread = 32 * 1.04 ** np.arange(0, 1 + np.log(max(count, 33) / 32) / np.log(1.04))
    powers = np.unique(np.concatenate([np.arange(1, 33), spread.astype(np.int64), [count - 1]]))
    return np.asarray(powers[(powers >= 1) & (powers < count)])
