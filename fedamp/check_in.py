"""Check-in schedules: who takes part in which round, and what that does to privacy.

One frozen object gives both the cohorts that the server asks and the expression that the accountant charges, so the
two cannot disagree. Its fields are public facts; the number of units and the seed, which may be secret, are arguments.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedamp import rng, scenario
from fedamp.accounting import Allocation, Compose, Mechanism, Poisson, Repeat

Cohort = NDArray[np.int64]


class Schedule(Protocol):
    """Who checks in when."""

    @property
    def rounds(self) -> int:
        """Number of rounds."""

    def cohorts(self, units: int, seed: int) -> Iterator[Cohort]:
        """The cohort of every round in turn: sorted ids of the units that check in."""

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        """What all rounds cost a unit, if taking part in one costs ``round_mechanism``."""

    def most_check_ins(self, rounds: int) -> int:
        """How many of the first ``rounds`` rounds a unit can have taken part in: what it pays without amplification."""

    def expected_cohort(self, units: int) -> float:
        """Expected cohort size of a round, a public number: the denominator of the mean update."""


@dataclass(frozen=True)
class Everybody:
    """Everybody takes part in every round.

    Formal guarantees: every cohort is all units. No amplification is charged.
    """

    rounds: int

    def cohorts(self, units: int, seed: int) -> Iterator[Cohort]:
        for _ in range(self.rounds):
            yield np.arange(units)

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        return Repeat(round_mechanism, self.rounds)

    def most_check_ins(self, rounds: int) -> int:
        return rounds

    def expected_cohort(self, units: int) -> float:
        return float(units)


@dataclass(frozen=True)
class Independent:
    """Poisson sampling: in every round every unit takes part with probability ``rate``, independently.

    Formal guarantees: memberships are independent over units and over rounds, each of probability ``rate``;
    cohorts may be empty, and an empty round is released like any other.
    """

    rounds: int
    rate: float

    def cohorts(self, units: int, seed: int) -> Iterator[Cohort]:
        for round_ in range(1, self.rounds + 1):
            yield np.flatnonzero(rng.stream(seed, "check-in", round_).random(units) < self.rate)

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        return Repeat(Poisson(round_mechanism, self.rate), self.rounds)

    def most_check_ins(self, rounds: int) -> int:
        return rounds

    def expected_cohort(self, units: int) -> float:
        return self.rate * units


@dataclass(frozen=True)
class Balanced:
    """Balanced iteration subsampling: every unit takes part in exactly ``k`` hidden rounds.

    Formal guarantees: the set of rounds of every unit is uniform among all sets of ``k`` out of ``rounds``, and
    independent over units (Dong, Chen, Özgür 2025, section 3.3; Feldman, Shenfeld 2025, k-out-of-t allocation).

    Each round takes a unit with probability (check-ins it still owes) / (rounds still to come), which is exactly that
    law, needs one small integer a unit, and never looks ahead.
    """

    rounds: int
    k: int

    def cohorts(self, units: int, seed: int) -> Iterator[Cohort]:
        return _owed_check_ins(units, seed, first_round=1, rounds=self.rounds, k=self.k)

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        return Allocation(round_mechanism, self.k, self.rounds)

    def most_check_ins(self, rounds: int) -> int:
        return min(rounds, self.k)

    def expected_cohort(self, units: int) -> float:
        return units * self.k / self.rounds


@dataclass(frozen=True)
class Stratified:
    """One hidden round in each of ``k`` consecutive blocks, their lengths as equal as integers allow.

    Formal guarantees: in every block every unit takes part exactly once, in a uniformly random round, independently
    over blocks and units.
    """

    rounds: int
    k: int

    def cohorts(self, units: int, seed: int) -> Iterator[Cohort]:
        first_round = 1
        for length in self.block_lengths():
            yield from _owed_check_ins(units, seed, first_round, length, k=1)
            first_round += length

    def block_lengths(self) -> list[int]:
        """Number of rounds of every block."""
        shorter, longer = divmod(self.rounds, self.k)
        return [shorter + (block < longer) for block in range(self.k)]

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        blocks = [Allocation(round_mechanism, 1, length) for length in self.block_lengths()]
        return Repeat(blocks[0], self.k) if len(set(blocks)) == 1 else Compose(tuple(blocks))

    def most_check_ins(self, rounds: int) -> int:
        starts = np.cumsum([0, *self.block_lengths()[:-1]])
        return int(np.searchsorted(starts, rounds, side="left"))

    def expected_cohort(self, units: int) -> float:
        return units * self.k / self.rounds


def schedule_of(check_in: scenario.CheckIn, rounds: int) -> Schedule:
    """The schedule that a scenario's ``check_in`` section names."""
    match check_in:
        case scenario.AllCheckIn():
            return Everybody(rounds)
        case scenario.PoissonCheckIn(rate=rate):
            return Independent(rounds, rate)
        case scenario.BalancedCheckIn(k=k):
            return Balanced(rounds, k)
        case scenario.StratifiedCheckIn(k=k):
            return Stratified(rounds, k)


class Attendance:
    """The cohorts of one run, by round; asking for rounds in order, or for the one before, costs nothing extra."""

    def __init__(self, schedule: Schedule, units: int, seed: int) -> None:
        self._schedule, self._units, self._seed = schedule, units, seed
        self._round = 0
        self._previous = self._current = np.empty(0, dtype=np.int64)
        self._cohorts = schedule.cohorts(units, seed)

    def cohort(self, round_: int) -> Cohort:
        """Sorted ids of the units that check in to ``round_`` (from 1)."""
        if not 1 <= round_ <= self._schedule.rounds:
            raise ValueError(f"round must be in 1..{self._schedule.rounds}, got {round_}")
        if 1 <= round_ == self._round - 1:
            return self._previous
        if round_ < self._round:
            self._round, self._cohorts = 0, self._schedule.cohorts(self._units, self._seed)
        while self._round < round_:
            self._previous, self._current = self._current, next(self._cohorts)
            self._round += 1
        return self._current


def _owed_check_ins(units: int, seed: int, first_round: int, rounds: int, k: int) -> Iterator[Cohort]:
    owed = np.full(units, k, dtype=np.int32)
    for index in range(rounds):
        # Integer draws make the probability owed / left exact, not exact up to a rounding of the quotient.
        draw = rng.stream(seed, "check-in", first_round + index).integers(0, rounds - index, size=units, dtype=np.int32)
        cohort = np.flatnonzero(draw < owed)
        owed[cohort] -= 1
        yield cohort
