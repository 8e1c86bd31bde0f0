"""The law of the product of many independent likelihood ratios, by Fourier transform.

Every factor is put on a lattice of log ratios, above it in convex order (:func:`spread`) or below it
(:func:`lattice_below`), and the lattice laws are convolved. A transform errs by some 1e-16 of the *largest* mass, far
too much for a delta of 1e-10 after many factors. So the measure ``X^order dQ`` is convolved for a few orders (0 is Q,
1 is P, more looks at the right tail, less than 0 at the left one), and each lattice point uses the order that knows it
best. What error is left is added to every mass for an upper bound and subtracted for a lower one: a law with more
(less) mass at each ratio has larger (smaller) divergences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedamp.accounting.lattice import Factors, Lattice, Moments, log_weights
from fedamp.accounting.moments import UNIT
from fedamp.accounting.points import Array, NotEvaluable, Points, regrid, spread

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
        rounding = max(rounding, UNIT * (64.0 + float(np.abs(to_out).max()) + _exponents(placed, order.value)))
        # Beyond an end of the lattice, Q- and P-mass are at most what X^order dQ is there times its density at the end.
        if order in (lattice.orders[0], lattice.orders[-1]):
            beyond, end = (left, 0) if order is lattice.orders[0] else (right, -1)
            outside_out += float(np.exp(min(beyond + to_out[end], 0.0)))
            outside_in += float(np.exp(min(beyond + to_out[end] + log_ratio[end], 0.0)))
    log_mass = np.minimum(log_mass, 600.0 - np.maximum(log_ratio, 0.0))  # far more than 1 where nothing is known
    mass_in, mass_out = np.exp(log_mass + log_ratio), np.exp(log_mass)
    zero = _at_least_once([(law.points.zero, times) for law, times in placed])
    infinite = _at_least_once([(law.points.infinite, times) for law, times in placed])
    if above:
        zero, infinite = zero + outside_out, infinite + outside_in
    return Points(log_ratio, mass_in, mass_out, zero, infinite), rounding


def _at_least_once(chances: Sequence[tuple[float, int]]) -> float:
    """Of independent events with these chances, each tried so many times."""
    return -math.expm1(sum(times * math.log1p(-chance) for chance, times in chances)) if max(chances)[0] < 1 else 1.0


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
        # What is left out counts as the worst (X = 0 and infinity), or not at all.
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


@njit(cache=True)
def lattice_below(log_ratio, mass_in, mass_out, anchor, step, first, size):  # type: ignore[no-untyped-def]
    """Contract a law onto the lattice ``anchor + step * (first + arange(size))``, which must reach around it.

    From the left, each point is merged with as much of its right neighbours as lifts the mean to the next lattice
    point. What is left over at the right end is lowered to the lattice with mass from further left, or, should there be
    too little, dropped, which also only lowers divergences.

    Returns:
        P-masses and Q-masses of the lattice points.
    """
    lattice_in, lattice_out = np.zeros(size), np.zeros(size)
    merging, target, aim, deficit, merged_in, merged_out = False, 0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(log_ratio)):
        rest = 1.0
        while rest > 0.0:
            if not merging:
                index = int(np.ceil((log_ratio[i] - anchor) / step))
                target, aim = index - first, max(anchor + step * index, log_ratio[i])
                merging, deficit, merged_in, merged_out = True, 0.0, 0.0, 0.0
            moment = rest * _moment(log_ratio[i], mass_in[i], mass_out[i], aim)
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
        here = np.log(merged_in / merged_out)
        target = min(int(np.floor((here - anchor) / step)) - first, size - 1)
        aim = min(anchor + step * (target + first), here)
        excess = _moment(here, merged_in, merged_out, aim)
        for j in range(target - 1, -1, -1):
            moment = -_moment(anchor + step * (j + first), lattice_in[j], lattice_out[j], aim)
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


@njit(cache=True)
def _moment(log_ratio, mass_in, mass_out, aim):  # type: ignore[no-untyped-def]
    """Mass times distance of X from ``exp(aim)``, in units of P right of X = 1 and of Q left of it."""
    if aim < 0.0:
        return mass_out * np.expm1(log_ratio - aim)
    return mass_in * -np.expm1(aim - log_ratio)


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
        weights = log_weights(law.points, order)
        weights = np.exp(weights - weights.max())
        masses = np.bincount(law.index % size, weights / weights.sum(), size).astype(np.float64)
        transform = np.fft.rfft(masses)
        product *= _power(transform, times)
        above = np.sqrt(transform.real**2 + transform.imag**2) * (1 + 8 * UNIT) + noise
        largest *= above**times
        relative += times * noise / above
    result = np.fft.irfft(product, size)
    magnitude = largest * (1 + relative)
    twice = 2.0 / size  # half of the coefficients are kept: the others are their conjugates
    error = twice * (float(largest @ relative) + noise * float(magnitude.sum()))
    return result, error * (1 + 1e-6)  # the bound is rounded, too


def _power(base: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """``base ** times`` by squaring: quicker than numpy's, and its relative error is below ``4 times`` units."""
    result = base if times & 1 else np.ones_like(base)
    while times := times >> 1:
        base = base * base
        if times & 1:
            result = result * base
    return result


def _exponents(placed: Sequence[tuple[Placed, int]], order: float) -> float:
    """Rounding, in units, that the exponents of the weights and their (pairwise) sum bring into a product."""
    return sum(times * (40.0 + float(np.abs(order * law.points.log_ratio).max())) for law, times in placed)
