"""Arithmetic that several evaluators share, with all bounds of rounding errors, and compiled inner loops.

It holds logarithms of sums and binomials, powers, a search and normal masses; all bounds of rounding errors in one
section; and the inner loops, compiled by Numba with a cache on disk.

The module knows no law and no mechanism. Each bound of a rounding error says what it counts;
docs/research/accounting.md, "Floating point", adds them up.
"""

import math
from collections.abc import Callable, Iterable, Sized
from contextlib import suppress
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedamp.base.start import compiled as compiled_later

T = TypeVar("T")

Array = NDArray[np.float64]

UNIT = 2.0**-53
"""Largest relative error of one floating-point operation."""

_LARGEST_TABLE = 1_000_000  # log factorials up to here are kept in a table


def log_sum(values: Array, axis: int = -1) -> Array:
    """Return log(sum(exp(values))) along ``axis``; -inf where all are -inf.

    Example:
        >>> round(float(log_sum(np.log([0.2, 0.3]))), 4)  # log(1/2)
        -0.6931
    """
    largest = np.max(values, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(values - shift), axis=axis)) + np.squeeze(shift, axis))


@lru_cache(maxsize=32)
def log_factorials(largest: int) -> Array:
    """Return log j! for j = 0..largest, each to a few units."""
    return _log_factorial(np.arange(largest + 1))


def log_choose(n: NDArray[np.integer[Any]] | int, m: NDArray[np.integer[Any]] | int) -> Array:
    """Return log C(n, m) for whole numbers 0 <= m <= n, of any shapes that broadcast."""
    n, m = np.asarray(n), np.asarray(m)
    most = int(n.max(initial=1))
    if most > _LARGEST_TABLE:
        return np.asarray(_log_factorial(n) - _log_factorial(m) - _log_factorial(n - m))
    table = log_factorials((1 << most.bit_length()) - 1)
    return np.asarray(table[n] - table[m] - table[n - m])


def _log_factorial(n: NDArray[np.integer[Any]]) -> Array:
    """Return log n!."""
    from scipy.special import gammaln  # a slow import

    return np.asarray(gammaln(n + 1.0))


@lru_cache(maxsize=8)
def log_binomials(largest: int) -> Array:
    """Return log C(a, j) at [a, j], -inf where j > a; shape (largest + 1, largest + 1)."""
    factorials = log_factorials(largest)
    a, j = np.arange(largest + 1)[:, None], np.arange(largest + 1)[None, :]
    table = factorials[a] - factorials[j] - factorials[np.maximum(a - j, 0)]
    return np.where(j <= a, table, -np.inf)


def combined_copies(value: T, times: int, combine: Callable[[T, T], T]) -> T:
    """Combine ``times`` >= 1 copies of a value, by doubling.

    Args:
        value: one copy.
        times: number of copies.
        combine: an associative operation.

    Example:
        >>> combined_copies("a", 5, lambda one, other: one + other)
        'aaaaa'
    """
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
    """Return the chance that any of several independent events happens.

    Args:
        events: pairs (chance, number of trials).

    Example:
        >>> chance_of_any([(0.5, 2)])
        0.75
    """
    log_none = 0.0
    for chance, times in events:
        log_none += times * math.log1p(-chance) if chance < 1 else -math.inf
    return -math.expm1(log_none)


