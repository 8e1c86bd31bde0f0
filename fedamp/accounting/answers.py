"""What a mechanism costs: the smallest upper end of all evaluators, and what is attained as the lower end."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from fedamp.accounting import checks, group_bounds, laws, release_moments, renyi  # noqa: F401
from fedamp.accounting.amplification import AllocationPrefix, CappedPoisson
from fedamp.accounting.bounds import Array, Bounds
from fedamp.accounting.group_bounds import OfGroup, WithChanceOfAll
from fedamp.accounting.groups import Group, WithoutReplacement
from fedamp.accounting.laws import Profile
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import LinearCombination, RandomSelection
from fedamp.accounting.points import DEFAULT_POINTS, NotEvaluable
from fedamp.accounting.reductions import attained
from fedamp.accounting.releases import ModelMix
from fedamp.accounting.renyi import HIGHEST_ORDER, Best, log_moments
from fedamp.accounting.sampled import is_sampled, sampled_profile

CHECKED = "; the worst case of ModelMix is checked, not proved"
"""Beside every number that rests on Theorem 4.1 of Xiao, Wan, Devadas 2022."""

Question = Callable[[Profile], Bounds]


T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds, of the clock and of the processor, after which an answer says which bound it comes from."""


def evaluated(compute: Callable[[], T]) -> T:
    """What an evaluator computes.

    Raises:
        NotEvaluable: numbers on the way leave the range of floating point, or the memory there is.
    """
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            return compute()
    except (ArithmeticError, MemoryError) as error:
        raise NotEvaluable(f"out of the range of floating point or of memory: {error or 'too large'}") from None


def epsilon(event: Mechanism, delta: float, points: int | None = None, precision: float | None = None) -> Bounds:
    """See ``Mechanism.epsilon``."""
    return _patiently("epsilon", lambda: _epsilon(event, delta, points, precision))


def _patiently(name: str, ask: Callable[[], Bounds]) -> Bounds:
    """The answer to a question, and a warning if it took long."""
    clock, processor = time.perf_counter(), time.process_time()
    found = ask()
    seconds = min(time.perf_counter() - clock, time.process_time() - processor)
    if seconds > _PATIENCE:
        advice = "points=400 or precision=0.05 answer sooner, with a wider bracket"
        warnings.warn(f"{name} took {seconds:.0f} s, answered by: {found.method} ({advice})", stacklevel=4)
    return found


def _epsilon(event: Mechanism, delta: float, points: int | None, precision: float | None) -> Bounds:
    checks.delta(delta)
    if precision is not None and not 1e-4 <= checks.number("precision", precision) <= 0.1:
        raise ValueError(f"precision must be in [1e-4, 0.1], got {precision!r}")
    found = _unsampled_epsilon(event, delta, points)
    if not is_sampled(event.mechanism if isinstance(event, Group) else event) or (
        points is not None and precision is None
    ):
        return found
    precision = PRECISION if precision is None else precision
    size = event.size if isinstance(event, Group) else 1
    if found.lower >= (1 - precision) * found.upper or found.upper > _LARGEST_SAMPLED * size:
        return found
    try:
        if isinstance(event, Group):
            sampled = OfGroup(_Sampled(event.mechanism, min(2 * precision, 0.1)), event.size).below(found.upper, delta)
        else:
            sampled = _sampled_epsilon(event, delta, precision)
    except NotEvaluable:
        return found
    return _narrower(event, found, sampled)


@lru_cache(maxsize=256)
def _unsampled_epsilon(event: Mechanism, delta: float, points: int | None) -> Bounds:

    def by_renyi(orders: Array) -> Best:
        return renyi.best_epsilon(orders, rdp(event, orders), delta)

    return _answer(event, points, lambda profile: profile.epsilon(delta), by_renyi, math.inf)


def delta(event: Mechanism, epsilon: float, points: int | None = None, precision: float | None = None) -> Bounds:
    """See ``Mechanism.delta``."""
    checks.epsilon(epsilon)
    return _patiently("delta", lambda: _delta(event, epsilon, points, precision))


def _delta(event: Mechanism, epsilon: float, points: int | None, precision: float | None) -> Bounds:

    def by_renyi(orders: Array) -> Best:
        return renyi.best_delta(orders, rdp(event, orders), epsilon)

    found = _answer(event, points, lambda profile: profile.delta(epsilon), by_renyi, 1.0)
    if precision is None or not is_sampled(event):
        return found
    try:
        sampled = evaluated(lambda: sampled_profile(event).delta(epsilon, precision=precision))
    except NotEvaluable:
        return found
    return _narrower(event, found, sampled)


# Several hidden rounds, by sampling.

PRECISION = 5e-3
"""Relative width of the bracket on epsilon that sampling aims at."""

_LARGEST_SAMPLED = 25.0
"""Epsilon above which sampling is not tried: it takes too many draws there."""


