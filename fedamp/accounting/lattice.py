"""The lattice on which a long product is convolved, chosen by the moments of its likelihood ratio."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedamp.accounting.moments import log_sum
from fedamp.accounting.points import DEFAULT_POINTS, Array, NotEvaluable, Points

LATTICE_LIMIT = 2**19
"""Most lattice points at the default number of points (in proportion, up to 8 times, where more are asked for);
fewer where many unlike factors have to be transformed.
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
    moments = Moments.of([(_coarse(law), times) for law, times in factors])
    deviation = max(float(np.sqrt(moments.centre(0.5)[1])), 1e-9)  # a constant has none
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
            log_ratio[i, : len(law)], log_out[i, : len(law)] = law.log_ratio, log_weights(law, 0.0)
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
    """How far from order ``base``, in the direction of ``first``, an order looks at that one's tail.

    Far enough to centre on what has a mass of about ``exp(-10)`` under ``base``, but in a heavy tail no further than
    the spread doubles: beyond, rare large factors become the rule, and the lattice would have to hold sums of them.
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


def _coarse(law: Points, blocks: int = 150) -> Points:
    """About ``blocks`` points, each standing for neighbouring ones: enough to choose a lattice by."""
    starts = np.unique(np.r_[np.arange(0, len(law), max(1, len(law) // blocks)), 1, len(law) - 1])
    starts = starts[starts < len(law)]  # the outermost points stay alone
    log_ratio = np.add.reduceat(law.log_ratio, starts) / np.diff(np.append(starts, len(law)))
    return Points(log_ratio, np.add.reduceat(law.mass_in, starts), np.add.reduceat(law.mass_out, starts))


def log_weights(law: Points, order: float) -> Array:
    """log of ``X^order dQ`` at every point."""
    with np.errstate(divide="ignore"):
        from_in = np.log(law.mass_in) + (order - 1.0) * law.log_ratio
        from_out = np.log(law.mass_out) + order * law.log_ratio
    return np.where(law.log_ratio > 0, from_in, from_out)
