"""The privacy profile delta(epsilon) of a point-mass law, exact, and its inverse."""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from fedamp.accounting.points import Array, Points


@dataclass(frozen=True, eq=False)
class Profile:
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
    def remove(cls, law: Points) -> "Profile":
        """The profile of H(P, Q)."""
        slope, delta = _profile(law.log_ratio, law.mass_in, law.infinite)
        return cls(law.log_ratio, delta, slope, law.infinite)

    @classmethod
    def add(cls, law: Points) -> "Profile":
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


@njit(cache=True)
def _profile(log_ratio, mass_in, infinite):  # type: ignore[no-untyped-def]
    slope, delta = np.empty(len(log_ratio)), np.empty(len(log_ratio))
    steepness, height = 0.0, infinite
    for i in range(len(log_ratio) - 1, -1, -1):
        if i + 1 < len(log_ratio):
            gap = log_ratio[i] - log_ratio[i + 1]
            height += steepness * -np.expm1(gap)
            steepness *= np.exp(gap)
        steepness += mass_in[i]
        slope[i] = steepness
        delta[i] = height
    return slope, delta
