"""Moments of a likelihood ratio X, kept as logarithms of its central moments E[(X - 1)^j], j = 0..A.

X is the density of a release with the person in, over the density with the person out, under the latter: X >= 0, E[X]
= 1. For a base mechanism whose two laws are mirror images of each other (Gaussian, Laplace, randomised response,
ModelMix) every central moment is >= 0: given \\|log X\\|, X is x with probability 1/(1+x) and 1/x otherwise, and
(x-1)^j (1 + (-1)^j x^(1-j)) / (1+x) >= 0. Means, products, thinnings and mixtures keep that sign, and in central
moments each of them is a sum of terms >= 0: nothing cancels, whatever the number of copies. Moments of order a are
the exact Rényi divergence of the remove direction.

Every array here has shape (A + 1,), holds log E[(X - 1)^j] at index j, 0 at index 0 and -inf at index 1.
"""

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedamp.accounting.bounds import Array


@lru_cache(maxsize=8)
def log_factorials(largest: int) -> Array:
    """log j! for j = 0..largest."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, largest + 1)))])


def log_factorial(n: Array) -> Array:
    """log n! at each whole n >= 0 (Stirling's series, beyond 16 to within rounding)."""
    x = np.maximum(n, 16.0) + 1
    series = (x - 0.5) * np.log(x) - x + 0.5 * np.log(2 * np.pi) + 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)
    return np.where(n < 16, log_factorials(16)[np.minimum(n, 16).astype(int)], series)


def log_choose(n: int, j: Array) -> Array:
    """log C(n, j) at each whole j from 0 to n."""
    return log_factorial(np.full_like(j, n)) - log_factorial(j) - log_factorial(n - j)


@lru_cache(maxsize=8)
def log_binomials(largest: int) -> Array:
    """log C(a, j) at [a, j], -inf where j > a; shape (largest + 1, largest + 1)."""
    factorials = log_factorials(largest)
    a, j = np.arange(largest + 1)[:, None], np.arange(largest + 1)[None, :]
    table = factorials[a] - factorials[j] - factorials[np.maximum(a - j, 0)]
    return np.where(j <= a, table, -np.inf)


def log_sum(values: Array, axis: int = -1) -> Array:
    """log(sum(exp(values))) along ``axis``; -inf where all are -inf."""
    largest = np.max(values, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(values - shift), axis=axis)) + np.squeeze(shift, axis))


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


def thin(central: Array, rate: float) -> Array:
    """Poisson sampling (Zhu et al. 2022, Theorem 11): X becomes 1 + rate (X - 1)."""
    if rate == 0:
        return constant(len(central) - 1)
    return np.asarray(central + np.arange(len(central)) * np.log(rate))


def constant(highest: int) -> Array:
    """The release that tells nothing: X = 1."""
    return np.concatenate([[0.0], np.full(highest, -np.inf)])


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


def mean(central: Array, copies: int, of: int | None = None) -> Array:
    """(X_1 + ... + X_copies + (of - copies)) / of, the X_i independent.

    With C(u) = sum_j E[(X-1)^j] u^j / j!, the sum of n copies of X - 1 has C(u)^n: repeated squaring costs O(A^2 log
    n). It equals the sums over integer partitions of Feldman and Shenfeld 2025 (Theorem 4.8) and over compositions of
    Dong, Chen and Özgür 2025 (Eq. (2), k = 1).
    """
    total = copies if of is None else of
    factorials = log_factorials(len(central) - 1)
    summed = power(central - factorials, copies) + factorials
    return np.asarray(summed - np.arange(len(central)) * np.log(total))


def power(series: Array, exponent: int) -> Array:
    """exponent-th power of a power series given by the logs of its coefficients."""
    result = None
    while True:
        if exponent & 1:
            result = series if result is None else convolve(result, series)
        exponent >>= 1
        if not exponent:
            return result if result is not None else constant(len(series) - 1)
        series = convolve(series, series)


def convolve(first: Array, second: Array) -> Array:
    """Product of two power series given by the logs of their coefficients, cut at the same degree."""
    size = len(first)
    windows = sliding_window_view(np.concatenate([np.full(size - 1, -np.inf), second]), size)
    return log_sum(windows + first[::-1])
