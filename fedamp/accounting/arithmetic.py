"""Arithmetic that several evaluators share: logarithms of sums and binomials, powers, a search, normal masses; and all
bounds of rounding errors in one section.
"""

import math
from collections.abc import Callable, Iterable, Sized
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

T = TypeVar("T")

Array = NDArray[np.float64]

UNIT = 2.0**-53  # largest relative error of one floating-point operation

_LARGEST_TABLE = 1_000_000  # log factorials up to here are kept in a table


def log_sum(values: Array, axis: int = -1) -> Array:
    """log(sum(exp(values))) along ``axis``; -inf where all are -inf."""
    largest = np.max(values, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(values - shift), axis=axis)) + np.squeeze(shift, axis))


@lru_cache(maxsize=32)
def log_factorials(largest: int) -> Array:
    """log j! for j = 0..largest, each to a few units."""
    return _log_factorial(np.arange(largest + 1))


def log_choose(n: NDArray[np.integer[Any]] | int, m: NDArray[np.integer[Any]] | int) -> Array:
    """log C(n, m) for whole numbers 0 <= m <= n."""
    n, m = np.asarray(n), np.asarray(m)
    most = int(n.max(initial=1))
    if most > _LARGEST_TABLE:
        return np.asarray(_log_factorial(n) - _log_factorial(m) - _log_factorial(n - m))
    table = log_factorials((1 << most.bit_length()) - 1)
    return np.asarray(table[n] - table[m] - table[n - m])


def _log_factorial(n: NDArray[np.integer[Any]]) -> Array:
    from scipy.special import gammaln  # a slow import

    return np.asarray(gammaln(n + 1.0))


@lru_cache(maxsize=8)
def log_binomials(largest: int) -> Array:
    """log C(a, j) at [a, j], -inf where j > a; shape (largest + 1, largest + 1)."""
    factorials = log_factorials(largest)
    a, j = np.arange(largest + 1)[:, None], np.arange(largest + 1)[None, :]
    table = factorials[a] - factorials[j] - factorials[np.maximum(a - j, 0)]
    return np.where(j <= a, table, -np.inf)


def repeated(value: T, times: int, combine: Callable[[T, T], T]) -> T:
    """``times`` >= 1 copies of a value combined, by doubling."""
    result = None
    while True:
        if times & 1:
            result = value if result is None else combine(result, value)
        times >>= 1
        if not times:
            assert result is not None
            return result
        value = combine(value, value)


def chance_of_any(events: Iterable[tuple[float, int]]) -> float:
    """The chance that any of several independent events happens: pairs (chance, number of trials)."""
    return -math.expm1(sum(times * math.log1p(-chance) if chance < 1 else -math.inf for chance, times in events))


def crossing(falling: Callable[[float], float], level: float, limit: float, tolerance: float) -> tuple[float, float]:
    """Neighbouring numbers >= 0 between which a falling function reaches ``level``. ``falling``: the function.
    ``level``: what it falls to. ``limit``: the upper end is infinite if the function is above the level up to here.
    ``tolerance``: relative distance of both ends. Returns both 0 if the function starts at or below the level.
    """
    if falling(0.0) <= level:
        return 0.0, 0.0
    low, high = 0.0, 1.0
    while falling(high) > level:
        low, high = high, 2 * high
        if high > limit:
            return low, math.inf
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > level else (low, middle)
    return low, high


def normal_mass(low: ArrayLike, high: ArrayLike) -> Array:
    """Standard normal mass of the intervals from ``low`` to ``high``, to full relative accuracy in both tails."""
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    mirrored = high > -low
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    nodes, weights = np.polynomial.legendre.leggauss(8)  # error below 1e-16 relative up to a width of 0.2
    with np.errstate(invalid="ignore"):
        middle, half = (low + high) / 2, (high - low) / 2
        density = np.exp(-((middle[..., None] + half[..., None] * nodes) ** 2) / 2) / np.sqrt(2 * np.pi)
        mass = np.asarray(half * (density @ weights))
    wide = ~(half < 0.1)
    mass[wide] = [_normal_cdf(b) - _normal_cdf(a) for a, b in zip(low[wide], high[wide], strict=True)]
    return mass


