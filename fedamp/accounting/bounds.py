"""The answer of every privacy question: a bracket around the truth."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """A certified bracket: the true value lies in ``[lower, upper]``.

    Attributes:
        lower: a value the truth is not below.
        upper: a value the truth is not above; what a budget spends. May be infinite.
        method: what produced the upper end, for a person to read
            (``"numerical law, 4096 points"``, ``"Rényi, order 17"``).
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


def finite(value: float) -> float | None:
    """The value, or None where it is infinite: JSON has no infinity."""
    return float(value) if math.isfinite(value) else None
