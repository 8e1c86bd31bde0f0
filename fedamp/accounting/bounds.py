"""The answer to every privacy question: a bracket around the truth."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bounds:
    """A certified bracket: the true value lies in ``[lower, upper]``.

    There is no ``float(bounds)`` and no ``f"{bounds:.2f}"``: the ends differ, and a format code rounds to nearest, so
    that a budget could look kept when it is not.

    Attributes:
        lower: the truth is not below.
        upper: the truth is not above; a budget spends it. May be infinite.
        method: the origin of the upper end (``"numerical law, 4096 points"``, ``"Rényi, order 17"``).
    """

    lower: float
    upper: float
    method: str = ""

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"lower must not exceed upper, got [{self.lower}, {self.upper}]")

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
