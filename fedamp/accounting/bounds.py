"""The two privacy questions, epsilon at a delta and delta at an epsilon, and the bracket that answers each; how Rényi
divergences answer them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, cast

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.arithmetic import UNIT, Array


class Method(StrEnum):
    """What made the upper end of a bracket, in words, with places for the facts of one answer."""

    UNSAID = ""
    ADD_BY_LAW = "the add direction by the law; remove: {}"
    CLOSED_FORM = "hidden choices revealed, closed form"
    CONTRADICTED = "none: {} contradicts the lower end"
    CURVE = "the curve over rounds: the smallest upper end of this round and all later ones"
    DELTA_AT_0 = "delta at epsilon 0"
    ERROR_RATES = "error rates from {:g}"
    GROUP_PROPERTY = "group property of {}"
    GROUP_PROPERTY_ALONE = "group property"
    JOINT_RELEASE = "joint release, {}"
    LAW = "numerical law, {} points"
    LOSSES = "the sum of the largest losses"
    NO_NOISE = "no noise"
    NONE = "none ({})"
    NOTHING = "nothing is released"
    RARE_BATCH = "smaller than the chance of being in the batch"
    RARE_OUTPUT = "an output that unlikely cannot occur"
    RENYI = "Rényi, order {:g}{}{}"
    SAMPLED = "sampled, {:,} draws of {}, failure probability {:.0e} (charged to delta)"
    SELECTION = "random selection by {}"
    UNAMPLIFIED = "unamplified: {}"

    def of(self, *facts: object) -> "Origin":
        """The method of one answer."""
        return Origin(self, facts)


class Origin(NamedTuple):
    """A method, and the facts of an answer. ``unmixed``: ModelMix was charged without mixing."""

    method: Method
    facts: tuple[object, ...] = ()
    unmixed: bool = False

    def within(self, method: Method) -> "Origin":
        """Of an answer that another ``method`` makes of this one."""
        return Origin(method, (self._replace(unmixed=False),), self.unmixed)

    def __str__(self) -> str:
        return self.method.format(*self.facts) + ", without mixing" * self.unmixed


UNSAID = Method.UNSAID.of()


@dataclass(frozen=True)
class Bounds:
    """A certified bracket: the true value lies in ``[lower, upper]``.

    There is no ``float(bounds)`` and no ``f"{bounds:.2f}"``: the ends differ, and a format code rounds to nearest, so
    that a budget could look kept when it is not.

    Attributes:
        lower: the truth is not below.
        upper: the truth is not above; a budget spends it. May be infinite.
        origin: of the upper end.
    """

    lower: float
    upper: float
    origin: Origin = UNSAID

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"lower must not exceed upper, got [{self.lower}, {self.upper}]")

    @property
    def method(self) -> str:
        """The origin in words (``"numerical law, 4096 points"``, ``"Rényi, order 17"``)."""
        return str(self.origin)

    @property
    def width(self) -> float:
        """``upper - lower``."""
        return self.upper - self.lower

    def to_json(self) -> dict[str, float | None]:
        """``{"lower": ..., "upper": ...}``; an infinite end is null, because JSON has no infinity."""
        return {"lower": finite(self.lower), "upper": finite(self.upper)}

    def __str__(self) -> str:
        """The upper end rounded up and the lower end rounded down, to four digits."""
        return f"{_rounded(self.upper, up=True)} (at least {_rounded(self.lower, up=False)})"

    def __format__(self, code: str) -> str:
        if code:
            raise TypeError(f"a bracket has no format {code!r}: format .upper (what a budget spends) or .lower")
        return str(self)

    def __float__(self) -> NoReturn:
        raise TypeError("a bracket is not one number: take .upper (what a budget spends) or .lower")


class NotEvaluable(ValueError):
    """An evaluator cannot answer within its limits; another one may."""


@contextmanager
def in_floating_point() -> Iterator[None]:
    """Raises ``NotEvaluable`` where numbers inside leave the range of floating point, or need too much memory."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except (ArithmeticError, MemoryError) as error:
        raise NotEvaluable(f"out of the range of floating point or of memory: {error or 'too large'}") from None


def finite(value: float) -> float | None:
    """The value, or None where it is infinite: JSON has no infinity."""
    return float(value) if math.isfinite(value) else None


def _rounded(value: float, up: bool) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    if unit == 0:  # a thousandth of it underflows
        return f"{value:g}"
    return f"{(math.ceil if up else math.floor)(value / unit) * unit:.4g}"


class ByOrder(NamedTuple):
    """The best value over all Rényi orders, and the order that gave it."""

    value: float
    order: float


