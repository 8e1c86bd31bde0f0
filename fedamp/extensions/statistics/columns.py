"""Read the values of a column as numbers, truths or words; a value that is none counts nowhere, and is no error."""

import math
import re
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from fedamp.base.arrays import Floats
from fedamp.base.section import Count, Section

OTHERS = "others"
"""Name of the group of all words that a question does not list."""

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_TRUTH = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


def _as_number(cell: Any) -> float:
    """Return a number, or the year of a date with the part of the year that has passed; NaN for anything else."""
    if isinstance(cell, str):
        cell = cell.strip()
        if cell.lower() in _TRUTH:
            return _TRUTH[cell.lower()]
        if date := _DATE.match(cell):  # no library's dates reach the years 0 and 9999
            year, month, day = map(int, date.groups())
            fine = 1 <= month <= 12 and 1 <= day <= 31
            return year + (_DAYS[month - 1] + day - 1) / 365.25 if fine else math.nan
    try:
        found = math.nan if cell is None or (isinstance(cell, str) and "_" in cell) else float(cell)
    except (OverflowError, TypeError, ValueError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def _as_word(cell: Any) -> str:
    """Return a value as a word; a whole number has no point."""
    if isinstance(cell, bytes):
        return cell.decode(errors="backslashreplace")
    whole = isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53
    return str(int(cell) if whole else cell).strip()


def _by_value(convert: Callable[[Any], Any], values: NDArray[Any], kind: type) -> NDArray[Any]:
    """Convert each value; equal words are converted once. A list or a mapping counts as its text."""
    known: dict[Any, Any] = {}
    cells = [cell if isinstance(cell, Hashable) else str(cell) for cell in values.tolist()]
    return np.array([known[cell] if cell in known else known.setdefault(cell, convert(cell)) for cell in cells], kind)


def numbers_of(values: NDArray[Any]) -> Floats:
    """Read a column as numbers, float64 [records]; NaN where a value is none, or is not finite.

    >>> numbers_of(np.array(["1.5", "x", "inf", "0001-01-01"], object)).tolist()
    [1.5, nan, nan, 1.0]
    """
    if values.dtype.kind == "M":
        values = np.datetime_as_string(values).astype(object)
    if values.dtype.kind in "biuf":
        numbers = values.astype(np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)
    return _by_value(_as_number, values, float)


def places_of(values: NDArray[Any], words: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the place of each value among words, int64 [records]; their number for another value.

    >>> places_of(np.array(["b", "c", "a"], object), ("a", "b")).tolist()
    [1, 2, 0]
    """
    places = {word: place for place, word in enumerate(words)}
    found: NDArray[np.int64] = _by_value(lambda cell: places.get(_as_word(cell), len(words)), values, int)
    return found


def _steps(raw: Any) -> Any:
    """Write out edges that are given as ``{first, last, count}``: as many bins of equal width."""
    if isinstance(raw, dict) and set(raw) == {"first", "last", "count"}:
        count = raw["count"]
        if isinstance(count, int) and 1 <= count <= 10_000:
            return tuple(np.linspace(float(raw["first"]), float(raw["last"]), count + 1).tolist())
    return tuple(raw) if isinstance(raw, list) else raw  # a strict reader of JSON takes no list here


Edges = Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], BeforeValidator(_steps)]
Word = Annotated[str, Field(min_length=1, max_length=100)]


def check_rising(name: str, edges: tuple[float, ...], least: int = 2) -> None:
    """Refuse edges that do not rise, or are too few."""
    if len(edges) < least or any(after <= before for before, after in pairwise(edges)):
        raise ValueError(f"{name}: expected: {least} numbers or more, each above the one before")


class Range(Section):
    """A column of numbers, and the public range to which they are cut.

    Attributes:
        column: its name.
        range: the least and the largest number; a number outside counts as the nearer one.
    """

    column: str
    range: tuple[float, float]

    @model_validator(mode="after")
    def _rises(self) -> "Range":
        """Refuse an empty range."""
        if not -1e15 < self.range[0] < self.range[1] < 1e15:
            raise ValueError("range: expected: two numbers between -1e15 and 1e15, the smaller one first")
        return self

    @property
    def middle(self) -> float:
        """Middle of the range."""
        return (self.range[0] + self.range[1]) / 2

    @property
    def half(self) -> float:
        """Half the width of the range."""
        return (self.range[1] - self.range[0]) / 2

    def scaled_values(self, values: NDArray[Any]) -> Floats:
        """Return numbers cut to the range and scaled to [-1, 1]; NaN where a value is none."""
        return (np.clip(numbers_of(values), *self.range) - self.middle) / self.half


class Axis(Section):
    """A column in cells: public bins of numbers, or public words.

    Attributes:
        column: its name.
        bins: edges, rising; or ``{first, last, count}``. Numbers below and above have cells of their own.
        words: in the order of the cells; all others share the last cell.
    """

    column: str
    bins: Edges | None = None
    words: tuple[Word, ...] | None = Field(None, max_length=10_000)

    @model_validator(mode="after")
    def _one_of_both(self) -> "Axis":
        """Refuse an axis without cells, or with two kinds of them."""
        if (self.bins is None) == (self.words is None):
            raise ValueError("give bins or words, one of both")
        if self.bins is not None:
            check_rising("bins", self.bins)
        if self.words is not None and (len({*self.words, OTHERS}) <= len(self.words) or not self.words):
            raise ValueError(f"words: expected: different ones, and not {OTHERS!r}")
        return self

    @property
    def cell_names(self) -> tuple[str, ...]:
        """Names of the cells, in their order."""
        if self.words is not None:
            return (*self.words, OTHERS)
        edges = self.bins or ()
        inner = [f"{first:g} to {last:g}" for first, last in pairwise(edges)]
        return (f"below {edges[0]:g}", *inner, f"above {edges[-1]:g}")

    def cells_of(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the cell of each value, int64 [records]; -1 where it has none."""
        if self.words is not None:
            return places_of(values, self.words)
        edges, numbers = np.array(self.bins), numbers_of(values)
        found = np.searchsorted(edges, numbers, "right") - (numbers == edges[-1])
        return np.where(np.isnan(numbers), -1, found).astype(np.int64)


MostRecords = Annotated[
    Count,
    Field(le=10**6, description="records of a person that count in full; of a person with more, all count less"),
]
