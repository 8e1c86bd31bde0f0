"""The law of the likelihood ratio X = dP/dQ of a release, from both sides; it knows no mechanism.

All divergences that privacy needs are expectations of convex functions of X under Q. Moving mass apart with its mean
kept (:func:`spread_cells`, pessimistic) can only raise them. Moving it together (:func:`contract_cells`, optimistic)
can only lower them. Keeping the mean of X is keeping both the P-mass and the Q-mass: nothing is ever multiplied by a
large ratio.

:class:`Points` is a finite law. :class:`Law` holds two of them, one larger and one smaller than X in convex order; each
operation keeps that order, so every answer is a bracket. :class:`ClosedForm` is the closed form of Gaussian releases
whose hidden choices are revealed.

*Pairs*: all pairs of points of two laws are sorted into the cells of an adaptive grid. Everything summed is positive,
so tails keep their relative accuracy however small they are.

*Long products*: every factor is put on a lattice of log ratios, above or below it in convex order, and the lattice laws
are convolved by Fourier transform. A transform errs by some 1e-16 of the *largest* mass, too much for a delta of 1e-10.
So ``X^order dQ`` is convolved for a few orders: 0 is Q, 1 is P, more looks at the right tail, less than 0 at the left
one. Each lattice point uses the order that knows it best. The error that is left is added to every mass for an upper
bound, and subtracted for a lower one.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedamp.accounting import arithmetic
from fedamp.accounting.arithmetic import (
    TRANSFORM,
    UNIT,
    Array,
    chance_of_any,
    combined_copies,
    gaussian_delta,
    level_crossing,
    log_sum,
    normal_mass,
    rounding_of_cells,
    rounding_of_masses,
    rounding_of_sums,
)
from fedamp.accounting.bounds import (
    Bounds,
    Method,
    NotEvaluable,
    Origin,
    check_count,
    check_delta,
    check_epsilon,
    check_positive,
    check_probability,
    check_weights,
)

DEFAULT_POINTS = 1200
"""Points of a law; the width of a bracket falls with their square, the time rises with it."""

_TINY = 1e-290  # below this a mass has lost digits to underflow, and a ratio formed with it means nothing


@dataclass(frozen=True, eq=False)
class Points:
    """A finite law of ``X = dP/dQ``.

    Attributes:
        log_ratio: shape (n,), increasing, finite: log X at each point.
        mass_in: shape (n,), P-mass of each point, ``exp(log_ratio) * mass_out`` up to rounding.
        mass_out: shape (n,), Q-mass of each point.
        zero: Q-mass where X = 0 (outputs that are impossible with the person in).
        infinite: P-mass where X is infinite (outputs that give the person away).
    """

    log_ratio: Array
    mass_in: Array
    mass_out: Array
    zero: float = 0.0
    infinite: float = 0.0

    def log_weights(self, order: float) -> Array:
        """Return log of ``X^order dQ`` at each point.

        It is computed from the larger of the point's two masses: the other may have underflowed.
        """
        with np.errstate(divide="ignore"):
            from_in = np.log(self.mass_in) + (order - 1.0) * self.log_ratio
            from_out = np.log(self.mass_out) + order * self.log_ratio
        return np.where(self.log_ratio > 0, from_in, from_out)

    @property
    def swapped_law(self) -> "Points":
        """The law of dQ/dP under P."""
        return Points(-self.log_ratio[::-1], self.mass_out[::-1], self.mass_in[::-1], self.infinite, self.zero)


@dataclass(frozen=True, eq=False)
class Cells:
    """Mass sorted into cells: cell 0 lies below ``edges[0]``, cell c between ``edges[c - 1]`` and ``edges[c]``.

    Attributes:
        edges: shape (n,), log ratios, strictly increasing.
        mass_in, mass_out: shape (n + 1,), P-mass and Q-mass of each cell.
        zero, infinite: those of :class:`Points`; not part of any cell.
    """

    edges: Array
    mass_in: Array
    mass_out: Array
    zero: float = 0.0
    infinite: float = 0.0


Placement = Callable[[Cells], Points]  # :func:`spread_cells` for upper bounds, :func:`contract_cells` for lower bounds


def spread_cells(cells: Cells) -> Points:
    """Split the mass of every cell between its two edges, larger in convex order.

    The shares keep the cell's P-mass and Q-mass, so the mean of X. Outermost cells have an edge at 0 or infinity.

    Example:
        >>> half = Cells(np.log([0.5, 2.0]), np.array([0.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.0]))
        >>> spread_cells(half).mass_out.round(4).tolist(), contract_cells(half).log_ratio.tolist()
        ([0.6667, 0.3333], [0.0])
    """
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


def contract_cells(cells: Cells) -> Points:
    """Move the mass of every cell to its mean, smaller in convex order."""
    log_ratio = cell_means(cells)
    known = np.isfinite(log_ratio)
    if not known.any():
        return Points(cells.edges[:1], np.zeros(1), np.zeros(1), cells.zero, cells.infinite)
    return Points(log_ratio[known], cells.mass_in[known], cells.mass_out[known], cells.zero, cells.infinite)


def cell_means(cells: Cells) -> Array:
    """log of the mean of X in each cell; not finite where a cell has no mass, or where a mass has underflowed."""
    left, right = np.concatenate(([-np.inf], cells.edges)), np.concatenate((cells.edges, [np.inf]))
    means = np.clip(_log_ratio(cells.mass_in, cells.mass_out, right, left), left, right)
    return np.where((cells.mass_in > 0) | (cells.mass_out > 0), means, np.nan)


def _log_ratio(mass_in: Array, mass_out: Array, if_no_in: Array, if_no_out: Array) -> Array:
    """Return log(mass_in / mass_out), or the stated ends where a mass has underflowed and its ratio is unknown."""
    sound = (mass_in > _TINY) & (mass_out > _TINY)
    ratio = np.divide(mass_in, mass_out, out=np.ones_like(mass_in), where=sound)
    return np.where(sound, np.log(ratio), np.where(mass_out > mass_in, if_no_in, if_no_out))


def regrid(law: Points, edges: Array, place: Placement) -> Points:
    """Place a law on other edges.

    Args:
        law: the law.
        edges: log ratios, shape (m,), increasing.
        place: :func:`spread_cells` for an upper bound, :func:`contract_cells` for a lower one.
    """
    cell = np.searchsorted(edges, law.log_ratio)
    mass_in = np.bincount(cell, law.mass_in, len(edges) + 1).astype(np.float64)
    mass_out = np.bincount(cell, law.mass_out, len(edges) + 1).astype(np.float64)
    return place(Cells(edges, mass_in, mass_out, law.zero, law.infinite))


def coarse_points(law: Points, blocks: int, with_zero: bool = False) -> Points:
    """Return about ``blocks`` points, each standing for neighbouring ones: no bound, but enough to choose a grid by.

    The grid of a mean also needs the point at X = 0 (``with_zero``).
    """
    size = law.log_ratio.size
    starts = np.unique(np.r_[np.arange(0, size, max(1, size // blocks)), 1, size - 1])
    starts = starts[starts < size]  # the outermost points stay alone: a grid has to reach them
    log_ratio = np.add.reduceat(law.log_ratio, starts) / np.diff(np.append(starts, size))
    few = Points(log_ratio, np.add.reduceat(law.mass_in, starts), np.add.reduceat(law.mass_out, starts))
    if not with_zero or law.zero <= _TAIL:
        return few
    return Points(np.r_[-np.inf, few.log_ratio], np.r_[0.0, few.mass_in], np.r_[law.zero, few.mass_out])


def thinned_points(law: Points, rate: float) -> Points:
    """Return the law of ``(1 - rate) + rate X``, for a rate in (0, 1)."""
    mass_in = (1.0 - rate) * law.mass_out + rate * law.mass_in
    log_ratio = np.log1p(rate * np.expm1(np.minimum(law.log_ratio, 700.0)))
    log_ratio = np.where(law.log_ratio > 700.0, law.log_ratio + np.log(max(rate, 1e-300)), log_ratio)
    result = Points(log_ratio, mass_in, law.mass_out, 0.0, rate * law.infinite)
    if law.zero == 0.0:
        return result
    at_zero = Points(np.array([np.log1p(-rate)]), np.array([(1.0 - rate) * law.zero]), np.array([law.zero]))
    return union_of_points([at_zero, result])


def scaled_points(law: Points, weight: float) -> Points:
    """Return the law with all masses multiplied."""
    return Points(law.log_ratio, weight * law.mass_in, weight * law.mass_out, weight * law.zero, weight * law.infinite)


def union_of_points(laws: Sequence[Points]) -> Points:
    """Return all the points of several (scaled) laws, sorted."""
    log_ratio, mass_in, mass_out, zero, infinite = np.zeros(0), np.zeros(0), np.zeros(0), 0.0, 0.0
    for law in laws:
        log_ratio, mass_in = np.append(log_ratio, law.log_ratio), np.append(mass_in, law.mass_in)
        mass_out = np.append(mass_out, law.mass_out)
        zero, infinite = zero + law.zero, infinite + law.infinite
    order = np.argsort(log_ratio, kind="stable")
    return Points(log_ratio[order], mass_in[order], mass_out[order], zero, infinite)


@dataclass(frozen=True, eq=False)
class PointProfile:
    """The profile ``delta(epsilon) = E_Q[(X - e^epsilon)+]`` of a finite law.

    Between two points it is linear in ``e^epsilon``.

    Attributes:
        log_ratio: shape (n,), increasing.
        delta: shape (n,), the profile at ``epsilon = log_ratio[i]``.
        slope: shape (n,), ``exp(log_ratio[i])`` times the Q-mass of the points from i up: left of point i the profile
            rises by ``slope[i] * (1 - exp(epsilon - log_ratio[i]))``.
        infinite: P-mass where X is infinite: delta at every epsilon.
    """

    log_ratio: Array
    delta: Array
    slope: Array
    infinite: float

    @classmethod
    def of_points(cls, law: Points) -> "PointProfile":
        """Compute the profile of H(P, Q); that of H(Q, P) is of the law ``swapped``."""
        # Of one layout in memory, also where the law is ``swapped``: then there is one function to compile.
        contiguous = np.ascontiguousarray(law.log_ratio), np.ascontiguousarray(law.mass_in)
        slope, delta = np.empty((2, len(law.log_ratio)))
        arithmetic.hockey_stick_profile(*contiguous, law.infinite, slope, delta)
        return cls(law.log_ratio, delta, slope, law.infinite)

    def delta_at(self, epsilon: ArrayLike) -> Array:
        """Return delta at each epsilon, of either sign and of any shape."""
        epsilon = np.asarray(epsilon, float)
        index = np.searchsorted(self.log_ratio, epsilon)
        inside = np.minimum(index, len(self.log_ratio) - 1)
        rise = self.slope[inside] * -np.expm1(np.minimum(epsilon - self.log_ratio[inside], 0.0))
        return np.where(index < len(self.log_ratio), self.delta[inside] + rise, self.infinite)

    def epsilon_at(self, delta: float) -> float:
        """Return the smallest epsilon, of either sign, with ``delta(epsilon) <= delta``; infinite if there is none."""
        if delta < self.infinite:
            return np.inf
        index = int(np.searchsorted(-self.delta, -delta))  # first point whose delta is not above
        if index == len(self.delta):
            return np.inf
        rise = (delta - float(self.delta[index])) / float(self.slope[index]) if self.slope[index] > 0 else 0.0
        return float(self.log_ratio[index]) + float(np.log1p(-rise)) if rise < 1 else -np.inf


RATIO_LIMIT = 600.0
"""Largest absolute log ratio that enters a mean: beyond it masses and ratios leave floating point."""


class Pairing(NamedTuple):
    """A rule by which two likelihood ratios a and b become one.

    Attributes:
        mean_weights: (u, v) makes ``u a + v b`` with u + v = 1; None makes the product ``a b``.
        coefficients: P-mass of a pair as multiples of P_a Q_b, Q_a P_b and P_a P_b (its Q-mass is Q_a Q_b).
    """

    mean_weights: tuple[float, float] | None
    coefficients: tuple[float, float, float]

    def summand_of(self, side: int, log_ratio: Array) -> Array:
        """Return the summand that side 0 or 1 contributes to the location of a pair.

        It is a weighted ratio, or for products a log ratio.
        """
        if self.mean_weights is None:
            return log_ratio
        return self.mean_weights[side] * np.exp(log_ratio)


def paired_points(a: Points, b: Points, pairing: Pairing, edges: Array) -> Cells:
    """Return the law of all pairs, in cells.

    Args:
        a, b: laws of independent ratios.
        pairing: how they become one.
        edges: of the cells, log ratios, shape (m,).
    """
    weights = pairing.mean_weights
    bounds = edges if weights is None else np.exp(edges)
    in_cells, out_cells = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
    location = pairing.summand_of(0, a.log_ratio), pairing.summand_of(1, b.log_ratio)
    symmetric = a is b and (weights is None or weights[0] == weights[1])
    bounds = np.append(bounds, np.inf)
    side_a = location[0], a.mass_in, a.mass_out
    side_b = location[1], b.mass_in, b.mass_out
    arithmetic.sum_pairs(*side_a, *side_b, bounds, *pairing.coefficients, symmetric, in_cells, out_cells)
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
                arithmetic.sum_pairs(*at_zero, *theirs, bounds, *coefficients, False, in_cells, out_cells)
        zero = a.zero * b.zero
        infinite = weights[0] * a.infinite + weights[1] * b.infinite
    return Cells(edges, in_cells, out_cells, zero, infinite)


# Where to put the points: a grid decides how wide a bracket becomes, never whether it holds.

_TAIL = 1e-22  # probability outside the grid. Its contribution stays bracketed; this only decides how widely


def reduced_points(law: Points, points: int, place: Placement) -> Points:
    """Return the law with at most ``points`` points, and without ratios beyond :data:`RATIO_LIMIT`."""
    largest = float(np.max(np.abs(law.log_ratio)))
    if largest > RATIO_LIMIT and place is spread_cells:
        law = regrid(law, np.unique(np.clip(law.log_ratio, -RATIO_LIMIT, RATIO_LIMIT)), spread_cells)
    elif largest > RATIO_LIMIT:
        # Brings in a mass of exp(-RATIO_LIMIT) of the other kind, some 1e-260: far below the rounding of everything.
        mass_in = np.where(law.log_ratio < -RATIO_LIMIT, law.mass_out * np.exp(-RATIO_LIMIT), law.mass_in)
        mass_out = np.where(law.log_ratio > RATIO_LIMIT, law.mass_in * np.exp(-RATIO_LIMIT), law.mass_out)
        law = Points(np.clip(law.log_ratio, -RATIO_LIMIT, RATIO_LIMIT), mass_in, mass_out, law.zero, law.infinite)
    if law.log_ratio.size <= points:
        return law
    return regrid(law, adaptive_edges(law.log_ratio, law.mass_in, law.mass_out, points, law.log_ratio), place)


def choose_edges(a: Points, b: Points, pairing: Pairing, points: int) -> Array:
    """Choose a grid for the pair, from a guess of its law made with coarse versions of both sides.

    If all pairs are few, the grid holds each of them, and the law is exact.
    """
    if a.log_ratio.size * b.log_ratio.size <= 64 * points:
        distinct = _all_pairs(a, b, pairing)
        if len(distinct) <= points:
            return distinct
    larger = b if pairing.mean_weights is not None and pairing.mean_weights[1] > pairing.mean_weights[0] else a
    of_mean = pairing.mean_weights is not None
    a, b = coarse_points(a, 80, of_mean), coarse_points(b, 80, of_mean)
    location = np.add.outer(pairing.summand_of(0, a.log_ratio), pairing.summand_of(1, b.log_ratio)).ravel()
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
        return _aligned_edges(adaptive_edges(location, mass_in, mass_out, points, location), larger.log_ratio)
    first = int(np.searchsorted(location, 0.0, side="right"))
    location, mass_in, mass_out = location[first:], mass_in[first:], mass_out[first:]
    log_ratio = np.log(location)
    # In later sums of a mean the right tail counts by the ratio itself, not its logarithm.
    edges = adaptive_edges(log_ratio, mass_in, mass_out, points, np.maximum(log_ratio, location - 1.0))
    return _aligned_edges(edges, np.log1p(max(pairing.mean_weights) * np.expm1(larger.log_ratio)))


def _aligned_edges(edges: Array, images: Array) -> Array:
    """Replace edges in the thin right tail by the images that the points of one side have when paired with X = 1.

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
    """Return every log ratio that a pair of points has: the grid of an exact law."""
    locations = pairing.summand_of(0, a.log_ratio), pairing.summand_of(1, b.log_ratio)
    together = np.add.outer(*locations).ravel()
    if pairing.mean_weights is not None:
        together = np.concatenate((together, *locations) if a.zero or b.zero else (together,))
        together = np.log(together)
    together.sort()
    # Points that differ by rounding alone share a cell, which ends a little beyond the last of them.
    last = np.diff(together, append=np.inf) > 1e-13
    return together[last] + 1e-15