def level_crossing(
    falling: Callable[[float], float], level: float, limit: float, tolerance: float
) -> tuple[float, float]:
    """Return neighbouring numbers >= 0 between which a falling function reaches a level.

    Args:
        falling: a function that falls on [0, limit].
        level: the level.
        limit: how far the search goes.
        tolerance: relative distance of both numbers.

    Returns:
        Both 0 if the function starts at the level or below. The upper end is infinite if it is above up to ``limit``.

    Example:
        >>> low, high = level_crossing(lambda x: 10 - x, 4.0, limit=100.0, tolerance=1e-9)
        >>> low <= 6 <= high, high - low < 1e-8
        (True, True)
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
    """Return the standard normal mass of intervals, to full relative accuracy in both tails.

    Args:
        low, high: ends of the intervals, of any shapes that broadcast.
    """
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    mirrored = high > -low
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    nodes, weights = np.polynomial.legendre.leggauss(8)  # error below 1e-16 relative up to a width of 0.2
    with np.errstate(invalid="ignore"):
        middle, half = (low + high) / 2, (high - low) / 2
        density = np.exp(-((middle[..., None] + half[..., None] * nodes) ** 2) / 2) / np.sqrt(2 * np.pi)
        mass = np.asarray(half * (density @ weights))
    wide = ~(half < 0.1)
    ends = np.concatenate([high[wide], low[wide]]) / -math.sqrt(2)
    below, under = np.reshape(list(map(math.erfc, ends)), (2, -1)) / 2
    mass[wide] = below - under
    return mass


def gaussian_delta(signal: Array, epsilon: Array | float, side: int) -> Array:
    """Return delta at ``epsilon`` of Gaussian mechanisms.

    delta = Phi(a) - e^epsilon Phi(b), a = mu / 2 - epsilon / mu, b = a - mu, with e^epsilon phi(b) = phi(a) (Balle,
    Wang 2018, Theorem 8).

    Args:
        signal: mu^2, squared signal-to-noise ratios; 0 and infinity are allowed.
        epsilon: >= 0.
        side: 1 for an answer from above, -1 from below, 0 to rounding.

    Example:
        >>> gaussian_delta(np.array([1.0]), 1.0, 0).round(5).tolist()
        [0.12694]
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
        # Both functions are known to some units, the tail to a^2; below the smallest normal number they may be 0.
        slack = below * (64 + 8 * square) * UNIT + 1e-307
    return np.where(some, np.clip(delta + side * slack, 0.0, 1.0), np.where(signal > 0, 1.0, 0.0))


# Rounding budgets. Every end of every bracket is widened by them; docs/research/accounting.md, "Floating point", adds
# them up.

# The share of delta for all numbers that a run releases: (1 + e^epsilon) 2**-280 for each, of which no mechanism knows
# (:mod:`fedamp.noise`), with at most 2**64 numbers and epsilon at most 70.
SAMPLER = 2.0**-113
"""The share of delta for the finite precision of all numbers that a run releases: (1 + e^epsilon) 2**-280 for each."""

# what noise without bands adds to epsilon: its few buffers are rounded; docs/research/correlated-noise.md
BUFFERS = 2.0**-16
EXPONENT = 750.0  # exp of anything beyond is 0 or infinite

# Units by which a level of a transform of a power of two errs at most: a complex product errs by sqrt(5) (Brent,
# Percival, Zimmermann 2007), a sum by 1, and a stored root of unity by 1 (numpy's pocketfft computes them in higher
# precision); a pass of radix 4 counts as two levels and has fewer products.
TRANSFORM = 7.0

MOST_ROWS = 16_384  # draws that are summed at once
SUMMING = 4 * MOST_ROWS * UNIT + 1e-11  # relative, of sums of numbers >= 0, of a batch and then of 100,000 batches
SMOOTHED = 2**15 * UNIT  # of smoothed excesses, relative, and of the scale that they belong to; see ``smoothed_excess``
RENYI_ROUNDING = 1e-11  # of Rényi divergences, relative: a thousand times the largest error seen, not a worst case


def delta_left(delta: float, runs: int = 1) -> float:
    """Return the part of delta for the mechanism, without ``SAMPLER`` for each run's noise.

    Raises:
        ValueError: nothing is left.
    """
    left = math.nextafter(delta - runs * SAMPLER, 0.0)
    if left <= 0:
        raise ValueError(f"delta {delta:g} is less than what finite precision costs; expected: above {SAMPLER:.2g}")
    return left


def rounding_of_masses(log_ratios: Array) -> float:
    """Bound the relative error of masses from closed forms and of ratios.

    It covers some operations, exponentials, and logs that are each known to some units. Exponents are at most 50 in
    size, as far as normal tails are looked at.
    """
    return (128 + 8 * float(np.max(np.abs(log_ratios)))) * UNIT


def rounding_of_sums(*laws: Sized) -> float:
    """Bound the relative error of a sum of (some of) a law's positive masses, and of a few operations."""
    return (max(map(len, laws)) + 64) * UNIT


