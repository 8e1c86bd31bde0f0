"""Define the scenario's ``evaluation`` section, and estimate metrics from the noisy sum.

A unit contributes one vector of norm at most 1. Each metric is a distribution over cells: the shares right and wrong;
the share of the largest loss and its rest; the shares of each bin of confidence, right and wrong. A unit's mean over
its records is a distribution, too, so its Euclidean norm is at most 1. The blocks of several metrics share the norm.
All stand in the slot of the unit's group, so groups cost nothing.

:class:`fedamp.federation.side_sums.SideSum` has the charge; nodes compute vectors in
:mod:`~fedamp.extensions.evaluation.evaluator`. docs/studies.md has the intervals.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from fedamp.base import ids
from fedamp.base.arrays import Floats
from fedamp.base.numbers import at_most
from fedamp.base.record import Record
from fedamp.base.section import Before, Count, NoiseMultiplier, Positive, Share
from fedamp.federation import facts
from fedamp.federation.facts import Claim
from fedamp.federation.optional import AnyPlan
from fedamp.federation.running import Hosted
from fedamp.federation.side_sums import SideRelease, SideSum

Metric = Literal["score", "loss", "calibration"]

NORMAL = 1.959963984540054  # quantile of the intervals' 95 %
_Few = Field(max_length=1000)  # each client's vector has a slot for each group
COARSE = 0.02  # standard deviation of the noise on a score, beyond which a check says caution
ENDS = ("value", "lower", "upper", "people_lower", "people_upper")  # of an estimate
OTHERS, ALL = "others", "all people"  # units of no named group, and of all


class Estimate(Record):
    """Hold one released number with two intervals of 95 %, each for this number alone.

    Attributes:
        name: ``score``, ``loss``, ``calibration 0.5-0.6`` (share of all records right at this confidence), or ``units``
            evaluated.
        group: of the units; empty: all of them.
        value: a share in [0, 1]; of ``loss`` in [0, ``loss_at_most``]; of ``units`` a count, at least 0.
        lower, upper: for noise alone: of the units that were evaluated.
        people_lower, people_upper: also for the drawing of these units from a larger population; of ``units`` the same.
    """

    name: str
    group: str
    value: float
    lower: float
    upper: float
    people_lower: float
    people_upper: float

    @property
    def in_words(self) -> str:
        """The number with the larger half of each interval, as a text for tables and lines."""
        ends = (self.lower, self.upper), (self.people_lower, self.people_upper)
        if self.name != "units" and ends[0] == ends[1]:  # they differ unless both are cut to the whole range
            return "not known: the noise hides every value"
        halves = [max(self.value - lower, upper - self.value) for lower, upper in ends]
        if self.name == "units":
            return f"{self.value:,.0f} ± {halves[0]:,.0f}"
        unit = 1 if self.name == "loss" else 100
        noise, people = (f"{at_most(half * unit, 2 if unit == 1 else 1)}" for half in halves)
        value = f"{self.value:.3f} ± {noise}" if unit == 1 else f"{self.value * unit:.1f} ± {noise} %"
        return f"{value} by noise alone, ± {people} with who was asked"


class Evaluated(SideRelease):
    """Hold a released evaluation: the noisy sum, and the metrics that follow from it without further charge.

    Attributes:
        estimates: of all units, then of each group: ``units`` first, then the metrics in the section's order.
    """

    estimates: tuple[Estimate, ...]

    @property
    def leading_estimate(self) -> Estimate | None:
        """The first metric, of all units; None: nothing was estimated."""
        return next((each for each in self.estimates if each.name != "units" and not each.group), None)

    def of(self, name: str, group: str = "") -> Estimate | None:
        """Find the estimate of a metric in a group; None: the section did not ask for it.

        Args:
            name: as in :class:`Estimate`.
            group: empty: all units.
        """
        return next((each for each in self.estimates if (each.name, each.group) == (name, group)), None)

    @property
    def in_short(self) -> str:
        """The first metric of all units with its intervals, for a line about a round."""
        return f"{self.leading_estimate.name} {self.leading_estimate.in_words}" if self.leading_estimate else ""

    @property
    def in_words(self) -> dict[str, str]:
        """Rows of a table: each metric of each group, with its intervals.

        ``others`` has no row where the noise does not exclude that no unit is in it.
        """
        each = self.estimates
        empty = {one.group for one in each if one.name == "units" and one.group == OTHERS and one.lower == 0}
        said = {f"{one.name} of {one.group or ALL}": one.in_words for one in each if one.group not in empty}
        return {"on held-out records": f"with noise, the model of round {self.round}"} | said

    def agrees(self, other: Self, tolerance: float) -> bool:
        """Say whether the estimates are those of another release, for ``fedamp verify``.

        Args:
            other: computed again from the released sums.
            tolerance: of each number, relative and absolute.
        """
        own, others = ([[getattr(one, key) for key in ENDS] for one in its.estimates] for its in (self, other))
        names, theirs = ([(one.name, one.group) for one in its.estimates] for its in (self, other))
        return names == theirs and bool(np.allclose(own, others, rtol=tolerance, atol=tolerance))


class ClientEvaluation(SideSum):
    """Evaluation on people's own held-out records, with noise and charge; no public test set is needed."""

    key = "evaluation"
    node = "fedamp.extensions.evaluation.evaluator:Evaluator"
    assumption = (
        "Models are evaluated on held-out records of the clients themselves. A client contributes a vector of norm at "
        "most 1, and noise is added to the sum: the mechanism includes it."
    )

    on: Literal["clients"] = Field(description="whose records models are scored on: a part of each client's own")
    share: Share = Field(0.2, description="of each client's records, rounded up but never all: they never train")
    metrics: tuple[Metric, ...] = Field(
        ("score",), min_length=1, description="score (the leading metric), loss, calibration; several share the norm"
    )
    noise_multiplier: NoiseMultiplier | None = Field(
        None, description="standard deviation of the noise over a client's largest contribution"
    )
    epsilon: Positive | None = Field(None, description="of the evaluation alone, instead of noise_multiplier")
    every: Literal["end"] | Count = Field(
        "end", description="end: all clients, once; or rounds between evaluations of the cohort, before it trains"
    )
    loss_at_most: Positive = Field(5.0, description="a record's loss is cut to this")
    bins: Annotated[Count, Field(le=100), SkipJsonSchema()] = 10  # of confidence; another number: of older versions
    by: str | Annotated[dict[str, Hosted], _Few] | None = Field(
        None,
        description="groups: a column in which people name their own, with groups; or ids of clients, such as 0-9,12, "
        "by the group's name",
    )
    groups: tuple[str, ...] = Field((), max_length=1000, description="the values of the column that are counted apart")

    needs = (
        *facts.needs_facts(facts.UNIT_IS_CLIENT, facts.TRAINED_HERE, facts.GLOBAL_MODEL),
        Claim(facts.SCORED, "metrics", "[loss]", lambda scenario: "score" in scenario.evaluation.metrics),
        Claim(
            facts.CLASS_SHARES,
            "metrics",
            "without calibration",
            lambda scenario: "calibration" in scenario.evaluation.metrics,
        ),
    )
    breaks = (
        Claim(facts.ROUNDS_ALONE),
        Claim(facts.MODEL_ALONE, "every", "end", lambda scenario: not scenario.evaluation.at_end),
    )
    keeps = facts.FACTS - {facts.ROUNDS_ALONE, facts.MODEL_ALONE}

    def check_units(self, units: int) -> None:
        """Refuse groups with ids of clients that do not exist.

        Raises:
            ValueError: one line with the key and the group.
        """
        if isinstance(self.by, dict):
            ids.check_known("evaluation.by", self.by, units)

    def noise_deviation(self, plan: AnyPlan) -> float:
        """Compute the largest standard deviation of the noise on a score of all units, as a share.

        It is the deviation of the noisy count of right units over the expected number of units.
        """
        units = plan.units if self.at_end else plan.expected_cohort
        return float(self.noise * math.sqrt(len(self.group_slots)) / self.block_weight / units)

    def answers(self, plan: AnyPlan) -> dict[str, float]:
        """Return the deviation of the noise on a score, for ``fedamp privacy``."""
        return {"score_deviation_upper": self.noise_deviation(plan)}

    def foreseen(self, plan: AnyPlan) -> tuple[str, str | None]:
        """Say whose records are evaluated; caution where the noise on a score is above two points of a hundred."""
        people = plan.units if self.at_end else plan.expected_cohort
        off, who = self.noise_deviation(plan), f"{people:,.4g} {plan.scenario.privacy.unit}s"
        found = f"on held-out records of {who}, with noise of at most {100 * off:.2g} points on a score"
        more = f"{found}; expected: more of them, or less noise (evaluation.noise_multiplier)"
        return found, more if off > COARSE else None

    @model_validator(mode="after")
    def _goes_together(self) -> "ClientEvaluation":
        """Refuse two sources of noise, groups without a column, and duplicate names or metrics."""
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ValueError("give noise_multiplier or epsilon, one of both")
        if isinstance(self.by, str) != bool(self.groups):
            raise ValueError("groups: the values of the column that by names, and only with such a column")
        for name in self.group_names:
            if not name or name in (OTHERS, ALL) or self.group_names.count(name) > 1 or not name.isprintable():
                raise ValueError(
                    f"groups: {name!r} is empty, reserved or duplicated; expected: not {OTHERS!r} or {ALL!r}"
                )
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError("duplicate metric; expected: each at most once")
        for name, text in self.by.items() if isinstance(self.by, dict) else ():
            try:
                ids.ranges(text)
            except ValueError as error:
                raise ValueError(f"by.{name} {error}") from None
        return self

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups' names, in the section's order; without groups none."""
        return tuple(self.by) if isinstance(self.by, dict) else self.groups

    @property
    def group_slots(self) -> tuple[str, ...]:
        """The groups in the order of a vector's slots, with ``others`` as the last; one slot without groups."""
        return (*self.group_names, OTHERS) if self.group_names else ("",)

    @property
    def cells_by_metric(self) -> dict[str, int]:
        """The number of cells of each metric, in the section's order.

        >>> ClientEvaluation(on="clients", noise_multiplier=20.0, metrics=("score", "calibration")).cells_by_metric
        {'score': 2, 'calibration': 20}
        """
        return {metric: 2 * (self.bins if metric == "calibration" else 1) for metric in self.metrics}

    @property
    def number_of_cells(self) -> int:
        """The length of a unit's vector: the cells of all metrics, in each slot."""
        return len(self.group_slots) * sum(self.cells_by_metric.values())

    @property
    def block_weight(self) -> float:
        """The factor of each block, one over the root of their number, so that all together have norm at most 1."""
        return 1 / math.sqrt(len(self.metrics))

    def slot_of(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of units in groups that are lists of ids.

        Args:
            units: ids, int64 [units].

        Returns:
            int64 [units]. A unit in several groups gets the first; one in no group gets the last slot.
        """
        slots = np.full(len(units), len(self.group_slots) - 1)
        for slot, text in reversed(list(enumerate(self.by.values()))) if isinstance(self.by, dict) else ():
            slots[ids.members(units, ids.ranges(text))] = slot
        return slots

    def released(self, round_: int, sums: Floats, deviation: float, units: float) -> Evaluated:
        """Estimate all metrics from a noisy sum; nothing here depends on records otherwise.

        Args:
            round_: of the evaluated model.
            sums: the noisy sum over units, [cells].
            deviation: standard deviation of the noise in each number of the sum.
            units: expected number of units in the sum, above 0.
        """
        table = np.reshape(sums, (len(self.group_slots), -1)) / self.block_weight
        deviation_of_one = deviation / self.block_weight
        found = self._group_estimates("", table.sum(0), deviation_of_one * math.sqrt(len(self.group_slots)))
        for name, row in zip(self.group_slots, table, strict=True) if self.group_names else ():
            found += self._group_estimates(name, row, deviation_of_one)
        values = tuple(np.asarray(sums, np.float64).tolist())
        return Evaluated(round=round_, units=units, deviation=deviation, sums=values, estimates=tuple(found))

    def _group_estimates(self, group: str, row: Floats, deviation: float) -> list[Estimate]:
        """Estimate the number of units and all metrics from the noisy cells of one slot, or of the sum of all slots."""
        found, place = list[Estimate](), 0
        for metric, size in self.cells_by_metric.items():
            pairs = row[place : place + size].reshape(-1, 2)
            place += size
            if not found:
                count, room = float(pairs.sum()), NORMAL * deviation * math.sqrt(size)
                ends = [max(each, 0.0) for each in (count, count - room, count + room)]
                found.append(Estimate(**_interval_ends("units", group, 1.0, [*ends, *ends[1:]])))
            for number, (part, rest) in enumerate(pairs):
                name = metric
                if metric == "calibration":
                    name = f"calibration {number / self.bins:g}-{(number + 1) / self.bins:g}"
                unit = self.loss_at_most if metric == "loss" else 1.0
                most = max(1.0, float(part + rest) + NORMAL * deviation * math.sqrt(2))
                ends = [*share_of(part, rest, deviation), *share_of(part, rest, deviation, most)[1:]]
                found.append(Estimate(**_interval_ends(name, group, unit, ends)))
        return found


EVALUATED_KEY = Annotated[
    ClientEvaluation | None, Field(None, exclude_if=lambda asked: asked is None), Before("trackers")
]
"""The key ``evaluation`` of a scenario."""

TOLD_KEY = Annotated[
    ClientEvaluation | None, Field(None, exclude_if=lambda asked: asked is None), Before("answer_after")
]
"""The key ``evaluation`` of what clients are told."""


def _interval_ends(name: str, group: str, unit: float, ends: Sequence[float]) -> dict[str, Any]:
    """Name the ends of an estimate's intervals, in the metric's own unit."""
    return {"name": name, "group": group} | {key: unit * end for key, end in zip(ENDS, ends, strict=True)}


def share_of(part: float, rest: float, deviation: float, units: float = 0.0) -> tuple[float, float, float]:
    """Estimate the share a / (a + b) from two sums with independent Gaussian noise, with an interval of 95 %.

    A share p is in the interval if ``part (1 - p) - rest p`` is at most ``NORMAL`` of its deviations from zero (Fieller
    1954). For noise alone the chance of that is exactly 95 %, also where sums are small. Units drawn from a larger
    population add at most ``units p (1 - p)`` to its variance.

    Args:
        part, rest: the noisy sums a and b; either may be negative.
        deviation: standard deviation of the noise in each of them, at least 0.
        units: drawn from a larger population; 0: the interval is for noise alone.

    Returns:
        The share and both ends of its interval, all in [0, 1]. Without a positive sum, the share is 1/2 cut to the
        interval.

    >>> [round(end, 3) for end in share_of(60.0, 40.0, 5.0)]
    [0.6, 0.531, 0.673]
    """
    both, room = part + rest, (NORMAL * deviation) ** 2
    # (part - both p)^2 <= room ((1 - p)^2 + p^2) + NORMAL^2 units p (1 - p), a quadratic inequality in p
    drawn = NORMAL**2 * units
    square, linear, constant = both**2 - 2 * room + drawn, -2 * part * both + 2 * room - drawn, part**2 - room
    inside = linear**2 - 4 * square * constant
    lower, upper = 0.0, 1.0
    if square > 0:
        half = math.sqrt(max(inside, 0.0)) / (2 * square)
        lower, upper = (min(max(-linear / (2 * square) + end, 0.0), 1.0) for end in (-half, half))
    value = min(max(part / both, 0.0), 1.0) if both > 0 else 0.5
    return min(max(value, lower), upper), lower, upper
