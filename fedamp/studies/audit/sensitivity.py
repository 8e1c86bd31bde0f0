"""How far one unit's data move the sum of a round, before its noise: the real code on neighbouring data.

The charge rests on zero-out: a unit that is in a round moves the sum by at most the clip, in every part of the model.
The rounds of a run are played as they are. Each is also played from the same model and seeds with other records for one
unit, with none, and with the unit not there. A unit that is not in a round must not move anything.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Message

from fedamp import rng
from fedamp.client.app import node_of
from fedamp.data import Dataset
from fedamp.engines import flower
from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.faults import only, with_faults
from fedamp.engines.serial import SerialGrid
from fedamp.errors import ScenarioError
from fedamp.federation.plan import ADJACENCY
from fedamp.federation.scenario import Scenario
from fedamp.runs.folder import new_folder
from fedamp.server.loop import ask
from fedamp.server.setup import prepare
from fedamp.strategies.aggregation import Aggregate
from fedamp.studies.audit.neighbours import ITS_OWN, Arrays, Change, Neighbour, records_of

# Changes of one unit that are tried one after the other; then another unit has its turn.
_IN_A_ROW = 10

# How many records a unit may have instead of its own.
_COUNTS = (1, 2, 17, 100)

# Numbers in the inputs of a cohort, were all its units as large as the changed one: 64 MiB.
_MOST_NUMBERS = 1 << 24


@dataclass(frozen=True)
class Move:
    """Two data sets that differ in one unit's records, and how far a round's sums are from one another.

    Attributes:
        round, unit: whose records differ, in which round.
        records, against: of the unit in the one and in the other, in words.
        distance: the largest in any part of the model, in clips.
        part: that part.
        allowed: what is charged: 1, or 0 where the unit is not in the round.
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
        """The larger, the worse: the first two say whether it is more than is charged.

        There is no tolerance: sums of whole quanta have no rounding, and clipping aims
        :data:`fedamp.client.clipping.MARGIN` below 1, far more than the rounding of a norm in float64.
        """
        return not self.distance <= self.allowed, self.is_told, self.distance

    @property
    def is_too_far(self) -> bool:
        """Whether it is more than is charged."""
        return any(self.rank[:2])

    def __str__(self) -> str:
        found = f"the sum moves by {self.distance:.3g} clips, and at most {self.allowed} is charged"
        if self.is_told:
            found = f"the number of reports differs; {found}" if self.rank[0] else "the number of reports differs"
        return f"{found}, in round {self.round} (unit {self.unit}: {self.records}, against {self.against})"


@dataclass(frozen=True)
class Sensitivity:
    """The answer of a search.

    Attributes:
        scenario: what was played.
        moves: of each round the largest distance, and one in which the number of reports differs, if there is any.
        repetitions: how many changes were tried.
        kept: the folder of the two data sets of the largest, if that is more than is charged.
    """

    scenario: Scenario
    moves: tuple[Move, ...]
    repetitions: int
    kept: Path | None = None

    @property
    def refuted(self) -> bool:
        """Whether one unit's data count for more than is charged."""
        return self.kept is not None

    def to_json(self) -> dict[str, Any]:
        """What ``fedamp audit --sensitivity --json`` prints."""
        return {
            "scenario": self.scenario.name,
            "verdict": "refuted" if self.refuted else "consistent",
            "largest_distance": max(move.distance for move in self.moves),
            "unit": self.scenario.privacy.unit,
            "adjacency": ADJACENCY,
            "repetitions": self.repetitions,
            "rounds": [asdict(move) for move in self.moves],
            "kept": None if self.kept is None else str(self.kept),
            "repeat": self.kept
            and f"fedamp audit {self.kept / 'scenario.yaml'} --sensitivity --repetitions {self.repetitions} "
            f"--rounds {self.moves[-1].round}",
        }

    def refutation(self) -> str:
        """One line that says what cannot be, and where the data are that show it."""
        worst = max(self.moves, key=lambda move: move.rank)
        return f"audit: {worst}; both data sets are in {self.kept}"