def _narrower(event: Mechanism, found: Bounds, sampled: Bounds) -> Bounds:
    """What both brackets leave. The releases that a merged model is charged as may not be attained."""
    method = f"{sampled.method}, without mixing" if event.contains(ModelMix) else sampled.method
    upper, method = min((found.upper, found.method), (sampled.upper, method))
    lower = found.lower if event.contains(LinearCombination) else max(found.lower, sampled.lower)
    return Bounds(min(lower, upper), upper, method)


@lru_cache(maxsize=256)
def _sampled_epsilon(event: Mechanism, delta: float, precision: float) -> Bounds:
    return evaluated(lambda: sampled_profile(event).epsilon(delta, precision=precision))


@dataclass(frozen=True)
class _Sampled:
    """The profile of an event by sampling."""

    event: Mechanism
    precision: float

    def epsilon(self, delta: float) -> Bounds:
        return _sampled_epsilon(self.event, delta, self.precision)

    def delta(self, epsilon: float) -> Bounds:
        return sampled_profile(self.event).delta(epsilon, precision=self.precision)


def rdp(event: Mechanism, orders: Sequence[float] | Array | float) -> Array:
    """See ``Mechanism.rdp``."""
    array = renyi.checked_orders(orders)
    if not event.is_private:
        return np.full(array.shape, math.inf)
    highest = max(HIGHEST_ORDER, 2 ** math.ceil(math.log2(np.max(array))))
    if highest > 4096:
        raise ValueError(f"orders must be <= 4096, got {float(np.max(array))!r}")
    return evaluated(lambda: renyi.at_orders(log_moments(event, highest), array))


def upper_epsilon(event: Mechanism, delta: float, points: int = DEFAULT_POINTS) -> float:
    """For searches: at least ``event.epsilon(delta).upper``, and hardly more, in half the time where a law is all
    that is needed.
    """
    one_law = not isinstance(
        event, (AllocationPrefix, CappedPoisson, Group, WithoutReplacement)
    ) and not event.contains(ModelMix)
    if one_law and event.is_private:
        upper = law_upper(event, delta, points)
        if upper < math.inf:
            return upper
    return epsilon(event, delta, points).upper


def law_upper(event: Mechanism, delta: float, points: int) -> float:
    """Upper end of epsilon by the numerical law, in half the time of both ends; infinite where there is none."""
    try:
        return evaluated(lambda: laws.profile(event, points, with_lower=False).epsilon(delta).upper)
    except NotEvaluable:
        return math.inf


def _answer(
    event: Mechanism, points: int | None, ask: Question, by_renyi: Callable[[Array], Best], everything: float
) -> Bounds:
    """The answer to a question whose worst answer is ``everything``."""
    if event.releases_nothing:
        return Bounds(0.0, 0.0, "nothing is released")
    if not event.is_private:
        seen = _partly_open(event, points)
        return ask(seen) if seen else Bounds(0.0 if event.parts else everything, everything, "a part without noise")
    try:
        by_law, reason = evaluated(lambda: ask(laws.profile(event, points))), ""
    except NotEvaluable as error:
        by_law, reason = Bounds(0.0, everything), f" ({error})"
    mixes = event.contains(ModelMix)
    upper, method = by_law.upper, by_law.method
    if mixes:
        method = method.removesuffix(", without mixing") + ", without mixing"
    if mixes or upper == everything or 0 < by_law.lower < 0.99 * upper:  # elsewhere it never decides
        best = _by_moments(by_renyi, everything, more=not mixes)
        if best.value < upper:
            upper, method = best.value, f"Rényi, order {best.order:g}{reason}{CHECKED if mixes else ''}"
    lower = by_law.lower
    if (known := attained(event)) is not event:
        try:
            lower = 0.0 if known is None else evaluated(lambda: ask(laws.profile(known, points))).lower
        except NotEvaluable:
            lower = 0.0
    return Bounds(min(lower, upper), upper, method)


def _by_moments(by_renyi: Callable[[Array], Best], everything: float, more: bool) -> Best:
    """The best over the usual orders, and over ``more`` where the largest is the best: tiny epsilons at tiny deltas."""
    try:
        best = by_renyi(renyi.search_orders(HIGHEST_ORDER))
        return by_renyi(renyi.search_orders(4 * HIGHEST_ORDER)) if more and best.order == HIGHEST_ORDER else best
    except NotEvaluable:
        return Best(everything, math.inf)


def _partly_open(event: Mechanism, points: int | None) -> Profile | None:
    """A selection of which some parts have no privacy: each costs its whole weight in delta."""
    if not isinstance(event, RandomSelection):
        return None
    used = list(zip(*event.used, strict=True))
    kept = [(part, weight) for part, weight in used if part.is_private]
    if not kept:
        return None
    open_weight = math.fsum(weight for part, weight in used if not part.is_private)
    total = math.fsum(weight for _, weight in kept)
    rest = RandomSelection([part for part, _ in kept], [weight / total for _, weight in kept])
    bare = not any(part.parts for part, _ in used if not part.is_private)
    return WithChanceOfAll(group_bounds.Answered(rest, points), open_weight, bare)