@dataclass(frozen=True)
class EpsilonAt:
    """The question for the smallest epsilon at ``delta``."""

    delta: float
    unknown: ClassVar[float] = math.inf
    fine: ClassVar[tuple[float, float]] = 0.01, 20.0  # the answers that are worth a finer grid

    @property
    def reach(self) -> float:
        """How many standard deviations of normal tails matter."""
        return min(math.sqrt(-2 * math.log(self.delta)) + 2, 36.0) if self.delta < 1e-18 else 9.5

    def of_losses(self, largest: float, chance: float = 0.0) -> float:
        """The answer where no loss is above ``largest``, but for a ``chance`` in [0, 1) (Kairouz, Oh, Viswanath 2015,
        Theorem 3.4; Murtagh, Vadhan 2016).
        """
        if self.delta < chance:
            return math.inf
        spared = (self.delta - chance) / (1 - chance) * (1 + math.exp(-largest)) * (1 - 8 * UNIT)
        return min(largest, max(0.0, largest + math.log1p(-spared) + 8 * UNIT * (1 + largest))) if spared < 1 else 0.0

    def ask(self, profile: Any, **options: Any) -> Bounds:
        """The answer of a mechanism, a law or an evaluator."""
        return cast(Bounds, profile.epsilon(self.delta, **options))

    def convert(self, orders: Array, divergences: Array) -> ByOrder:
        """The answer of Rényi divergences at some orders, both of shape (n,)."""
        pairs = zip(orders.tolist(), divergences.tolist(), strict=True)
        values = [max(epsilon_of_moment(order, (order - 1) * each, self.delta), 0.0) for order, each in pairs]
        best = int(np.argmin(values))
        return ByOrder(values[best], float(orders[best]))


@dataclass(frozen=True)
class DeltaAt:
    """The question for the smallest delta at ``epsilon``."""

    epsilon: float
    unknown: ClassVar[float] = 1.0
    fine: ClassVar[tuple[float, float]] = 1e-10, 1.0  # the answers that are worth a finer grid
    reach: ClassVar[float] = 9.5

    def of_losses(self, largest: float, chance: float = 0.0) -> float:
        """The answer where no loss is above ``largest``, but for a ``chance`` in [0, 1)."""
        if largest == math.inf:
            return 1.0
        if self.epsilon >= largest:
            return chance
        other = -math.expm1(self.epsilon - largest) / (1 + math.exp(-largest))
        return min(1.0, (chance + (1 - chance) * other) * (1 + 8 * UNIT))

    def ask(self, profile: Any, **options: Any) -> Bounds:
        """The answer of a profile."""
        return cast(Bounds, profile.delta(self.epsilon, **options))

    def convert(self, orders: Array, divergences: Array) -> ByOrder:
        """The answer of Rényi divergences at some orders, both of shape (n,)."""
        logs = log_deltas(orders, divergences, self.epsilon)
        best = int(np.argmin(logs))
        return ByOrder(math.exp(min(logs[best], 0.0)), float(orders[best]))


Question = EpsilonAt | DeltaAt


def log_delta_of_moment(order: float, log_moment: float, epsilon: float) -> float:
    """log of the delta at ``epsilon`` that log E[X^a] proves, at an order a > 1: (X - e^epsilon)+ <=
    X^a e^(epsilon (1 - a)) (a - 1)^(a - 1) / a^a (Canonne, Kamath and Steinke 2020, Proposition 12; Balle et al. 2020,
    Theorem 21). The log moment is a - 1 times the Rényi divergence of order a.
    """
    return log_moment + (epsilon * (1 - order) + (order - 1) * math.log(order - 1) - order * math.log(order))


def epsilon_of_moment(order: float, log_moment: float, delta: float) -> float:
    """The epsilon at which ``log_delta_of_moment`` is log ``delta``; may be negative."""
    return (log_delta_of_moment(order, log_moment, 0.0) - math.log(delta)) / (order - 1)


def log_deltas(orders: Array, divergences: Array, epsilon: float) -> Array:
    """log of the delta at ``epsilon`` that each Rényi divergence proves, shape (n,) as both arguments."""
    pairs = zip(orders.tolist(), divergences.tolist(), strict=True)
    return np.array([log_delta_of_moment(order, (order - 1) * each, epsilon) for order, each in pairs])


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
    checked, values = checked_orders(orders), np.asarray(divergences, dtype=np.float64)
    if values.shape != checked.shape or not np.all(values >= 0):
        raise ValueError(f"divergences must be >= 0 and one for each order, got {divergences!r}")
    if conversion not in ("tight", "loose"):
        raise ValueError(f'conversion must be "tight" or "loose", got {conversion!r}')
    question = EpsilonAt(checks.delta(delta))
    if conversion == "tight":
        return question.convert(checked, values).value
    return float(np.min(values - math.log(question.delta) / (checked - 1)))


def checked_orders(orders: Sequence[float] | Array | float) -> Array:
    """Orders as an array of shape (n,), each > 1 and finite, or ValueError."""
    array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if array.ndim != 1 or not array.size or not np.all((array > 1) & (array < np.inf)):
        raise ValueError(f"orders must be > 1 and finite, got {orders!r}")
    return array


def search_orders(highest: int) -> Array:
    """The orders that conversions search: dense below 10, whole ones above; shape (n,)."""
    dense = np.concatenate([1 + np.geomspace(0.01, 1, 20)[:-1], np.linspace(2, 10, 81)])
    return np.concatenate([dense[dense < min(10, highest)], np.arange(min(10, highest), highest + 1)])
