"""Finite laws of a likelihood ratio X = dP/dQ, and how two or many of them become one.

All divergences that privacy needs are expectations of convex functions of X under Q: moving mass apart with its mean
kept (:func:`spread`, pessimistic) can only raise them, moving it together (:func:`contract`, optimistic) only lower
them. Keeping the mean of X is keeping both the P-mass and the Q-mass: nothing is ever multiplied by a large ratio.

*Pairs*: all pairs of points of two laws are sorted into the cells of an adaptive grid. Everything summed is positive,
so tails keep their relative accuracy however small they are.

*Long products*: every factor is put on a lattice of log ratios, above or below it in convex order, and the lattice laws
are convolved by Fourier transform. A transform errs by some 1e-16 of the *largest* mass, too much for a delta of 1e-10.
So ``X^order dQ`` is convolved for a few orders (0 is Q, 1 is P, more looks at the right tail, less than 0 at the left
one), and each lattice point uses the order that knows it best. What error is left is added to every mass for an upper
bound and subtracted for a lower one.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedamp.accounting.arithmetic import (
    TRANSFORM,
    UNIT,
    Array,
    chance_of_any,
    lattice_below,
    log_sum,
    profile,
    repeated,
    sum_pairs,
)
from fedamp.accounting.bounds import NotEvaluable

DEFAULT_POINTS = 1200  # points of a law; the width of a bracket falls with their square, the time rises with it

_TINY = 1e-290  # below this a mass has lost digits to underflow, and a ratio formed with it means nothing


@dataclass(frozen=True, eq=False)
class Points:
    """A finite law of ``X = dP/dQ``. ``log_ratio``: shape (n,), increasing, finite: log X at each point. ``mass_in``:
    shape (n,), P-mass of each point, ``exp(log_ratio) * mass_out`` up to rounding. ``mass_out``: shape (n,), Q-mass of
    each point. ``zero``: Q-mass where X = 0 (outputs that the data in question rules out). ``infinite``: P-mass where X
    is infinite (outputs that give the data away).
    """

    log_ratio: Array
    mass_in: Array
    mass_out: Array
    zero: float = 0.0
    infinite: float = 0.0

    def __len__(self) -> int:
        return len(self.log_ratio)

    def log_weights(self, order: float) -> Array:
        """log of ``X^order dQ`` at each point, from the larger of its two masses: the other may have underflowed."""
        with np.errstate(divide="ignore"):
            from_in = np.log(self.mass_in) + (order - 1.0) * self.log_ratio
            from_out = np.log(self.mass_out) + order * self.log_ratio
        return np.where(self.log_ratio > 0, from_in, from_out)

    @property
    def log_mass_out(self) -> Array:
        """log of the Q-mass of each point."""
        return self.log_weights(0.0)

    @property
    def swapped(self) -> "Points":
        """The law of dQ/dP under P."""
        return Points(-self.log_ratio[::-1], self.mass_out[::-1], self.mass_in[::-1], self.infinite, self.zero)


@dataclass(frozen=True, eq=False)
class Cells:
    """Mass sorted into cells: cell 0 lies below ``edges[0]``, cell c between ``edges[c - 1]`` and ``edges[c]``.
    ``edges``: shape (n,), log ratios, strictly increasing. ``mass_in``, ``mass_out``: shape (n + 1,), P-mass and Q-mass
    of each cell. ``zero``, ``infinite``: as in :class:`Points`; not part of any cell.
    """

    edges: Array
    mass_in: Array
    mass_out: Array
    zero: float = 0.0
    infinite: float = 0.0


Placement = Callable[[Cells], Points]  # :func:`spread` for upper bounds, :func:`contract` for lower bounds


def spread(cells: Cells) -> Points:
    """Split the mass of every cell between its two edges (0 and infinity outermost), larger in convex order."""
    edges, mass_in, mass_out = cells.edges, cells.mass_in, cells.mass_out
    # Outermost cells: below edges[0] the P-mass fixes what sits on the edge, the rest is at X = 0; above mirrored.
    out_on_first = min(float(mass_in[0] * np.exp(-max(edges[0], -700.0))), float(mass_out[0]))
    in_on_last = min(float(mass_out[-1] * np.exp(min(edges[-1], 700.0))), float(mass_in[-1]))
    width = np.diff(edges)
    offset = np.clip(_log_ratio(mass_in[1:-1], mass_out[1:-1], edges[:-1], edges[1:]) - edges[:-1], 0.0, width)
    flat = width == 0  # where the likelihood ratio saturates, neighbouring edges coincide
    to_right = np.where(flat, 0.0, np.expm1(-offset) / np.expm1(-np.where(flat, 1.0, width)))
    to_left = np.where(flat, 1.0, np.expm1(offset - width) / np.expm1(-np.where(flat, 1.0, width)))
    new_in, new_out = np.zeros(len(edges)), np.zeros(len(edges))
    new_in[:-1] += mass_in[1:-1] * np.exp(-offset) * to_left
    new_out[:-1] += mass_out[1:-1] * to_left
    new_in[1:] += mass_in[1:-1] * to_right
    new_out[1:] += mass_out[1:-1] * np.exp(offset - width) * to_right
    new_in[0] += mass_in[0]
    new_out[0] += out_on_first
    new_in[-1] += in_on_last
    new_out[-1] += mass_out[-1]
    zero = cells.zero + float(mass_out[0]) - out_on_first
    infinite = cells.infinite + float(mass_in[-1]) - in_on_last
    return Points(edges, new_in, new_out, zero, infinite)


def contract(cells: Cells) -> Points:
    """Move the mass of every cell to its mean, smaller in convex order."""
    used = (cells.mass_in > 0) | (cells.mass_out > 0)
    left = np.concatenate(([-np.inf], cells.edges))[used]
    right = np.concatenate((cells.edges, [np.inf]))[used]
    mass_in, mass_out = cells.mass_in[used], cells.mass_out[used]
    log_ratio = np.clip(_log_ratio(mass_in, mass_out, right, left), left, right)
    known = np.isfinite(log_ratio)
    if not known.any():
        return Points(cells.edges[:1], np.zeros(1), np.zeros(1), cells.zero, cells.infinite)
    log_ratio, mass_in, mass_out = log_ratio[known], mass_in[known], mass_out[known]
    return Points(log_ratio, mass_in, mass_out, cells.zero, cells.infinite)


def _log_ratio(mass_in: Array, mass_out: Array, if_no_in: Array, if_no_out: Array) -> Array:
    """log(mass_in / mass_out), or the stated ends where a mass has underflowed and its ratio is unknown."""
    sound = (mass_in > _TINY) & (mass_out > _TINY)
    ratio = np.divide(mass_in, mass_out, out=np.ones_like(mass_in), where=sound)
    return np.where(sound, np.log(ratio), np.where(mass_out > mass_in, if_no_in, if_no_out))


def regrid(law: Points, edges: Array, place: Placement) -> Points:
    """The law placed on other edges."""
    cell = np.searchsorted(edges, law.log_ratio)
    mass_in = np.bincount(cell, law.mass_in, len(edges) + 1).astype(np.float64)
    mass_out = np.bincount(cell, law.mass_out, len(edges) + 1).astype(np.float64)
    return place(Cells(edges, mass_in, mass_out, law.zero, law.infinite))


def coarse(law: Points, blocks: int) -> Points:
    """About so many points, each standing for neighbouring ones: no bound, but enough to choose a grid by."""
    starts = np.unique(np.r_[np.arange(0, len(law), max(1, len(law) // blocks)), 1, len(law) - 1])
    starts = starts[starts < len(law)]  # the outermost points stay alone: a grid has to reach them
    log_ratio = np.add.reduceat(law.log_ratio, starts) / np.diff(np.append(starts, len(law)))
    return Points(log_ratio, np.add.reduceat(law.mass_in, starts), np.add.reduceat(law.mass_out, starts))


def thinned(law: Points, rate: float) -> Points:
    """The law of ``(1 - rate) + rate X``, for a rate in (0, 1)."""
    mass_in = (1.0 - rate) * law.mass_out + rate * law.mass_in
    log_ratio = np.log1p(rate * np.expm1(np.minimum(law.log_ratio, 700.0)))
    log_ratio = np.where(law.log_ratio > 700.0, law.log_ratio + np.log(max(rate, 1e-300)), log_ratio)
    result = Points(log_ratio, mass_in, law.mass_out, 0.0, rate * law.infinite)
    if law.zero == 0.0:
        return result
    at_zero = Points(np.array([np.log1p(-rate)]), np.array([(1.0 - rate) * law.zero]), np.array([law.zero]))
    return union([at_zero, result])


def scaled(law: Points, weight: float) -> Points:
    """The law with all masses multiplied."""
    return Points(law.log_ratio, weight * law.mass_in, weight * law.mass_out, weight * law.zero, weight * law.infinite)


def union(laws: Sequence[Points]) -> Points:
    """All the points of several (scaled) laws."""
    order = np.argsort(np.concatenate([law.log_ratio for law in laws]), kind="stable")
    log_ratio, mass_in, mass_out = (
        np.concatenate([getattr(law, name) for law in laws])[order] for name in ("log_ratio", "mass_in", "mass_out")
    )
    zero, infinite = sum(law.zero for law in laws), sum(law.infinite for law in laws)
    return Points(log_ratio, mass_in, mass_out, zero, infinite)


@dataclass(frozen=True, eq=False)
class PointProfile:
    """``delta(epsilon) = E_Q[(X - e^epsilon)+]``, which between two points is linear in ``e^epsilon``. ``log_ratio``:
    shape (n,), increasing. ``delta``: shape (n,), the profile at ``epsilon = log_ratio[i]``. ``slope``: shape (n,),
    ``exp(log_ratio[i])`` times the Q-mass of the points from i up: left of point i the profile rises by ``slope[i] * (1
    - exp(epsilon - log_ratio[i]))``.
    """

    log_ratio: Array
    delta: Array
    slope: Array
    infinite: float

    @classmethod
    def of(cls, law: Points) -> "PointProfile":
        """The profile of H(P, Q); that of H(Q, P) is of the law ``swapped``."""
        slope, delta = profile(law.log_ratio, law.mass_in, law.infinite)
        return cls(law.log_ratio, delta, slope, law.infinite)

    def delta_at(self, epsilon: ArrayLike) -> Array:
        """delta at each epsilon."""
        epsilon = np.asarray(epsilon, float)
        index = np.searchsorted(self.log_ratio, epsilon)
        inside = np.minimum(index, len(self.log_ratio) - 1)
        rise = self.slope[inside] * -np.expm1(np.minimum(epsilon - self.log_ratio[inside], 0.0))
        return np.where(index < len(self.log_ratio), self.delta[inside] + rise, self.infinite)

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon, of either sign, with ``delta(epsilon) <= delta``; inf if there is none."""
        if delta < self.infinite:
            return np.inf
        index = int(np.searchsorted(-self.delta, -delta))  # first point whose delta is not above
        if index == len(self.delta):
            return np.inf
        rise = (delta - float(self.delta[index])) / float(self.slope[index]) if self.slope[index] > 0 else 0.0
        return float(self.log_ratio[index]) + float(np.log1p(-rise)) if rise < 1 else -np.inf