def rounding_of_cells(points: int) -> float:
    """Bound the relative error of a cell.

    It is a sum of at most so many positive terms, which errs by a unit each, and is split with a few more operations.
    """
    return (2 * points + 64) * UNIT


def rounding_of_chances(rounds: int, rate: float = 0.5) -> float:
    """Bound the relative error of binomial and hypergeometric chances.

    Three log binomials of three log factorials each, powers of ``rate``, and sums, are each rounded to a few units.
    """
    return 64 * (math.lgamma(rounds + 1) + rounds * -math.log(min(rate, 1 - rate)) + rounds + 1) * UNIT


def rounding_of_overlaps(rounds: int, order: float) -> float:
    """Bound the absolute error of the log chance of an overlap.

    Each of ``order`` subsets adds at most ``order + 2`` log binomials, of three log factorials each, all rounded to
    eight units, and as many sums.
    """
    return 64 * order * (order + 2) * (math.lgamma(rounds + 1) + 1) * UNIT


# The inner loops of the evaluators.


SIDE_BY_SIDE = 128  # rows of draws that a compiled recursion takes at once
_AT_ONCE = 1024  # that NumPy takes
_PAIRED = 32  # points of a law whose pairs NumPy takes at once


Loop = Callable[..., Any]


def compiled(
    uncompiled: float = 0, plain: Loop | None = None, work: Loop | None = None, **options: Any
) -> Callable[[Loop], Loop]:
    """Compile an inner loop by ``numba.njit(**options)`` once a process has much work for it.

    Importing numba and compiling the first loop takes two thirds of an import of torch, and each further loop a tenth.
    So a process does its first work without. A call that is a sixteenth of ``uncompiled`` tells that there
    is much. Both ways have the same bits: mathematics comes from ``math`` where NumPy has other last digits.

    The cache on disk lies beside the code, in the user's home, or in ``NUMBA_CACHE_DIR``. If none of them can be
    written to, as in a container without a home, every process compiles again (:func:`fedamp.base.start.compiled`).

    Args:
        uncompiled: how much work is done without.
        plain: the same in NumPy; default: the function itself as Python runs it, on lists.
        work: from the arguments to the work of a call; default: the items of the first argument.
        options: those of ``numba.njit``.
    """

    def compile_(function: Loop) -> Loop:
        left, kernel = uncompiled, compiled_later(**options)(function)

        @wraps(function)
        def call(*arguments: Any) -> Any:
            nonlocal left
            here = work(*arguments) if work else len(arguments[0])
            left = left - here if here < uncompiled / 16 else -1.0
            if left < 0:
                return kernel()(*arguments)
            with np.errstate(all="ignore"):  # numbers out of range are infinite if compiled
                if plain:
                    return plain(*arguments)
                with suppress(OverflowError):
                    return function(*[each.tolist() if isinstance(each, np.ndarray) else each for each in arguments])
            return kernel()(*arguments)

        return call

    return compile_


def mapped(function: Callable[[float], float], values: Array) -> Array:
    """Return a function of ``math`` at each value: the bits of compiled code."""
    return np.fromiter(map(function, values.tolist()), float, values.size)


def _plain_profile(log_ratio: Array, mass_in: Array, infinite: float, slope: Array, delta: Array) -> None:
    """Do ``hockey_stick_profile`` in Python."""
    gaps = log_ratio[:-1] - log_ratio[1:]
    rises, factors = (-mapped(math.expm1, gaps)).tolist(), mapped(math.exp, gaps).tolist()
    steepness, height, masses = float(mass_in[-1]), float(infinite), mass_in.tolist()
    slopes, heights = [steepness], [height]
    for i in range(len(gaps) - 1, -1, -1):
        height += steepness * rises[i]
        steepness = steepness * factors[i] + masses[i]
        slopes.append(steepness)
        heights.append(height)
    slope[::-1], delta[::-1] = slopes, heights


