"""Arguments, questions and brackets: what every mechanism and every evaluator speaks.

It holds checks of arguments, the two questions about a mechanism (:class:`EpsilonAt`, :class:`DeltaAt`), the bracket
that answers them (:class:`Bounds`), and how Rényi divergences answer. It knows no mechanism and no evaluator. A reader
goes on with :mod:`fedamp.accounting.mechanism`, which asks the questions.

A check takes the argument's name and value. It returns the value as it is used, or raises ``ValueError`` with one line
that names the argument, the accepted values, and the given one.
"""

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, cast

import numpy as np

from fedamp.accounting.arithmetic import UNIT, Array

# Checks of arguments: each returns the value, or raises ``ValueError`` with one line that names the argument.


def check_number(
    name: str,
    value: object,
    smallest: float = -math.inf,
    largest: float = math.inf,
    expected: str = "a number",
) -> float:
    """Return a real number in a range as float; booleans and NaN are refused.

    Args:
        name: of the argument, for the error.
        value: to check.
        smallest, largest: both ends are accepted.
        expected: the range in words, for the error.

    Raises:
        ValueError: it is no such number.

    Example:
        >>> check_number("share", 3, largest=1, expected="at most 1")
        Traceback (most recent call last):
            ...
        ValueError: share must be at most 1, got 3
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if not smallest <= (checked := float(value)) <= largest:
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return checked


_LEAST, _BELOW_1, _FINITE = math.nextafter(0.0, 1.0), math.nextafter(1.0, 0.0), math.nextafter(math.inf, 0.0)

check_positive = partial(check_number, smallest=_LEAST, largest=_FINITE, expected="> 0 and finite")
check_scale = partial(check_number, smallest=1e-50, largest=1e50, expected="between 1e-50 and 1e50")
"""Check for a scale; floating point holds the square of such a number, and its inverse, with room to spare."""
check_probability = partial(check_number, smallest=0.0, largest=1.0, expected="in [0, 1]")
check_delta = partial(check_number, "delta", smallest=_LEAST, largest=_BELOW_1, expected="in (0, 1)")
check_epsilon = partial(check_number, "epsilon", smallest=0.0, expected=">= 0")
check_precision = partial(check_number, "precision", smallest=1e-4, largest=0.1, expected="in [1e-4, 0.1]")


def check_scale_or_zero(name: str, value: object) -> float:
    """Return a number that :data:`check_scale` takes, or 0; or raise ValueError."""
    return check_scale(name, value) if check_number(name, value, 0.0, _FINITE, ">= 0 and finite") else 0.0


def check_count(name: str, value: object, smallest: int = 1, largest: int = 2**53, limit: str = "") -> int:
    """Return a whole number in a range; booleans are refused.

    Args:
        name: of the argument, for the error.
        value: to check.
        smallest: the smallest number that is accepted.
        largest: the largest one; default: 2**53, up to which floating point counts.
        limit: name of what ``largest`` is, for the error.

    Raises:
        ValueError: it is no such number.

    Example:
        >>> check_count("rounds", 3)
        3
        >>> check_count("k", 5, largest=4, limit="rounds")
        Traceback (most recent call last):
            ...
        ValueError: k must be >= 1 and <= rounds, got 5
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    value = int(value)
    if not smallest <= value <= largest:
        upper = "" if largest == 2**53 and value < smallest else f" and <= {limit or largest}"
        raise ValueError(f"{name} must be >= {smallest}{upper}, got {value!r}")
    return value