def adaptive_edges(log_ratio: Array, mass_in: Array, mass_out: Array, points: int, distance: Array) -> Array:
    """Return ``points`` log ratios, spaced for an even *relative* error of epsilon over deltas from 1 to 1e-12.

    In the bulk that takes steps even in the normal quantiles of P and Q; in heavy tails, steps in proportion to the
    distance from X = 1, which asinh(distance / core) gives.

    Args:
        log_ratio, mass_in, mass_out: a guess of the law, shape (n,), sorted.
        points: number of edges; fewer where they would coincide.
        distance: shape (n,), increasing, signed distance of each point from X = 1.
    """
    quantile_in, quantile_out = _middle_quantiles(mass_in), _middle_quantiles(mass_out)
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


def _middle_quantiles(mass: Array) -> Array:
    """Return the normal quantile of the middle of each point."""
    below = np.cumsum(mass) - mass / 2
    above = np.cumsum(mass[::-1])[::-1] - mass / 2
    distance = np.interp(-np.log(np.clip(np.minimum(below, above), _TAIL, 0.5)), *_normal_tail())
    return np.where(below < above, -distance, distance)


@lru_cache(maxsize=1)
def _normal_tail() -> tuple[Array, Array]:
    """Return minus the log of the mass beyond z, and z, both increasing."""
    z = np.linspace(0.0, 10.0, 1001)
    return -np.log([math.erfc(value / math.sqrt(2)) / 2 for value in z]), z