@compiled(1_000_000, _plain_profile)
def hockey_stick_profile(log_ratio, mass_in, infinite, slope, delta):  # type: ignore[no-untyped-def]
    """Compute the profile of a finite law from its right end, so that everything summed is positive.

    Arrays that are made outside take nothing to compile.

    Args:
        log_ratio, mass_in: shape (n,), those of ``Points``.
        infinite: P-mass where X is infinite.
        slope, delta: shape (n,): of each point, to be filled; see ``PointProfile``.
    """
    steepness, height = 0.0, infinite
    for i in range(len(log_ratio) - 1, -1, -1):
        if i + 1 < len(log_ratio):
            gap = log_ratio[i] - log_ratio[i + 1]
            height += steepness * -np.expm1(gap)
            steepness *= np.exp(gap)
        steepness += mass_in[i]
        slope[i] = steepness
        delta[i] = height


def _plain_pairs(loc_a, in_a, out_a, loc_b, in_b, out_b, bounds, c_ab, c_ba, c_pp, symmetric, in_cells, out_cells):  # type: ignore[no-untyped-def]
    """Do ``sum_pairs`` for some points of the first law at a time, so that all their cells stay in the cache."""
    cells, scale = len(in_cells), 2.0 if symmetric else 1.0
    from_out, from_in, to_out = scale * (c_ab * in_a), scale * (c_ba * out_a + c_pp * in_a), scale * out_a
    for first in range(0, len(loc_a), _PAIRED):
        rows, left = slice(first, first + _PAIRED), slice(first if symmetric else 0, None)
        cell = np.searchsorted(bounds, np.add.outer(loc_a[rows], loc_b[left]))
        shape, place = (len(cell), cells), np.ravel(cell + cells * np.arange(len(cell))[:, None])
        share = np.ones(cell.shape)  # a pair that was there before adds 0, which changes no bit
        share = np.triu(share) - np.eye(*share.shape) / 2 if symmetric else share
        sum_in = np.bincount(place, np.ravel(share * in_b[left]), math.prod(shape)).reshape(shape)
        sum_out = np.bincount(place, np.ravel(share * out_b[left]), math.prod(shape)).reshape(shape)
        for found, more in (
            (in_cells, from_out[rows, None] * sum_out + from_in[rows, None] * sum_in),
            (out_cells, to_out[rows, None] * sum_out),
        ):
            found[:] = np.add.reduce(np.concatenate([found[None], more]), axis=0)


@compiled(30_000_000, _plain_pairs, lambda a, _, __, b, *___: len(a) * len(b))
def sum_pairs(  # type: ignore[no-untyped-def]
    loc_a, in_a, out_a, loc_b, in_b, out_b, bounds, c_ab, c_ba, c_pp, symmetric, in_cells, out_cells
):
    """Add the masses of all pairs to the cells; both sides increase, so the cell is followed, not searched.

    Args:
        loc_a, in_a, out_a: location, P-mass and Q-mass of the points of one law.
        loc_b, in_b, out_b: of the other law.
        bounds: ends of the cells, the last infinite.
        c_ab, c_ba, c_pp: coefficients of ``Pairing``.
        symmetric: whether both laws are one; then each pair is taken once.
        in_cells, out_cells: masses, which are added to.
    """
    first_cell = 0
    for i in range(len(loc_a)):
        here = loc_a[i]
        start = i if symmetric else 0
        while here + loc_b[start] > bounds[first_cell]:
            first_cell += 1
        cell = first_cell
        scale = 2.0 if symmetric else 1.0
        from_out = scale * (c_ab * in_a[i])
        from_in = scale * (c_ba * out_a[i] + c_pp * in_a[i])
        to_out = scale * out_a[i]
        share = 0.5 if symmetric else 1.0
        sum_in, sum_out = share * in_b[start], share * out_b[start]
        for j in range(start + 1, len(loc_b)):
            there = here + loc_b[j]
            if there > bounds[cell]:
                in_cells[cell] += from_out * sum_out + from_in * sum_in
                out_cells[cell] += to_out * sum_out
                sum_in = 0.0
                sum_out = 0.0
                while there > bounds[cell]:
                    cell += 1
            sum_in += in_b[j]
            sum_out += out_b[j]
        in_cells[cell] += from_out * sum_out + from_in * sum_in
        out_cells[cell] += to_out * sum_out


