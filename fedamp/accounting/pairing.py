"""The law of a weighted mean, or of the product, of two independent likelihood ratios, and the grid it is put on.

All pairs of points are sorted into the cells of an adaptive grid. The cells are spread or contracted (``points``).
Everything summed is positive, so tails keep their relative accuracy however small they are.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedamp.accounting.bounds import Array
from fedamp.accounting.loops import sum_pairs
from fedamp.accounting.points import Cells, Placement, Points, coarse, regrid, spread

RATIO_LIMIT = 600.0
"""Largest |log ratio| that enters a mean: beyond it masses and ratios leave the range of floating point."""


@dataclass(frozen=True)
class Pairing:
    """How two likelihood ratios a and b become one.

    ``mean_weights`` (u, v) makes ``u a + v b`` with u + v = 1; ``None`` makes the product ``a b``.
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

_TAIL = 1e-22
"""Probability outside the grid. Its contribution stays bracketed; this only decides how widely."""


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
