"""Sensitivity of a round before its noise: the real code on neighbouring data.

The charge assumes that a unit in a round moves the sum by at most the clip, in every part of the model. The search
plays each round of a run as it is, and from the same model and seeds with other records for one unit, with no records,
and without the unit. A unit that is not in a round must not move the sum at all.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from fedamp import rng
from fedamp.base.devices import usual_state
from fedamp.data import Dataset
from fedamp.data.form import Form, Numbers
from fedamp.engines import flower
from fedamp.extensions.audit.planted import PlantedFederation, PlantedRecords, records_of
from fedamp.federation.scenario import Scenario
from fedamp.strategies.aggregation import Aggregate

ITS_OWN = "its own"
# Ways to change inputs (numbers, or tokens) and labels. The last way makes records that nobody can train on.
_SCALED = {"times -1": -1.0, "times 100": 1e2, "times 1e10": 1e10, "times 1e38": 1e38}
_NUMBERS = (ITS_OWN, "another unit's", "zeros", *_SCALED, "NaN", "infinity")
_TOKENS = (ITS_OWN, "another unit's", "zeros", "drawn anew", "outside the vocabulary")
_LABELS = (ITS_OWN, "drawn anew", "all zero", "none of the model's")
_LARGEST = np.finfo(np.float32).max
_IN_A_ROW = 10  # changes of one unit before the next unit
_COUNTS = (1, 2, 17, 100)  # numbers of records to give a unit
_MOST_NUMBERS = 1 << 24  # in the inputs of a cohort, if all its units are as large as the changed one: 64 MiB


@dataclass(frozen=True)
class Change:
    """A change of one unit's records: their number, and the ways to change their inputs and labels."""

    records: int
    inputs: str = ITS_OWN
    labels: str = ITS_OWN
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.records} records, inputs {self.inputs}, labels {self.labels}"

    @classmethod
    def drawn(cls, draw: np.random.Generator, form: Form, counts: Sequence[int]) -> "Change":
        """A random change to one of these numbers of records."""
        count, inputs = draw.choice(counts), draw.choice(_NUMBERS if form.vocabulary is None else _TOKENS)
        return cls(int(count), str(inputs), str(draw.choice(_LABELS)), int(draw.integers(1 << 32)))

    @classmethod
    def untrainable(cls, form: Form, records: int) -> "list[Change]":
        """Changes to records that nobody can train on: the unit must count as zero, and as present."""
        inputs = _NUMBERS if form.vocabulary is None else _TOKENS
        return [cls(records, inputs=inputs[-1]), cls(records, labels=_LABELS[-1])]

    def mutated(self, other: "Change", draw: np.random.Generator) -> "Change":
        """This change with one field of the other."""
        key = str(draw.choice([each.name for each in fields(self)]))
        return replace(self, **{key: getattr(other, key)})

    def of(self, own: PlantedRecords, other: PlantedRecords, dataset: Dataset) -> PlantedRecords:
        """The changed records of a unit; ``own`` and ``other``: its records and another unit's, at least one each."""
        draw = rng.public_stream(self.seed, "changed records")
        source = other if self.inputs == "another unit's" else own
        inputs, labels = (values[np.arange(self.records) % len(values)] for values in source)
        outputs, vocabulary = dataset.num_classes, dataset.form.vocabulary
        are_numbers = isinstance(dataset.form.labels, Numbers)
        if self.inputs in _SCALED:
            with np.errstate(over="ignore"):
                inputs = np.clip(inputs * np.float32(_SCALED[self.inputs]), -_LARGEST, _LARGEST)
        elif self.inputs == "zeros":
            inputs[...] = 0
        elif self.inputs == "drawn anew":
            inputs[...] = draw.integers(vocabulary or 2, size=inputs.shape)
        elif self.inputs not in (ITS_OWN, "another unit's"):
            inputs[-1] = {"outside the vocabulary": vocabulary, "NaN": np.nan, "infinity": np.inf}[self.inputs]
        if self.labels == "drawn anew":
            labels[...] = draw.integers(2 if are_numbers else outputs, size=labels.shape)
        elif self.labels == "all zero":
            labels[...] = 0
        elif self.labels == "none of the model's":
            labels[...] = 1e38 if are_numbers else outputs
        return inputs, labels


