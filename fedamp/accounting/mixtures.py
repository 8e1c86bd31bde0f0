"""Pairs of one-dimensional Gaussian mixtures: groups of people under Poisson sampling, and merged models step by
step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedamp.accounting import checks, moments, transform
from fedamp.accounting.mechanism import Detail, Mechanism
from fedamp.accounting.moments import Array
from fedamp.accounting.transform import Transform

if TYPE_CHECKING:
    from fedamp.accounting.law import Law


@dataclass(frozen=True)
class GaussianMixture(Mechanism):
    """Unit Gaussian noise around a random shift when the person (or group) is in, around 0 when not.

    X = sum_i w_i exp(m_i z - m_i^2 / 2), z standard normal, increases in z; it is what remains of many dimensions when
    all shifts point the same way, which is the worst case for Rényi and hockey-stick divergences alike
    (supermodularity, as in the proof of Theorem 6.4 of the paper on merging private models).

    Args:
        shifts: m_i >= 0, in standard deviations of the noise.
        weights: one per shift, >= 0, sum 1.
    """

    shifts: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        shifts = tuple(checks.number("shifts", shift) for shift in self.shifts)
        if not all(0 <= shift < math.inf for shift in shifts):
            raise ValueError(f"shifts must be >= 0 and finite, got {shifts!r}")
        weights = checks.weights("weights", self.weights, len(shifts))
        merged: dict[float, float] = {}
        for shift, weight in sorted(zip(shifts, weights, strict=True)):
            if weight > 0:
                merged[shift] = merged.get(shift, 0.0) + weight
        object.__setattr__(self, "shifts", tuple(merged))
        object.__setattr__(self, "weights", tuple(merged.values()))

    def __str__(self) -> str:
        return f"Gaussian noise around one of {len(self.shifts)} shifts up to {self.shifts[-1]:g}"

    def log_ratio(self, z: Array) -> Array:
        """log X at z, shape (n,)."""
        shifts, log_weights = np.array(self.shifts), np.log(self.weights)
        chunks = np.array_split(z, max(1, len(z) * len(shifts) // 1_000_000))
        return np.concatenate([moments.log_sum(log_weights + shifts * (c[:, None] - shifts / 2)) for c in chunks])

    def _nodes(self, low: float, high: float) -> tuple[Array, Array]:
        step = min(0.25, 0.5 / max(self.shifts[-1], 1e-9))
        z = np.arange(low, high, step)
        return -z * z / 2 + np.log(step / np.sqrt(2 * np.pi)), self.log_ratio(z)

    def _quadrature_order(self, highest: int) -> int:
        """Up to which order moments are integrated; those above, useless at such shifts, are bounded by the largest
        shift.
        """
        return min(highest, max(2, int(1000 / max(self.shifts[-1], 1e-9))))

    def _central(self, highest: int) -> Array:
        order, largest = self._quadrature_order(highest), self.shifts[-1]
        a = np.arange(highest + 1.0)
        central = np.logaddexp(0.0, a * (a - 1) * largest**2 / 2)  # |X - 1|^a <= X^a + 1
        central[: order + 1] = moments.from_nodes(*self._nodes(-10.0, order * largest + 10.0), order)
        return central

    def _negative(self, highest: int) -> Array:
        order, largest = self._quadrature_order(highest), self.shifts[-1]
        b = np.arange(float(highest))
        result = b * (b + 1) * largest**2 / 2
        log_weights, log_ratios = self._nodes(-order * largest - 10.0, 10.0 + largest)
        result[:order] = [max(0.0, float(moments.log_sum(log_weights - n * log_ratios))) for n in range(order)]
        return result

    def _transform(self, u: Array) -> Transform:
        return transform.from_nodes(*self._nodes(-40.0, 10.0 + 2 * self.shifts[-1]), u)

    def _law(self, detail: Detail) -> "Law":
        from fedamp.accounting.law import Law, normal_mass

        def mass_in(low: Array, high: Array) -> Array:
            parts = zip(self.shifts, self.weights, strict=True)
            return np.sum([weight * normal_mass(low - shift, high - shift) for shift, weight in parts], axis=0)

        return Law.from_function(self.log_ratio, mass_in, self.shifts[-1], points=detail.points)


def subsets(shifts: Sequence[float], rates: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Sums of the shifts over random subsets, shift i taken with probability rate i: all sums and their
    probabilities.
    """
    sums, chances = np.zeros(1), np.ones(1)
    for shift, rate in zip(shifts, rates, strict=True):
        sums = np.concatenate([sums, sums + shift])
        chances = np.concatenate([chances * (1 - rate), chances * rate])
    return tuple(sums.tolist()), tuple(chances.tolist())
