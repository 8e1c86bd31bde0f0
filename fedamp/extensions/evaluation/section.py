"""The scenario's ``evaluation`` section: models are scored on people's own held-out records, with noise and charge.

A unit contributes one vector of norm at most 1. Each metric is a distribution over cells: the shares right and wrong;
the share of the largest loss and its rest; the shares of each bin of confidence, right and wrong. A unit's mean over
its records is one, too, and its Euclidean norm is at most 1. The blocks of several metrics share the norm. All stand in
the slot of the unit's group, so groups cost nothing. docs/studies.md has the intervals.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from fedamp.base import ids
from fedamp.base.arrays import Floats
from fedamp.base.record import Record
from fedamp.base.section import Before, Count, NoiseMultiplier, Positive, Share
from fedamp.base.start import Later
from fedamp.errors import ScenarioError
from fedamp.federation import facts
from fedamp.federation.facts import AnyScenario, Claim
from fedamp.federation.optional import AnyPlan, OptionalSection, RoundKind
from fedamp.federation.running import Hosted

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism, arithmetic
else:
    accounting, arithmetic = Later("fedamp.accounting"), Later("fedamp.accounting.arithmetic")  # as in check_in

Metric = Literal["score", "loss", "calibration"]

EVALUATION = ".evaluation"  # beside the arrays of a model in a sum: no parameter has such a name
NORMAL = 1.959963984540054  # quantile of the intervals' 95 %
_Few = Field(max_length=1000)  # each client's vector has a slot for each group
OTHERS, ALL = "others", "all people"  # units of no named group, and of all


class Estimate(Record):
    """One number that was released, with two intervals of 95 %, each for this number alone.

    Attributes:
        name: ``score``, ``loss``, ``calibration 0.5-0.6`` (share right at this confidence), or ``units`` evaluated.
        group: of the units; empty: all of them.
        lower, upper: for noise alone: of the units that were evaluated.
        people_lower, people_upper: also for the drawing of these units from a larger population.
    """

    name: str
    group: str
    value: float
    lower: float
    upper: float
    people_lower: float
    people_upper: float


class Evaluated(Record):
    """A released evaluation.

    Attributes:
        round: the evaluated model is that after this round.
        units: public: how many were asked, in expectation.
        deviation: of the noise in each number of the sum: that which is charged, or more (secure aggregation).
        sums: the noisy sum of the units' contributions.
        estimates: what follows from it.
    """

    round: Annotated[int, Field(ge=0)]
    units: Annotated[float, Field(gt=0)]
    deviation: Annotated[float, Field(ge=0)]
    sums: tuple[float, ...]
    estimates: tuple[Estimate, ...]

    @property
    def leading(self) -> Estimate | None:
        """The first metric, of all units."""
        return next((each for each in self.estimates if each.name != "units" and not each.group), None)

    def of(self, name: str, group: str = "") -> Estimate | None:
        """The estimate of a metric in a group; None: it was not asked for."""
        return next((each for each in self.estimates if (each.name, each.group) == (name, group)), None)


class ClientEvaluation(OptionalSection):
    """Evaluation on people's own held-out records, with noise and charge; no public test set is needed."""

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
        *facts.needing(facts.UNIT_IS_CLIENT, facts.TRAINED_HERE, facts.GLOBAL_MODEL),
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

    def check_within(self, scenario: AnyScenario) -> None:
        if self.every != "end" and self.every > scenario.rounds:
            raise ValueError(f"evaluation.every must be at most rounds ({scenario.rounds}) or end, got {self.every}")

    def fitted(self, plan: AnyPlan) -> "ClientEvaluation":
        if self.epsilon is None:
            return self
        try:
            noise = accounting.calibrate(
                partial(self.cost, plan), self.epsilon, arithmetic.delta_left(plan.scenario.privacy.delta)
            )
        except ValueError as error:
            raise ScenarioError(f"evaluation.epsilon finds no noise: {error}") from None
        return self.model_copy(update={"noise_multiplier": noise, "epsilon": None})

    def check_units(self, units: int) -> None:
        if isinstance(self.by, dict):
            ids.check_known("evaluation.by", self.by, units)

    def cost(self, plan: AnyPlan, noise_multiplier: float | None = None) -> "Mechanism":
        """The cost of the evaluation alone; default: with its own noise."""
        check_in, release = plan.check_in, accounting.Gaussian(noise_multiplier or self._noise)
        rounds, size = plan.scenario.rounds, plan.scenario.privacy.group_size
        return accounting.group(check_in.shown(release) if self.at_end else check_in.charge(release, rounds), size)

    def beside(self, plan: AnyPlan) -> "tuple[Mechanism, ...]":
        return (plan.check_in.shown(accounting.Gaussian(self._noise)),) if self.at_end else ()

    def kinds(self, plan: AnyPlan) -> tuple[tuple[RoundKind, int], ...]:
        rounds = plan.scenario.rounds
        if self.every != "end" and plan.check_in.rounds_are_independent:
            some = rounds // self.every  # in which order they come changes no cost; those that cost more lead
            if some < rounds > 2:
                return ((True, some), (False, rounds - some))
        return ((True, rounds),)

    def dearest(self, plan: AnyPlan) -> RoundKind:
        return True

    def beside_model(self, plan: AnyPlan, kind: RoundKind) -> "tuple[Mechanism, ...]":
        return (accounting.Gaussian(self._noise),) if kind and not self.at_end else ()

    def costs_without(self, scenario: AnyScenario) -> dict[str, dict[str, Any]]:
        asked = scenario.evaluation
        key = "evaluation.epsilon" if asked.noise_multiplier is None else "evaluation.noise_multiplier"
        return {key: {"evaluation": None}}

    def deviation(self, plan: AnyPlan) -> float:
        """The largest standard deviation of the noise on a score of all groups together."""
        units = plan.units if self.at_end else plan.expected_cohort
        return float(self._noise * math.sqrt(len(self.slots)) / self.weight / units)

    @property
    def _noise(self) -> float:
        assert self.noise_multiplier is not None, "a plan's section has its noise"
        return self.noise_multiplier

    @model_validator(mode="after")
    def _goes_together(self) -> "ClientEvaluation":
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ValueError("give noise_multiplier or epsilon, one of both")
        if isinstance(self.by, str) != bool(self.groups):
            raise ValueError("groups: the values of the column that by names, and only with such a column")
        for name in self.names:
            if not name or name in (OTHERS, ALL) or self.names.count(name) > 1 or not name.isprintable():
                raise ValueError(f"groups: {name!r} is no name, or stands twice; expected: not {OTHERS!r} or {ALL!r}")
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError("a metric stands twice; expected: each once")
        for name, text in self.by.items() if isinstance(self.by, dict) else ():
            try:
                ids.ranges(text)
            except ValueError as error:
                raise ValueError(f"by.{name} {error}") from None
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The groups' names."""
        return tuple(self.by) if isinstance(self.by, dict) else self.groups

    @property
    def slots(self) -> tuple[str, ...]:
        """The groups in the order of the vector, those of no named group at last; one slot without groups."""
        return (*self.names, OTHERS) if self.names else ("",)

    @property
    def blocks(self) -> dict[str, int]:
        """The number of cells of each metric."""
        return {metric: 2 * (self.bins if metric == "calibration" else 1) for metric in self.metrics}

    @property
    def cells(self) -> int:
        """Length of a unit's vector."""
        return len(self.slots) * sum(self.blocks.values())

    @property
    def weight(self) -> float:
        """By which each block is multiplied, so that all of them have a norm of at most 1."""
        return 1 / math.sqrt(len(self.metrics))

    @property
    def at_end(self) -> bool:
        """Whether all units are evaluated once, after the last round."""
        return self.every == "end"

    def is_in(self, round_: int) -> bool:
        """Whether the cohort of a round is evaluated before it trains."""
        return self.every != "end" and round_ % self.every == 0

    def slot_of(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of units in groups that are lists of ids; of several, the first."""
        slots = np.full(len(units), len(self.slots) - 1)
        for slot, text in reversed(list(enumerate(self.by.values()))) if isinstance(self.by, dict) else ():
            slots[ids.members(units, ids.ranges(text))] = slot
        return slots

    def evaluated(self, round_: int, sums: Floats, deviation: float, units: float) -> Evaluated:
        """Estimate scores from a noisy sum; arguments are those of :class:`Evaluated`."""
        table = np.reshape(sums, (len(self.slots), -1)) / self.weight
        deviation_of_one = deviation / self.weight
        found = self._estimates("", table.sum(0), deviation_of_one * math.sqrt(len(self.slots)))
        for name, row in zip(self.slots, table, strict=True) if self.names else ():
            found += self._estimates(name, row, deviation_of_one)
        values = tuple(np.asarray(sums, np.float64).tolist())
        return Evaluated(round=round_, units=units, deviation=deviation, sums=values, estimates=tuple(found))

    def _estimates(self, group: str, row: Floats, deviation: float) -> list[Estimate]:
        found, place = list[Estimate](), 0
        for metric, size in self.blocks.items():
            pairs = row[place : place + size].reshape(-1, 2)
            place += size
            if not found:
                count, room = float(pairs.sum()), NORMAL * deviation * math.sqrt(size)
                ends = [max(each, 0.0) for each in (count, count - room, count + room)]
                found.append(Estimate(**_ends("units", group, 1.0, [*ends, *ends[1:]])))
            for number, (part, rest) in enumerate(pairs):
                name = metric
                if metric == "calibration":
                    name = f"calibration {number / self.bins:g}-{(number + 1) / self.bins:g}"
                unit = self.loss_at_most if metric == "loss" else 1.0
                most = max(1.0, float(part + rest) + NORMAL * deviation * math.sqrt(2))
                ends = [*share_of(part, rest, deviation), *share_of(part, rest, deviation, most)[1:]]
                found.append(Estimate(**_ends(name, group, unit, ends)))
        return found


EVALUATED_KEY = Annotated[
    ClientEvaluation | None, Field(None, exclude_if=lambda asked: asked is None), Before("trackers")
]
"""The key ``evaluation`` of a scenario."""


def _ends(name: str, group: str, unit: float, ends: Sequence[float]) -> dict[str, Any]:
    keys = ("value", "lower", "upper", "people_lower", "people_upper")
    return {"name": name, "group": group} | {key: unit * end for key, end in zip(keys, ends, strict=True)}


def share_of(part: float, rest: float, deviation: float, units: float = 0.0) -> tuple[float, float, float]:
    """The share a / (a + b) of two sums with independent noise, and both ends of its interval, cut to [0, 1].

    A share p is in it if the distance of ``part (1 - p) - rest p`` from zero is at most ``NORMAL`` of its deviations
    (Fieller 1954): for noise alone the chance of that is exactly 95 %, also where sums are small. ``units`` drawn from
    a larger population add at most units p (1 - p) to its variance.
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