@dataclass(frozen=True)
class Move:
    """The distance between a round's sums on two data sets that differ in one unit's records.

    Attributes:
        records, against: descriptions of the unit's records in the first and in the second data set.
        distance: the largest in any part of the model, in clips.
        part: that part.
        allowed: the charged distance: 1, or 0 if the unit is not in the round.
        is_told: whether the number of reports differs, which decides whether the run goes on.
    """

    round: int
    unit: int
    records: str
    against: str
    distance: float
    part: str
    allowed: int
    is_told: bool

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The larger, the worse; one of the first two is true if the move exceeds the charge.

        There is no tolerance: sums of whole quanta have no rounding, and clipping aims
        :data:`fedamp.client.clipping.MARGIN` below 1, far more than the rounding of a norm in float64.
        """
        return not self.distance <= self.allowed, self.is_told, self.distance

    @property
    def is_too_far(self) -> bool:
        """Whether the move exceeds the charge."""
        return any(self.rank[:2])

    def __str__(self) -> str:
        found = f"the sum moves by {self.distance:.3g} clips, and at most {self.allowed} is charged"
        if self.is_told:
            found = f"the number of reports differs; {found}" if self.rank[0] else "the number of reports differs"
        return f"{found}, in round {self.round} (unit {self.unit}: {self.records}, against {self.against})"


@usual_state()
def search(scenario: Scenario, repetitions: int, rounds: int) -> list[Move]:
    """Search for data of one unit that move the sum of a round by more than is charged; returns its worst moves.

    Args:
        scenario: validated, its paths absolute. Its seed decides everything.
        repetitions: changes of a unit's records to try, in all rounds together.
        rounds: number of rounds to play, from the first.
    """
    found, rounds = _Search(scenario), min(rounds, scenario.rounds, repetitions)
    moves: list[Move] = []
    ends = [repetitions * round_ // rounds for round_ in range(rounds + 1)]
    with flower.chatter_to(Path(os.devnull), "fedamp"):  # each record that cannot be trained on makes a line of log
        for round_ in range(1, rounds + 1):
            moves += found.round(round_, ends[round_] - ends[round_ - 1])
    return moves


_World = tuple[str, Aggregate]  # one of two data sets: a unit's records, described, and the sum of a round


class _Search:
    """A run whose rounds are each played many times from the same model."""

    _draw: np.random.Generator

    def __init__(self, scenario: Scenario) -> None:
        # With a known seed a repeated round has the same noise, check-ins, submodels and orders of records.
        engine = scenario.engine.model_copy(update={"kind": "serial"})
        self._federation = PlantedFederation(scenario.model_copy(update={"known_seed": True, "engine": engine}))
        self._plan, self._dataset = self._federation.prepared.plan, self._federation.dataset
        self._units_are_samples = scenario.privacy.unit == "sample"
        self._best: tuple[float, Change] | None = None

    def round(self, round_: int, repetitions: int) -> list[Move]:
        """Play a round with so many changes, and then as it is; returns the worst moves."""
        self._draw, moves = rng.public_stream(self._plan.seed, "sensitivity", round_), list[Move]()
        cohort = self._plan.attendance.cohort_of(round_)
        others = np.setdiff1d(np.arange(self._plan.units), cohort)
        real = self._federation.collect(round_)
        # Numbers of records that a unit may have: one for a sample, and no more than memory holds.
        numbers = max(len(cohort) * math.prod(self._dataset.input_shape), 1)
        most = 1 if self._units_are_samples else max(_MOST_NUMBERS // numbers, 1)
        counts = [count for count in _COUNTS if count <= most]
        for first in range(0, repetitions, _IN_A_ROW):
            if len(cohort):
                changes = min(_IN_A_ROW, repetitions - first)
                moves += self._of_a_unit(round_, int(self._draw.choice(cohort)), changes, real, counts)
            if len(others):
                unit = int(self._draw.choice(others))
                one = self._changed(round_, unit, Change.drawn(self._draw, self._dataset.form, counts))
                own = (ITS_OWN, real)
                moves.append(self._move(round_, unit, one, own, real, allowed=0))
        self._federation.release(round_, real)
        largest = max(moves, key=lambda move: (move.rank[0], move.distance))
        told = [move for move in moves if move.is_told and move is not largest]
        return [largest, *told[:1]]

    def _of_a_unit(self, round_: int, unit: int, changes: int, real: Aggregate, counts: list[int]) -> list[Move]:
        """Changes of a unit of the cohort, each against its absence, and against no records."""
        form, moves = self._dataset.form, list[Move]()
        own, size = records_of(self._dataset, unit), max(1, int(self._dataset.sizes(np.array([unit]))[0]))
        without = [self._world(round_, unit, "not there", None)]
        if not self._units_are_samples:  # a sample has exactly one record
            without.append(self._world(round_, unit, "no records", (own[0][:0], own[1][:0])))
        first = [*map(Change, dict.fromkeys([size, *counts])), *Change.untrainable(form, size)]
        for number in range(changes):
            change = Change.drawn(self._draw, form, counts)
            if number < len(first):
                change = first[number]
            elif self._best and self._draw.random() < 0.5:
                change = self._best[1].mutated(change, self._draw)
            one = self._changed(round_, unit, change)
            for other in without:
                move = self._move(round_, unit, one, other, real, allowed=1)
                if self._best is None or move.distance > self._best[0]:
                    self._best = move.distance, change
                moves.append(move)
        return moves

    def _changed(self, round_: int, unit: int, change: Change) -> _World:
        another = int(self._draw.integers(self._plan.units))
        records = change.of(records_of(self._dataset, unit), records_of(self._dataset, another), self._dataset)
        return self._world(round_, unit, str(change), records)

    def _world(self, round_: int, unit: int, description: str, records: PlantedRecords | None) -> _World:
        with self._federation.planted(np.array([unit]), records):
            return description, self._federation.collect(round_)

    def _move(self, round_: int, unit: int, one: _World, other: _World, real: Aggregate, allowed: int) -> Move:
        (records, found), (against, other_found) = one, other
        distances = self._distances(found, other_found)
        part = max(distances, key=lambda name: distances[name])
        is_told = found.reported != real.reported
        return Move(round_, unit, records, against, distances[part], part, allowed, is_told)

    def _distances(self, one: Aggregate, other: Aggregate) -> dict[str, float]:
        """Distances in clips, by part of the model; and of the count that an adaptive norm follows."""
        plan, strategy, distances = self._plan, self._federation.strategy, dict[str, float]()
        pipeline = strategy.pipeline
        differences = {name: array - other.sums[name] for name, array in one.sums.items()}
        clips, coordinates = pipeline.clips(strategy.state), plan.linf_coordinates
        for part, norm, clip in zip(plan.parts, pipeline.model.norms(differences), clips, strict=True):
            distances[part.name] = norm / clip
        for name, array in differences.items() if coordinates else ():
            index = pipeline.model.part_of[name]
            largest = float(np.abs(array).max()) * math.sqrt(coordinates) / clips[index]
            distances[plan.parts[index].name] = max(distances[plan.parts[index].name], largest)
        if not plan.clipping.is_fixed:
            distances["updates below the clip"] = float(abs(one.below_clip - other.below_clip))
        return distances
