"""The Rényi evaluator: moments of the likelihood ratio X of every kind of mechanism, and the divergences they give.

``moments_of(event)`` knows four things, each exact or an upper bound: the central moments, the raw and the negative
ones, and the Laplace transform, from which the negative ones follow. A kind without an entry is charged as what
``reductions.charged_as`` makes of it. Entries of single releases are in ``renyi_releases``, of groups in
``group_bounds``.

A table of *log moments* has shape (A + 1,). At index a it holds the larger of log E[X^a] (remove direction) and log
E[X^(1-a)] (add direction). The Rényi divergence of order a is that over a - 1. log E[X^a] is convex in a and 0 at a =
1, so straight lines between whole orders are upper bounds.
"""

import functools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedamp.accounting import moments
from fedamp.accounting.amplification import (
    Allocation,
    AllocationPrefix,
    CappedPoisson,
    Poisson,
    Submodels,
    of_one_class,
)
from fedamp.accounting.bounds import Array, NotEvaluable, in_floating_point
from fedamp.accounting.conversion import checked_orders
from fedamp.accounting.laws import numerical_law
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import RandomSelection
from fedamp.accounting.moments import Transform
from fedamp.accounting.numeric import repeated
from fedamp.accounting.participation import hidden_log_moments, participation
from fedamp.accounting.reductions import charged_as, hidden_rounds_bounds
from fedamp.accounting.releases import NOTHING, Compose, Repeat

HIGHEST_ORDER = 256

_EXACT_ORDER = 5  # up to which order the moments of several hidden rounds are exact; there are too many overlaps beyond


class Moments:
    """What the Rényi evaluator knows of one mechanism, each answer computed once. A kind whose numerical law has no
    mass at infinity needs no more than to be registered. ``symmetric``: whether the two laws are mirror images (an
    involution swaps them), or ``raw`` bounds both directions: then E[X^-b] is at most the charge for E[X^(b+1)].
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


def log_moments(event: Mechanism, highest: int) -> Array:
    """The larger of log E[X^a] and log E[X^(1-a)] at a = 0..highest."""
    if not event.is_private:
        return np.concatenate([[0.0, 0.0], np.full(highest - 1, np.inf)])
    found = moments_of(event)
    both = found.raw(highest).copy()
    both[1:] = np.maximum(both[1:], found.negative(highest))
    return both


_ROUNDING = 1e-11
"""Added to Rényi divergences for rounding, relative: a thousand times the largest error seen, not a worst case."""


def rdp(event: Mechanism, orders: Sequence[float] | Array | float) -> Array:
    """See ``Mechanism.rdp``: linear interpolation of ``(a - 1) * divergence`` between whole orders."""
    array = checked_orders(orders)
    highest = max(HIGHEST_ORDER, 2 ** math.ceil(math.log2(np.max(array))))
    if highest > 4096:
        raise ValueError(f"orders must be <= 4096, got {float(np.max(array))!r}")
    with in_floating_point():
        logs = log_moments(of_one_class(event), highest)
    low = np.clip(np.floor(array).astype(int), 1, highest - 1)
    part = array - low
    with np.errstate(invalid="ignore"):
        between = np.where(part > 0, logs[low] + part * (logs[low + 1] - logs[low]), logs[low])
    return np.asarray(np.where(np.isnan(between), np.inf, np.maximum(between, 0.0)) * (1 + _ROUNDING) / (array - 1))


# Mechanisms made of others.


@answers_for(Compose, Repeat)
class _Product(Moments):
    """Zhu, Dong, Wang 2022, Theorem 10: moments multiply."""

    def __init__(self, event: Compose | Repeat) -> None:
        super().__init__(event)
        factors_ = [(event.mechanism, event.times)] if isinstance(event, Repeat) else [(m, 1) for m in event.mechanisms]
        self.factors = [(moments_of(part), times) for part, times in factors_ if times]
        self.symmetric = all(part.symmetric for part, _ in self.factors)

    def _central(self, highest: int) -> Array:
        powers = [repeated(part.central(highest), times, moments.multiply) for part, times in self.factors]
        nothing = np.append(0.0, np.full(highest, -np.inf))  # X = 1
        return functools.reduce(moments.multiply, powers) if powers else nothing

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
        return np.asarray(self.part.central(highest) + np.arange(highest + 1) * np.log(self.rate))

    def _negative(self, highest: int) -> Array:
        if self.part.symmetric:  # the remove direction is the larger: Mironov, Talwar, Zhang 2019, Theorem 5
            return self.raw(highest)[1:]
        return moments.negative_moments(self.transform, highest)

    def transform(self, u: Array) -> Transform:
        part = self.part.transform(self.rate * u)
        return Transform(part.log - (1 - self.rate) * u, part.excess)


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
        part = self.part.transform(u / self.count)
        return Transform(self.count * part.log, self.count * part.excess)


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
        if len(found.chances) < 3:
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