@compiled(100_000)
def lattice_below(log_ratio, mass_in, mass_out, anchor, step, first, size):  # type: ignore[no-untyped-def]
    """Contract a law onto the lattice ``anchor + step * (first + arange(size))``, which must reach around it.

    From the left, each point is merged with as much of its right neighbours as lifts the mean to the next lattice
    point. The rest at the right end is lowered to the lattice with mass from further left. If there is too little, it
    is dropped, which also only lowers divergences.

    Returns:
        P-masses and Q-masses of the lattice points, both of shape (size,).
    """

    def moment_distance(log_ratio: float, mass_in: float, mass_out: float, aim: float) -> float:
        """Return mass times distance of X from ``exp(aim)``, in units of P right of X = 1 and of Q left of it."""
        if aim < 0.0:
            return mass_out * math.expm1(log_ratio - aim)
        return mass_in * -math.expm1(aim - log_ratio)

    lattice_in, lattice_out = np.zeros(size), np.zeros(size)
    merging, target, aim, deficit, merged_in, merged_out = False, 0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(log_ratio)):
        rest = 1.0
        while rest > 0.0:
            if not merging:
                index = math.ceil((log_ratio[i] - anchor) / step)
                target, aim = index - first, max(anchor + step * index, log_ratio[i])
                merging, deficit, merged_in, merged_out = True, 0.0, 0.0, 0.0
            moment = rest * moment_distance(log_ratio[i], mass_in[i], mass_out[i], aim)
            if moment == 0.0:  # already there: leave it out of a merger that it cannot help
                lattice_in[target] += rest * mass_in[i]
                lattice_out[target] += rest * mass_out[i]
                merging, rest = deficit > 0.0, 0.0
                continue
            used = rest if moment <= deficit else rest * (deficit / moment)
            deficit = deficit - moment if moment <= deficit else 0.0
            merged_in += used * mass_in[i]
            merged_out += used * mass_out[i]
            rest -= used
            if deficit <= 0.0:
                lattice_in[target] += merged_in
                lattice_out[target] += merged_out
                merging = False
    if merging and merged_in > 0.0 and merged_out > 0.0:
        here = math.log(merged_in / merged_out)
        target = min(math.floor((here - anchor) / step) - first, size - 1)
        aim = min(anchor + step * (target + first), here)
        excess = moment_distance(here, merged_in, merged_out, aim)
        for j in range(target - 1, -1, -1):
            moment = -moment_distance(anchor + step * (j + first), lattice_in[j], lattice_out[j], aim)
            used = 1.0 if moment <= excess else excess / moment
            excess = excess - moment if moment <= excess else 0.0
            merged_in += used * lattice_in[j]
            merged_out += used * lattice_out[j]
            lattice_in[j] *= 1.0 - used
            lattice_out[j] *= 1.0 - used
            if excess <= 0.0:
                lattice_in[target] += merged_in
                lattice_out[target] += merged_out
                break
    return lattice_in, lattice_out


@compiled(nogil=True)
def invert_uniforms(uniforms, log_values, values, below, starts, counts):  # type: ignore[no-untyped-def]
    """Replace each uniform number by the value whose part of [0, 1) it falls in.

    Args:
        uniforms: shape (draws, rounds), replaced in place.
        log_values, values: shape (m,).
        below: distribution function of each class, shape (n, m).
        starts: where in it equal parts of [0, 1) start, shape (n, parts).
        counts: how many numbers of a row are of each class, in order, shape (draws, n).

    Returns:
        Sums of log values, shape (draws,).
    """
    parts, sums = starts.shape[1], np.zeros(len(uniforms))
    for d in range(len(uniforms)):
        first, total = 0, 0.0
        for c in range(counts.shape[1]):
            table, start, row = below[c], starts[c], uniforms[d, first : first + counts[d, c]]
            for i in range(len(row)):
                u = row[i]
                j = np.uint64(start[np.uint64(u * parts)])  # without a sign there is no index from the end to check
                j += np.uint64(table[j] <= u)  # nearly always enough, and no branch to mispredict
                while table[j] <= u:
                    j += np.uint64(1)
                row[i] = values[j]
                total += log_values[j]
            first += counts[d, c]
        sums[d] = total
    return sums


