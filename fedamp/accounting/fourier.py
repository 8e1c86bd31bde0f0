"""The law of the product of many independent likelihood ratios, by Fourier transform.

Every factor is put on a lattice of log ratios, above or below it in convex order, and the lattice laws are convolved. A
transform errs by some 1e-16 of the *largest* mass, too much for a delta of 1e-10. So ``X^order dQ`` is convolved for a
few orders (0 is Q, 1 is P, more looks at the right tail, less than 0 at the left one), and each lattice point uses the
order that knows it best. What error is left is added to every mass for an upper bound and subtracted for a lower one.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.loops import lattice_below
from fedamp.accounting.numeric import UNIT, chance_of_any, log_sum, repeated
from fedamp.accounting.points import DEFAULT_POINTS, Points, coarse, regrid, spread

LATTICE_LIMIT = 2**19
"""Most lattice points at the default number of points (in proportion, up to 8 times, where more are asked for);
fewer for many different factors.
"""

_OUTSIDE = 40.0
"""Minus the log of the mass that may leave the lattice under any order."""

Factors = Sequence[tuple[Points, int]]


@dataclass(frozen=True)
class Order:
    """The measure ``X^value dQ``, and the tilts that bound its mass left and right of the lattice (Chernoff)."""

    value: float
    left_tilt: float
    right_tilt: float


@dataclass(frozen=True)
class Lattice:
    """Where a product is convolved.

    Attributes:
        orders: the orders convolved, increasing, the first below 0 and the last above 1.
        start: log ratio at which it starts; nearly all mass, under every order, lies between this and its end.
        step: distance of its points.
        size: number of its points, a power of two.
        fine: whether the step is as small as was asked for.
    """

    orders: tuple[Order, ...]
    start: float
    step: float
    size: int
    fine: bool


def choose_lattice(factors: Factors, points: int) -> Lattice:
    """Orders, window and step such that the lattice widens the bracket less than a grid of ``points`` does."""
    moments = Moments.of([(coarse(law, 150), times) for law, times in factors])
    between, under_in = (float(np.sqrt(moments.centre(order)[1])) for order in (0.5, 1.0))
    # A constant has none. At little noise X is nearly constant but where P is: there the scale is P's.
    deviation = max(between, under_in / 32, 1e-9)
    right = _tilt_of_tail(moments, 1.0, 1.0 / deviation)
    left = _tilt_of_tail(moments, 0.0, -1.0 / deviation)
    together = moments.centre(1.0)[0] - moments.centre(0.0)[0] < 8 * deviation
    orders, starts, stops = [], [], []
    for value in (left, *((0.5,) if together else (0.0, 1.0)), 1.0 + right):
        low, left_tilt = moments.reach(value, -1.0)
        high, right_tilt = moments.reach(value, 1.0)
        orders.append(Order(value, left_tilt, right_tilt))
        starts.append(low)
        stops.append(high)
    start, stop = min(starts), max(stops)
    if not 0 < stop - start < 1e9:
        raise NotEvaluable("the privacy loss leaves the range of floating point; use a Rényi bound")
    wanted = 25.0 * deviation / (points * np.sqrt(sum(times for _, times in factors)))
    wanted_size = 2 ** max(12, int(np.ceil(np.log2((stop - start) / wanted))))
    finer = min(max(points // DEFAULT_POINTS, 1), 8).bit_length() - 1
    size = min(wanted_size, (LATTICE_LIMIT << finer) >> max(0, len(factors) // 32 - 1).bit_length())
    step = (stop - start) / size
    gap = float(np.ptp(factors[0][0].log_ratio))
    if gap > step:  # both ends of the (first) law on the lattice: often that is where it has atoms
        step = gap / np.floor(gap / step)
    return Lattice(tuple(orders), start, step, size, wanted_size <= size)


@dataclass(frozen=True, eq=False)
class Moments:
    """``log E[X^order; 0 < X < infinity]`` of a product, and what follows from it.

    Attributes:
        log_ratio, log_out: shape (factors, n), padded with points of no mass.
        times: shape (factors,).
    """

    log_ratio: Array
    log_out: Array
    times: Array

    @classmethod
    def of(cls, factors: Factors) -> "Moments":
        shape = len(factors), max(len(law) for law, _ in factors)
        log_ratio, log_out = np.zeros(shape), np.full(shape, -np.inf)
        for i, (law, _) in enumerate(factors):
            log_ratio[i, : len(law)], log_out[i, : len(law)] = law.log_ratio, law.log_mass_out
        return cls(log_ratio, log_out, np.array([times for _, times in factors], float))

    def log_mean(self, order: float) -> float:
        """``log E[X^order]``."""
        return float(self.log_means(np.array([order]))[0])

    def log_means(self, orders: Array) -> Array:
        """``log E[X^order]`` for each order, shape (n,)."""
        chunks = np.array_split(orders, max(1, len(orders) * self.log_ratio.size // 1_000_000))
        return np.concatenate(
            [log_sum(self.log_out + chunk[:, None, None] * self.log_ratio) @ self.times for chunk in chunks]
        )

    def centre(self, order: float) -> tuple[float, float]:
        """Mean and variance of log X under ``X^order dQ``."""
        values = self.log_out + order * self.log_ratio
        weight = np.exp(values - log_sum(values)[:, None])
        centres = (weight * self.log_ratio).sum(axis=1)
        variances = (weight * (self.log_ratio - centres[:, None]) ** 2).sum(axis=1)
        return float(self.times @ centres), float(self.times @ variances)

    def reach(self, order: float, side: float) -> tuple[float, float]:
        """The log ratio with ``exp(-_OUTSIDE)`` of the mass beyond it (right for side 1, left for -1), and its tilt."""
        here = self.log_mean(order)
        tilts = np.geomspace(0.05, 50.0, 40) / max(np.sqrt(self.centre(order)[1]), 1e-12)
        rooms = (self.log_means(order + side * tilts) - here + _OUTSIDE) / tilts
        best = int(np.argmin(rooms))
        return side * float(rooms[best]), float(tilts[best])

    def outside(self, order: Order, low: float, high: float) -> tuple[float, float]:
        """Logs of bounds on the mass of ``X^order dQ``, normalised, left of ``low`` and right of ``high``."""
        here = self.log_mean(order.value)
        left = self.log_mean(order.value - order.left_tilt) - here + order.left_tilt * low
        right = self.log_mean(order.value + order.right_tilt) - here - order.right_tilt * high
        return min(left, 0.0), min(right, 0.0)


def _tilt_of_tail(moments: Moments, base: float, first: float) -> float:
    """How far from order ``base``, in the direction of ``first``, an order centres on a mass of about ``exp(-10)``
    under ``base``; in a heavy tail no further than the spread doubles, where rare large factors become the rule.
    """
    here, widest, tilt = moments.log_mean(base), 4 * moments.centre(base)[1], 0.02 * first
    slope = moments.centre(base + tilt)[0]
    while abs(tilt) < 100 * abs(first):  # a law with an atom at its end may have no such tail
        decay = tilt * slope - (moments.log_mean(base + tilt) - here)
        slope, variance = moments.centre(base + 1.3 * tilt)
        if decay >= 10.0 or variance > widest:
            break
        tilt *= 1.3
    return tilt


TRANSFORM = 7.0
"""Units by which a level of a transform of a power of two errs at most: a complex product errs by sqrt(5) (Brent,
Percival, Zimmermann 2007), a sum by 1, and a stored root of unity by 1 (numpy's pocketfft computes them in higher
precision); a pass of radix 4 counts as two levels and has fewer products.
"""


def convolve(factors: Factors, lattice: Lattice, above: bool) -> tuple[Points, float]:
    """The law of the product, larger (``above``) or smaller than it in convex order, and a bound on its rounding."""
    size, step = lattice.size, lattice.step
    placed = [(Placed.of(law, lattice, above), times) for law, times in factors]
    moments = Moments.of([(law.points, times) for law, times in placed])
    offset = sum(law.offset * times for law, times in placed)
    first = int(np.ceil((lattice.start - offset) / step))
    log_ratio = offset + step * (first + np.arange(size))
    log_mass, log_error = np.full(size, -np.inf), np.full(size, np.inf)
    outside_out = outside_in = rounding = 0.0
    for order in lattice.orders:
        mass, error = convolve_order(placed, order.value, size)
        left, right = moments.outside(order, log_ratio[0], log_ratio[-1])
        error += float(np.exp(left) + np.exp(right))
        mass = np.roll(mass, -first) + (error if above else -error)
        to_out = moments.log_mean(order.value) - order.value * log_ratio
        better = np.log(error) + to_out < log_error
        log_error[better] = (np.log(error) + to_out)[better]
        with np.errstate(divide="ignore"):
            log_mass[better] = (np.log(np.maximum(mass, 0.0)) + to_out)[better]
        # Rounding, in units, of the exponents of the weights and their (pairwise) sum.
        exponents = sum(
            times * (40.0 + float(np.abs(order.value * law.points.log_ratio).max())) for law, times in placed
        )
        rounding = max(rounding, UNIT * (64.0 + float(np.abs(to_out).max()) + exponents))
        # Beyond an end of the lattice, Q- and P-mass are at most what X^order dQ is there times its density at the end.
        if order in (lattice.orders[0], lattice.orders[-1]):
            beyond, end = (left, 0) if order is lattice.orders[0] else (right, -1)
            outside_out += float(np.exp(min(beyond + to_out[end], 0.0)))
            outside_in += float(np.exp(min(beyond + to_out[end] + log_ratio[end], 0.0)))
    log_mass = np.minimum(log_mass, 600.0 - np.maximum(log_ratio, 0.0))  # far more than 1 where nothing is known
    mass_in, mass_out = np.exp(log_mass + log_ratio), np.exp(log_mass)
    zero = chance_of_any((law.points.zero, times) for law, times in placed)
    infinite = chance_of_any((law.points.infinite, times) for law, times in placed)
    if above:
        zero, infinite = zero + outside_out, infinite + outside_in
    return Points(log_ratio, mass_in, mass_out, zero, infinite), rounding


@dataclass(frozen=True, eq=False)
class Placed:
    """A law on the lattice ``offset + step * index``."""

    points: Points
    index: NDArray[np.int64]
    offset: float

    @classmethod
    def of(cls, law: Points, lattice: Lattice, above: bool) -> "Placed":
        step = lattice.step
        # The window holds the mean of every order, so a factor this far from its own mean takes the product out of it.
        # The rest counts as the worst (X = 0 and infinity), or not at all.
        centre = float(law.mass_out @ law.log_ratio / law.mass_out.sum())
        inside = np.abs(law.log_ratio - centre) <= 2 * lattice.size * step
        log_ratio, mass_in, mass_out = law.log_ratio[inside], law.mass_in[inside], law.mass_out[inside]
        if not len(log_ratio):
            raise NotEvaluable("a likelihood ratio is too far out for a lattice; use a Rényi bound")
        zero = law.zero + float(law.mass_out[~inside].sum())
        infinite = law.infinite + float(law.mass_in[~inside].sum())
        anchor = float(log_ratio[np.argmax(mass_in + mass_out)])
        lowest, highest = np.floor((log_ratio[[0, -1]] - anchor) / step).astype(int)
        index = np.arange(lowest - 1, highest + 3)
        edges = anchor + step * index
        if above:
            kept = Points(log_ratio, mass_in, mass_out, zero, infinite)
            return cls(regrid(kept, edges, spread), index, anchor)
        mass_in, mass_out = lattice_below(log_ratio, mass_in, mass_out, anchor, step, index[0], len(index))
        return cls(Points(edges, mass_in, mass_out, law.zero, law.infinite), index, anchor)


def convolve_order(placed: Sequence[tuple[Placed, int]], order: float, size: int) -> tuple[Array, float]:
    """Masses of ``X^order dQ`` for the product, normalised, and a bound on the error of each, in the worst case.

    Every path through a transform multiplies by one power of the root of unity and adds once a level, so that each
    coefficient errs by at most ``TRANSFORM * log2(size)`` units of the sum of absolute inputs (Higham 2002, section
    24.1, by component). Errors are followed through the powers, coefficient by coefficient, and back.
    """
    noise = TRANSFORM * UNIT * math.log2(size)
    product = np.ones(size // 2 + 1, complex)
    largest = np.ones(size // 2 + 1)  # of what the exact coefficient can be
    relative = np.full(size // 2 + 1, 4 * UNIT * sum(times for _, times in placed))  # of the multiplications
    for law, times in placed:
        weights = law.points.log_weights(order)
        weights = np.exp(weights - weights.max())
        masses = np.bincount(law.index % size, weights / weights.sum(), size).astype(np.float64)
        transform = np.fft.rfft(masses)
        product *= repeated(transform, times, operator.mul)  # quicker than numpy's; within 4 * times units
        above = np.sqrt(transform.real**2 + transform.imag**2) * (1 + 8 * UNIT) + noise
        largest *= above**times
        relative += times * noise / above
    result = np.fft.irfft(product, size)
    magnitude = largest * (1 + relative)
    twice = 2.0 / size  # half of the coefficients are kept: the others are their conjugates
    error = twice * (float(largest @ relative) + noise * float(magnitude.sum()))
    return result, error * (1 + 1e-6)  # the bound is rounded, too
