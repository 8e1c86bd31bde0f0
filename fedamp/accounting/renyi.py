"""The Rényi evaluator: moments of the likelihood ratio X of every kind of mechanism, one dispatch.

``moments_of(event)`` answers with four things, each exact or an upper bound: the central moments, the raw and the
negative ones, and the Laplace transform, from which the negative ones follow. Kinds that have no entry are charged as
what ``reductions.charged_as`` makes of them.

A table of *log moments* has shape (A + 1,) and holds, at index a, the larger of log E[X^a] (remove direction) and log
E[X^(1-a)] (add direction); the Rényi divergence of order a is that over a - 1. log E[X^a] is convex in a and 0 at a =
1, so straight lines between whole orders are upper bounds.
"""

import functools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fedamp.accounting import moments
from fedamp.accounting.amplification import Allocation, AllocationPrefix, CappedPoisson, Poisson, Submodels
from fedamp.accounting.bounds import Array
from fedamp.accounting.hidden_rounds import participation
from fedamp.accounting.laws import log_density, log_ratio_of_mixture, numerical_law
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import RandomSelection
from fedamp.accounting.moments import Transform
from fedamp.accounting.points import NotEvaluable
from fedamp.accounting.reductions import charged_as, concentrated, hidden_rounds_bounds
from fedamp.accounting.releases import (
    NOTHING,
    Compose,
    Gaussian,
    GaussianMixture,
    Laplace,
    MixedCoordinate,
    ModelMix,
    RandomisedResponse,
    Repeat,
)
from fedamp.accounting.tilted import hidden_log_moments

HIGHEST_ORDER = 256

_EXACT_ORDER = 5
"""Up to which order the moments of several hidden rounds are exact; there are too many overlaps beyond."""


class Moments:
    """What the Rényi evaluator knows of one mechanism, each answer computed once. A kind whose numerical law has no
    mass at infinity needs no more than to be registered.

    Attributes:
        symmetric: whether the two laws are mirror images (an involution swaps them), or ``raw`` bounds both
            directions: then E[X^-b] is at most what is charged for E[X^(b+1)].
    """

    symmetric = False

    def __init__(self, event: Any) -> None:
        self.event = event
        self._known: dict[tuple[str, int], Array] = {}

    def central(self, highest: int) -> Array:
        """log E[(X - 1)^j], j = 0..highest."""
        return self._once(self._central, highest)

    def raw(self, highest: int) -> Array:
        """log E[X^a], a = 0..highest."""
        return self._once(self._raw, highest)

    def negative(self, highest: int) -> Array:
        """log E[X^-b], b = 0..highest-1."""
        return self._once(self._negative, highest)

    def transform(self, u: Array) -> Transform:
        """Upper bounds of the Laplace transform of X, of a finite law that is larger in convex order."""
        known = moments.transform_from_moments(self.raw(HIGHEST_ORDER), self.negative(HIGHEST_ORDER), u)
        try:
            finite = moments.transform_from_nodes(u, *self.finite_law())
        except (NotEvaluable, ArithmeticError, MemoryError):
            return known
        return Transform(np.minimum(known.log, finite.log), np.minimum(known.excess, finite.excess))

    def finite_law(self) -> tuple[Array, Array, float]:
        """Log masses under Q, log ratios, and the P-mass at infinity of X's law or one larger in convex order."""
        law = numerical_law(self.event).upper
        log_zero = math.log(law.zero) if law.zero else -np.inf
        return np.append(law.log_mass_out, log_zero), np.append(law.log_ratio, -np.inf), law.infinite

    def _once(self, compute: Callable[[int], Array], highest: int) -> Array:
        key = compute.__name__, highest
        if key not in self._known:
            self._known[key] = compute(highest)
        return self._known[key]

    def _central(self, highest: int) -> Array:
        log_masses, log_ratios, infinite = self.finite_law()
        if infinite:
            raise NotEvaluable(f"the moments of {type(self.event).__name__} do not follow from its numerical law")
        return moments.from_nodes(log_masses, log_ratios, highest)

    def _raw(self, highest: int) -> Array:
        return moments.raw(self.central(highest))

    def _negative(self, highest: int) -> Array:
        return self.raw(highest)[1:] if self.symmetric else moments.negative_moments(self.transform, highest)


def log_moments(event: Mechanism, highest: int) -> Array:
    """The larger of log E[X^a] and log E[X^(1-a)] at a = 0..highest."""
    if not event.is_private:
        return np.concatenate([[0.0, 0.0], np.full(highest - 1, np.inf)])
    found = moments_of(event)
    both = found.raw(highest).copy()
    both[1:] = np.maximum(both[1:], found.negative(highest))
    return both


_KINDS: dict[type[Mechanism], Callable[[Any], Moments]] = {}


@lru_cache(maxsize=1024)
def moments_of(event: Mechanism) -> Moments:
    """The moments of a mechanism of any kind."""
    if event.releases_nothing:
        return _Product(NOTHING)
    if (isinstance(event, Poisson) and event.rate == 1) or (isinstance(event, Submodels) and event.count == 1):
        return moments_of(event.mechanism)
    kind = _KINDS.get(type(event))
    return kind(event) if kind else moments_of(charged_as(event))


def answers_for(*kinds: type[Mechanism]) -> Callable[[type[Moments]], type[Moments]]:
    """Register how the moments of some kinds are computed."""

    def register(cls: type[Moments]) -> type[Moments]:
        _KINDS.update(dict.fromkeys(kinds, cls))
        return cls

    return register


