"""What every mechanism can answer: epsilon, delta, Rényi divergences, prefixes, JSON.

A mechanism is a frozen description of a release (or of a whole run) whose *dominating pair* is known: the law of what
is released when a person takes part, and when that person's contribution is zero (add/remove adjacency). Mechanisms
nest freely. Each kind implements a few private hooks on the likelihood ratio X of its pair; the questions are
answered here, once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedamp.accounting import checks, moments, renyi, transform
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.moments import Array
from fedamp.accounting.points import DEFAULT_POINTS
from fedamp.accounting.renyi import HIGHEST_ORDER
from fedamp.accounting.transform import Transform

if TYPE_CHECKING:
    from fedamp.accounting.law import Law


class Detail(NamedTuple):
    """How finely a numerical law is computed, and whether its lower end is."""

    points: int
    with_lower: bool = True


DEFAULT_DETAIL = Detail(DEFAULT_POINTS)


@dataclass(frozen=True)
class Mechanism(ABC):
    """Base of all mechanisms. Not for direct use."""

    kinds: ClassVar[dict[str, type["Mechanism"]]] = {}

    def __init_subclass__(cls, *, is_kind: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if is_kind:
            Mechanism.kinds[cls.__name__] = cls

    # Questions.

    def epsilon(self, delta: float, *, points: int | None = None) -> Bounds:
        """Smallest epsilon at which the mechanism is (epsilon, delta)-private, in both directions, as a bracket.

        Args:
            delta: in (0, 1).
            points: of the numerical law, 50 to 20,000; the width of the bracket falls with their square, the time rises
                with it. Left out: 1200, and up to 4800 where that leaves a bracket wider than one part in 1000.

        Returns:
            ``upper`` is certified: the smaller of the Rényi bound and of the numerical law, where there is one;
            ``method`` names which. ``lower`` is what some attack achieves; 0 where none is known.
        """
        checks.delta(delta)
        if self.releases_nothing:
            return Bounds(0.0, 0.0, "nothing is released")
        if not self.is_private:
            return Bounds(0.0 if self.parts else math.inf, math.inf, "a part without noise")
        return _bracket(
            self,
            lambda part: part._law_epsilon(delta, points),
            lambda orders: renyi.best_epsilon(orders, self.rdp(orders), delta),
        )

    def delta(self, epsilon: float, *, points: int | None = None) -> Bounds:
        """Smallest delta at which the mechanism is (epsilon, delta)-private, in both directions, as a bracket; see
        ``epsilon``.
        """
        checks.epsilon(epsilon)
        if self.releases_nothing:
            return Bounds(0.0, 0.0, "nothing is released")
        if not self.is_private:
            return Bounds(0.0 if self.parts else 1.0, 1.0, "a part without noise")
        return _bracket(
            self,
            lambda part: part._law_delta(epsilon, points),
            lambda orders: renyi.best_delta(orders, self.rdp(orders), epsilon),
        )

    def rdp(self, orders: Sequence[float] | Array | float) -> Array:
        """Upper bounds of the Rényi divergence, the larger of both directions.

        Args:
            orders: each > 1, shape (n,). Whole orders are computed; between them (order - 1) times the divergence
                is convex and is interpolated linearly.

        Returns:
            shape (n,); infinite where no bound is known.
        """
        array = renyi.checked_orders(orders)
        if not self.is_private:
            return np.full(array.shape, math.inf)
        highest = max(HIGHEST_ORDER, 2 ** math.ceil(math.log2(np.max(array))))
        if highest > 4096:
            raise ValueError(f"orders must be <= 4096, got {float(np.max(array))!r}")
        return renyi.at_orders(log_moments(self, highest), array)

    def after(self, rounds: int) -> "Mechanism":
        """What has been released when the first ``rounds`` of this mechanism's rounds are out, and nothing else ever
        will be.

        Raises:
            ValueError: ``rounds`` exceeds the mechanism's rounds, or it is a single release.
        """
        if checks.count("rounds", rounds, 0, self.span) == self.span:
            return self
        return self._prefix(int(rounds))

    @property
    def span(self) -> int:
        """How many rounds the mechanism spans; 1 for a single release."""
        return 1

    def unamplified(self) -> "Mechanism":
        """The same run charged as if nothing was hidden: no sampling, no allocation, no submodels, no mixing."""
        return self

    @property
    def is_private(self) -> bool:
        """False if some part is released without noise."""
        return all(part.is_private for part in self.parts)

    @property
    def releases_nothing(self) -> bool:
        """True if the release does not depend on the person."""
        return bool(self.parts) and all(part.releases_nothing for part in self.parts)

    @property
    def parts(self) -> tuple["Mechanism", ...]:
        """The mechanisms this one is made of."""
        values = (getattr(self, field.name) for field in fields(self))
        nested = (value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(item for items in nested for item in items if isinstance(item, Mechanism))

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; ``from_json`` reads them back."""
        return {"kind": type(self).__name__} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    # Hooks: the likelihood ratio X. ``highest`` is the highest order A.

    @abstractmethod
    def _central(self, highest: int) -> Array:
        """log E[(X - 1)^j], j = 0..A, exact or above."""

    @abstractmethod
    def _transform(self, u: Array) -> Transform:
        """Upper bounds of the Laplace transform of X."""

    def _raw(self, highest: int) -> Array:
        """log E[X^a], a = 0..A, exact or above."""
        return moments.raw(central(self, highest))

    def _negative(self, highest: int) -> Array:
        """log E[X^-b], b = 0..A-1, exact or above. For mirror images it is log E[X^(b+1)]."""
        if self._is_symmetric:
            return raw(self, highest)[1:]
        return transform.negative_moments(self._transform, highest)

    def _law(self, detail: Detail) -> "Law":
        """The certified numerical law of X, or NotEvaluable."""
        from fedamp.accounting.law import NotEvaluable

        raise NotEvaluable(f"{type(self).__name__} has no numerical law")

    def _law_epsilon(self, delta: float, points: int | None) -> Bounds:
        """epsilon by the numerical law."""
        return _refined(lambda number: numerical_law(self, Detail(number)).epsilon(delta), points, 0.01, 20.0)

    def _law_upper(self, delta: float, points: int) -> float:
        """Upper end of epsilon by the numerical law, in half the time of both ends."""
        return numerical_law(self, Detail(points, with_lower=False)).epsilon(delta).upper

    def _law_delta(self, epsilon: float, points: int | None) -> Bounds:
        """delta by the numerical law."""
        return _refined(lambda number: numerical_law(self, Detail(number)).delta(epsilon), points, 1e-10, 1.0)

    def _attack(self) -> "Mechanism | None":
        """A mechanism whose pair some worst case of this one attains, for lower ends; None if none is known."""
        return self

    @property
    def _is_symmetric(self) -> bool:
        """Whether the two laws are mirror images (an involution swaps them), so that both directions cost the same."""
        return False

    @property
    def _has_loose_law(self) -> bool:
        """Whether the law is an upper bound that Rényi moments may beat by far."""
        return any(part._has_loose_law for part in self.parts)

    @property
    def _linear_signal(self) -> float | None:
        """Squared signal-to-noise ratio of a fixed linear statistic that is Gaussian in both worlds; None if there is
        none.
        """
        return None

    def _prefix(self, rounds: int) -> "Mechanism":
        raise ValueError(f"{type(self).__name__} has no prefix of {rounds} rounds")

    def _log_moments_over_rounds(self, rounds: Sequence[int], highest: int) -> Array:
        """Log moments (both directions) after each of ``rounds``; shape (len(rounds), A + 1)."""
        return np.stack([log_moments(self.after(r), highest) for r in rounds])