def check_sequence(name: str, values: object) -> tuple[object, ...]:
    """Return several values, in order, as a tuple; ValueError: text, a mapping, or nothing to iterate over."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of values, got {values!r}")
    return tuple(values)


def check_weights(name: str, values: Sequence[object], size: int) -> tuple[float, ...]:
    """Return ``size`` numbers >= 0 that sum to one; or raise ValueError.

    The sum may be off by 1e-9, because thirds are written with so many digits. The weights are then divided by it.
    """
    checked = tuple(check_probability(name, value) for value in check_sequence(name, values))
    if len(checked) != size:
        raise ValueError(f"{name} must have {size} entries, got {len(checked)}")
    total = math.fsum(checked)
    if abs(total - 1) > 1e-9:
        raise ValueError(f"{name} must sum to 1, got {total!r}")
    return checked if abs(total - 1) <= 1e-15 * size else tuple(weight / total for weight in checked)


# Types of a mechanism's fields; the check of each is beside its type.

ScaleField = Annotated[float, check_scale]
"""Type of a mechanism's field with a scale, 1e-50 to 1e50; the field's annotation names its check."""
ProbabilityField = Annotated[float, check_probability]
"""Type of a mechanism's field with a probability, in [0, 1]."""
CountField = Annotated[int, check_count]
"""Type of a mechanism's field with a whole number, 1 to 2**53."""
CountOrZero = Annotated[int, partial(check_count, smallest=0)]
"""Type of a mechanism's field with a whole number, 0 to 2**53."""


