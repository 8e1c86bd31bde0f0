"""Checks of arguments: each returns the value, or raises ``ValueError`` with one line that names the argument."""

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any


def number(name: str, value: object) -> float:
    """A real number that is not NaN; booleans are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def _within(name: str, value: object, holds: Callable[[float], bool], expected: str) -> float:
    """A number for which a condition holds."""
    checked = number(name, value)
    if not holds(checked):
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return checked


def positive(name: str, value: object) -> float:
    """A finite number > 0."""
    return _within(name, value, lambda x: 0 < x < math.inf, "> 0 and finite")


def scale(name: str, value: object) -> float:
    """A finite number > 0 whose square and its inverse floating point holds with room to spare."""
    return _within(name, positive(name, value), lambda x: 1e-50 <= x <= 1e50, "between 1e-50 and 1e50")


def scale_or_zero(name: str, value: object) -> float:
    """A number that ``scale`` takes, or 0."""
    return scale(name, value) if _within(name, value, lambda x: x >= 0, ">= 0 and finite") else 0.0


def probability(name: str, value: object) -> float:
    """A number in [0, 1]."""
    return _within(name, value, lambda x: 0 <= x <= 1, "in [0, 1]")


def delta(value: object) -> float:
    """A number in (0, 1)."""
    return _within("delta", value, lambda x: 0 < x < 1, "in (0, 1)")


def epsilon(value: object) -> float:
    """A number >= 0 (infinity is allowed)."""
    return _within("epsilon", value, lambda x: x >= 0, ">= 0")


def precision(value: object) -> float:
    """A relative width in [1e-4, 0.1]."""
    return _within("precision", value, lambda x: 1e-4 <= x <= 0.1, "in [1e-4, 0.1]")


def count(name: str, value: object, smallest: int = 1, largest: int = 2**53, limit: str = "") -> int:
    """A whole number from ``smallest`` to ``largest``, up to which floating point counts; no floats, no booleans."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    value = int(value)
    if not smallest <= value <= largest:
        upper = "" if largest == 2**53 and value < smallest else f" and <= {limit or largest}"
        raise ValueError(f"{name} must be >= {smallest}{upper}, got {value!r}")
    return value


def sequence(name: str, values: object) -> tuple[object, ...]:
    """Several values, in order."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of values, got {values!r}")
    return tuple(values)


def weights(name: str, values: Sequence[object], size: int) -> tuple[float, ...]:
    """``size`` numbers >= 0 that sum to one (to 1e-9; thirds are written that way), exactly."""
    checked = tuple(probability(name, value) for value in sequence(name, values))
    if len(checked) != size:
        raise ValueError(f"{name} must have {size} entries, got {len(checked)}")
    total = math.fsum(checked)
    if abs(total - 1) > 1e-9:
        raise ValueError(f"{name} must sum to 1, got {total!r}")
    return checked if abs(total - 1) <= 1e-15 * size else tuple(weight / total for weight in checked)


# Types of a mechanism's fields; the check of each is beside its type.

Scale = Annotated[float, scale]
Probability = Annotated[float, probability]
Count = Annotated[int, count]
CountOrZero = Annotated[int, partial(count, smallest=0)]


@dataclass(frozen=True)
class Limited:
    """The check of a field that the value of another ``field`` limits."""

    field: str

    def __call__(self, name: str, value: Any, limit: Any) -> object:
        raise NotImplementedError


@dataclass(frozen=True)
class UpTo(Limited):
    """A whole number from ``smallest`` to the value of the other field."""

    smallest: int = 0

    def __call__(self, name: str, value: Any, limit: int) -> int:
        return count(name, value, self.smallest, limit, self.field)


class OnePer(Limited):
    """Weights, one for each entry of the other field."""

    def __call__(self, name: str, value: Any, limit: object) -> tuple[float, ...]:
        return weights(name, value, len(sequence(self.field, limit)))
