"""The law of a weighted mean, or of the product, of two independent likelihood ratios.

All pairs of points are formed and sorted into the cells of an adaptive grid (:func:`choose_edges`), which is then
spread or contracted (:mod:`fedamp.accounting.points`). Everything summed is positive, so tails keep their
relative accuracy however small they are.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from fedamp.accounting.points import Array, Cells, Placement, Points

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
    _sum_pairs(*side_a, *side_b, bounds, *pairing.coefficients, symmetric, in_cells, out_cells)
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
                _sum_pairs(*at_zero, *theirs, bounds, *coefficients, False, in_cells, out_cells)
        zero = a.zero * b.zero
        infinite = weights[0] * a.infinite + weights[1] * b.infinite
    return place(Cells(edges, in_cells, out_cells, zero, infinite))


@njit(cache=True)
def _sum_pairs(  # type: ignore[no-untyped-def]
    loc_a, in_a, out_a, loc_b, in_b, out_b, bounds, c_ab, c_ba, c_pp, symmetric, in_cells, out_cells
):
    """Add the masses of all pairs to the cells; both sides increase, so the cell is followed, not searched."""
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
