"""Mechanisms that are not made of others."""

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
class Gaussian(Mechanism):
    """A sum with Gaussian noise: standard deviation ``noise_multiplier`` times the norm a person's contribution is
    clipped to.

    Args:
        noise_multiplier: > 0.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", checks.positive("noise_multiplier", self.noise_multiplier))

    def __str__(self) -> str:
        return f"Gaussian noise of multiplier {self.noise_multiplier:g}"

    def _central(self, highest: int) -> Array:
        s, result = self.noise_multiplier, np.logaddexp(0.0, self._raw(highest))  # |X - 1|^a <= X^a + 1
        order = min(highest, max(2, int(4000 * s)))  # above, at such noise, that is as good as the integral
        z = np.arange(-10.0, order / s + 10.0, 0.25)  # E[X^a] is largest around z = a / s
        log_weights = -z * z / 2 + np.log(0.25 / np.sqrt(2 * np.pi))
        result[: order + 1] = moments.from_nodes(log_weights, z / s - 0.5 / s**2, order)
        return result

    def _raw(self, highest: int) -> Array:
        a = np.arange(highest + 1.0)
        return a * (a - 1) / (2 * self.noise_multiplier**2)

    @property
    def _linear_signal(self) -> float | None:
        return 1 / self.noise_multiplier**2

    def _transform(self, u: Array) -> Transform:
        return transform.gaussian(self.noise_multiplier, u)

    def _law(self, detail: Detail) -> "Law":
        from fedamp.accounting.law import Law

        return Law.gaussian(self.noise_multiplier, points=detail.points)

    @property
    def _is_symmetric(self) -> bool:
        return True


@dataclass(frozen=True)
class Laplace(Mechanism):
    """A number with Laplace noise of the given scale, in units of the largest absolute contribution.

    Args:
        scale: > 0; epsilon is at most 1 / scale.
    """

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", checks.positive("scale", self.scale))

    def __str__(self) -> str:
        return f"Laplace noise of scale {self.scale:g}"

    def _nodes(self, panels: int) -> tuple[Array, Array]:
        """Output y of Laplace(0): log X = (|y| - |y - 1|) / scale is constant below 0 and above 1; Gauss-Legendre
        panels between.
        """
        x, w = np.polynomial.legendre.leggauss(32)
        y = ((x + 1) / 2 + np.arange(panels)[:, None]).ravel() / panels
        gain = 1 / self.scale
        between = np.log(np.tile(w, panels) * gain / (4 * panels)) - y * gain
        log_weights = np.concatenate([[np.log(0.5)], between, [np.log(0.5) - gain]])
        return log_weights, gain * np.concatenate([[-1.0], 2 * y - 1, [1.0]])

    def _central(self, highest: int) -> Array:
        return moments.from_nodes(*self._nodes(1 + int(highest / self.scale / 32)), highest)

    def _transform(self, u: Array) -> Transform:
        return transform.from_nodes(*self._nodes(4 + int(1 / self.scale)), u)

    def _law(self, detail: Detail) -> "Law":
        from fedamp.accounting.law import Law

        return Law.laplace(self.scale, points=detail.points)

    @property
    def _is_symmetric(self) -> bool:
        return True


@dataclass(frozen=True)
class RandomisedResponse(Mechanism):
    """A bit about everybody's data, told truthfully with the given probability and flipped otherwise.

    It is one bit however many people's data change. (Where everybody tells a bit of their own, a group of K people goes
    through K of these: ``Repeat``.)

    Args:
        probability: of the true answer, in [1/2, 1).
    """

    probability: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", checks.probability("probability", self.probability))
        if not 0.5 <= self.probability < 1:
            raise ValueError(f"probability must be in [0.5, 1), got {self.probability!r}")

    def __str__(self) -> str:
        return f"randomised response, true with probability {self.probability:g}"

    def _nodes(self) -> tuple[Array, Array]:
        true, false = np.log(self.probability), np.log1p(-self.probability)
        return np.array([true, false]), np.array([false - true, true - false])

    def _central(self, highest: int) -> Array:
        return moments.from_nodes(*self._nodes(), highest)

    def _transform(self, u: Array) -> Transform:
        return transform.from_nodes(*self._nodes(), u)

    def _law(self, detail: Detail) -> "Law":
        from fedamp.accounting.law import Law

        log_weights, log_ratios = self._nodes()
        return Law.from_points(np.exp(log_ratios), np.exp(log_weights), points=detail.points)

    @property
    def _is_symmetric(self) -> bool:
        return True


@dataclass(frozen=True)
class NotPrivate(Mechanism):
    """A release without noise (noise multiplier 0): epsilon is infinite."""

    def __str__(self) -> str:
        return "no noise, no privacy"

    @property
    def is_private(self) -> bool:
        return False

    def _central(self, highest: int) -> Array:
        raise AssertionError("questions to mechanisms without noise are answered before their moments are asked for")

    def _transform(self, u: Array) -> Transform:
        raise AssertionError("questions to mechanisms without noise are answered before their moments are asked for")
