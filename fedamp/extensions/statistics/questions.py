"""Define the questions: what each adds to a person's vector, and how its answers follow from the noisy sum.

A record gives a question some numbers of norm at most :attr:`PeopleQuestion.norm`. The block of a person is their sum.
A person with n records, more than ``records``, has their mean times ``records``. So no person exceeds her block, and a
person with at most ``records`` records loses nothing. Public weights divide the norm of 1 of the whole vector among
the blocks.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from fedamp.base.arrays import Floats
from fedamp.base.record import Record
from fedamp.base.section import Positive, Section, Share
from fedamp.extensions.statistics.columns import (
    OTHERS,
    Axis,
    Edges,
    MostRecords,
    Range,
    Word,
    check_rising,
    numbers_of,
    places_of,
)
from fedamp.extensions.statistics.intervals import (
    moments_interval,
    normal_quantile,
    quantile_interval,
    ratio_interval,
    shown_error,
)
from fedamp.extensions.statistics.life import at_risk, log_rank, survival_curve

QuestionColumns = Mapping[str, NDArray[Any]]
"""Values by column, [records] each, as the files spell them."""


class NoisySum(NamedTuple):
    """A noisy sum of a question's numbers over people, and what is public about it.

    Attributes:
        cells: the sum, [cells].
        deviation: of the noise in each cell.
        error: probability that an interval misses its number.
        least: count below which no number is shown.
    """

    cells: Floats
    deviation: float
    error: float
    least: float

    def resting_on(self, count: ArrayLike, cells: int = 1) -> "NoisySum":
        """Return the same sum with the error that the interval of a number has where this count lets it be shown.

        Args:
            count: the noisy count; or several, of which the smallest decides.
            cells: that each count is the sum of.
        """
        noise, error = self.deviation * math.sqrt(cells), self.error
        for each in np.ravel(count).tolist():
            error = shown_error(error, each, noise, self.least) if each >= self.least else error
        return self._replace(error=error)

    def total_of(self, name: str, cells: Floats) -> "NoisyNumber":
        """Make a count that is a sum of cells, with its interval.

        Args:
            name: of the number.
            cells: some of these cells.
        """
        value = float(cells.sum())
        error = self.resting_on(value, cells.size).error
        half = normal_quantile(error) * self.deviation * math.sqrt(cells.size)
        return self.unless_few(name, value, value, value - half, value + half)

    def unless_few(
        self, name: str, count: float, value: float, lower: float, upper: float, **people: float
    ) -> "NoisyNumber":
        """Make a number, unless the noisy count on which it rests is below the public threshold.

        Args:
            name: of the number.
            count: the noisy count.
            value, lower, upper, people: as of :class:`NoisyNumber`, with the error of :meth:`resting_on`.
        """
        if count < self.least:
            return NoisyNumber(name=name)
        return NoisyNumber(name=name, value=value, lower=lower, upper=upper, **people)


class NoisyNumber(Record):
    """A number of an answer, with an interval that covers the noise with the section's probability.

    Attributes:
        name: of the number within its answer.
        value: the estimate; None: the noisy count is below the public threshold.
        lower, upper: ends of the interval, for noise alone.
        people_lower, people_upper: ends of a wider interval that also covers the people as a sample; None: none known.
    """

    name: str
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    people_lower: float | None = None
    people_upper: float | None = None

    @property
    def in_words(self) -> str:
        """Number with its interval, as a text."""
        if self.value is None:
            return "too few to show"
        return f"{self.value:.5g} ({self.lower:.5g} to {self.upper:.5g})"


class PeopleQuestion(Section):
    """Base of questions.

    Attributes:
        records: of a person that count in full.
        weight: share of the noise budget relative to the other questions: the noise of a question falls with it.
        norm: of a record's numbers at most.
    """

    records: MostRecords = 1
    weight: Positive = 1.0
    norm: ClassVar[float] = 1.0

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns that the question reads, by default its ``column``; an empty name: whatever is in the records."""
        return (getattr(self, "column", None) or "",)

    @property
    @abstractmethod
    def number_of_cells(self) -> int:
        """Number of cells."""

    @abstractmethod
    def record_parts(self, columns: QuestionColumns) -> list[tuple[NDArray[np.int64], Floats]]:
        """Return what each record adds: pairs of a cell and a number, [records] each; cell -1: the record counts not.

        Args:
            columns: the columns that the question reads.
        """

    @abstractmethod
    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        """Yield the numbers of the answer."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """Sentences about bias that is known beforehand."""
        many = f"A person with more than {self.records:,} records counts as {self.records:,}, with the mean of all."
        return (many if self.records > 1 else "Each person counts once, with the mean of all records.",)


class CountQuestion(PeopleQuestion):
    """How many people, or records, there are; with ``words``, those with one of these words in a column."""

    ask: Literal["count"]
    column: str | None = None
    words: tuple[Word, ...] = ()

    @model_validator(mode="after")
    def _together(self) -> "CountQuestion":
        """Refuse words without a column, and a column without words."""
        if (self.column is None) != (not self.words):
            raise ValueError("give column and words, or neither")
        return self

    @property
    def number_of_cells(self) -> int:
        return 1

    def record_parts(self, columns: QuestionColumns) -> list[tuple[NDArray[np.int64], Floats]]:
        values = columns[self.column or ""]
        inside = places_of(values, self.words) < len(self.words) if self.words else np.ones(len(values), bool)
        return [(np.zeros(len(values), np.int64), inside.astype(float))]

    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        yield noisy.total_of("count", noisy.cells)


class TableQuestion(PeopleQuestion):
    """How many people, or records, are in each cell of one column (a histogram) or of several (a contingency table)."""

    ask: Literal["table"]
    axes: tuple[Axis, ...] = Field(min_length=1, max_length=4)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(axis.column for axis in self.axes)

    @property
    def number_of_cells(self) -> int:
        return math.prod(len(axis.cell_names) for axis in self.axes)

    def record_parts(self, columns: QuestionColumns) -> list[tuple[NDArray[np.int64], Floats]]:
        each = [axis.cells_of(columns[axis.column]) for axis in self.axes]
        inside = np.all([cells >= 0 for cells in each], axis=0)
        place = np.ravel_multi_index(
            [np.maximum(cells, 0) for cells in each], [len(axis.cell_names) for axis in self.axes]
        )
        return [(np.where(inside, place, -1), np.ones(len(inside)))]

    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        shape = [len(axis.cell_names) for axis in self.axes]
        for place, cell in zip(np.ndindex(*shape), noisy.cells, strict=True):
            yield noisy.total_of(
                ", ".join(axis.cell_names[at] for axis, at in zip(self.axes, place, strict=True)), cell
            )


class QuantileQuestion(PeopleQuestion):
    """The numbers below which given shares of people are, from a private histogram of fine public bins.

    With ``histogram`` also how many people are between them: the bins of that histogram are private quantiles.
    """

    ask: Literal["quantiles"]
    column: str
    bins: Edges
    shares: tuple[Share, ...] = Field((0.5,), min_length=1, max_length=100)
    histogram: bool = Field(False, exclude_if=lambda asked: not asked)

    @model_validator(mode="after")
    def _rises(self) -> "QuantileQuestion":
        """Refuse bins that do not rise."""
        check_rising("bins", self.bins)
        return self

    @property
    def axis(self) -> Axis:
        """Bins of the column."""
        return Axis(column=self.column, bins=self.bins)

    @property
    def number_of_cells(self) -> int:
        return len(self.bins) + 1

    def record_parts(self, columns: QuestionColumns) -> list[tuple[NDArray[np.int64], Floats]]:
        cells = self.axis.cells_of(columns[self.column])
        return [(cells, np.ones(len(cells)))]

    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        count = float(noisy.cells.sum())
        yield noisy.total_of("count", noisy.cells)
        whole = noisy.resting_on(count, noisy.cells.size)
        edges, cuts = (self.bins[0], *self.bins, self.bins[-1]), {0, len(noisy.cells)}
        for share in self.shares:
            place, part, first, last = quantile_interval(noisy.cells, share, noisy.deviation, whole.error)
            value = edges[place] + part * (edges[place + 1] - edges[place])
            cuts.add(place + round(part))
            yield noisy.unless_few(f"quantile {share:g}", count, value, edges[first], edges[last + 1])
        if self.histogram:  # the noise has chosen among all ranges of bins, so each of them must be covered
            ranges = noisy._replace(error=noisy.error / math.comb(len(noisy.cells) + 1, 2))
            for first, last in pairwise(sorted(cuts)):
                start = f"{edges[first]:g}" if first else "lowest"
                end = f"{edges[last]:g}" if last < len(noisy.cells) else "highest"
                yield ranges.total_of(f"{start} to {end}: count", noisy.cells[first:last])

    @property
    def caveats(self) -> tuple[str, ...]:
        outside = f"A quantile below {self.bins[0]:g} or above {self.bins[-1]:g} is shown as that number."
        return (*super().caveats, outside, "An interval ends at edges of bins, so it covers the bins' width, too.")


class MeanQuestion(PeopleQuestion, Range):
    """Count, sum and mean of numbers that are cut to a public range."""

    ask: Literal["mean"]
    moments: ClassVar[int] = 2  # powers of a number, from the zeroth on
    norm: ClassVar[float] = math.sqrt(2)

    @property
    def number_of_cells(self) -> int:
        return self.moments

    def record_parts(self, columns: QuestionColumns) -> list[tuple[NDArray[np.int64], Floats]]:
        return _powers(self.scaled_values(columns[self.column]), self.moments)

    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        count, total = noisy.cells
        yield noisy.total_of("count", noisy.cells[:1])
        value, error = self.middle * count + self.half * total, noisy.resting_on(count).error
        half = normal_quantile(error) * noisy.deviation * math.hypot(self.middle, self.half)
        yield noisy.unless_few("sum", count, value, value - half, value + half)
        yield self.mean_of(noisy, "mean", noisy.cells)

    def mean_of(self, noisy: NoisySum, name: str, cells: Floats) -> NoisyNumber:
        """Make the mean from a noisy count and a noisy sum of scaled numbers."""
        error = noisy.resting_on(cells[0]).error
        lower, upper = ratio_interval(cells, [0, 1], [1, 0], noisy.deviation, error, (-1.0, 1.0))
        value = min(max(cells[1] / cells[0] if cells[0] > 0 else 0.0, lower), upper)
        return noisy.unless_few(name, cells[0], *(self.middle + self.half * each for each in (value, lower, upper)))

    @property
    def caveats(self) -> tuple[str, ...]:
        return (*super().caveats, _cut(self))


class VarianceQuestion(MeanQuestion):
    """Count, sum, mean and variance of numbers that are cut to a public range; the variance divides by the count."""

    ask: Literal["variance"]  # type: ignore[assignment]
    moments: ClassVar[int] = 3
    norm: ClassVar[float] = math.sqrt(3)

    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        yield from super().answer_numbers(noisy._replace(cells=noisy.cells[:2]))
        error = noisy.resting_on(noisy.cells[0]).error
        found = moments_interval(noisy.cells, "variance", noisy.deviation, error)
        yield noisy.unless_few("variance", noisy.cells[0], *(self.half**2 * each for each in found))


class GroupMeansQuestion(MeanQuestion):
    """Count and mean of numbers in each public group."""

    ask: Literal["means"]  # type: ignore[assignment]
    by: str
    words: tuple[Word, ...] = Field(min_length=1, max_length=10_000)

    @property
    def column_names(self) -> tuple[str, ...]:
        return (self.column, self.by)

    @property
    def number_of_cells(self) -> int:
        return 2 * (len(self.words) + 1)

    def record_parts(self, columns: QuestionColumns) -> list[tuple[NDArray[np.int64], Floats]]:
        groups = places_of(columns[self.by], self.words)
        return [(np.where(cell < 0, -1, 2 * groups + cell), values) for cell, values in super().record_parts(columns)]

    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        for name, cells in zip((*self.words, OTHERS), noisy.cells.reshape(-1, 2), strict=True):
            yield noisy.total_of(f"{name}: count", cells[:1])
            yield self.mean_of(noisy, f"{name}: mean", cells)


class CorrelationQuestion(PeopleQuestion):
    """Covariance and correlation of two columns of numbers, each cut to a public range."""

    ask: Literal["correlation"]
    of: tuple[Range, Range]
    norm: ClassVar[float] = math.sqrt(6)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(each.column for each in self.of)

    @property
    def number_of_cells(self) -> int:
        return 6

    def record_parts(self, columns: QuestionColumns) -> list[tuple[NDArray[np.int64], Floats]]:
        x, y = (each.scaled_values(columns[each.column]) for each in self.of)
        fine = ~(np.isnan(x) | np.isnan(y))
        x, y = np.where(fine, x, 0.0), np.where(fine, y, 0.0)
        return [(np.where(fine, place, -1), each) for place, each in enumerate((x**0, x, y, x**2, y**2, x * y))]

    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        count = float(noisy.cells[0])
        yield noisy.total_of("count", noisy.cells[:1])
        noisy = noisy.resting_on(count)
        found = moments_interval(noisy.cells, "covariance", noisy.deviation, noisy.error)
        scale = self.of[0].half * self.of[1].half
        yield noisy.unless_few("covariance", count, *(scale * each for each in found))
        found = moments_interval(noisy.cells, "correlation", noisy.deviation, noisy.error)
        yield noisy.unless_few("correlation", count, *found)

    @property
    def caveats(self) -> tuple[str, ...]:
        return (*super().caveats, *map(_cut, self.of))


class SurvivalQuestion(PeopleQuestion):
    """A survival curve on a public grid of times, for all or by group; two groups are compared by the log-rank test.

    A time counts in the interval that it ends or is in; the event column is 1 or true where the event happened then.
    """

    ask: Literal["survival"]
    time: str
    event: str
    grid: Edges
    by: str | None = None
    words: tuple[Word, ...] = ()

    @model_validator(mode="after")
    def _together(self) -> "SurvivalQuestion":
        """Refuse groups without a column, and a grid that does not rise."""
        if (self.by is None) != (not self.words):
            raise ValueError("give by and words, or neither")
        check_rising("grid", self.grid, 1)
        return self

    @property
    def column_names(self) -> tuple[str, ...]:
        return (self.time, self.event, *filter(None, (self.by,)))

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups; one without a name where there are none."""
        return (*self.words, OTHERS) if self.by else ("",)

    @property
    def number_of_cells(self) -> int:
        return 2 * (len(self.grid) + 1) * len(self.groups)

    def record_parts(self, columns: QuestionColumns) -> list[tuple[NDArray[np.int64], Floats]]:
        times, events = numbers_of(columns[self.time]), numbers_of(columns[self.event])
        fine = (times >= 0) & np.isin(events, (0.0, 1.0))
        groups = places_of(columns[self.by], self.words) if self.by else np.zeros(len(times), np.int64)
        interval = np.searchsorted(np.array(self.grid), np.where(fine, times, 0.0), "left")
        cell = 2 * ((len(self.grid) + 1) * groups + interval) + (np.where(fine, events, 0.0) > 0)
        return [(np.where(fine, cell, -1), np.ones(len(cell)))]

    def answer_numbers(self, noisy: NoisySum) -> Iterator[NoisyNumber]:
        each = noisy.cells.reshape(len(self.groups), -1, 2)
        for name, cells in zip(self.groups, each, strict=True):
            start = f"{name}: " * bool(name)
            yield noisy.total_of(f"{start}people", cells)
            risk = at_risk(cells, noisy.deviation)[0].tolist()
            errors = [noisy.resting_on(count, 2 * (len(risk) - place)).error for place, count in enumerate(risk[:-1])]
            for time, count, point in zip(
                self.grid, risk, survival_curve(cells, noisy.deviation, errors), strict=False
            ):
                value, lower, upper, *people = point
                wider = dict(zip(("people_lower", "people_upper"), people, strict=True))
                yield noisy.unless_few(f"{start}survival at {time:g}", count, value, lower, upper, **wider)
        if len(self.words) == 2:
            yield from self._compared(noisy, each[:2])

    def _compared(self, noisy: NoisySum, groups: Floats) -> Iterator[NoisyNumber]:
        """Yield the log-rank test of two groups; its probability counts the noise as further variance."""
        counts = groups.sum((1, 2))
        count, noisy = float(counts.min()), noisy.resting_on(counts, groups[0].size)
        used, beyond, lower, upper, variance = log_rank(groups, noisy.deviation, noisy.least, noisy.error)
        if not used:
            return
        name = f"log-rank up to {self.grid[used - 1]:g}"
        yield noisy.unless_few(f"{name}: events of {self.words[0]} beyond the expected", count, beyond, lower, upper)
        noise = ((upper - beyond) / normal_quantile(noisy.error)) ** 2

        def chance(events: float, more: float = 0.0) -> float:
            return math.erfc(abs(events) / math.sqrt(2 * (variance + more))) if variance + more > 0 else 1.0

        nearest, furthest = 0.0 if lower <= 0 <= upper else min(abs(lower), abs(upper)), max(abs(lower), abs(upper))
        ends = chance(furthest), chance(nearest)
        yield noisy.unless_few(f"{name}: p", count, chance(beyond, noise), *ends)

    @property
    def caveats(self) -> tuple[str, ...]:
        inexact = "Intervals of survival and of the log-rank test are those of the delta method."
        wider = "The wider interval of a curve also covers people as a sample, and noise."
        return (
            *super().caveats,
            inexact,
            wider,
            "Where noise hides the people at risk, an interval of survival begins at 0, and the test ends.",
        )


