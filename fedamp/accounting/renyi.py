"""The Rényi evaluator: moments of the likelihood ratio X of every kind of mechanism, one dispatch; and their
conversion to epsilon and delta.

``moments_of(event)`` answers with four things, each exact or an upper bound: the central moments, the raw and the
negative ones, and the Laplace transform, from which the negative ones follow. Kinds that have no entry are charged as
what ``reductions.charged_as`` makes of them.

A table of *log moments* has shape (A + 1,) and holds, at index a, the larger of log E[X^a] (remove direction) and log
E[X^(1-a)] (add direction); the Rényi divergence of order a is that over a - 1. log E[X^a] is convex in a and 0 at a =
1, so straight lines between whole orders are upper bounds.
"""

import functools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from fedamp.accounting import checks, moments
from fedamp.accounting.amplification import Allocation, AllocationPrefix, CappedPoisson, Poisson, Submodels
from fedamp.accounting.bounds import Array
from fedamp.accounting.composition import Compose, Repeat
from fedamp.accounting.hidden_rounds import hidden_log_moments
from fedamp.accounting.laws import numerical_law
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import RandomSelection
from fedamp.accounting.moments import Transform
from fedamp.accounting.participation import participation
from fedamp.accounting.points import NotEvaluable
from fedamp.accounting.reductions import charged_as, hidden_rounds_bounds

Conversion = Literal["tight", "loose"]

HIGHEST_ORDER = 256


class Best(NamedTuple):
    """The best value over all orders, and the order that gave it."""

    value: float
    order: float


def search_orders(highest: int) -> Array:
    """The orders searched by conversions: dense below 10, whole ones above; shape (n,)."""
    dense = np.concatenate([1 + np.geomspace(0.01, 1, 20)[:-1], np.linspace(2, 10, 81)])
    return np.concatenate([dense[dense < min(10, highest)], np.arange(min(10, highest), highest + 1)])


def at_orders(log_moments: Array, orders: Array) -> Array:
    """Rényi divergences at any orders in (1, A], by linear interpolation of ``(a - 1) * divergence``; leading axes
    are kept.
    """
    low = np.clip(np.floor(orders).astype(int), 1, log_moments.shape[-1] - 2)
    part = orders - low
    low_moments, high_moments = log_moments[..., low], log_moments[..., low + 1]
    with np.errstate(invalid="ignore"):
        between = np.where(part > 0, low_moments + part * (high_moments - low_moments), low_moments)
    return np.asarray(np.where(np.isnan(between), np.inf, np.maximum(between, 0.0)) / (orders - 1))


def checked_orders(orders: Sequence[float] | Array | float) -> Array:
    """Orders as an array of shape (n,), each > 1 and finite, or ValueError."""
    array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if array.ndim != 1 or not array.size or not np.all((array > 1) & (array < np.inf)):
        raise ValueError(f"orders must be > 1 and finite, got {orders!r}")
    return array


def epsilon_from_rdp(
    orders: Sequence[float] | Array,
    divergences: Sequence[float] | Array,
    delta: float,
    conversion: Conversion = "tight",
) -> float:
    """epsilon at ``delta`` of Rényi divergences at some orders, both of shape (n,).

    Args:
        conversion: "tight" is that of Canonne, Kamath and Steinke 2020, Proposition 12 (also Balle et al. 2020, Theorem
            21); "loose" that of Mironov 2017, Proposition 3, which the tables of Dong, Chen and Özgür 2025 use.
    """
    checked, values = checked_orders(orders), np.asarray(divergences, dtype=np.float64)
    if values.shape != checked.shape or not np.all(values >= 0):
        raise ValueError(f"divergences must be >= 0 and one for each order, got {divergences!r}")
    return best_epsilon(checked, values, delta, conversion).value


def best_epsilon(orders: Array, divergences: Array, delta: float, conversion: Conversion = "tight") -> Best:
    """Smallest epsilon over all orders; see ``epsilon_from_rdp``."""
    price = -np.log(checks.delta(delta)) / (orders - 1)
    if conversion == "tight":
        price = price + np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
    elif conversion != "loose":
        raise ValueError(f'conversion must be "tight" or "loose", got {conversion!r}')
    values = np.maximum(divergences + price, 0.0)
    best = int(np.argmin(values))
    return Best(float(values[best]), float(orders[best]))


def best_delta(orders: Array, divergences: Array, epsilon: float) -> Best:
    """Smallest delta over all orders (Canonne, Kamath and Steinke 2020, Proposition 12), at most 1."""
    with np.errstate(over="ignore"):
        logs = (orders - 1) * (divergences - epsilon) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
    best = int(np.argmin(logs))
    return Best(float(np.exp(min(logs[best], 0.0))), float(orders[best]))


_EXACT_ORDER = 5
"""Up to which order the moments of several hidden rounds are exact; there are too many overlaps beyond."""


class Moments:
    """What the Rényi evaluator knows of one mechanism; every answer is computed once. A kind whose numerical law has no
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
        with np.errstate(divide="ignore"):
            return np.log(np.append(law.mass_out, law.zero)), np.append(law.log_ratio, -np.inf), law.infinite

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
    found = moments_of(event)
    both = found.raw(highest).copy()
    both[1:] = np.maximum(both[1:], found.negative(highest))
    return both


_KINDS: dict[type[Mechanism], Callable[[Any], Moments]] = {}


@lru_cache(maxsize=1024)
def moments_of(event: Mechanism) -> Moments:
    """The moments of a mechanism of any kind."""
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
        return np.asarray(
            np.sum([np.zeros(highest + 1), *(times * part.raw(highest) for part, times in self.factors)], axis=0)
        )

    def _negative(self, highest: int) -> Array:
        return np.asarray(
            np.sum([np.zeros(highest), *(times * part.negative(highest) for part, times in self.factors)], axis=0)
        )


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
        self.symmetric = self.rate == 1 and self.part.symmetric

    def _central(self, highest: int) -> Array:
        return moments.thin(self.part.central(highest), self.rate) if self.rate else moments.constant(highest)

    def _raw(self, highest: int) -> Array:
        return self.part.raw(highest) if self.rate == 1 else moments.raw(self.central(highest))

    def _negative(self, highest: int) -> Array:
        if self.rate == 1:
            return self.part.negative(highest)
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
        self.symmetric = self.count == 1 and self.part.symmetric

    def _central(self, highest: int) -> Array:
        return moments.mean(self.part.central(highest), self.count)

    def _raw(self, highest: int) -> Array:
        return self.part.raw(highest) if self.count == 1 else moments.raw(self.central(highest))

    def _negative(self, highest: int) -> Array:
        if self.count == 1:
            return self.part.negative(highest)
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
    grow with the rounds, and at low orders the exact moment (``occupancy``), if there are not too many overlaps.
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