def _plain_means(ratios, rate, tails, beginnings, fewest, means, _):  # type: ignore[no-untyped-def]
    """Do ``symmetric_means`` for many draws at a time."""
    (draws, rounds), k, side, none, largest = ratios.shape, tails.shape[1] - 1, _AT_ONCE, 1.0 - rate, 0.0
    ending = np.bincount(beginnings, minlength=rounds + 1).tolist()  # how many beginnings have so many rounds
    for first in range(0, draws, side):
        weights = rate * np.ascontiguousarray(ratios[first : first + side].T)
        largest = max(largest, float(np.multiply.reduce(np.maximum(1.0, none + weights), axis=0).max()))
        p, moved, j = np.eye(k + 1, 1) + np.zeros(weights.shape[1]), np.empty((k + 1, weights.shape[1])), 0
        for i, weight in enumerate(weights):
            least = max(0, fewest - (rounds - 1 - i))
            low, high = max(least, 1), min(i + 1, k) + 1
            more = np.multiply(weight, p[low - 1 : high - 1], out=moved[low:high])
            p[least:high] *= none
            p[low:high] += more
            if (alike := ending[i + 1]) == 1:
                total = np.zeros(weights.shape[1])
                for h in range(least, k + 1):
                    total += tails[j, h] * p[h]
                means[first : first + side, j] = total
            elif alike:  # each takes one term, so that no sum is rounded
                means[first : first + side, j : j + alike] = (tails[j : j + alike, least:] @ p[least:]).T
            j += alike
    return largest if (means < np.inf).all() else math.inf


@compiled(5e8, _plain_means, lambda ratios, _, tails, *__: ratios.size * tails.shape[1], nogil=True)
def symmetric_means(ratios, rate, tails, beginnings, fewest, means, rows):  # type: ignore[no-untyped-def]
    """Compute means of elementary symmetric polynomials of rows of ratios, after several beginnings.

    It is sum_h tails[j, h] p_h after the first ``beginnings[j]`` rounds (ascending, the last all of them), p_h = e_h
    q^h (1 - q)^(r - h): but for the ratios the chance of h successes at rate q, so that the recursion has the scale of
    a probability. Only numbers of successes from which ``fewest`` can still be reached are kept.

    Many draws at a time, side by side, so that the inner loop is one of vector instructions. Loops in place of slices,
    and arrays made outside, compile in a fifth of the time.

    Args:
        ratios: shape (draws, rounds).
        rate: q.
        tails: shape (n, k + 1).
        beginnings: numbers of rounds, shape (n,); equal ones have tails of one number h each.
        fewest: the fewest rounds that a person takes part in.
        means: shape (draws, n), to be filled.
        rows: room for weights, growth and the k + 1 numbers of successes, shape (k + 3, ``SIDE_BY_SIDE``).

    Returns:
        The largest prod max(1, 1 - q + q x), beyond which nothing grows.
    """
    draws, rounds = ratios.shape
    k, side, none, largest = tails.shape[1] - 1, rows.shape[1], 1.0 - rate, 0.0
    weight, growth, p = rows[0], rows[1], rows[2:]
    for first in range(0, draws, side):
        here, j = min(side, draws - first), 0
        for d in range(side):
            weight[d], growth[d], p[0, d] = 1.0, 1.0, 1.0
            for h in range(1, k + 1):
                p[h, d] = 0.0
        for i in range(rounds):
            least = max(0, fewest - (rounds - 1 - i))
            for d in range(here):
                weight[d] = rate * ratios[first + d, i]
            for d in range(side):
                growth[d] *= max(1.0, none + weight[d])
            for h in range(min(i + 1, k), max(least, 1) - 1, -1):
                now, below = p[h], p[h - 1]
                for d in range(side):
                    now[d] = none * now[d] + weight[d] * below[d]
            if least == 0:
                for d in range(side):
                    p[0, d] *= none
            while j < len(beginnings) and beginnings[j] == i + 1:
                for d in range(here):
                    total = 0.0
                    for h in range(least, k + 1):
                        total += tails[j, h] * p[h, d]
                    means[first + d, j] = total
                    if not total < np.inf:
                        largest = np.inf
                j += 1
        for d in range(here):
            largest = max(largest, growth[d])
    return largest