RATIO_LIMIT = 600.0  # largest |log ratio| that enters a mean: beyond it masses and ratios leave floating point


@dataclass(frozen=True)
class Pairing:
    """How two likelihood ratios a and b become one. ``mean_weights`` (u, v) makes ``u a + v b`` with u + v = 1;
    ``None`` makes the product ``a b``.
    """

    mean_weights: tuple[float, float] | None

    def locate(self, side: int, log_ratio: Array) -> Array:
        """The summand that side 0 or 1 contributes to the location of a pair (a ratio, or a log ratio)."""
        if self.mean_weights is None:
            return log_ratio
        return self.mean_weights[side] * np.exp(log_ratio)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """P-mass of a pair as multiples of P_a Q_b, Q_a P_b and P_a P_b (its Q-mass is Q_a Q_b)."""
        if self.mean_weights is None:
            return 0.0, 0.0, 1.0
        return *self.mean_weights, 0.0


def pair(a: Points, b: Points, pairing: Pairing, edges: Array, place: Placement) -> Points:
    """The law of the pair, placed on the grid ``edges`` (log ratios)."""
    weights = pairing.mean_weights
    bounds = edges if weights is None else np.exp(edges)
    in_cells, out_cells = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
    location = pairing.locate(0, a.log_ratio), pairing.locate(1, b.log_ratio)
    symmetric = a is b and (weights is None or weights[0] == weights[1])
    bounds = np.append(bounds, np.inf)
    side_a = location[0], a.mass_in, a.mass_out
    side_b = location[1], b.mass_in, b.mass_out
    sum_pairs(*side_a, *side_b, bounds, *pairing.coefficients, symmetric, in_cells, out_cells)
    if weights is None:
        zero = a.zero + b.zero * (1.0 - a.zero)
        infinite = a.infinite + b.infinite * (1.0 - a.infinite)
    else:
        for mine, theirs, coefficients in (
            (a.zero, side_b, pairing.coefficients),
            (b.zero, side_a, (weights[1], weights[0], 0.0)),
        ):
            if mine > 0:  # X = 0 on one side only: an ordinary point at a location of its own
                at_zero = np.zeros(1), np.zeros(1), np.full(1, mine)
                sum_pairs(*at_zero, *theirs, bounds, *coefficients, False, in_cells, out_cells)
        zero = a.zero * b.zero
        infinite = weights[0] * a.infinite + weights[1] * b.infinite
    return place(Cells(edges, in_cells, out_cells, zero, infinite))