def sensitivity(
    scenario: Scenario,
    repetitions: int = 500,
    rounds: int = 8,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Sensitivity:
    """Search for the largest distance between a round's sums on neighbouring data.

    Args:
        scenario: validated, its paths absolute. Its seed decides everything.
        repetitions: how many changes of a unit's records are tried, in all rounds together.
        rounds: how many rounds are played, from the first.
        progress: called with the number of finished repetitions, and of all.

    Raises:
        InputError: a scenario that cannot be prepared, or an argument out of range.
        FederationError: the run could not go on.
    """
    if repetitions < 1 or rounds < 1:
        raise ScenarioError(f"--repetitions {repetitions}, --rounds {rounds}: expected: at least 1 each")
    search, rounds = _Search(scenario), min(rounds, scenario.rounds, repetitions)
    moves: list[Move] = []
    ends = [repetitions * round_ // rounds for round_ in range(rounds + 1)]
    with flower.chatter_to(Path(os.devnull), "fedamp"):  # what cannot be trained on is logged every time
        for round_ in range(1, rounds + 1):
            moves += search.round(round_, ends[round_] - ends[round_ - 1])
            progress(ends[round_], repetitions)
    return search.kept(Sensitivity(scenario, tuple(moves), repetitions))


class _Grid(SerialGrid):
    """The serial engine, on which one unit may have other records, or not be there."""

    def __init__(self, task_json: str, device: str) -> None:
        super().__init__(CLIENT_APP, device)
        self._client, self._absent = node_of(task_json, "", self._node.device, None), -1
        self.dataset = self._client.dataset

    def change(self, unit: int, records: Arrays | None) -> None:
        """From now on a unit has these records; None: it is not there."""
        self._absent = unit if records is None else -1
        changed = self.dataset if records is None else Neighbour(self.dataset, unit, records)
        self._client.dataset = cast(Dataset, changed)

    def restore(self) -> None:
        """From now on all units have their own records."""
        self._absent, self._client.dataset = -1, self.dataset

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        if self._absent >= 0 and asked and asked[0].metadata.message_type == "train":
            asked = [only(each, np.array(each.content["config"]["clients"]) != self._absent) for each in asked]
        return super().send_and_receive(asked, timeout=timeout)


class _World(NamedTuple):
    """One of two data sets: a unit's records, in words and as they are (None: not there), and what a round adds up."""

    words: str
    records: Arrays | None
    found: Aggregate


class _Search:
    """A run, of which every round is played many times from the same model."""

    def __init__(self, scenario: Scenario) -> None:
        engine = scenario.engine.model_copy(update={"kind": "serial"})
        # A known seed: a round that is played again has the same noise, check-ins, submodels and orders of records.
        self._scenario = scenario.model_copy(update={"known_seed": True, "engine": engine})
        prepared = prepare(self._scenario)
        self._plan, self._strategy = prepared.plan, prepared.strategy(prepared.state)
        self._local = _Grid(prepared.task.to_json(), engine.device)
        self._grid, self._dataset = with_faults(self._local, scenario.faults), self._local.dataset
        self._best: tuple[float, Change] | None = None
        self._worst: tuple[Move, _World, _World] | None = None

    def round(self, round_: int, repetitions: int) -> list[Move]:
        """Play a round so often, and once for the run; returns what was worst."""
        draw, moves = rng.public_stream(self._plan.seed, "sensitivity", round_), list[Move]()
        cohort = self._plan.attendance.cohort(round_)
        others = np.setdiff1d(np.arange(self._plan.units), cohort)
        real = ask(self._strategy, self._grid, round_)
        try:
            for first in range(0, repetitions, _IN_A_ROW):
                changes = min(_IN_A_ROW, repetitions - first)
                if len(cohort):
                    moves += self._of_a_unit(round_, int(draw.choice(cohort)), changes, real, draw)
                if len(others):
                    unit = int(draw.choice(others))
                    change = Change.drawn(draw, self._dataset.form, self._counts(round_))
                    one = self._changed(round_, unit, change, draw)
                    own = _World(ITS_OWN, records_of(self._dataset, unit), real)
                    moves.append(self._move(round_, unit, one, own, real, allowed=0))
        finally:
            self._local.restore()
        pipeline = self._strategy.pipeline  # without a quorum: a small cohort is no reason to end the search
        self._strategy.state, _ = pipeline.release(self._strategy.state, round_, real, needs_quorum=False)
        largest = max(moves, key=lambda move: (move.rank[0], move.distance))
        told = [move for move in moves if move.is_told and move is not largest]
        return [largest, *told[:1]]

    def kept(self, found: Sensitivity) -> Sensitivity:
        """Keep both data sets of the largest distance, if it is more than is charged."""
        assert self._worst is not None, "a round was played"
        worst, *worlds = self._worst
        if not worst.is_too_far:
            return found
        folder, _ = new_folder(None, f"sensitivity-{found.scenario.name}", private=True)
        folder.write_scenario(found.scenario)
        found = replace(found, kept=folder.path)
        (folder.path / "sensitivity.json").write_text(json.dumps(found.to_json(), indent=2))
        for name, world in zip(("one.npz", "other.npz"), worlds, strict=True):
            np.savez_compressed(folder.path / name, **self._records(worst, world))
        return found

    def _records(self, move: Move, world: _World) -> dict[str, Any]:
        """All records of a round in one of the two data sets: inputs x, labels y, and whose they are."""
        cohort = self._plan.attendance.cohort(move.round)
        each = {int(unit): self._dataset.gather(np.array([unit])) for unit in cohort}
        records = {unit: (one.inputs[0], one.labels[0]) for unit, one in each.items()}
        if world.records is None:
            records.pop(move.unit)
        else:
            records[move.unit] = world.records
        client = np.repeat(list(records), [len(labels) for _, labels in records.values()])
        inputs, labels = zip(*records.values(), strict=True)
        return {"x": np.concatenate(inputs), "y": np.concatenate(labels), "client": client}

    def _of_a_unit(
        self, round_: int, unit: int, changes: int, real: Aggregate, draw: np.random.Generator
    ) -> Iterator[Move]:
        """Changes of a unit of the cohort, each against the unit not being there, and against it without records."""
        own, size = records_of(self._dataset, unit), max(1, int(self._dataset.sizes(np.array([unit]))[0]))
        without = [self._world(round_, unit, "not there", None)]
        if self._scenario.privacy.unit == "client":  # a record cannot be without one
            without.append(self._world(round_, unit, "no records", (own[0][:0], own[1][:0])))
        counts = self._counts(round_)
        first = [*map(Change, dict.fromkeys([size, *counts])), *Change.untrainable(self._dataset.form, size)]
        for number in range(changes):
            change = Change.drawn(draw, self._dataset.form, counts)
            if number < len(first):
                change = first[number]
            elif self._best and draw.random() < 0.5:
                change = self._best[1].mutated(change, draw)
            one = self._changed(round_, unit, change, draw)
            for other in without:
                move = self._move(round_, unit, one, other, real, allowed=1)
                if self._best is None or move.distance > self._best[0]:
                    self._best = move.distance, change
                yield move

    def _counts(self, round_: int) -> list[int]:
        """How many records a unit may have: one where it is a record, and no more than memory has room for."""
        numbers = len(self._plan.attendance.cohort(round_)) * math.prod(self._dataset.input_shape)
        most = 1 if self._scenario.privacy.unit == "sample" else _MOST_NUMBERS // max(numbers, 1)
        return [count for count in _COUNTS if count <= max(most, 1)]

    def _changed(self, round_: int, unit: int, change: Change, draw: np.random.Generator) -> _World:
        another = int(draw.integers(self._plan.units))
        records = change.of(records_of(self._dataset, unit), records_of(self._dataset, another), self._dataset)
        return self._world(round_, unit, str(change), records)

    def _world(self, round_: int, unit: int, words: str, records: Arrays | None) -> _World:
        self._local.change(unit, records)
        return _World(words, records, ask(self._strategy, self._grid, round_))

    def _move(self, round_: int, unit: int, one: _World, other: _World, real: Aggregate, allowed: int) -> Move:
        distances = self._distances(one.found, other.found)
        part = max(distances, key=lambda name: distances[name])
        is_told = one.found.reported != real.reported
        move = Move(round_, unit, one.words, other.words, distances[part], part, allowed, is_told)
        if self._worst is None or move.rank > self._worst[0].rank:
            self._worst = move, one, other
        return move

    def _distances(self, one: Aggregate, other: Aggregate) -> dict[str, float]:
        """In clips, by part of the model; and of the count that an adaptive norm follows."""
        plan, pipeline, distances = self._plan, self._strategy.pipeline, dict[str, float]()
        differences = {name: array - other.sums[name] for name, array in one.sums.items()}
        clips, coordinates = pipeline.clips(self._strategy.state), plan.mixing.linf_coordinates
        for part, norm, clip in zip(plan.parts, pipeline.model.norms(differences), clips, strict=True):
            distances[part.name] = norm / clip
        for name, array in differences.items() if coordinates else ():
            index = pipeline.model.part_of[name]
            largest = float(np.abs(array).max()) * math.sqrt(coordinates) / clips[index]
            distances[plan.parts[index].name] = max(distances[plan.parts[index].name], largest)
        if not plan.clipping.is_fixed:
            distances["updates below the clip"] = float(abs(one.below_clip - other.below_clip))
        return distances