@compiled(nogil=True)
def block_means(places, ratios, products, shares, tails):  # type: ignore[no-untyped-def]
    """sum_h tails[h] p_h, p_h the coefficient of z^h in the product of s_0 + s_1 x z + s_2 y z^2 + s_3 y z^3 over the
    blocks of a row, s the ``shares``, x and y of the ``ratios`` and the ``products`` those at the block's place; and
    the largest of these sums.
    """
    draws, blocks = places.shape
    k, side, none, rarely = len(tails) - 1, SIDE_BY_SIDE, shares[0], shares[3] / shares[2] if shares[2] > 0 else 0.0
    means, largest = np.empty(draws), 0.0
    one, two, p = np.zeros(side), np.zeros(side), np.empty((k + 4, side))  # three rows of zeros first
    for first in range(0, draws, side):
        here = min(side, draws - first)
        p[:], p[3] = 0.0, 1.0
        for i in range(blocks):
            for d in range(here):
                place = int(places[first + d, i])
                one[d], two[d] = shares[1] * ratios[place], shares[2] * products[place]
            for h in range(min(3 * i + 6, k + 3), 2, -1):
                now, below, under, last = p[h], p[h - 1], p[h - 2], p[h - 3]
                for d in range(side):
                    now[d] = none * now[d] + one[d] * below[d] + two[d] * (under[d] + rarely * last[d])
        for d in range(here):
            total = 0.0
            for h in range(k + 1):
                total += tails[h] * p[h + 3, d]
            means[first + d] = total
            largest = total if not total <= largest else largest
    return means, largest


@compiled(nogil=True)
def paired_means(ratios, rate, tails, damp):  # type: ignore[no-untyped-def]
    """Return means after all rounds for two people; see ``symmetric_means``.

    A round that both take part in has the ratio x^2 ``damp``. Both numbers of successes are exchangeable, so only those
    in descending order are kept.
    """
    draws, rounds = ratios.shape
    k, side = len(tails) - 1, SIDE_BY_SIDE
    means, largest = np.empty(draws), 0.0
    one, two, growth, p = np.zeros(side), np.zeros(side), np.empty(side), np.empty((k + 1, k + 1, side))
    none = (1.0 - rate) ** 2
    for first in range(0, draws, side):
        here = min(side, draws - first)
        p[:], p[0, 0], growth[:] = 0.0, 1.0, 1.0
        for i in range(rounds):
            for d in range(here):
                weight = rate * ratios[first + d, i]
                one[d], two[d] = (1.0 - rate) * weight, damp * weight * weight
                growth[d] *= max(1.0, 1.0 - rate + weight)
            for a in range(min(i + 1, k), -1, -1):
                for b in range(a, -1, -1):
                    now, fewer = p[a, b], p[max(a - 1, 0), b]
                    for d in range(side):
                        now[d] *= none
                    if a > b:
                        for d in range(side):
                            now[d] += one[d] * fewer[d]
                    if b:
                        twice = 2.0 if a == b else 1.0  # p[a - 1, a] is p[a, a - 1]
                        below, neither = p[a, b - 1], p[a - 1, b - 1]
                        for d in range(side):
                            now[d] += twice * one[d] * below[d] + two[d] * neither[d]
        for d in range(here):
            total = 0.0
            for a in range(k + 1):
                for b in range(a + 1):
                    total += (1.0 if a == b else 2.0) * tails[a] * tails[b] * p[a, b, d]
            means[first + d] = total
            largest = max(largest, growth[d] if total < np.inf else np.inf)
    return means, largest


