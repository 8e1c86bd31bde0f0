"""Checks of arguments: each returns the value, or raises ``ValueError`` with one line that names the argument."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, NamedTuple


def number(name: str, value: object) -> float:
    """A real number that is not NaN; booleans are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def positive(name: str, value: object) -> float:
    """A finite number > 0."""
    checked = number(name, value)
    if not 0 < checked < math.inf:
        raise ValueError(f"{name} must be > 0 and finite, got {value!r}")
    return checked


def scale(name: str, value: object) -> float:
    """A finite number > 0 whose square and its inverse floating point holds with room to spare."""
    checked = positive(name, value)
    if not 1e-50 <= checked <= 1e50:
        raise ValueError(f"{name} must be between 1e-50 and 1e50, got {value!r}")
    return checked


def scale_or_zero(name: str, value: object) -> float:
    """A number that ``scale`` takes, or 0."""
    if value == 0:
        return 0.0
    if number(name, value) < 0:
        raise ValueError(f"{name} must be >= 0 and finite, got {value!r}")
    return scale(name, value)


def probability(name: str, value: object) -> float:
    """A number in [0, 1]."""
    checked = number(name, value)
    if not 0 <= checked <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")
    return checked


def delta(value: object) -> float:
    """A number in (0, 1)."""
    checked = number("delta", value)
    if not 0 < checked < 1:
        raise ValueError(f"delta must be in (0, 1), got {value!r}")
    return checked


def epsilon(value: object) -> float:
    """A number >= 0 (infinity is allowed)."""
    checked = number("epsilon", value)
    if checked < 0:
        raise ValueError(f"epsilon must be >= 0, got {value!r}")
    return checked


def precision(value: object) -> float:
    """A relative width in [1e-4, 0.1]."""
    checked = number("precision", value)
    if not 1e-4 <= checked <= 0.1:
        raise ValueError(f"precision must be in [1e-4, 0.1], got {value!r}")
    return checked


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
        raise ValueError(f"{name} must have {size} entries, one for each mechanism, got {len(checked)}")
    total = math.fsum(checked)
    if abs(total - 1) > 1e-9:
        raise ValueError(f"{name} must sum to 1, got {total!r}")
    return checked if abs(total - 1) <= 1e-15 * size else tuple(weight / total for weight in checked)


# Types of a mechanism's fields; the check of each is beside its type.

Scale = Annotated[float, scale]
Probability = Annotated[float, probability]
Count = Annotated[int, count]
CountOrZero = Annotated[int, partial(count, smallest=0)]


class UpTo(NamedTuple):
    """A whole number from ``smallest`` to the value of another field."""

    field: str
    smallest: int = 0