# Most lattice points at the default number of points (in proportion, up to 8 times, where more are asked for); fewer of
# many different factors.
LATTICE_LIMIT = 2**19
_OUTSIDE = 40.0  # minus the log of the mass that may leave the lattice under any order

Factors = Sequence[tuple[Points, int]]


@dataclass(frozen=True)
class Tilt:
    """The measure ``X^value dQ``, with the tilts that bound its mass left and right of the lattice (Chernoff)."""

    value: float
    left_tilt: float
    right_tilt: float


@dataclass(frozen=True)
class Lattice:
    """A lattice of log ratios on which a product is convolved.

    Attributes:
        orders: the orders convolved, increasing, the first below 0 and the last above 1.
        start: log ratio at which it starts; nearly all mass, under every order, lies between this and its end.
        step: distance of its points.
        size: number of its points, a power of two.
        fine: whether the step is as small as was asked for.
    """

    orders: tuple[Tilt, ...]
    start: float
    step: float
    size: int
    fine: bool


def choose_lattice(factors: Factors, points: int) -> Lattice:
    """Choose orders, window and step such that the lattice widens the bracket less than a grid of ``points`` does.

    Raises:
        NotEvaluable: the privacy loss leaves the range of floating point.
    """
    moments = TiltedMoments.of_factors(factors, 150)
    between, under_in = (
        float(np.sqrt(moments.mean_and_variance(0.5)[1])),
        float(np.sqrt(moments.mean_and_variance(1.0)[1])),
    )
    # A constant has none. At little noise X is nearly constant but where P is: there the scale is P's.
    deviation = max(between, under_in / 32, 1e-9)
    right = _tilt_of_tail(moments, 1.0, 1.0 / deviation)
    left = _tilt_of_tail(moments, 0.0, -1.0 / deviation)
    together = moments.mean_and_variance(1.0)[0] - moments.mean_and_variance(0.0)[0] < 8 * deviation
    values = (left, *((0.5,) if together else (0.0, 1.0)), 1.0 + right)
    orders, start, stop = list[Tilt](), math.inf, -math.inf
    for value in values:
        (low, left_tilt), (high, right_tilt) = moments.tail_reach(value, -1.0), moments.tail_reach(value, 1.0)
        orders.append(Tilt(value, left_tilt, right_tilt))
        start, stop = min(start, low), max(stop, high)
    if not 0 < stop - start < 1e9:
        raise NotEvaluable("the privacy loss leaves the range of floating point; use a Rényi bound")
    wanted = 25.0 * deviation / (points * np.sqrt(moments.times.sum()))
    wanted_size = 2 ** max(12, int(np.ceil(np.log2((stop - start) / wanted))))
    finer = min(max(points // DEFAULT_POINTS, 1), 8).bit_length() - 1
    size = min(wanted_size, (LATTICE_LIMIT << finer) >> max(0, len(factors) // 32 - 1).bit_length())
    step = (stop - start) / size
    gap = float(np.ptp(factors[0][0].log_ratio))
    if gap > step:  # both ends of the (first) law on the lattice: often that is where it has atoms
        step = gap / np.floor(gap / step)
    return Lattice(tuple(orders), start, step, size, wanted_size <= size)


@dataclass(frozen=True, eq=False)
class TiltedMoments:
    """``log E[X^order; 0 < X < infinity]`` of a product, and what follows from it.

    Attributes:
        log_ratio, log_out: shape (factors, n), padded with points of no mass.
        times: shape (factors,).
    """

    log_ratio: Array
    log_out: Array
    times: Array

    @classmethod
    def of_factors(cls, factors: Factors, blocks: int = 0) -> "TiltedMoments":
        """Compute from the laws themselves, or from their coarse versions of so many ``blocks``."""
        laws, counts, longest = list[Points](), list[float](), 0
        for law, times in factors:
            laws.append(coarse_points(law, blocks) if blocks else law)
            counts.append(times)
            longest = max(longest, laws[-1].log_ratio.size)
        log_ratio, log_out = np.zeros((len(laws), longest)), np.full((len(laws), longest), -np.inf)
        for i, law in enumerate(laws):
            log_ratio[i, : law.log_ratio.size], log_out[i, : law.log_ratio.size] = law.log_ratio, law.log_weights(0.0)
        return cls(log_ratio, log_out, np.array(counts, float))

    def log_means(self, *orders: float) -> Array:
        """Return ``log E[X^order]`` for each order, shape (n,)."""
        found = list[Array]()
        for chunk in np.array_split(np.array(orders), max(1, len(orders) * self.log_ratio.size // 1_000_000)):
            found.append(log_sum(self.log_out + chunk[:, None, None] * self.log_ratio) @ self.times)
        return np.concatenate(found)

    def mean_and_variance(self, order: float) -> tuple[float, float]:
        """Return mean and variance of log X under ``X^order dQ``."""
        values = self.log_out + order * self.log_ratio
        weight = np.exp(values - log_sum(values)[:, None])
        centres = (weight * self.log_ratio).sum(axis=1)
        variances = (weight * (self.log_ratio - centres[:, None]) ** 2).sum(axis=1)
        return float(self.times @ centres), float(self.times @ variances)

    def tail_reach(self, order: float, side: float) -> tuple[float, float]:
        """Return the log ratio with ``exp(-40)`` of the mass beyond it, and the tilt that proves it.

        Args:
            order: of the measure ``X^order dQ``.
            side: 1 for the right tail, -1 for the left one.
        """
        tilts = np.geomspace(0.05, 50.0, 40) / max(np.sqrt(self.mean_and_variance(order)[1]), 1e-12)
        rooms = (self.log_means(*(order + side * tilts)) - self.log_means(order) + _OUTSIDE) / tilts
        best = int(np.argmin(rooms))
        return side * float(rooms[best]), float(tilts[best])


def _tilt_of_tail(moments: TiltedMoments, base: float, first: float) -> float:
    """Return how far from order ``base`` an order centres on a mass of about ``exp(-10)`` under ``base``.

    The search goes in the direction of ``first``. In a heavy tail it stops where the spread doubles, where rare large
    factors become the rule.
    """
    here, widest, tilt = float(moments.log_means(base)[0]), 4 * moments.mean_and_variance(base)[1], 0.02 * first
    slope = moments.mean_and_variance(base + tilt)[0]
    while abs(tilt) < 100 * abs(first):  # a law with an atom at its end may have no such tail
        decay = tilt * slope - (float(moments.log_means(base + tilt)[0]) - here)
        slope, variance = moments.mean_and_variance(base + 1.3 * tilt)
        if decay >= 10.0 or variance > widest:
            break
        tilt *= 1.3
    return tilt


def convolve_factors(factors: Factors, lattice: Lattice, above: bool) -> tuple[Points, float]:
    """Return the law of the product, larger or smaller in convex order, and a bound on its rounding.

    Args:
        factors: finite laws with their multiplicities.
        lattice: where they are placed.
        above: whether an upper bound is wanted.
    """
    size, step = lattice.size, lattice.step
    placed, points, zeros, infinites = list[tuple[Placed, int]](), list[tuple[Points, int]](), [], []
    offset = 0.0
    for law, times in factors:
        each = Placed.on_lattice(law, lattice, above)
        placed.append((each, times))
        points.append((each.points, times))
        zeros.append((each.points.zero, times))
        infinites.append((each.points.infinite, times))
        offset += each.offset * times
    moments = TiltedMoments.of_factors(points)
    first = int(np.ceil((lattice.start - offset) / step))
    log_ratio = offset + step * (first + np.arange(size))
    log_mass, log_error = np.full(size, -np.inf), np.full(size, np.inf)
    outside_out = outside_in = rounding = 0.0
    for order in lattice.orders:
        mass, error = convolve_order(placed, order.value, size)
        # Logs of bounds on the normalised mass left and right of the lattice.
        whole = float(moments.log_means(order.value)[0])
        less, more = moments.log_means(order.value - order.left_tilt), moments.log_means(order.value + order.right_tilt)
        left = min(float(less[0]) - whole + order.left_tilt * log_ratio[0], 0.0)
        right = min(float(more[0]) - whole - order.right_tilt * log_ratio[-1], 0.0)
        error += float(np.exp(left) + np.exp(right))
        mass = np.roll(mass, -first) + (error if above else -error)
        to_out = whole - order.value * log_ratio
        better = np.log(error) + to_out < log_error
        log_error[better] = (np.log(error) + to_out)[better]
        with np.errstate(divide="ignore"):
            log_mass[better] = (np.log(np.maximum(mass, 0.0)) + to_out)[better]
        # Rounding, in units, of the exponents of the weights and their (pairwise) sum.
        exponents = 0.0
        for law, times in points:
            exponents += times * (40.0 + float(np.abs(order.value * law.log_ratio).max()))
        rounding = max(rounding, UNIT * (64.0 + float(np.abs(to_out).max()) + exponents))
        # Beyond an end of the lattice, Q- and P-mass are at most what X^order dQ is there times its density at the end.
        if order in (lattice.orders[0], lattice.orders[-1]):
            beyond, end = (left, 0) if order is lattice.orders[0] else (right, -1)
            outside_out += float(np.exp(min(beyond + to_out[end], 0.0)))
            outside_in += float(np.exp(min(beyond + to_out[end] + log_ratio[end], 0.0)))
    log_mass = np.minimum(log_mass, 600.0 - np.maximum(log_ratio, 0.0))  # far more than 1 where nothing is known
    mass_in, mass_out = np.exp(log_mass + log_ratio), np.exp(log_mass)
    zero, infinite = chance_of_any(zeros), chance_of_any(infinites)
    if above:
        zero, infinite = zero + outside_out, infinite + outside_in
    return Points(log_ratio, mass_in, mass_out, zero, infinite), rounding


@dataclass(frozen=True, eq=False)
class Placed:
    """A law on the lattice ``offset + step * index``.

    Attributes:
        points: the law.
        index: of each point.
        offset: log ratio of index 0.
    """

    points: Points
    index: NDArray[np.int64]
    offset: float

    @classmethod
    def on_lattice(cls, law: Points, lattice: Lattice, above: bool) -> "Placed":
        """Place a law on the lattice, above or below it in convex order; its heaviest point stays where it is."""
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
            return cls(regrid(kept, edges, spread_cells), index, anchor)
        mass_in, mass_out = arithmetic.lattice_below(log_ratio, mass_in, mass_out, anchor, step, index[0], len(index))
        return cls(Points(edges, mass_in, mass_out, law.zero, law.infinite), index, anchor)


def convolve_order(placed: Sequence[tuple[Placed, int]], order: float, size: int) -> tuple[Array, float]:
    """Return masses of ``X^order dQ`` for the product, normalised, and a bound on the error of each.

    The bound is for the worst case. Every path through a transform multiplies by one power of the root of unity and
    adds once a level. So each coefficient errs by at most ``TRANSFORM * log2(size)`` units of the sum of absolute
    inputs (Higham 2002, section 24.1, by component). Errors are followed through the powers, coefficient by
    coefficient, and back.
    """
    noise = TRANSFORM * UNIT * math.log2(size)
    product = np.ones(size // 2 + 1, complex)
    largest = np.ones(size // 2 + 1)  # of what the exact coefficient can be
    number = sum(map(operator.itemgetter(1), placed))
    relative = np.full(size // 2 + 1, 4 * UNIT * number)  # of the multiplications
    for law, times in placed:
        weights = law.points.log_weights(order)
        weights = np.exp(weights - weights.max())
        masses = np.bincount(law.index % size, weights / weights.sum(), size).astype(np.float64)
        transform = np.fft.rfft(masses)
        product *= combined_copies(transform, times, operator.mul)  # quicker than numpy's; within 4 * times units
        above = np.sqrt(transform.real**2 + transform.imag**2) * (1 + 8 * UNIT) + noise
        largest *= above**times
        relative += times * noise / above
    result = np.fft.irfft(product, size)
    magnitude = largest * (1 + relative)
    twice = 2.0 / size  # half of the coefficients are kept: the others are their conjugates
    error = twice * (float(largest @ relative) + noise * float(magnitude.sum()))
    return result, error * (1 + 1e-6)  # the bound is rounded, too


# Brackets of a law, and what becomes of them.

_FEW = 4  # products of fewer factors are paired; from here on they are convolved on a lattice


def normal_grid(
    largest_shift: float, points: int, reach: float, least_shift: float = 0.0
) -> tuple[Array, Array, Array]:
    """Return places z for laws that are near normals, and both ends of the intervals between them.

    Places go from ``least_shift`` - ``reach`` to ``largest_shift`` + ``reach``, where such laws have nearly all of
    their mass (all but 1e-20 by default).

    Returns:
        z, shape (4 points,); the lower and the upper ends, both of shape (4 points + 1,), with -inf and inf outermost.
    """
    z = np.linspace(least_shift - reach, largest_shift + reach, 4 * points)
    return z, np.r_[-np.inf, z], np.r_[z, np.inf]


@dataclass(frozen=True, eq=False)
class Law:
    r"""The law of ``X = dP/dQ`` under Q, bracketed in convex order.

    It is what :meth:`fedamp.accounting.mechanism.Mechanism.law` returns. Make one by :meth:`from_points` (finitely many
    outcomes), :meth:`from_masses` (X increases with a number), :meth:`gaussian` or :meth:`laplace`, and combine laws by
    :meth:`product`, :meth:`mean`, :meth:`thin` and :meth:`mixture`.

    Attributes:
        upper: a mean-preserving spread of the true law.
        lower: a contraction of it.
        rounding: bound r on the relative error of all masses from floating point. Masses off by at most a factor ``1 +
            r`` move the profile by at most ``2 r`` in epsilon and ``1 + r`` in delta; answers are widened by it.
        points: number of points the operations keep.

    Raises:
        NotEvaluable: masses do not sum to 1, or are not finite.

    Example:
        >>> bit = Law.from_points(ratio=[3.0, 1 / 3], mass_out=[0.25, 0.75])  # randomised response, p = 3/4
        >>> print(bit.epsilon(1e-5), Law.product([(bit, 2)]).epsilon(1e-5), sep="\n")
        1.099 (at least 1.098)
        2.198 (at least 2.197)
        >>> print(bit.thin(0.5).epsilon(1e-5))
        0.6932 (at least 0.6931)
    """

    upper: Points
    lower: Points
    rounding: float
    points: int

    def __post_init__(self) -> None:
        """Refuse laws that floating point does not hold (NotEvaluable): what comes of them is no bound."""
        for law in (self.upper, self.lower):
            totals = law.mass_in.sum() + law.infinite, law.mass_out.sum() + law.zero
            if not np.isfinite(totals).all():
                raise NotEvaluable("the likelihood ratio leaves the range of floating point; use a Rényi bound")
            if np.abs(np.subtract(totals, 1)).max() > 1e-6 + 2 * self.rounding:  # what comes of it is no bound
                raise NotEvaluable(f"the masses of a law come to {totals[0]:g} and {totals[1]:g}, not 1")

    @classmethod
    @lru_cache(maxsize=256)
    def gaussian(cls, noise_multiplier: float, *, points: int = DEFAULT_POINTS, reach: float = 9.5) -> "Law":
        """Return the law of the Gaussian mechanism: ``X = exp(z/s - 1/(2 s^2))``, z standard normal.

        Args:
            noise_multiplier: s > 0, standard deviation of the noise over the sensitivity.
            points: number of points.
            reach: up to how many standard deviations; see :class:`Detail`.
        """
        shift = 1.0 / check_positive("noise_multiplier", noise_multiplier)
        z, low, high = normal_grid(shift, points, reach)
        log_ratio = z * shift - shift**2 / 2
        return cls.from_masses(log_ratio, normal_mass(low - shift, high - shift), normal_mass(low, high), points)

    @classmethod
    def from_masses(cls, log_ratio: Array, mass_in: Array, mass_out: Array, points: int) -> "Law":
        """Return the law where X is an increasing function of a number.

        Args:
            log_ratio: log X at some places, shape (n,).
            mass_in, mass_out: P- and Q-mass left of, between and right of the places, shape (n + 1,).
            points: number of points the operations keep.
        """
        cells = Cells(log_ratio, mass_in, mass_out)
        return cls(spread_cells(cells), contract_cells(cells), rounding_of_masses(log_ratio), points)

    @classmethod
    @lru_cache(maxsize=64)
    def laplace(cls, scale: float, *, points: int = DEFAULT_POINTS) -> "Law":
        """Return the law of the Laplace mechanism of sensitivity 1.

        Args:
            scale: b > 0 of the noise density ``exp(-|z|/b) / (2 b)``.
            points: number of points.
        """
        z = np.linspace(0.0, 1.0, 4 * points)
        log_ratio = (2.0 * z - 1.0) / check_positive("scale", scale)
        between_out = 0.5 * np.exp(-z[:-1] / scale) * -np.expm1(-np.diff(z) / scale)
        mass_out = np.r_[0.5, between_out, 0.5 * np.exp(-1.0 / scale)]
        mass_in = np.r_[0.5 * np.exp(-1.0 / scale), between_out[::-1], 0.5]
        # Outside [0, 1] the ratio is constant, so the outermost masses sit on the outermost edges.
        cells = Cells(log_ratio, np.r_[0.0, mass_in[1:-1], 0.0], np.r_[0.0, mass_out[1:-1], 0.0])
        ends = Points(log_ratio[[0, -1]], mass_in[[0, -1]], mass_out[[0, -1]])
        return cls(
            union_of_points([spread_cells(cells), ends]),
            union_of_points([contract_cells(cells), ends]),
            rounding_of_masses(log_ratio),
            points,
        )

    @classmethod
    def from_points(
        cls, ratio: ArrayLike, mass_out: ArrayLike, *, infinite: float = 0.0, points: int = DEFAULT_POINTS
    ) -> "Law":
        """Return a finite law, exact.

        Args:
            ratio: values of X, >= 0, in any order, shape (n,).
            mass_out: their Q-masses, summing to 1, shape (n,).
            infinite: P-mass where X is infinite; ``sum(ratio * mass_out) + infinite`` must be 1.
            points: number of points the operations keep.

        Raises:
            ValueError: masses or ratios are negative, of other shapes, or do not sum to 1.

        Example:
            >>> Law.from_points([0.0, 2.0], [0.5, 0.5]).upper.zero  # half of Q is impossible under P
            0.5
        """
        ratio, mass_out = np.asarray(ratio, float), np.asarray(mass_out, float)
        if ratio.shape != mass_out.shape or ratio.ndim != 1 or not (ratio >= 0).all() or not (mass_out >= 0).all():
            raise ValueError("ratio and mass_out must be non-negative and of one length")
        if abs(mass_out.sum() - 1.0) > 1e-9 or abs(ratio @ mass_out + infinite - 1.0) > 1e-9 or infinite < 0:
            raise ValueError("mass_out must sum to 1, and ratio * mass_out and infinite together to 1")
        if not ratio.any():  # operations expect a finite ratio, if only of mass 0
            ratio, mass_out = np.append(ratio, 1.0), np.append(mass_out, 0.0)
        positive = ratio > 0
        order = np.argsort(ratio[positive], kind="stable")
        ratio, zero, mass_out = ratio[positive][order], mass_out[~positive].sum(), mass_out[positive][order]
        exact = Points(np.log(ratio), ratio * mass_out, mass_out, float(zero), infinite)
        return cls(exact, exact, rounding_of_masses(exact.log_ratio), points)

    def upper_only(self) -> "Law":
        """Return the same law with the trivial lower end (X = 1); operations then take half the time."""
        return Law(self.upper, _CONSTANT, self.rounding, self.points)

    def thin(self, rate: float) -> "Law":
        """Return the law under Poisson sampling: ``(1 - rate) + rate X`` (Zhu, Dong, Wang 2022, Theorem 11).

        Args:
            rate: in [0, 1].

        Example:
            >>> print(Law.gaussian(1.0).thin(0.1).delta(0.0))
            0.0383 (at least 0.03829)
        """
        if check_probability("rate", rate) in (0.0, 1.0):
            return self if rate else _ONE
        lower = self.lower if self.lower is _CONSTANT else thinned_points(self.lower, rate)
        return Law(thinned_points(self.upper, rate), lower, self.rounding + 4 * UNIT, self.points)

    def mean(self, copies: int) -> "Law":
        """Return the law of the mean of independent copies: one hidden choice of them.

        See Dong, Chen, Özgür 2025, Theorem 3.4. Copies are added by doubling.

        Args:
            copies: >= 1.

        Example:
            >>> print(Law.gaussian(1.0).mean(4).epsilon(1e-5))
            3.031 (at least 3.03)
        """
        return combined_copies((self._pairable_law(), 1), check_count("copies", copies), _mean_of_both)[0]

    def mean_with(self, other: "Law", weight: float) -> "Law":
        """Return the law of ``(1 - weight) X + weight Y`` for an independent Y: a hidden choice of two unlike places.

        Args:
            other: the law of Y.
            weight: in [0, 1].

        Example:
            >>> print(Law.gaussian(1.0).mean_with(Law.gaussian(2.0), 0.5).epsilon(1e-5))
            3.535 (at least 3.534)
        """
        if check_probability("weight", weight) in (0.0, 1.0):
            return other if weight else self
        weights = 1 - weight, weight
        found = _combine_laws(self, other, Pairing(weights, (*weights, 0.0)))
        return Law(found.upper, found.lower, found.rounding + 4 * UNIT, found.points)

    @staticmethod
    def product(factors: Sequence[tuple["Law", int]]) -> "Law":
        """Return the law of the product of independent X's: composition (Zhu, Dong, Wang 2022, Theorem 10).

        Fewer than four factors are paired; more are convolved on a lattice.

        Args:
            factors: laws with their multiplicities.

        Example:
            >>> print(Law.product([(Law.gaussian(10.0), 100)]).epsilon(1e-5))
            4.378 (at least 4.377)
        """
        used, uppers, lowers = list[tuple[Law, int]](), list[tuple[Points, int]](), list[tuple[Points, int]]()
        points, total, most, rounding, finite = 1, 0, 0, 0.0, True
        for law, times in factors:
            if not check_count("times", times, 0) or law is _ONE:
                continue
            used.append((law, times))
            uppers.append((law.upper, times))
            lowers += [(law.lower, times)] * (law.lower is not _CONSTANT)
            points, total, most = max(points, law.points), total + times, max(most, times)
            rounding += times * law.rounding
            finite = finite and bool(law.upper.mass_in.any())
        if total < _FEW or not finite:
            whole = _ONE
            for law, times in used:
                whole = _multiply_laws(whole, combined_copies(law, times, _multiply_laws))
            return whole
        lattice = choose_lattice(uppers, points)
        if not lattice.fine and most > 1:
            return Law.product(_with_fewer_factors(used))
        upper, from_upper = convolve_factors(uppers, lattice, above=True)
        lower, from_lower = convolve_factors(lowers, lattice, above=False) if lowers else (_CONSTANT, 0.0)
        return Law(upper, lower, rounding + max(from_upper, from_lower), points)

    @staticmethod
    def mixture(laws: Sequence["Law"], weights: Sequence[float]) -> "Law":
        """Return the law of a public choice: ``laws[i]`` with probability ``weights[i]``.

        See Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2.

        Example:
            >>> print(Law.mixture([Law.gaussian(1.0), Law.gaussian(4.0)], [0.5, 0.5]).epsilon(1e-5))
            4.213 (at least 4.212)
        """
        points = max(law.points for law in laws)
        used = [(law, w) for law, w in zip(laws, check_weights("weights", weights, len(laws)), strict=True) if w > 0]
        upper, lower = (
            union_of_points([scaled_points(getattr(law, end), w) for law, w in used]) for end in ("upper", "lower")
        )
        rounding = max(law.rounding for law in laws) + rounding_of_sums(upper.log_ratio, lower.log_ratio)
        return Law(
            reduced_points(upper, points, spread_cells), reduced_points(lower, points, contract_cells), rounding, points
        )

    def in_either_order(self) -> "Law":
        """Return the law of a pair whose profile, in either order and from epsilon 0 up, is H(P, Q).

        It is X where it is above 1, as likely as 1/X under P, and 1 else.

        Raises:
            NotEvaluable: X is above 1 too often under both, so there is no such pair.
        """
        upper, excess = _mirrored_points(self.upper)
        lower, below = (_CONSTANT, 0.0) if self.lower is _CONSTANT else _mirrored_points(self.lower)
        rounding = self.rounding + 2 * rounding_of_sums(upper.log_ratio, lower.log_ratio) + max(excess, below)
        return Law(upper, lower, rounding, self.points)

    @cached_property
    def both_directions(self) -> tuple["OneDirection", "OneDirection"]:
        """The profiles ``remove`` and ``add``; rounding moves their answers by ``slack``."""
        slack = 2 * (self.rounding + rounding_of_sums(self.upper.log_ratio, self.lower.log_ratio))
        remove = OneDirection(
            PointProfile.of_points(self.lower), PointProfile.of_points(self.upper), slack, self.points
        )
        lower, upper = PointProfile.of_points(self.lower.swapped_law), PointProfile.of_points(self.upper.swapped_law)
        return remove, OneDirection(lower, upper, slack, self.points)

    @property
    def remove(self) -> "OneDirection":
        """The profile of H(P, Q): delta is ``E[(X - e^epsilon)+]``."""
        return self.both_directions[0]

    @property
    def add(self) -> "OneDirection":
        """The profile of H(Q, P): delta is ``E[(1 - e^epsilon X)+]``."""
        return self.both_directions[1]

    def epsilon(self, delta: float) -> Bounds:
        """Return the smallest epsilon >= 0 with ``delta(epsilon) <= delta``, in both directions.

        Args:
            delta: in (0, 1).

        Returns:
            A bracket; its upper end may be infinite.
        """
        remove, add = self.both_directions[0].epsilon(delta), self.both_directions[1].epsilon(delta)
        return Bounds(max(remove.lower, add.lower), max(remove.upper, add.upper), remove.origin)

    def delta(self, epsilon: float) -> Bounds:
        """Return the larger of both directions' delta at ``epsilon`` (>= 0), as a bracket."""
        remove, add = self.both_directions[0].delta(epsilon), self.both_directions[1].delta(epsilon)
        return Bounds(max(remove.lower, add.lower), max(remove.upper, add.upper), remove.origin)

    def _pairable_law(self) -> "Law":
        """Return the law with few enough points to pair, and without ratios that a mean cannot hold."""
        upper, lower = (
            reduced_points(self.upper, self.points, spread_cells),
            reduced_points(self.lower, self.points, contract_cells),
        )
        return Law(
            upper, lower, self.rounding + rounding_of_sums(self.upper.log_ratio, self.lower.log_ratio), self.points
        )


@dataclass(frozen=True, eq=False)
class OneDirection:
    """The privacy profile of a law in one direction, from both sides.

    Attributes:
        lower, upper: profiles of the smaller and the larger law.
        slack: bound on what rounding moves, in epsilon and as a factor of delta.
        points: of the law.
    """

    lower: PointProfile
    upper: PointProfile
    slack: float
    points: int

    def epsilon(self, delta: float) -> Bounds:
        """Return the smallest epsilon >= 0 with ``delta(epsilon) <= delta`` (in (0, 1)), as a bracket."""
        upper = max(self.upper.epsilon_at(check_delta(delta) / (1 + self.slack)) + self.slack, 0.0)
        lower = self.lower.epsilon_at(min(delta * (1 + self.slack), 1.0)) - self.slack
        return Bounds(min(max(lower, 0.0), upper), upper, Origin(Method.LAW, (self.points,)))

    def delta(self, epsilon: float) -> Bounds:
        """Return the smallest delta at ``epsilon`` (>= 0), as a bracket."""
        upper = min(float(self.upper.delta_at(check_epsilon(epsilon) - self.slack)) * (1 + self.slack), 1.0)
        lower = float(self.lower.delta_at(epsilon + self.slack)) / (1 + self.slack)
        return Bounds(min(lower, upper), upper, Origin(Method.LAW, (self.points,)))


def _combine_laws(a: Law, b: Law, pairing: Pairing) -> Law:
    """Return the law of a pair, both ends on one grid."""
    points = max(a.points, b.points)
    a, b = (a._pairable_law(), b._pairable_law()) if a is not b else 2 * (a._pairable_law(),)
    edges = choose_edges(a.upper, b.upper, pairing, points)
    rounding = a.rounding + b.rounding + rounding_of_cells(points)
    upper = spread_cells(paired_points(a.upper, b.upper, pairing, edges))
    trivial = a.lower is _CONSTANT and b.lower is _CONSTANT
    lower = _CONSTANT if trivial else contract_cells(paired_points(a.lower, b.lower, pairing, edges))
    return Law(upper, lower, float(rounding), points)


def _mean_of_both(a: tuple[Law, int], b: tuple[Law, int]) -> tuple[Law, int]:
    """Return the mean of two means, each with its number of copies."""
    copies = a[1] + b[1]
    weights = a[1] / copies, b[1] / copies
    return _combine_laws(a[0], b[0], Pairing(weights, (*weights, 0.0))), copies


def _multiply_laws(a: Law, b: Law) -> Law:
    """Return the product of two laws."""
    return b if a is _ONE else _combine_laws(a, b, Pairing(None, (0.0, 0.0, 1.0)))


def _mirrored_points(law: Points) -> tuple[Points, float]:
    """Return the points above 1, their mirror images, and the rest of the mass at 1.

    The second result is by how much there is too much mass.
    """
    above = law.log_ratio > 0
    half = Points(law.log_ratio[above], law.mass_in[above], law.mass_out[above], 0.0, law.infinite)
    rest = 1.0 - float(half.mass_in.sum() + half.mass_out.sum()) - law.infinite
    if rest < -1e-6:
        raise NotEvaluable("a likelihood ratio that is above 1 too often is not of a pair in either order")
    middle = Points(np.zeros(1), np.full(1, max(rest, 0.0)), np.full(1, max(rest, 0.0)))
    return union_of_points([half.swapped_law, middle, half]), max(-rest, 0.0)


def _with_fewer_factors(factors: Sequence[tuple[Law, int]]) -> list[tuple[Law, int]]:
    """Return the same product, the law of the highest multiplicity squared: fewer factors need a less fine lattice."""
    longest = max(range(len(factors)), key=lambda i: factors[i][1])
    law, times = factors[longest]
    squared = [(_multiply_laws(law, law), times // 2), (law, times % 2)]
    return [*factors[:longest], *(factor for factor in squared if factor[1]), *factors[longest + 1 :]]


_CONSTANT = Points(np.zeros(1), np.ones(1), np.ones(1))
_ONE = Law(_CONSTANT, _CONSTANT, 0.0, 1)  # X = 1: a release that says nothing


class Detail(NamedTuple):
    """Settings of a numerical law: how finely it is computed, and how far into its tails.

    Attributes:
        points: number of points; questions accept 50 to 20,000.
        with_lower: whether its lower end is computed; without it every lower end is 0.
        reach: up to how many standard deviations normal tails are; the rest counts as the worst (X = 0 or infinity).

    Example:
        >>> from fedamp.accounting import Gaussian, Submodels
        >>> for points in (100, 400):
        ...     print(Submodels(Gaussian(1.0), 100).law(Detail(points)).epsilon(1e-5))
        0.6498 (at least 0.6119)
        0.6227 (at least 0.6201)
    """

    points: int
    with_lower: bool = True
    reach: float = 9.5


DEFAULT_DETAIL = Detail(DEFAULT_POINTS)


# Closed forms of Gaussian releases whose hidden choices A, of chances w_A, are revealed (docs/research/accounting.md,
# "Little noise"): sum_A w_A delta_A(epsilon - log w_A) <= delta(epsilon) <= sum_A w_A delta_A(epsilon).

# Kinds of choices that are kept apart, the chance below which they are not, and the most sizes of a set of rounds.
_MOST_KINDS, _RARE, _MOST_SIZES = 512, 1e-40, 2000


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """The closed form of a mechanism whose releases are Gaussian: what it would release if its choices were revealed.

    A row is a kind of hidden choice, with the Gaussian that is released given one of them. With w_A the chance of
    choice A and delta_A the delta of its Gaussian (docs/research/accounting.md, "Little noise"),

        sum_A w_A delta_A(epsilon - log w_A) <= delta(epsilon) <= sum_A w_A delta_A(epsilon).

    Both ends meet where noise is little: the release then shows the choice.

    Attributes:
        least, most: shape (n,): squared signal-to-noise ratio that is attained, and that is charged.
        chance: shape (n,): of all choices of the kind together.
        log_weight: shape (n,): log w_A of one of them, at least.
        off: bound on the relative errors, and on the absolute one of ``log_weight``.
    """

    least: Array
    most: Array
    chance: Array
    log_weight: Array
    off: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is hidden."""
        return not self.log_weight.any()

    @property
    def has_noise(self) -> bool:
        """Whether Gaussian noise is added for some choice: then losses have no bound, and outcomes are not few."""
        return bool(((self.most > 0) & (self.most < np.inf)).any())

    def epsilon(self, delta: float) -> Bounds:
        """Return the smallest epsilon >= 0 at ``delta``, as a bracket."""
        upper = level_crossing(partial(self._delta_end, upper=True), delta, 1e250, 1e-9)[1]
        lower = level_crossing(partial(self._delta_end, upper=False), delta, 1e250, 1e-9)[0]
        return Bounds(min(lower, upper), upper, Origin(Method.CLOSED_FORM))

    def delta(self, epsilon: float) -> Bounds:
        """Return the smallest delta at ``epsilon`` >= 0, as a bracket."""
        upper = self._delta_end(epsilon, upper=True)
        return Bounds(min(self._delta_end(epsilon, upper=False), upper), upper, Origin(Method.CLOSED_FORM))

    def _delta_end(self, epsilon: float, upper: bool) -> float:
        """Compute one end of delta."""
        if epsilon == math.inf:
            return float(self.chance[(self.most if upper else self.least) == math.inf].sum())
        off = self.off + 8 * UNIT * len(self.chance)
        if upper:
            return min(1.0, float(self.chance @ gaussian_delta(self.most * (1 + off), epsilon, 1)) * (1 + off))
        lost = epsilon - self.log_weight * (1 + off) + off
        return float(self.chance @ gaussian_delta(self.least * (1 - off), lost, -1)) * (1 - off)

    def composed_with(self, other: "ClosedForm") -> "ClosedForm":
        """Return the choices of two mechanisms, one after the other: signals add up, chances multiply."""
        least, most = np.add.outer(self.least, other.least), np.add.outer(self.most, other.most)
        logs, chance = np.add.outer(self.log_weight, other.log_weight), np.multiply.outer(self.chance, other.chance)
        return _put_together(least, most, chance, logs, self.off + other.off + 4 * UNIT)

    def with_lower_ends(self, below: "ClosedForm") -> "ClosedForm":
        """Return the same upper ends, with the lower ends of a mechanism that is attained."""
        if below is NOTHING_RELEASED:
            nothing = np.zeros(len(self.chance))
            return ClosedForm(nothing, self.most, self.chance, nothing, self.off)
        most = np.full(len(below.chance), self.most.max())
        return ClosedForm(below.least, most, below.chance, below.log_weight, max(below.off, self.off))

    def chosen_by_chance(self, chance: float, log_weight: float) -> "ClosedForm":
        """Return the release if a choice with this ``chance`` falls on the mechanism."""
        return ClosedForm(self.least, self.most, chance * self.chance, self.log_weight + log_weight, self.off)


def _put_together(least: Array, most: Array, chance: Array, log_weight: Array, off: float) -> ClosedForm:
    """Put equal rows together, and neighbours where they are too many or too rare.

    Rows may be of any shape. Neighbours get the smaller attained signal, the larger charged one, and the smaller
    weight.
    """
    least, most, chance, log_weight = least.ravel(), most.ravel(), chance.ravel(), log_weight.ravel()
    order = np.lexsort((log_weight, most, chance >= _RARE))
    least, most, chance, log_weight = least[order], most[order], chance[order], log_weight[order]
    rare = chance < _RARE
    same = np.isclose(most[1:], most[:-1], rtol=1e-12, atol=0) & np.isclose(log_weight[1:], log_weight[:-1], 1e-12, 0)
    starts = np.flatnonzero(np.r_[True, ~(rare[1:] | (same & ~rare[:-1]))])
    if len(starts) > _MOST_KINDS:
        starts = starts[np.linspace(0, len(starts), _MOST_KINDS, endpoint=False).astype(int)]
    least, log_weight = np.minimum.reduceat(least, starts), np.minimum.reduceat(log_weight, starts)
    most, total = np.maximum.reduceat(most, starts), np.add.reduceat(chance, starts)
    return ClosedForm(least, most, total, log_weight, off + len(chance) * UNIT)


NOTHING_RELEASED = ClosedForm(np.zeros(1), np.zeros(1), np.ones(1), np.zeros(1))
"""A mechanism that releases nothing."""


def one_of(parts: Sequence[tuple[ClosedForm, float, float]], off: float = 4 * UNIT) -> ClosedForm:
    """Return a choice among mechanisms.

    Args:
        parts: triples (a mechanism, its chance, log w of each such choice).
        off: bound on the relative errors of the chances.
    """
    least, most, chances, log_weights, largest = np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0), 0.0
    for part, chance, log_weight in parts:
        least, most = np.append(least, part.least), np.append(most, part.most)
        chances = np.append(chances, chance * part.chance)
        log_weights, largest = np.append(log_weights, part.log_weight + log_weight), max(largest, part.off)
    return _put_together(least, most, chances, log_weights, off + largest + 4 * UNIT)