# Where to put the points: a grid decides how wide a bracket becomes, never whether it holds.

_TAIL = 1e-22  # probability outside the grid. Its contribution stays bracketed; this only decides how widely


def reduced(law: Points, points: int, place: Placement) -> Points:
    """The law with at most ``points`` points, and without ratios beyond what a mean can hold."""
    largest = float(np.max(np.abs(law.log_ratio)))
    if largest > RATIO_LIMIT and place is spread:
        law = regrid(law, np.unique(np.clip(law.log_ratio, -RATIO_LIMIT, RATIO_LIMIT)), spread)
    elif largest > RATIO_LIMIT:
        # Brings in a mass of exp(-RATIO_LIMIT) of the other kind, some 1e-260: far below the rounding of everything.
        mass_in = np.where(law.log_ratio < -RATIO_LIMIT, law.mass_out * np.exp(-RATIO_LIMIT), law.mass_in)
        mass_out = np.where(law.log_ratio > RATIO_LIMIT, law.mass_in * np.exp(-RATIO_LIMIT), law.mass_out)
        law = Points(np.clip(law.log_ratio, -RATIO_LIMIT, RATIO_LIMIT), mass_in, mass_out, law.zero, law.infinite)
    if len(law) <= points:
        return law
    return regrid(law, adaptive_edges(law.log_ratio, law.mass_in, law.mass_out, points, law.log_ratio), place)


