"""Finite laws of a likelihood ratio, and the two ways to put a law on a grid.

All divergences that privacy needs are expectations of convex functions of X = dP/dQ under Q: moving mass apart with its
mean kept (:func:`spread`, pessimistic) can only raise them, moving it together (:func:`contract`, optimistic) only
lower them. Keeping the mean of X is keeping both the P-mass and the Q-mass: nothing is ever multiplied by a large
ratio.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedamp.accounting.bounds import Array
from fedamp.accounting.loops import profile

DEFAULT_POINTS = 1200
"""Points of a law; the width of a bracket falls with their square, the time rises with it."""

_TINY = 1e-290
"""Below this a mass has lost digits to underflow, and a ratio formed with it means nothing."""


@dataclass(frozen=True, eq=False)
class Points:
    """A finite law of ``X = dP/dQ``.

    Attributes:
        log_ratio: shape (n,), increasing, finite: log X at each point.
        mass_in: shape (n,), P-mass of each point, ``exp(log_ratio) * mass_out`` up to rounding.
        mass_out: shape (n,), Q-mass of each point.
        zero: Q-mass where X = 0 (outputs that the data in question rules out).
        infinite: P-mass where X is infinite (outputs that give the data away).
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


@dataclass(frozen=True, eq=False)
class Cells:
    """Mass sorted into cells: cell 0 lies below ``edges[0]``, cell c between ``edges[c - 1]`` and ``edges[c]``.

    Attributes:
        edges: shape (n,), log ratios, strictly increasing.
        mass_in, mass_out: shape (n + 1,), P-mass and Q-mass of each cell.
        zero, infinite: as in :class:`Points`; not part of any cell.
    """

    edges: Array
    mass_in: Array
    mass_out: Array
    zero: float = 0.0
    infinite: float = 0.0


Placement = Callable[[Cells], Points]
"""How a law is put on a grid: :func:`spread` for upper bounds, :func:`contract` for lower bounds."""


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
    """``delta(epsilon) = E_Q[(X - e^epsilon)+]``, which between two points is linear in ``e^epsilon``.

    Attributes:
        log_ratio: shape (n,), increasing.
        delta: shape (n,), the profile at ``epsilon = log_ratio[i]``.
        slope: shape (n,), ``exp(log_ratio[i])`` times the Q-mass of the points from i up: left of point i the profile
            rises by ``slope[i] * (1 - exp(epsilon - log_ratio[i]))``.
    """

    log_ratio: Array
    delta: Array
    slope: Array
    infinite: float

    @classmethod
    def remove(cls, law: Points) -> "PointProfile":
        """The profile of H(P, Q)."""
        slope, delta = profile(law.log_ratio, law.mass_in, law.infinite)
        return cls(law.log_ratio, delta, slope, law.infinite)

    @classmethod
    def add(cls, law: Points) -> "PointProfile":
        """The profile of H(Q, P): the same law with the roles of P and Q exchanged."""
        swapped = Points(-law.log_ratio[::-1], law.mass_out[::-1], law.mass_in[::-1], law.infinite, law.zero)
        return cls.remove(swapped)

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