@lru_cache(maxsize=512)
def central(mechanism: Mechanism, highest: int) -> Array:
    return mechanism._central(highest)


@lru_cache(maxsize=512)
def raw(mechanism: Mechanism, highest: int) -> Array:
    return mechanism._raw(highest)


@lru_cache(maxsize=512)
def negative(mechanism: Mechanism, highest: int) -> Array:
    return mechanism._negative(highest)


def log_moments(mechanism: Mechanism, highest: int = HIGHEST_ORDER) -> Array:
    """The larger of log E[X^a] and log E[X^(1-a)] at a = 0..A (see ``renyi``)."""
    both = raw(mechanism, highest).copy()
    both[1:] = np.maximum(both[1:], negative(mechanism, highest))
    return both


@lru_cache(maxsize=64)
def numerical_law(mechanism: Mechanism, detail: Detail = DEFAULT_DETAIL) -> "Law":
    from fedamp.accounting.law import Law

    if mechanism.releases_nothing:
        return Law.product([])
    law = mechanism._law(detail)
    return law if detail.with_lower else law.upper_only()


def upper_epsilon(mechanism: Mechanism, delta: float, points: int = DEFAULT_POINTS) -> float:
    """For searches: at least ``mechanism.epsilon(delta).upper``, and hardly more, in half the time where a law is all
    that is needed.
    """
    from fedamp.accounting.law import NotEvaluable

    has_one_law = type(mechanism)._law_epsilon is Mechanism._law_epsilon and not mechanism._has_loose_law
    if has_one_law and mechanism.is_private:
        try:
            upper = mechanism._law_upper(delta, points)
        except NotEvaluable:
            upper = math.inf
        if upper < math.inf:
            return upper
    return mechanism.epsilon(delta, points=points).upper


def _refined(answer: Callable[[int], Bounds], points: int | None, low: float, high: float) -> Bounds:
    """The answer at so many points. Where no number is given, more are taken while that helps and the answer, between
    ``low`` and ``high``, is known to no better than one part in 1000.
    """
    best = answer(DEFAULT_POINTS if points is None else checks.count("points", points, 50, 20_000))
    for more in (2400, 4800) if points is None else ():
        if not low <= best.upper <= high or best.width <= 1e-3 * best.upper:
            break
        finer = answer(more)
        helps = finer.width < 0.7 * best.width
        method = finer.method if finer.upper < best.upper else best.method
        best = Bounds(max(best.lower, finer.lower), min(best.upper, finer.upper), method)
        if not helps:
            break
    return best


def _bracket(
    mechanism: Mechanism, by_law: Callable[[Mechanism], Bounds], by_renyi: Callable[[Array], renyi.Best]
) -> Bounds:
    """The smaller upper end of law and Rényi; the lower end of the attack."""
    from fedamp.accounting.law import NotEvaluable

    try:
        answer, reason = by_law(mechanism), ""
    except NotEvaluable as error:
        answer, reason = Bounds(0.0, math.inf), f" ({error})"
    upper, method = answer.upper, answer.method
    if mechanism._has_loose_law:
        method = method.removesuffix(", without mixing") + ", without mixing"
    if mechanism._has_loose_law or not answer.lower >= 0.99 * upper:  # else no bound on the pair can be much smaller
        best = by_renyi(renyi.search_orders(HIGHEST_ORDER))
        if best.value < upper:
            upper, method = best.value, f"Rényi, order {best.order:g}{reason}"
    attack = mechanism._attack()
    if attack is mechanism:
        lower = answer.lower
    else:
        try:
            lower = by_law(attack).lower if attack is not None else 0.0
        except NotEvaluable:
            lower = 0.0
    return Bounds(min(lower, upper), upper, method)


def _plain(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