def choose_edges(a: Points, b: Points, pairing: Pairing, points: int) -> Array:
    """A grid for the pair, from a guess of its law made with coarse versions of both sides."""
    if len(a) * len(b) <= 64 * points:
        distinct = _all_pairs(a, b, pairing)
        if len(distinct) <= points:
            return distinct
    larger = b if pairing.mean_weights is not None and pairing.mean_weights[1] > pairing.mean_weights[0] else a
    a, b = _guess(a, pairing), _guess(b, pairing)
    location = np.add.outer(pairing.locate(0, a.log_ratio), pairing.locate(1, b.log_ratio)).ravel()
    c_ab, c_ba, c_pp = pairing.coefficients
    mass_out = np.multiply.outer(a.mass_out, b.mass_out).ravel()
    mass_in = (
        c_ab * np.multiply.outer(a.mass_in, b.mass_out)
        + c_ba * np.multiply.outer(a.mass_out, b.mass_in)
        + c_pp * np.multiply.outer(a.mass_in, b.mass_in)
    ).ravel()
    order = np.argsort(location)
    location, mass_in, mass_out = location[order], mass_in[order], mass_out[order]
    if pairing.mean_weights is None:
        return _aligned(adaptive_edges(location, mass_in, mass_out, points, location), larger.log_ratio)
    first = int(np.searchsorted(location, 0.0, side="right"))
    location, mass_in, mass_out = location[first:], mass_in[first:], mass_out[first:]
    log_ratio = np.log(location)
    # In later sums of a mean the right tail counts by the ratio itself, not its logarithm.
    edges = adaptive_edges(log_ratio, mass_in, mass_out, points, np.maximum(log_ratio, location - 1.0))
    return _aligned(edges, np.log1p(max(pairing.mean_weights) * np.expm1(larger.log_ratio)))