class CoxQuestion(PeopleQuestion):
    """The partial likelihood of Cox, which is refused."""

    ask: Literal["cox"]

    @model_validator(mode="before")
    @classmethod
    def _refused(cls, raw: Any) -> Any:
        """Refuse: the partial likelihood is no sum over people."""
        raise ValueError(
            "each term of Cox's partial likelihood divides by a sum over all people at risk, so it is no sum over "
            "people, and no person's part can be bounded; expected: survival, or the loss "
            "fedamp.extensions.statistics.survival_loss:DiscreteTime"
        )


AnyQuestion = Annotated[
    CountQuestion
    | TableQuestion
    | QuantileQuestion
    | MeanQuestion
    | VarianceQuestion
    | GroupMeansQuestion
    | CorrelationQuestion
    | SurvivalQuestion
    | CoxQuestion,
    Field(discriminator="ask"),
]


def _powers(scaled: Floats, count: int) -> list[tuple[NDArray[np.int64], Floats]]:
    """Return the first powers of numbers, from 1 on, each in its cell; NaN counts nowhere."""
    fine = ~np.isnan(scaled)
    numbers = np.where(fine, scaled, 0.0)
    return [(np.where(fine, power, -1), numbers ** float(power)) for power in range(count)]


def _cut(asked: Range) -> str:
    """Say what becomes of numbers outside a range."""
    return f"A number of {asked.column} below {asked.range[0]:g} or above {asked.range[1]:g} counts as that end."