def shuffle_ends(values: Array, counts: NDArray[np.int32], uniforms: Array) -> NDArray[np.int64]:
    """Exchange each row's numbers, in place, so that a uniform choice of them, in uniform order, is at its end.

    As many are chosen as a row of ``uniforms`` has. At first ``counts[d, 0]`` numbers are of class 0, and so on.

    Returns:
        Classes of the chosen numbers, of the shape of ``uniforms``.
    """
    (draws, rounds), kinds, ends = values.shape, np.arange(counts.shape[1]), np.empty(uniforms.shape, np.int64)
    first = rounds - uniforms.shape[1]
    for start in range(0, draws, _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        here, row = values[rows], rounds * np.arange(len(values[rows]))
        classes = np.repeat(np.tile(kinds, len(here)), counts[rows].ravel()).reshape(here.shape)
        flat, flat_classes = here.reshape(-1), classes.reshape(-1)
        for i in range(rounds - 1, first - 1, -1):
            place = row + (uniforms[rows, i - first] * (i + 1)).astype(np.int64)
            taken, ends[rows, i - first] = flat[place], flat_classes[place]
            flat[place], flat_classes[place] = here[:, i], classes[:, i]
            here[:, i] = taken
    return ends


def log_products(ratios: Array, odds: float) -> Array:
    """Return log of the product of (1 + odds x) over each row's ratios."""
    sums, products = np.zeros(len(ratios)), np.ones(len(ratios))
    for column in ratios.T:
        products *= 1.0 + odds * column
        if (large := products > 1e100).any():
            sums[large] += list(map(math.log, products[large].tolist()))
            products[large] = 1.0
    return sums + list(map(math.log, products.tolist()))


def sums_of_logs(a: Array, b: Array, scales: Array, stakes: Array) -> list[float]:
    """Return the sum of log(1 + stake v) over draws, at each scale and its stake.

    A value v is the mean of (a - scale b)+ over the last axis of ``a`` and ``b``, shape (draws, n).
    """
    found = []
    for scale, stake in zip(scales.tolist(), stakes.tolist(), strict=True):
        excess = np.maximum(a - scale * b, 0.0)
        values = excess[:, 0] if excess.shape[1] == 1 else excess @ np.full(excess.shape[1], 1 / excess.shape[1])
        found.append(float(np.log1p(stake * values).sum()))
    return found


def smoothed_excess(
    log_a: Array, log_b: Array, epsilon: float, smoothing: float, quick: bool = False
) -> tuple[Array, Array]:
    """Return means of (a e^(s z - s^2 / 2) - e^epsilon b)+ over a standard normal z, s the ``smoothing`` >= 0.1.

    They are a Phi(d + s) - e^epsilon b Phi(d) (Black, Scholes 1973), 0 where d < -37, and fall by e^epsilon b Phi(d) as
    epsilon rises. docs/research/k-of-t.md, "Rounding", bounds the errors.

    Args:
        log_a, log_b: shape (draws,).
        epsilon, smoothing: see above.
        quick: whether vectors of NumPy and SciPy do it. The last bits are others then, and with them the draws that a
            certificate would ask for.

    Returns:
        The means, and how fast they fall, both of shape (draws,).
    """
    from scipy.special import erfc  # a slow import

    distance = (log_a - log_b - epsilon) / smoothing - smoothing / 2
    met = distance >= -37.0
    distance = distance[met]
    near = ~(distance > 8.0)  # beyond, Phi counts as 1

    def tail(d: Array) -> Array:
        below, at = np.ones(d.size), -d[near] * 0.5**0.5
        below[near] = (erfc(at) if quick else mapped(math.erfc, at)) / 2
        return below

    logs = np.concatenate([log_a[met], epsilon + log_b[met]])
    with np.errstate(over="ignore"):
        powers = np.exp(logs) if quick else mapped(math.exp, np.minimum(logs, 709.0))
    a, b = np.split(np.where(logs > 709.0, np.inf, powers), 2)
    values, falls = np.zeros((2, len(log_a)))
    falls[met] = b * tail(distance)
    values[met] = np.maximum(a * tail(distance + smoothing) - falls[met], 0.0)
    return values, falls


def convex_hull(x: Array, y: Array) -> Array:
    """Return the largest convex function below points, at them; ``x``, shape (n,), ascends."""
    kept: list[tuple[float, float]] = []
    for here in zip(x.tolist(), y.tolist(), strict=True):
        while len(kept) > 1:
            (x_0, y_0), (x_1, y_1) = kept[-2:]
            if (y_1 - y_0) * (here[0] - x_1) < (here[1] - y_1) * (x_1 - x_0):
                break
            kept.pop()
        kept.append(here)
    return np.interp(x, *np.array(kept).T)