def _normal_cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def gaussian_delta(signal: Array, epsilon: Array | float, side: int) -> Array:
    """delta at ``epsilon`` >= 0 of Gaussians with these squared signal-to-noise ratios, from above (``side`` 1), below
    (-1) or to rounding (0) (Balle, Wang 2018, Theorem 8): Phi(a) - e^epsilon Phi(b), e^epsilon phi(b) = phi(a), a >= b.
    """
    from scipy.special import erfcx, ndtr  # a slow import

    some = (signal > 0) & (signal < np.inf)
    shift = np.sqrt(np.where(some, signal, 1.0))
    lost = epsilon / shift
    a, b = shift / 2 - lost, -shift / 2 - lost
    a = a + side * 8 * UNIT * -b
    with np.errstate(under="ignore", over="ignore"):
        below = ndtr(a)
        delta = below - np.exp(-a * a / 2) * erfcx(-b / math.sqrt(2)) / 2
        square = np.minimum(a * a, 1e4)  # beyond, tails are 0
        slack = below * (64 + 8 * square) * UNIT + 1e-300  # both functions are known to some units, the tail to a^2
    return np.where(some, np.clip(delta + side * slack, 0.0, 1.0), np.where(signal > 0, 1.0, 0.0))


# Rounding budgets. Every end of every bracket is widened by them; docs/accounting.md, "Floating point", adds them up.

SAMPLER = 2.0**-113
"""The share of delta for all numbers that a run releases: (1 + e^epsilon) 2**-280 for each, of which no mechanism knows
(:mod:`fedamp.noise.gaussian`), with at most 2**64 numbers and epsilon at most 70."""

EXPONENT = 750.0  # exp of anything beyond is 0 or infinite

TRANSFORM = 7.0
"""Units by which a level of a transform of a power of two errs at most: a complex product errs by sqrt(5) (Brent,
Percival, Zimmermann 2007), a sum by 1, and a stored root of unity by 1 (numpy's pocketfft computes them in higher
precision); a pass of radix 4 counts as two levels and has fewer products."""

MOST_ROWS = 16_384  # draws that are summed at once

SUMMING = 4 * MOST_ROWS * UNIT + 1e-11
"""Bound on the relative error of sums of non-negative numbers, of a batch and then of up to 100,000 batches."""

RENYI_ROUNDING = 1e-11
"""Added to Rényi divergences for rounding, relative: a thousand times the largest error seen, not a worst case."""


def delta_left(delta: float, runs: int = 1) -> float:
    """The part of delta for the mechanism, without ``SAMPLER`` for each run's noise; ValueError: nothing is left."""
    left = math.nextafter(delta - runs * SAMPLER, 0.0)
    if left <= 0:
        raise ValueError(f"delta {delta:g} is less than what finite precision costs; expected: above {SAMPLER:.2g}")
    return left


def rounding_of_masses(log_ratios: Array) -> float:
    """Relative error of masses from closed forms and of ratios: some operations, exponentials of numbers of up to 50
    (as far as normal tails are looked at), and logs that are each known to some units.
    """
    return (128 + 8 * float(np.max(np.abs(log_ratios)))) * UNIT


def rounding_of_sums(*laws: Sized) -> float:
    """Relative error of a sum of (some of) a law's positive masses, one after another, and of a few operations."""
    return (max(len(law) for law in laws) + 64) * UNIT


def rounding_of_cells(points: int) -> float:
    """Each cell is a sum of at most so many positive terms, which errs by a unit each, and is split with a few more."""
    return (2 * points + 64) * UNIT


def rounding_of_chances(rounds: int, rate: float = 0.5) -> float:
    """Three log binomials of three log factorials each, powers of ``rate``, and sums, each rounded to a few units."""
    return 64 * (math.lgamma(rounds + 1) + rounds * -math.log(min(rate, 1 - rate)) + rounds + 1) * UNIT


def rounding_of_overlaps(rounds: int, order: float) -> float:
    """Absolute error of the log chance of an overlap: each of ``order`` subsets adds at most ``order + 2`` log
    binomials, of three log factorials each, all rounded to eight units, and as many sums.
    """
    return 64 * order * (order + 2) * (math.lgamma(rounds + 1) + 1) * UNIT