@dataclass(frozen=True)
class Limited:
    """Interface: the check of a field that the value of another field limits.

    Attributes:
        field: name of the other field, which is checked before.
    """

    field: str

    def __call__(self, name: str, value: Any, limit: Any) -> object:
        """Return the checked value, or raise ValueError.

        Args:
            name: of the field.
            value: to check.
            limit: checked value of the other field.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class UpTo(Limited):
    """Check for a whole number from ``smallest`` to the value of the other field."""

    smallest: int = 0

    def __call__(self, name: str, value: Any, limit: int) -> int:
        return check_count(name, value, self.smallest, limit, self.field)


class OnePer(Limited):
    """Check for weights, one for each entry of the other field; they are >= 0 and sum to 1."""

    def __call__(self, name: str, value: Any, limit: object) -> tuple[float, ...]:
        return check_weights(name, value, len(check_sequence(self.field, limit)))


# Questions and answers.


class Relation(StrEnum):
    r"""Neighbouring relation: which two data sets are neighbours, so what "a person is out" means.

    ``zero-out``: the person's contribution is replaced by zero; the number of people stays public. ``add/remove``: the
    person is in the data or not. ``substitution``: other data replaces the person's, and a sum moves by up to twice the
    clipping norm.

    Example:
        >>> from fedamp.accounting import Gaussian
        >>> print(Gaussian(2.0).epsilon(1e-5), Gaussian(2.0, relation=Relation.SUBSTITUTION).epsilon(1e-5), sep="\n")
        1.994 (at least 1.993)
        4.378 (at least 4.377)
    """

    ZERO_OUT = "zero-out"  # the person's contribution is replaced by zero; the number of people stays public
    ADD_REMOVE = "add/remove"  # the person is in the data or not
    SUBSTITUTION = "substitution"  # other data replaces the person's; a sum moves by up to twice the clipping norm


class Method(StrEnum):
    """Methods that make the upper end of a bracket, in words, with places for the facts of one answer."""

    UNSAID = ""
    ADD_BY_LAW = "the add direction by the law; remove: {}"
    CLOSED_FORM = "hidden choices revealed, closed form"
    CONTRADICTED = "none: {} contradicts the lower end"
    CURVE = "the curve over rounds: the smallest upper end of this round and all later ones"
    DELTA_AT_0 = "delta at epsilon 0"
    GAME = "a game of batches"
    ERROR_RATES = "error rates from {:g}"
    GROUP_PROPERTY = "group property of {}"
    GROUP_PROPERTY_ALONE = "group property"
    JOINT_RELEASE = "joint release, {}"
    LAW = "numerical law, {} points"
    LOSSES = "the sum of the largest losses"
    NO_NOISE = "no noise"
    NONE = "none ({})"
    NOTHING = "nothing is released"
    OUTCOMES = "{:,} outcomes, exactly"
    RARE_BATCH = "smaller than the chance of being in the batch"
    RARE_OUTPUT = "an output that unlikely cannot occur"
    RARELY = "smaller than the chance of taking part"
    RENYI = "Rényi, order {:g}{}{}"
    SAMPLED = "sampled, {:,} draws of {}, failure probability {:.0e} (charged to delta)"
    SELECTION = "random selection by {}"
    UNAMPLIFIED = "unamplified: {}"


class Origin(NamedTuple):
    """The origin of a bracket's upper end: a method, and the facts of the answer.

    Attributes:
        method: the method.
        facts: values for its places.
        unmixed: whether ModelMix was charged without mixing.
    """

    method: Method
    facts: tuple[object, ...] = ()
    unmixed: bool = False

    def used_by(self, method: Method) -> "Origin":
        """Return the origin of an answer that another ``method`` derives from this one."""
        return Origin(method, (self._replace(unmixed=False),), self.unmixed)

    def __str__(self) -> str:
        return self.method.format(*self.facts) + ", without mixing" * self.unmixed


UNSAID = Origin(Method.UNSAID)


@dataclass(frozen=True)
class Bounds:
    """A certified bracket: the true value lies in ``[lower, upper]``. A budget spends ``upper``, which may be infinite.

    There is no ``float(bounds)`` and no ``f"{bounds:.2f}"``. The ends differ, and a format code rounds to nearest, so
    that a budget could look kept when it is not. Text rounds the upper end up and the lower end down.

    Attributes:
        lower: what an attacker achieves in some worst case; 0 where none is known.
        upper: what no attacker exceeds.
        origin: what made the upper end; :attr:`method` has it in words.

    Raises:
        ValueError: the lower end is above the upper one, or an end is NaN.

    Example:
        >>> cost = Bounds(1.99431, 1.99432)
        >>> print(cost)
        1.995 (at least 1.994)
        >>> float(cost)
        Traceback (most recent call last):
            ...
        TypeError: a bracket is not one number: take .upper (what a budget spends) or .lower
    """

    lower: float
    upper: float
    origin: Origin = UNSAID

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"lower must not exceed upper, got [{self.lower}, {self.upper}]")

    @property
    def method(self) -> str:
        """The origin in words, such as ``"numerical law, 1200 points"`` or ``"Rényi, order 17"``."""
        return str(self.origin)

    @property
    def width(self) -> float:
        """The distance of both ends; infinite if the upper one is."""
        return self.upper - self.lower

    def to_json(self) -> dict[str, float | None]:
        """Return ``{"lower": ..., "upper": ...}``; an infinite end is null, because JSON has no infinity.

        Example:
            >>> Bounds(1.0, math.inf).to_json()
            {'lower': 1.0, 'upper': None}
        """
        return {"lower": finite_or_none(self.lower), "upper": finite_or_none(self.upper)}

    def __str__(self) -> str:
        """Write the upper end rounded up and the lower end rounded down, to four digits."""
        return f"{_rounded_text(self.upper, up=True)} (at least {_rounded_text(self.lower, up=False)})"

    def __format__(self, code: str) -> str:
        if code:
            raise TypeError(f"a bracket has no format {code!r}: format .upper (what a budget spends) or .lower")
        return str(self)

    def __float__(self) -> NoReturn:
        raise TypeError("a bracket is not one number: take .upper (what a budget spends) or .lower")


class NotEvaluable(ValueError):
    """An evaluator cannot answer within its limits; another one may.

    A mechanism's method raises it where the kind has no law, no finite set of outcomes, or too much work. ``epsilon``
    and ``delta`` catch it and take another evaluator. Where no evaluator answers, the upper end is infinite (1 for
    delta).

    Example:
        >>> from fedamp.accounting import Detail, Gaussian, Group, Submodels
        >>> Group(Submodels(Gaussian(4.0), 3), 2).law(Detail(1200))
        Traceback (most recent call last):
            ...
        fedamp.accounting.bounds.NotEvaluable: Group has no numerical law
    """


@contextmanager
def in_floating_point() -> Iterator[None]:
    """Raise ``NotEvaluable`` where numbers inside leave the range of floating point, or need too much memory.

    An overflow is then never a silent infinity or NaN in a bracket.
    """
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except (ArithmeticError, MemoryError) as error:
        raise NotEvaluable(f"out of the range of floating point or of memory: {error or 'too large'}") from None


def finite_or_none(value: float) -> float | None:
    """Return the value, or None where it is infinite: JSON has no infinity."""
    return float(value) if math.isfinite(value) else None


def _rounded_text(value: float, up: bool) -> str:
    """Write a number with four digits, rounded up or down."""
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
    """The question for the smallest epsilon at ``delta``.

    An evaluator answers ``question.ask(it)``, so that one code serves both questions.

    Attributes:
        delta: in (0, 1).
        points: of numerical laws; default: 1200, and up to 4800 where the bracket is wider than one part in 1000.
        with_lower: whether the lower end is asked for.
        unknown: the answer that is always right: infinity.
        fine: the range of answers that are worth a finer grid.
    """

    delta: float
    points: int | None = None
    with_lower: bool = True
    unknown: ClassVar[float] = math.inf
    fine: ClassVar[tuple[float, float]] = 0.01, 20.0  # the answers that are worth a finer grid

    @property
    def reach(self) -> float:
        """How many standard deviations of normal tails matter: 9.5, and up to 36 at a delta below 1e-18."""
        return min(math.sqrt(-2 * math.log(self.delta)) + 2, 36.0) if self.delta < 1e-18 else 9.5

    def of_losses(self, largest: float, chance: float = 0.0) -> float:
        """Return the answer where no loss |log X| is above a bound, but for a chance.

        Such a mechanism is a function of the worst one with this guarantee (Kairouz, Oh, Viswanath 2015, Theorem 3.4;
        Murtagh, Vadhan 2016). With loss l and chance c it is l + log(1 - (delta - c) / (1 - c) (1 + e^-l)), at least 0.

        Args:
            largest: the bound on |log X|, >= 0; may be infinite.
            chance: in [0, 1).

        Returns:
            Epsilon, rounded up; infinite where the chance is above delta.
        """
        if self.delta < chance:
            return math.inf
        spared = (self.delta - chance) / (1 - chance) * (1 + math.exp(-largest)) * (1 - 8 * UNIT)
        return min(largest, max(0.0, largest + math.log1p(-spared) + 8 * UNIT * (1 + largest))) if spared < 1 else 0.0

    def ask(self, profile: Any, **options: Any) -> Bounds:
        """Return the answer of a mechanism, a law or an evaluator: whatever has a method ``epsilon``."""
        return cast(Bounds, profile.epsilon(self.delta, **options))

    def from_divergences(self, orders: Array, divergences: Array) -> ByOrder:
        """Return the best answer of Rényi divergences at some orders, both of shape (n,)."""
        pairs = zip(orders.tolist(), divergences.tolist(), strict=True)
        values = [max(epsilon_of_moment(order, (order - 1) * each, self.delta), 0.0) for order, each in pairs]
        best = int(np.argmin(values))
        return ByOrder(values[best], float(orders[best]))


@dataclass(frozen=True)
class DeltaAt:
    """The question for the smallest delta at ``epsilon``; otherwise like :class:`EpsilonAt`.

    Attributes:
        epsilon: >= 0; may be infinite.
        points, with_lower, fine: those of :class:`EpsilonAt`.
        unknown: the answer that is always right: 1.
        reach: how many standard deviations of normal tails matter.
    """

    epsilon: float
    points: int | None = None
    with_lower: bool = True
    unknown: ClassVar[float] = 1.0
    fine: ClassVar[tuple[float, float]] = 1e-10, 1.0  # the answers that are worth a finer grid
    reach: ClassVar[float] = 9.5

    def of_losses(self, largest: float, chance: float = 0.0) -> float:
        """Return the answer where no loss |log X| is above a bound, but for a chance; see :meth:`EpsilonAt.of_losses`.

        With loss l, chance c and epsilon < l it is c + (1 - c) (1 - e^(epsilon - l)) / (1 + e^-l); from l on it is c.
        """
        if largest == math.inf:
            return 1.0
        if self.epsilon >= largest:
            return chance
        other = -math.expm1(self.epsilon - largest) / (1 + math.exp(-largest))
        return min(1.0, (chance + (1 - chance) * other) * (1 + 8 * UNIT))

    def ask(self, profile: Any, **options: Any) -> Bounds:
        """Return the answer of a mechanism, a law or an evaluator: whatever has a method ``delta``."""
        return cast(Bounds, profile.delta(self.epsilon, **options))

    def from_divergences(self, orders: Array, divergences: Array) -> ByOrder:
        """Return the best answer of Rényi divergences at some orders, both of shape (n,)."""
        logs = log_deltas(orders, divergences, self.epsilon)
        best = int(np.argmin(logs))
        return ByOrder(math.exp(min(logs[best], 0.0)), float(orders[best]))


Question = EpsilonAt | DeltaAt


def log_delta_of_moment(order: float, log_moment: float, epsilon: float) -> float:
    """Return log of the delta at ``epsilon`` that a moment E[X^a] proves.

    For x >= 0, (x - e^epsilon)+ <= x^a e^(epsilon (1 - a)) (a - 1)^(a - 1) / a^a (Canonne, Kamath and Steinke 2020,
    Proposition 12; Balle et al. 2020, Theorem 21). So delta(epsilon) is at most E[X^a] times that factor.

    Args:
        order: a > 1.
        log_moment: log E[X^a], which is a - 1 times the Rényi divergence of order a.
        epsilon: of either sign.
    """
    return log_moment + (epsilon * (1 - order) + (order - 1) * math.log(order - 1) - order * math.log(order))


def epsilon_of_moment(order: float, log_moment: float, delta: float) -> float:
    """Return the epsilon at which :func:`log_delta_of_moment` is log ``delta``; it may be negative."""
    return (log_delta_of_moment(order, log_moment, 0.0) - math.log(delta)) / (order - 1)


def log_deltas(orders: Array, divergences: Array, epsilon: float) -> Array:
    """Return log of the delta at ``epsilon`` that each Rényi divergence proves, shape (n,) like both arguments."""
    pairs = zip(orders.tolist(), divergences.tolist(), strict=True)
    return np.array([log_delta_of_moment(order, (order - 1) * each, epsilon) for order, each in pairs])


def epsilon_from_rdp(
    orders: Sequence[float] | Array,
    divergences: Sequence[float] | Array,
    delta: float,
    conversion: Literal["tight", "loose"] = "tight",
) -> float:
    """Convert Rényi divergences at some orders to the epsilon at ``delta``, the smallest over the orders.

    With R the divergence of order a, the "tight" conversion is (Canonne, Kamath and Steinke 2020, Proposition 12; also
    Balle et al. 2020, Theorem 21)

        epsilon = R + log(1 - 1/a) - (log delta + log a) / (a - 1).

    The "loose" one is R - log(delta) / (a - 1) (Mironov 2017, Proposition 3), which the tables of Dong, Chen and Özgür
    2025 use.

    Args:
        orders: each > 1 and finite, shape (n,).
        divergences: each >= 0, shape (n,).
        delta: in (0, 1).
        conversion: "tight" or "loose".

    Returns:
        Epsilon >= 0 (tight) or of either sign (loose). An upper bound if the divergences are; no bracket.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> round(epsilon_from_rdp([2.0, 8.0], [0.25, 1.0], 1e-5), 4)
        2.2141
        >>> round(epsilon_from_rdp([2.0, 8.0], [0.25, 1.0], 1e-5, "loose"), 4)
        2.6447
    """
    checked, values = checked_orders(orders), np.asarray(divergences, dtype=np.float64)
    if values.shape != checked.shape or not np.all(values >= 0):
        raise ValueError(f"divergences must be >= 0 and one for each order, got {divergences!r}")
    if conversion not in ("tight", "loose"):
        raise ValueError(f'conversion must be "tight" or "loose", got {conversion!r}')
    question = EpsilonAt(check_delta(delta))
    if conversion == "tight":
        return question.from_divergences(checked, values).value
    return float(np.min(values - math.log(question.delta) / (checked - 1)))


def checked_orders(orders: Sequence[float] | Array | float) -> Array:
    """Return orders as an array of shape (n,), each > 1 and finite; or raise ValueError."""
    array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if array.ndim != 1 or not array.size or not np.all((array > 1) & (array < np.inf)):
        raise ValueError(f"orders must be > 1 and finite, got {orders!r}")
    return array


def search_orders(highest: int) -> Array:
    """Return the orders that conversions search, shape (n,): dense below 10, whole ones above, up to ``highest``."""
    dense = np.concatenate([1 + np.geomspace(0.01, 1, 20)[:-1], np.linspace(2, 10, 81)])
    return np.concatenate([dense[dense < min(10, highest)], np.arange(min(10, highest), highest + 1)])
