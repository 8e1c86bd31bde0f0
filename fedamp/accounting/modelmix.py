"""ModelMix: each round starts from a random mixture of two recent models, which adds uniform noise in every
coordinate.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedamp.accounting import checks, moments, transform
from fedamp.accounting.basic import Gaussian
from fedamp.accounting.composition import Repeat
from fedamp.accounting.mechanism import Detail, Mechanism, central, negative, numerical_law, raw
from fedamp.accounting.moments import Array
from fedamp.accounting.renyi import HIGHEST_ORDER
from fedamp.accounting.transform import Transform

if TYPE_CHECKING:
    from fedamp.accounting.law import Law


@dataclass(frozen=True)
class MixedCoordinate(Mechanism):
    """One coordinate of ``ModelMix``: Gaussian plus uniform noise, shifted or not. What an attacker of that
    coordinate sees.

    Args:
        noise_multiplier: s > 0, in units of the clipping norm.
        width: of the uniform noise, > 0, in the same units.
        shift: > 0, in the same units.
    """

    noise_multiplier: float
    width: float
    shift: float

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "width", "shift"):
            object.__setattr__(self, name, checks.positive(name, getattr(self, name)))

    def __str__(self) -> str:
        return f"a shift of {self.shift:g} under Gaussian {self.noise_multiplier:g} and uniform {self.width:g} noise"

    def _log_density(self, y: Array) -> Array:
        """log of (Phi((y + w/2)/s) - Phi((y - w/2)/s)) / w, which is even in y."""
        from scipy.special import log_ndtr

        s, half = self.noise_multiplier, self.width / 2
        near = (half - np.abs(y)) / s
        far = (-half - np.abs(y)) / s
        if self.width < 0.01 * s:  # the difference would cancel; the density is that of the Gaussian, to second order
            x, w = np.polynomial.legendre.leggauss(4)
            points = (y[:, None] - half * x) / s
            return moments.log_sum(-points * points / 2 + np.log(w / 2)) - math.log(s * math.sqrt(2 * math.pi))
        upper = log_ndtr(near)
        return upper + np.log(-np.expm1(log_ndtr(far) - upper)) - math.log(self.width)

    def _nodes(self, highest: int) -> tuple[Array, Array]:
        step = self.noise_multiplier / 16
        reach = self.width / 2 + 10 * self.noise_multiplier
        y = np.arange(-reach, reach + highest * self.shift, step)
        density = self._log_density(y)
        return density + math.log(step), self._log_density(y - self.shift) - density

    def _central(self, highest: int) -> Array:
        return moments.from_nodes(*self._nodes(highest), highest)

    def _transform(self, u: Array) -> Transform:
        return transform.smallest(
            transform.from_moments(raw(self, HIGHEST_ORDER), negative(self, HIGHEST_ORDER), u),
            transform.gaussian(self.noise_multiplier / self.shift, u),
        )

    def _law(self, detail: Detail) -> "Law":
        from fedamp.accounting.law import Law
        from fedamp.accounting.points import Cells

        reach = self.width / 2 + 9.5 * self.noise_multiplier
        edges = np.linspace(-reach, reach + self.shift, detail.points)
        x, w = np.polynomial.legendre.leggauss(8)
        half = np.diff(edges)[:, None] / 2
        inside = (edges[:-1, None] + half * (1 + x)).ravel()

        def masses(shift: float) -> Array:
            between = (np.exp(self._log_density(inside - shift)).reshape(half.shape[0], -1) * w * half).sum(axis=1)
            outside = [max(0.0, 1 - between.sum())] * 2
            low, high = (outside[0], 0.0) if shift == 0 else (0.0, outside[1])
            return np.concatenate([[low], between, [high]])

        log_ratio = np.maximum.accumulate(self._log_density(edges - self.shift) - self._log_density(edges))
        # Under a wide uniform X is 1 almost everywhere: cells between equal ratios are joined.
        kept = np.flatnonzero(np.diff(log_ratio, prepend=-np.inf) > 1e-12)
        starts = np.concatenate([[0], kept + 1])
        mass_in, mass_out = (np.add.reduceat(masses(shift), starts) for shift in (self.shift, 0.0))
        return Law.from_cells(Cells(log_ratio[kept], mass_in, mass_out), points=detail.points)

    @property
    def _is_symmetric(self) -> bool:
        return True


@dataclass(frozen=True)
class ModelMix(Mechanism):
    """One round of ModelMix: Gaussian noise, and uniform noise of the given width in every coordinate.

    Charged by Rényi at whole orders from 2 up: there the worst gradient has its whole norm in one coordinate (in
    ``linf_coordinates`` ones, where every coordinate is clipped to norm / sqrt(linf_coordinates)); Theorem 4.1 and
    Corollary 4.1 of the ModelMix paper, both directions, since the two laws are mirror images. The paper calls the
    convexity behind it a simple calculation; here what is needed of it is checked for the parameters in use, and orders
    at which it fails are charged as plain Gaussian noise. For the hockey-stick the worst gradient is another one (its
    norm spread over many coordinates), so the numerical law is that without mixing, which is valid but loose, and
    ``lower`` is the attack on the coordinates above.

    Args:
        noise_multiplier: s > 0, in units of the clipping norm of the (summed) update.
        width: tau / eta in the same units, >= 0: the largest distance of the mixed models over the learning rate.
            0: no mixing.
        linf_coordinates: p >= 1.
    """

    noise_multiplier: float
    width: float
    linf_coordinates: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", checks.positive("noise_multiplier", self.noise_multiplier))
        if checks.number("width", self.width) < 0 or math.isinf(self.width):
            raise ValueError(f"width must be >= 0 and finite, got {self.width!r}")
        object.__setattr__(self, "width", float(self.width))
        object.__setattr__(self, "linf_coordinates", checks.count("linf_coordinates", self.linf_coordinates))

    def __str__(self) -> str:
        return (
            f"ModelMix of width {self.width:g}, {self.linf_coordinates} coordinates, "
            f"Gaussian noise of multiplier {self.noise_multiplier:g}"
        )

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier)

    def worst_is_concentrated(self, highest: int = HIGHEST_ORDER) -> Array:
        """Whether each order 0..highest has its worst case in the fewest coordinates, checked on a grid of shifts.

        What is needed: log E[X^a] at shift v is at most (v / c)^2 times that at the largest shift c; convexity in v^2
        implies it.
        """
        return _concentrated(self.noise_multiplier, self.width, self.linf_coordinates, highest)

    def _concentrated(self) -> Mechanism:
        """The worst case: ``linf_coordinates`` coordinates with equal shares of the norm."""
        if self.width == 0:
            return Gaussian(self.noise_multiplier)
        shift = 1 / math.sqrt(self.linf_coordinates)
        return Repeat(MixedCoordinate(self.noise_multiplier, self.width, shift), self.linf_coordinates)

    def _central(self, highest: int) -> Array:
        holds = bool(self.worst_is_concentrated(highest).all())
        return central(self._concentrated() if holds else Gaussian(self.noise_multiplier), highest)

    def _raw(self, highest: int) -> Array:
        plain = raw(Gaussian(self.noise_multiplier), highest)
        holds = self.worst_is_concentrated(highest)
        return np.where(holds, np.minimum(raw(self._concentrated(), highest), plain), plain)

    def _transform(self, u: Array) -> Transform:
        return transform.smallest(
            transform.from_moments(raw(self, HIGHEST_ORDER), negative(self, HIGHEST_ORDER), u),
            transform.gaussian(self.noise_multiplier, u),
        )

    def _law(self, detail: Detail) -> "Law":
        return numerical_law(Gaussian(self.noise_multiplier), detail)

    @property
    def _has_loose_law(self) -> bool:
        return True

    def _attack(self) -> Mechanism | None:
        return self._concentrated()

    @property
    def _is_symmetric(self) -> bool:
        return True


@lru_cache(maxsize=64)
def _concentrated(noise_multiplier: float, width: float, coordinates: int, highest: int) -> Array:
    if width == 0:
        return np.ones(highest + 1, dtype=bool)
    largest = 1 / math.sqrt(coordinates)
    end = raw(MixedCoordinate(noise_multiplier, width, largest), highest)
    holds = np.isfinite(end)
    for part in (0.1, 0.25, 0.5, 0.75, 0.9):
        inner = raw(MixedCoordinate(noise_multiplier, width, part * largest), highest)
        holds &= inner <= part**2 * end * (1 + 1e-7) + 1e-12
    return holds
