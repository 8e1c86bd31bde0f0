"""What a mechanism costs: the smallest upper end of all evaluators, and what is attained as the lower end."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from fedamp.accounting import checks, group_bounds, laws
from fedamp.accounting.amplification import AllocationPrefix, CappedPoisson
from fedamp.accounting.bounds import Array, Bounds
from fedamp.accounting.groups import Group, WithoutReplacement
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import LinearCombination
from fedamp.accounting.points import DEFAULT_POINTS, NotEvaluable
from fedamp.accounting.reductions import attained
from fedamp.accounting.releases import ModelMix, NotPrivate
from fedamp.accounting.renyi import HIGHEST_ORDER, log_moments
from fedamp.accounting.revealed import Revealed, revealed
from fedamp.accounting.sampled import is_sampled, sampled_profile

CHECKED = "; the worst case of ModelMix is checked, not proved"
"""Beside every number that rests on Theorem 4.1 of Xiao, Wan, Devadas 2022."""

PRECISION = 5e-3
"""Relative width of the bracket on epsilon that sampling aims at."""

_LARGEST_SAMPLED = 450.0
"""Epsilon above which sampling is not tried: likelihood ratios leave the range of floating point."""

_PATIENCE = 5.0
"""Seconds, of the clock and of the processor, after which an answer says which bound it comes from."""

_ROUNDING = 1e-11
"""Added to Rényi divergences for rounding, relative: a thousand times what was seen, no worst case as laws have."""

T = TypeVar("T")


class Best(NamedTuple):
    """The best value over all Rényi orders, and the order that gave it."""

    value: float
    order: float


class Question(NamedTuple):
    """Asked of each evaluator: of a privacy profile, and of Rényi divergences at some orders; and its worst answer."""

    of_profile: Callable[[laws.Profile], Bounds]
    of_divergences: Callable[[Array, Array], Best]
    worst: float


def epsilon(event: Mechanism, delta: float, points: int | None = None, precision: float | None = None) -> Bounds:
    """See ``Mechanism.epsilon``."""
    checks.delta(delta)
    if precision is not None and not 1e-4 <= checks.number("precision", precision) <= 0.1:
        raise ValueError(f"precision must be in [1e-4, 0.1], got {precision!r}")
    return _patiently("epsilon", lambda: _epsilon(event, delta, points, precision))


def delta(event: Mechanism, epsilon: float, points: int | None = None, precision: float | None = None) -> Bounds:
    """See ``Mechanism.delta``."""
    checks.epsilon(epsilon)
    return _patiently("delta", lambda: _delta(event, epsilon, points, precision))


def _epsilon(event: Mechanism, delta: float, points: int | None, precision: float | None) -> Bounds:
    found = _unsampled_epsilon(event, delta, points)
    part, size = (event.mechanism, event.size) if isinstance(event, Group) else (event, 1)
    if not is_sampled(part) or (points is not None and precision is None):
        return found
    precision = PRECISION if precision is None else precision
    if found.lower >= (1 - precision) * found.upper or found.upper > _LARGEST_SAMPLED * size:
        return found
    try:
        if size == 1:
            sampled = _sampled_epsilon(part, delta, precision)
        else:
            coarser = min(2 * precision, 0.1)
            sampled = group_bounds.epsilon_below(
                found.upper, delta, size, lambda spent: _sampled_epsilon(part, spent, coarser)
            )
    except NotEvaluable:
        return found
    return _narrower(event, found, sampled)


def _delta(event: Mechanism, epsilon: float, points: int | None, precision: float | None) -> Bounds:
    by_divergences = lambda orders, divergences: best_delta(orders, divergences, epsilon)  # noqa: E731
    found = _unsampled(event, points, Question(lambda profile: profile.delta(epsilon), by_divergences, 1.0))
    if precision is None or not is_sampled(event):
        return found
    try:
        sampled = evaluated(lambda: sampled_profile(event).delta(epsilon, precision=precision))
    except NotEvaluable:
        return found
    return _narrower(event, found, sampled)


@lru_cache(maxsize=256)
def _unsampled_epsilon(event: Mechanism, delta: float, points: int | None) -> Bounds:
    by_divergences = lambda orders, divergences: best_epsilon(orders, divergences, delta)  # noqa: E731
    return _unsampled(event, points, Question(lambda profile: profile.epsilon(delta), by_divergences, math.inf))


@lru_cache(maxsize=256)
def _sampled_epsilon(event: Mechanism, delta: float, precision: float) -> Bounds:
    return evaluated(lambda: sampled_profile(event).epsilon(delta, precision=precision))


def _narrower(event: Mechanism, found: Bounds, sampled: Bounds) -> Bounds:
    """What both brackets leave. The releases that a merged model is charged as may not be attained."""
    method = f"{sampled.method}, without mixing" if event.contains(ModelMix) else sampled.method
    upper, method = min((found.upper, found.method), (sampled.upper, method))
    lower = found.lower if event.contains(LinearCombination) else max(found.lower, sampled.lower)
    return Bounds(min(lower, upper), upper, method)


def _unsampled(event: Mechanism, points: int | None, question: Question) -> Bounds:
    """The answer by the law, with its hidden choices revealed and, where it may decide, by Rényi divergences."""
    if event.releases_nothing:
        return Bounds(0.0, 0.0, "nothing is released")
    if isinstance(event, NotPrivate):
        return Bounds(question.worst, question.worst, "no noise")
    try:
        by_law, reason = evaluated(lambda: question.of_profile(laws.profile(event, points))), ""
    except NotEvaluable as error:
        by_law, reason = Bounds(0.0, question.worst, f"none ({error})"), f" ({error})"
    told = _with_choices_revealed(event, points, question, narrow=by_law.lower >= 0.99 * by_law.upper < question.worst)
    upper, method = (told.upper, told.method) if told.upper < by_law.upper else (by_law.upper, by_law.method)
    if mixes := event.contains(ModelMix):
        method = method.removesuffix(", without mixing") + ", without mixing"
    wide = told.lower < 0.99 * upper and (by_law.upper == question.worst or 0 < by_law.lower < 0.99 * upper)
    if event.is_private and (mixes or wide):  # else it never does
        best = _by_moments(event, question, more=not mixes)
        if best.value < upper:
            upper, method = best.value, f"Rényi, order {best.order:g}{reason}{CHECKED if mixes else ''}"
    lower = by_law.lower
    if (known := attained(event)) is not event:
        try:
            lower = 0.0 if known is None else evaluated(lambda: question.of_profile(laws.profile(known, points))).lower
        except NotEvaluable:
            lower = 0.0
    lower = max(lower, told.lower)
    if lower > (1 + 1e-6) * upper + 1e-9:  # one of both is wrong, and nobody knows which
        return Bounds(lower, question.worst, f"none: {method} contradicts what is attained")
    return Bounds(min(lower, upper), upper, method)


def _with_choices_revealed(event: Mechanism, points: int | None, question: Question, narrow: bool) -> Bounds:
    """Both ends in closed form, or the upper one of what is left when nothing is hidden. A ``narrow`` bracket needs no
    more than the closed form, and none where nothing is hidden.
    """
    told, unknown = closed_form(event), Bounds(0.0, question.worst)
    if told is not None:
        return unknown if narrow and told.is_plain else evaluated(lambda: question.of_profile(told))
    try:
        if narrow or (plain := event.unamplified()) == event:
            return unknown
        found = question.of_profile(group_bounds.Answered(plain, points))
    except ValueError:  # without amplification there is less noise, maybe too little
        return unknown
    return Bounds(0.0, found.upper, f"unamplified: {found.method}")


def closed_form(event: Mechanism, hidden: bool = True) -> Revealed | None:
    """The choices of a mechanism, or of it with nothing ``hidden``, if releases are Gaussian and in range."""
    try:
        return evaluated(lambda: revealed(event if hidden else event.unamplified()))
    except ValueError:
        return None


def _by_moments(event: Mechanism, question: Question, more: bool) -> Best:
    """The best over the usual orders, and over ``more`` where the largest is the best: tiny epsilons at tiny deltas."""

    def over(highest: int) -> Best:
        orders = search_orders(highest)
        return question.of_divergences(orders, rdp(event, orders))

    try:
        best = over(HIGHEST_ORDER)
        return over(4 * HIGHEST_ORDER) if more and best.order == HIGHEST_ORDER else best
    except NotEvaluable:
        return Best(question.worst, math.inf)


def upper_epsilon(event: Mechanism, delta: float, points: int = DEFAULT_POINTS) -> float:
    """For searches: at least ``event.epsilon(delta).upper``, and hardly more, in half the time where a law is all
    that is needed.
    """
    several = isinstance(event, (AllocationPrefix, CappedPoisson, Group, WithoutReplacement))
    upper = math.inf if several or event.contains(ModelMix) else law_upper(event, delta, points)
    return upper if upper < math.inf else epsilon(event, delta, points).upper


def law_upper(event: Mechanism, delta: float, points: int) -> float:
    """Upper end of epsilon by the numerical law, in half the time of both ends, or with hidden choices revealed;
    infinite where neither has an answer.
    """
    try:
        upper = evaluated(lambda: laws.profile(event, points, with_lower=False).epsilon(delta).upper)
    except NotEvaluable:
        upper = math.inf
    told = closed_form(event)
    if told is None or (upper < math.inf and (told.is_plain or told.delta(upper).upper > delta)):
        return upper
    return min(upper, told.epsilon(delta).upper)


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


def _patiently(name: str, ask: Callable[[], Bounds]) -> Bounds:
    """The answer to a question, and a warning if it took long."""
    clock, processor = time.perf_counter(), time.process_time()
    found = ask()
    seconds = min(time.perf_counter() - clock, time.process_time() - processor)
    if seconds > _PATIENCE:
        advice = "points=400 or precision=0.05 answer sooner, with a wider bracket"
        warnings.warn(f"{name} took {seconds:.0f} s, answered by: {found.method} ({advice})", stacklevel=4)
    return found


# Rényi divergences, and what they prove.


def rdp(event: Mechanism, orders: Sequence[float] | Array | float) -> Array:
    """See ``Mechanism.rdp``: linear interpolation of ``(a - 1) * divergence`` between whole orders."""
    array = _checked_orders(orders)
    highest = max(HIGHEST_ORDER, 2 ** math.ceil(math.log2(np.max(array))))
    if highest > 4096:
        raise ValueError(f"orders must be <= 4096, got {float(np.max(array))!r}")
    logs = evaluated(lambda: log_moments(event, highest))
    low = np.clip(np.floor(array).astype(int), 1, highest - 1)
    part = array - low
    with np.errstate(invalid="ignore"):
        between = np.where(part > 0, logs[low] + part * (logs[low + 1] - logs[low]), logs[low])
    return np.asarray(np.where(np.isnan(between), np.inf, np.maximum(between, 0.0)) * (1 + _ROUNDING) / (array - 1))


def search_orders(highest: int) -> Array:
    """The orders searched by conversions: dense below 10, whole ones above; shape (n,)."""
    dense = np.concatenate([1 + np.geomspace(0.01, 1, 20)[:-1], np.linspace(2, 10, 81)])
    return np.concatenate([dense[dense < min(10, highest)], np.arange(min(10, highest), highest + 1)])


def epsilon_from_rdp(
    orders: Sequence[float] | Array,
    divergences: Sequence[float] | Array,
    delta: float,
    conversion: Literal["tight", "loose"] = "tight",
) -> float:
    """epsilon at ``delta`` of Rényi divergences at some orders, both of shape (n,).

    Args:
        conversion: "tight" is that of Canonne, Kamath and Steinke 2020, Proposition 12 (also Balle et al. 2020, Theorem
            21); "loose" that of Mironov 2017, Proposition 3, which the tables of Dong, Chen and Özgür 2025 use.
    """
    checked, values = _checked_orders(orders), np.asarray(divergences, dtype=np.float64)
    if values.shape != checked.shape or not np.all(values >= 0):
        raise ValueError(f"divergences must be >= 0 and one for each order, got {divergences!r}")
    if conversion not in ("tight", "loose"):
        raise ValueError(f'conversion must be "tight" or "loose", got {conversion!r}')
    return best_epsilon(checked, values, checks.delta(delta), conversion).value


def best_epsilon(orders: Array, divergences: Array, delta: float, conversion: str = "tight") -> Best:
    """Smallest epsilon over all orders; see ``epsilon_from_rdp``."""
    price = -np.log(delta) / (orders - 1)
    if conversion == "tight":
        price = price + np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
    values = np.maximum(divergences + price, 0.0)
    best = int(np.argmin(values))
    return Best(float(values[best]), float(orders[best]))


def best_delta(orders: Array, divergences: Array, epsilon: float) -> Best:
    """Smallest delta over all orders (Canonne, Kamath and Steinke 2020, Proposition 12), at most 1."""
    with np.errstate(over="ignore"):
        logs = (orders - 1) * (divergences - epsilon) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
    best = int(np.argmin(logs))
    return Best(float(np.exp(min(logs[best], 0.0))), float(orders[best]))


def _checked_orders(orders: Sequence[float] | Array | float) -> Array:
    """Orders as an array of shape (n,), each > 1 and finite, or ValueError."""
    array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if array.ndim != 1 or not array.size or not np.all((array > 1) & (array < np.inf)):
        raise ValueError(f"orders must be > 1 and finite, got {orders!r}")
    return array