# What is made of others.


@answers_for(Compose, Repeat)
class _Product(Moments):
    """Zhu, Dong, Wang 2022, Theorem 10: moments multiply."""

    def __init__(self, event: Compose | Repeat) -> None:
        super().__init__(event)
        factors_ = [(event.mechanism, event.times)] if isinstance(event, Repeat) else [(m, 1) for m in event.mechanisms]
        self.factors = [(moments_of(part), times) for part, times in factors_ if times]
        self.symmetric = all(part.symmetric for part, _ in self.factors)

    def _central(self, highest: int) -> Array:
        powers = [moments.repeated(part.central(highest), times, moments.multiply) for part, times in self.factors]
        return functools.reduce(moments.multiply, powers) if powers else moments.constant(highest)

    def _raw(self, highest: int) -> Array:
        return sum((times * part.raw(highest) for part, times in self.factors), np.zeros(highest + 1))

    def _negative(self, highest: int) -> Array:
        return sum((times * part.negative(highest) for part, times in self.factors), np.zeros(highest))


@answers_for(RandomSelection)
class _Mixture(Moments):
    """The law is drawn, not the variable (Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2)."""

    def __init__(self, event: RandomSelection) -> None:
        super().__init__(event)
        used, self.weights = event.used
        self.parts = [moments_of(part) for part in used]
        self.symmetric = all(part.symmetric for part in self.parts)

    def _central(self, highest: int) -> Array:
        return moments.mixture([part.central(highest) for part in self.parts], self.weights)

    def _raw(self, highest: int) -> Array:
        return moments.mixture([part.raw(highest) for part in self.parts], self.weights)

    def _negative(self, highest: int) -> Array:
        return moments.mixture([part.negative(highest) for part in self.parts], self.weights)


@answers_for(Poisson)
class _Thinned(Moments):
    """(1 - rate) + rate X (Zhu, Dong, Wang 2022, Theorem 11)."""

    def __init__(self, event: Poisson) -> None:
        super().__init__(event)
        self.part, self.rate = moments_of(event.mechanism), event.rate

    def _central(self, highest: int) -> Array:
        return moments.thin(self.part.central(highest), self.rate)

    def _negative(self, highest: int) -> Array:
        if self.part.symmetric:  # the remove direction is the larger: Mironov, Talwar, Zhang 2019, Theorem 5
            return self.raw(highest)[1:]
        return moments.negative_moments(self.transform, highest)

    def transform(self, u: Array) -> Transform:
        return moments.transform_of_thinned(self.part.transform, self.rate, u)


@answers_for(Submodels)
class _Mean(Moments):
    """The mean of ``count`` copies (Dong, Chen, Özgür 2025, Theorem 3.4, proof A.9; the quasi-convexity it uses holds
    for hockey-stick divergences too).
    """

    def __init__(self, event: Submodels) -> None:
        super().__init__(event)
        self.part, self.count = moments_of(event.mechanism), event.count

    def _central(self, highest: int) -> Array:
        return moments.mean(self.part.central(highest), self.count)

    def _negative(self, highest: int) -> Array:
        # Jensen: the mean is at least the geometric mean, so E[mean^-b] <= E[copy^(-b/n)]^n. Between whole powers the
        # log moment of a copy is convex, so its linear interpolation is above it.
        exact = moments.negative_moments(self.transform, highest)
        powers, of_a_copy = np.arange(float(highest)), self.part.negative(highest)
        return np.minimum(exact, self.count * np.interp(powers / self.count, powers, of_a_copy))

    def transform(self, u: Array) -> Transform:
        return moments.transform_of_mean(self.part.transform, self.count, u)


@answers_for(Allocation, AllocationPrefix, CappedPoisson)
class _HiddenRounds(Moments):
    """The smallest, order by order: the split's or the coins' bound, those of runs with more rounds, since moments only
    grow with the rounds, and at low orders the exact moment (docs/k-of-t.md), if there are not too many overlaps.
    """

    def __init__(self, event: Allocation | AllocationPrefix | CappedPoisson) -> None:
        super().__init__(event)
        self.bounds = [moments_of(bound) for bound in hidden_rounds_bounds(event)]

    def _raw(self, highest: int) -> Array:
        result = np.min([bound.raw(highest) for bound in self.bounds], axis=0)
        found = participation(self.event)
        if found is None or len(found.chances) < 3:
            return np.asarray(result)
        one = moments_of(found.mechanism).raw(highest)
        for order in range(min(_EXACT_ORDER, highest), 1, -1):
            try:
                exact = hidden_log_moments(one[: order + 1], found.chances, found.rounds, found.rounding)
            except NotEvaluable:
                continue
            result[: order + 1] = np.minimum(result[: order + 1], exact)
            break
        return np.asarray(result)

    def _negative(self, highest: int) -> Array:
        return np.asarray(np.min([bound.negative(highest) for bound in self.bounds], axis=0))

    def _central(self, highest: int) -> Array:
        return self.bounds[0].central(highest)


# Single releases.


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
    Devadas 2022, Theorem 4.1, Corollary 4.1). What is needed of it is checked for the parameters in use, not proved
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
    """Whether each order 0..highest has its worst case in the fewest coordinates, checked on a grid of shifts.

    What is needed: log E[X^a] at shift v is at most (v / c)^2 times that at the largest shift c; convexity in v^2
    implies it.
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
        result[:order] = [max(0.0, float(moments.log_sum(log_weights - n * log_ratios))) for n in range(order)]
        return result