def _aligned(edges: Array, images: Array) -> Array:
    """The edges, in the thin right tail replaced by the images that the points of one side have when paired with X = 1.
    A pair far out is one large ratio and one near 1. It falls next to an image, so that hardly anything is moved, where
    each of twenty doublings would otherwise blur the tail anew.
    """
    spacing = np.diff(edges)
    thin = 1.5 * float(np.median(spacing)) if len(spacing) else 0.0
    kept = int(np.flatnonzero(spacing <= thin)[-1]) + 2 if len(edges) > 1 else len(edges)
    tail = images[images > edges[kept - 1] + thin]
    if len(tail) < (len(edges) - kept) / 4:  # a law of few points
        return edges
    return np.concatenate((edges[:kept], tail, edges[edges > np.max(tail, initial=edges[kept - 1])]))


def _all_pairs(a: Points, b: Points, pairing: Pairing) -> Array:
    """Every log ratio that a pair of points has: the grid of an exact law."""
    locations = pairing.locate(0, a.log_ratio), pairing.locate(1, b.log_ratio)
    together = np.add.outer(*locations).ravel()
    if pairing.mean_weights is not None:
        together = np.concatenate((together, *locations) if a.zero or b.zero else (together,))
        together = np.log(together)
    together.sort()
    # Points that differ by rounding alone share a cell, which ends a little beyond the last of them.
    last = np.diff(together, append=np.inf) > 1e-13
    return together[last] + 1e-15


def adaptive_edges(log_ratio: Array, mass_in: Array, mass_out: Array, points: int, distance: Array) -> Array:
    """``points`` log ratios, spaced for an even *relative* error of epsilon over deltas from 1 to 1e-12.

    In the bulk that takes steps even in the normal quantiles of P and Q; in heavy tails, steps in proportion to the
    distance from X = 1, which asinh(distance / core) gives.

    Args:
        log_ratio, mass_in, mass_out: a guess of the law, shape (n,), sorted.
        distance: shape (n,), increasing, signed distance of each point from X = 1.
    """
    quantile_in, quantile_out = _quantile(mass_in), _quantile(mass_out)
    both = mass_in + mass_out
    kept = (np.cumsum(both) > _TAIL) & (np.cumsum(both[::-1])[::-1] > _TAIL)
    if not kept.any():  # all mass at zero and infinity
        kept[:] = True
    log_ratio, distance = log_ratio[kept], distance[kept]
    quantile_in, quantile_out = quantile_in[kept], quantile_out[kept]
    core = max(float(np.ptp(np.interp([-1.0, 1.0], quantile_out, distance))) / 2, 1e-14)
    steps = np.diff((quantile_in + quantile_out) / 2 + np.arcsinh(distance / core))
    far = np.abs(np.where(log_ratio > 0, quantile_in, quantile_out))[1:] > 6.5
    level = np.r_[0.0, np.cumsum(np.where(far, 0.3, 1.0) * steps)]
    # The guess is made of points. A smooth map keeps their clusters out of the grid, where they would waste cells.
    knots = np.linspace(0.0, level[-1], 64)
    steps = np.convolve(np.pad(np.diff(np.interp(knots, level, log_ratio)), 1, mode="edge"), [0.25, 0.5, 0.25], "valid")
    steps = np.interp(np.linspace(0.0, level[-1], points), (knots[1:] + knots[:-1]) / 2, steps)
    risen = np.r_[0.0, np.cumsum(steps[1:] + steps[:-1])]
    edges = log_ratio[0] + (log_ratio[-1] - log_ratio[0]) * risen / max(risen[-1], 1e-300)
    apart = np.diff(edges, prepend=-np.inf) > 4e-16 * (1.0 + np.abs(edges))
    return np.asarray(edges[apart])


def _quantile(mass: Array) -> Array:
    """Normal quantile of the middle of each point."""
    below = np.cumsum(mass) - mass / 2
    above = np.cumsum(mass[::-1])[::-1] - mass / 2
    distance = np.interp(-np.log(np.clip(np.minimum(below, above), _TAIL, 0.5)), *_normal_tail())
    return np.where(below < above, -distance, distance)


@lru_cache(maxsize=1)
def _normal_tail() -> tuple[Array, Array]:
    """Minus the log of the mass beyond z, and z, both increasing."""
    z = np.linspace(0.0, 10.0, 1001)
    return -np.log([math.erfc(value / math.sqrt(2)) / 2 for value in z]), z


