"""The Rényi evaluator's entries for single releases: their moments by closed forms and by quadrature."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from fedamp.accounting import moments
from fedamp.accounting.bounds import Array
from fedamp.accounting.laws import log_density, log_mean, log_ratio_of_mixture, numerical_law
from fedamp.accounting.numeric import log_sum
from fedamp.accounting.reductions import concentrated
from fedamp.accounting.releases import (
    FiniteOutcomes,
    Gaussian,
    GaussianMixture,
    Laplace,
    MixedCoordinate,
    ModelMix,
    RandomisedResponse,
    SubstitutedPoissonGaussian,
)
from fedamp.accounting.renyi import HIGHEST_ORDER, Moments, answers_for, moments_of


def _below(shift: float, highest: int) -> Array:
    """log moments of a shift by so many standard deviations of Gaussian noise, the worst of releases below."""
    a = np.arange(highest + 1.0)
    return a * (a - 1) * shift**2 / 2


def _order(shift: float, highest: int, most: float) -> int:
    """Up to which order moments are integrated: above ``most`` over the shift the bound below is as good."""
    return min(highest, int(most / max(shift, 1e-9)))


def _integrated(shift: float, highest: int, most: float, nodes: Callable[[int], tuple[Array, Array]]) -> Array:
    """Central moments by quadrature at low orders, by |X - 1|^a <= X^a + 1 and the largest shift above."""
    result, order = np.logaddexp(0.0, _below(shift, highest)), _order(shift, highest, most)
    result[:2] = 0.0, -np.inf
    if order >= 2:
        result[: order + 1] = moments.from_nodes(*nodes(order), order)
    return result


@answers_for(Gaussian)
class _Gaussian(Moments):
    symmetric = True

    @property
    def noise(self) -> float:
        return float(self.event.noise_multiplier / self.event.change)

    def _nodes(self, order: int, step: float = 0.25) -> tuple[Array, Array]:
        # E[X^a] is largest around z = a / s.
        z = np.arange(-10.0, order / self.noise + 10.0, step)
        return -z * z / 2 + np.log(step / np.sqrt(2 * np.pi)), z / self.noise - 0.5 / self.noise**2

    def _central(self, highest: int) -> Array:
        return _integrated(1 / self.noise, highest, 4000.0, self._nodes)

    def finite_law(self) -> tuple[Array, Array, float]:
        """By quadrature, more accurate than the numerical law; what lies left of the nodes counts as X = 0."""
        if self.noise < 0.04:
            return super().finite_law()
        log_masses, log_ratios = self._nodes(2, 0.25 * min(1.0, self.noise))  # exp(-u X) falls within a few s
        return np.append(log_masses, math.log(1e-22)), np.append(log_ratios, -np.inf), 0.0

    def _raw(self, highest: int) -> Array:
        return _below(1 / self.noise, highest)


@answers_for(Laplace, RandomisedResponse)
class _Finite(Moments):
    symmetric = True


@answers_for(FiniteOutcomes)
class _FiniteOutcomes(Moments):
    def _negative(self, highest: int) -> Array:
        law = numerical_law(self.event).upper
        if law.zero:
            return np.append(0.0, np.full(highest - 1, np.inf))
        return np.array([log_sum(law.log_mass_out - b * law.log_ratio) for b in range(highest)])

    def _raw(self, highest: int) -> Array:
        if numerical_law(self.event).upper.infinite:
            return np.append([0.0, 0.0], np.full(highest - 1, np.inf))
        return super()._raw(highest)


@answers_for(SubstitutedPoissonGaussian)
class _SubstitutedPoissonGaussian(Moments):
    symmetric = True

    def _raw(self, highest: int) -> Array:
        """Moments are jointly convex: 1 where the person is not sampled, a distance of two contributions where so."""
        rate = self.event.rate
        return np.asarray(log_mean(rate, _below(2 / self.event.noise_multiplier, highest)))


@answers_for(MixedCoordinate)
class _MixedCoordinate(Moments):
    symmetric = True

    def _central(self, highest: int) -> Array:
        s, shift = self.event.noise_multiplier, self.event.shift
        if _order(shift / s, highest, 4000.0) * shift > 1e5 * s / 16:  # no better than without mixing
            return _integrated(shift / s, highest, 0.0, self._nodes)
        return _integrated(shift / s, highest, 4000.0, self._nodes)

    def _nodes(self, order: int) -> tuple[Array, Array]:
        s, width, shift = self.event.noise_multiplier, self.event.width, self.event.shift
        step, reach = s / 16, width / 2 + 10 * s
        flat = width / 2 - 20 * s - shift  # up to here the ratio is 1 to more digits than there are
        if flat < 1e5 * step:
            y = np.arange(-reach, reach + order * shift, step)
        else:
            y = np.r_[np.arange(-reach, -flat, step), np.arange(flat, reach + order * shift, step)]
        density = log_density(y, s, width)
        return density + math.log(step), log_density(y - shift, s, width) - density


@answers_for(ModelMix)
class _ModelMix(Moments):
    """At whole orders from 2 up the worst contribution has its whole norm in as few coordinates as it may (Xiao, Wan,
    Devadas 2022, Theorem 4.1, Corollary 4.1). Its condition is checked for the parameters in use, not proved
    (``method`` says so); orders at which the check fails are charged as plain Gaussian noise.
    """

    symmetric = True

    def __init__(self, event: ModelMix) -> None:
        super().__init__(event)
        self.plain, self.worst = moments_of(Gaussian(event.noise_multiplier)), moments_of(concentrated(event))

    def _central(self, highest: int) -> Array:
        holds = bool(worst_is_concentrated(self.event, highest).all())
        return (self.worst if holds else self.plain).central(highest)

    def _raw(self, highest: int) -> Array:
        plain = self.plain.raw(highest)
        holds = worst_is_concentrated(self.event, highest)
        return np.where(holds, np.minimum(self.worst.raw(highest), plain), plain)


@lru_cache(maxsize=64)
def worst_is_concentrated(event: ModelMix, highest: int = HIGHEST_ORDER) -> Array:
    """Whether each order 0..highest has its worst case in the fewest coordinates, checked on a grid of shifts. The
    condition: log E[X^a] at shift v is at most (v / c)^2 times that at the largest shift c; convexity in v^2 implies
    it.
    """
    if event.width == 0:
        return np.ones(highest + 1, dtype=bool)
    largest = 1 / math.sqrt(event.linf_coordinates)
    end = moments_of(MixedCoordinate(event.noise_multiplier, event.width, largest)).raw(highest)
    holds = np.isfinite(end)
    for part in (0.1, 0.25, 0.5, 0.75, 0.9):
        inner = moments_of(MixedCoordinate(event.noise_multiplier, event.width, part * largest)).raw(highest)
        holds &= inner <= part**2 * end * (1 + 1e-7) + 1e-12
    return holds


@answers_for(GaussianMixture)
class _GaussianMixture(Moments):
    @property
    def largest(self) -> float:
        return float(self.event.shifts[-1])

    def _nodes(self, low: float, high: float) -> tuple[Array, Array]:
        step = min(0.25, 0.5 / max(self.largest, 1e-9))
        z = np.arange(low, high, step)
        return -z * z / 2 + np.log(step / np.sqrt(2 * np.pi)), log_ratio_of_mixture(self.event, z)

    def _central(self, highest: int) -> Array:
        return _integrated(self.largest, highest, 1000.0, lambda order: self._nodes(-10.0, order * self.largest + 10.0))

    def _negative(self, highest: int) -> Array:
        order = _order(self.largest, highest, 1000.0)
        result = _below(self.largest, highest)[1:].copy()
        if not order:
            return result
        log_weights, log_ratios = self._nodes(-order * self.largest - 10.0, 10.0 + self.largest)
        result[:order] = [max(0.0, float(log_sum(log_weights - n * log_ratios))) for n in range(order)]
        return result