def _guess(law: Points, pairing: Pairing) -> Points:
    """The law by a few points; a mean also needs the point at X = 0."""
    few = coarse(law, 80)
    if law.zero <= _TAIL or pairing.mean_weights is None:
        return few
    return Points(np.r_[-np.inf, few.log_ratio], np.r_[0.0, few.mass_in], np.r_[law.zero, few.mass_out])


# Most lattice points at the default number of points (in proportion, up to 8 times, where more are asked for); fewer of
# many different factors.
LATTICE_LIMIT = 2**19
_OUTSIDE = 40.0  # minus the log of the mass that may leave the lattice under any order

Factors = Sequence[tuple[Points, int]]


@dataclass(frozen=True)
class Tilt:
    """The measure ``X^value dQ``, and the tilts that bound its mass left and right of the lattice (Chernoff)."""

    value: float
    left_tilt: float
    right_tilt: float


@dataclass(frozen=True)
class Lattice:
    """Where a product is convolved. ``orders``: the orders convolved, increasing, the first below 0 and the last above
    1. ``start``: log ratio at which it starts; nearly all mass, under every order, lies between this and its end.
    ``step``: distance of its points. ``size``: number of its points, a power of two. ``fine``: whether the step is as
    small as was asked for.
    """

    orders: tuple[Tilt, ...]
    start: float
    step: float
    size: int
    fine: bool


def choose_lattice(factors: Factors, points: int) -> Lattice:
    """Orders, window and step such that the lattice widens the bracket less than a grid of ``points`` does."""
    moments = TiltedMoments.of([(coarse(law, 150), times) for law, times in factors])
    between, under_in = (float(np.sqrt(moments.centre(order)[1])) for order in (0.5, 1.0))
    # A constant has none. At little noise X is nearly constant but where P is: there the scale is P's.
    deviation = max(between, under_in / 32, 1e-9)
    right = _tilt_of_tail(moments, 1.0, 1.0 / deviation)
    left = _tilt_of_tail(moments, 0.0, -1.0 / deviation)
    together = moments.centre(1.0)[0] - moments.centre(0.0)[0] < 8 * deviation
    values = (left, *((0.5,) if together else (0.0, 1.0)), 1.0 + right)
    ends = [(value, moments.reach(value, -1.0), moments.reach(value, 1.0)) for value in values]
    orders = tuple(Tilt(value, low[1], high[1]) for value, low, high in ends)
    start, stop = min(low[0] for _, low, _ in ends), max(high[0] for _, _, high in ends)
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
    return Lattice(orders, start, step, size, wanted_size <= size)


@dataclass(frozen=True, eq=False)
class TiltedMoments:
    """``log E[X^order; 0 < X < infinity]`` of a product, and what follows from it. ``log_ratio``, ``log_out``: shape
    (factors, n), padded with points of no mass. ``times``: shape (factors,).
    """

    log_ratio: Array
    log_out: Array
    times: Array

    @classmethod
    def of(cls, factors: Factors) -> "TiltedMoments":
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
        parts = [log_sum(self.log_out + chunk[:, None, None] * self.log_ratio) @ self.times for chunk in chunks]
        return np.concatenate(parts)

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

    def outside(self, order: Tilt, low: float, high: float) -> tuple[float, float]:
        """Logs of bounds on the mass of ``X^order dQ``, normalised, left of ``low`` and right of ``high``."""
        here = self.log_mean(order.value)
        left = self.log_mean(order.value - order.left_tilt) - here + order.left_tilt * low
        right = self.log_mean(order.value + order.right_tilt) - here - order.right_tilt * high
        return min(left, 0.0), min(right, 0.0)


def _tilt_of_tail(moments: TiltedMoments, base: float, first: float) -> float:
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


def convolve(factors: Factors, lattice: Lattice, above: bool) -> tuple[Points, float]:
    """The law of the product, larger (``above``) or smaller than it in convex order, and a bound on its rounding."""
    size, step = lattice.size, lattice.step
    placed = [(Placed.of(law, lattice, above), times) for law, times in factors]
    moments = TiltedMoments.of([(law.points, times) for law, times in placed])
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
        largest = [(times, float(np.abs(order.value * law.points.log_ratio).max())) for law, times in placed]
        exponents = sum(times * (40.0 + each) for times, each in largest)
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
    """Masses of ``X^order dQ`` for the product, normalised, and a bound on the error of each, in the worst case. Every
    path through a transform multiplies by one power of the root of unity and adds once a level, so that each
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
