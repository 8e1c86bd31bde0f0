"""Check-in schedules: who takes part in which round, and what that does to privacy.

One frozen object draws the cohorts, gives the expression that is charged and the likelihood ratio that an audit attacks
with, so the three cannot disagree. Its fields are public; the number of units and the seed are arguments.

A further schedule is a section in :mod:`fedamp.federation.privacy` and a class here, in ``SCHEDULES``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedamp import accounting, rng
from fedamp.accounting import Allocation, Compose, Mechanism, Poisson, Repeat
from fedamp.federation.privacy import CheckIn

UnitIds = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule(ABC):
    """Who checks in when.

    Attributes:
        rounds: number of rounds.
        scheme: its name in a scenario's ``check_in`` section. All other fields are the section's keys.
        drawn_together: whether a unit's rounds depend on each other. If so, rounds that cost unlike amounts cannot be
            charged one after the other.
        is_hidden: whether anything about who takes part when is drawn at random.
    """

    rounds: int
    scheme: ClassVar[str]
    is_hidden: ClassVar[bool]

    @property
    @abstractmethod
    def drawn_together(self) -> bool: ...

    @abstractmethod
    def cohorts(self, units: int, seed: int) -> Iterator[UnitIds]:
        """The cohort of every round in turn: sorted ids of the units that check in."""

    @abstractmethod
    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        """What all rounds cost a unit, if taking part in one costs ``round_mechanism``."""

    @abstractmethod
    def most_check_ins(self, rounds: int) -> int:
        """How many of the first ``rounds`` rounds a unit can have taken part in: what it pays without amplification."""

    @abstractmethod
    def expected_cohort(self, units: int) -> float:
        """Expected cohort size of a round, a public number: the denominator of the mean update."""

    @abstractmethod
    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        """Log-likelihood ratio of a whole run, a unit in it against not.

        Args:
            ratios: [repetitions, rounds], log-likelihood ratios of each round, the unit taking part against not.

        Returns:
            Array of shape [repetitions].
        """

    @abstractmethod
    def shortened(self, rounds: int) -> Self:
        """A schedule of fewer rounds with about the same rate of check-ins."""

    def stretch(self, first: int, rounds: int) -> "Schedule":
        """What this schedule does in ``rounds`` rounds from round ``first`` (from 1) on.

        Raises:
            ValueError: a part of its rounds is no schedule, or its class does not say which.
        """
        raise ValueError(
            f"check_in.scheme {self.scheme}: no stretch of rounds that are drawn together stands by itself"
        )

    def keys(self) -> dict[str, Any]:
        """The keys of the scenario's section that gives this schedule."""
        return {key: value for key, value in asdict(self).items() if key != "rounds"}


class _AlikeRounds(Schedule):
    """A unit's rounds are drawn independently of each other, all by the same law."""

    drawn_together = False

    def most_check_ins(self, rounds: int) -> int:
        return rounds

    def shortened(self, rounds: int) -> Self:
        return replace(self, rounds=rounds)

    def stretch(self, first: int, rounds: int) -> Schedule:
        return replace(self, rounds=rounds)


@dataclass(frozen=True)
class Everybody(_AlikeRounds):
    """Everybody takes part in every round.

    Formal guarantees: every cohort is all units. No amplification is charged.
    """

    scheme = "all"
    is_hidden = False

    def cohorts(self, units: int, seed: int) -> Iterator[UnitIds]:
        for _ in range(self.rounds):
            yield np.arange(units)

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        return Repeat(round_mechanism, self.rounds)

    def expected_cohort(self, units: int) -> float:
        return float(units)

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        return np.asarray(ratios.sum(1))


@dataclass(frozen=True)
class Independent(_AlikeRounds):
    """Poisson sampling: in every round every unit takes part with probability ``rate``, independently.

    Formal guarantees: memberships are independent over units and over rounds, each of probability ``rate``;
    cohorts may be empty, and an empty round is released like any other.
    """

    rate: float
    scheme = "poisson"
    is_hidden = True

    def cohorts(self, units: int, seed: int) -> Iterator[UnitIds]:
        for round_ in range(1, self.rounds + 1):
            yield np.flatnonzero(rng.happens(rng.stream(seed, "check-in", round_).words(units), self.rate))

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        return Repeat(Poisson(round_mechanism, self.rate), self.rounds)

    def expected_cohort(self, units: int) -> float:
        return self.rate * units

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        return np.asarray(_thinned(ratios, self.rate).sum(1))


@dataclass(frozen=True)
class CappedPoisson(Schedule):
    """Poisson sampling with a cap: in as many hidden rounds as coins of probability ``rate`` come to, but at most
    ``at_most``.

    Formal guarantees: the number of a unit's rounds is that of ``rounds`` coins, capped; its rounds are uniform among
    all sets of that size, and units are independent (the scheme in the proof of Feldman, Shenfeld 2025, Corollary 4.7).

    Who reaches the cap is not sent away for the rest of the run, which would empty the last rounds: all rounds expect
    as many units.
    """

    rate: float
    at_most: int
    drawn_together = True
    is_hidden = True
    scheme = "capped-poisson"

    def cohorts(self, units: int, seed: int) -> Iterator[UnitIds]:
        numbers = np.zeros(units, dtype=np.uint32)
        for coin in range(1, self.rounds + 1):
            numbers += rng.happens(rng.stream(seed, "check-in coin", coin).words(units), self.rate)
        return _owed_check_ins(seed, 1, self.rounds, np.minimum(numbers, self.at_most))

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        return accounting.CappedPoisson(round_mechanism, self.rate, self.at_most, self.rounds)

    def most_check_ins(self, rounds: int) -> int:
        return min(rounds, self.at_most)

    def expected_cohort(self, units: int) -> float:
        return units * float(np.minimum(np.arange(self.rounds + 1), self.at_most) @ self._chances()) / self.rounds

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        chances, numbers = self._chances(), np.minimum(np.arange(self.rounds + 1), self.at_most)
        sums = _log_sums_over_sets(ratios, self.at_most)
        means = [sums[k] - math.log(math.comb(self.rounds, k)) for k in range(self.at_most + 1)]
        with np.errstate(divide="ignore"):
            capped = np.log(np.bincount(numbers, chances))
        return np.asarray(np.logaddexp.reduce(np.stack(means) + capped[:, None], axis=0))

    def shortened(self, rounds: int) -> Self:
        return replace(self, rounds=rounds, at_most=max(1, round(self.at_most * rounds / self.rounds)))

    def _chances(self) -> Floats:
        """Of as many coins as rounds: the chance of each number of successes."""
        from scipy.stats import binom  # only here: it takes a while

        return np.asarray(binom.pmf(np.arange(self.rounds + 1), self.rounds, self.rate))


@dataclass(frozen=True)
class _KOfRounds(Schedule):
    """Every unit is scheduled for exactly ``k`` hidden rounds.

    Whoever declines counts as zero and is charged as if taking part: that covers any declining, whatever it depends on
    (docs/k-of-t.md), and less would not.
    """

    k: int
    drawn_together = True
    is_hidden = True

    def expected_cohort(self, units: int) -> float:
        return units * self.k / self.rounds

    def shortened(self, rounds: int) -> Self:
        return replace(self, rounds=rounds, k=max(1, round(self.k * rounds / self.rounds)))


@dataclass(frozen=True)
class Balanced(_KOfRounds):
    """Balanced iteration subsampling: every unit is scheduled for exactly ``k`` hidden rounds.

    Formal guarantees: the set of rounds of every unit is uniform among all sets of ``k`` out of ``rounds``, and
    independent over units (Dong, Chen, Özgür 2025, section 3.3; Feldman, Shenfeld 2025, k-out-of-t allocation).

    Each round takes a unit with probability (check-ins it still owes) / (rounds still to come), which is exactly that
    law, needs one small integer a unit, and never looks ahead.
    """

    scheme = "balanced"

    def cohorts(self, units: int, seed: int) -> Iterator[UnitIds]:
        return _owed_check_ins(seed, 1, self.rounds, np.full(units, self.k, dtype=np.uint32))

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        return Allocation(round_mechanism, self.k, self.rounds)

    def most_check_ins(self, rounds: int) -> int:
        return min(rounds, self.k)

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        sums = _log_sums_over_sets(ratios, self.k)
        return np.asarray(sums[self.k] - math.log(math.comb(self.rounds, self.k)))


@dataclass(frozen=True)
class Stratified(_KOfRounds):
    """One hidden round in each of ``k`` consecutive blocks, their lengths as equal as integers allow.

    Formal guarantees: in every block every unit is scheduled exactly once, in a uniformly random round, independently
    over blocks and units.
    """

    scheme = "stratified"

    def cohorts(self, units: int, seed: int) -> Iterator[UnitIds]:
        first_round = 1
        for length in self.block_lengths():
            yield from _owed_check_ins(seed, first_round, length, np.ones(units, dtype=np.uint32))
            first_round += length

    def block_lengths(self) -> list[int]:
        """Number of rounds of every block."""
        shorter, longer = divmod(self.rounds, self.k)
        return [shorter + (block < longer) for block in range(self.k)]

    def charge(self, round_mechanism: Mechanism) -> Mechanism:
        blocks = [Allocation(round_mechanism, 1, length) for length in self.block_lengths()]
        return Repeat(blocks[0], self.k) if len(set(blocks)) == 1 else Compose(tuple(blocks))

    def most_check_ins(self, rounds: int) -> int:
        shorter, longer = divmod(self.rounds, self.k)  # the first ``longer`` blocks have a round more
        in_longer = min(rounds, longer * (shorter + 1))
        return -(-in_longer // (shorter + 1)) + -(-(rounds - in_longer) // shorter)

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        blocks = np.split(ratios, np.cumsum(self.block_lengths())[:-1], axis=1)
        return np.asarray(np.sum([log_mean(block, axis=1) for block in blocks], axis=0))


SCHEDULES: dict[str, type[Schedule]] = {
    each.scheme: each for each in (Everybody, Independent, CappedPoisson, Balanced, Stratified)
}


def schedule_of(section: CheckIn, rounds: int) -> Schedule:
    """The schedule that a scenario's ``check_in`` section names."""
    return SCHEDULES[section.scheme](rounds, **section.model_dump(exclude={"scheme"}))


class Attendance:
    """The cohorts of one run, by round; asking for rounds in order, or for the one before, costs nothing extra."""

    def __init__(self, schedule: Schedule, units: int, seed: int) -> None:
        self._schedule, self._units, self._seed = schedule, units, seed
        self._round = 0
        self._previous = self._current = np.empty(0, dtype=np.int64)
        self._cohorts = schedule.cohorts(units, seed)

    def cohort(self, round_: int) -> UnitIds:
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


def log_mean(logs: Floats, axis: int) -> Floats:
    """Log of the mean of exponentials."""
    return np.asarray(np.logaddexp.reduce(logs, axis=axis) - math.log(logs.shape[axis]))


def _thinned(ratios: Floats, rate: float) -> Floats:
    """Log-likelihood ratios of rounds in which a unit takes part with probability ``rate``."""
    if rate == 1:
        return ratios
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + ratios))


def _log_sums_over_sets(ratios: Floats, most: int) -> Floats:
    """Logs of the elementary symmetric polynomials of degree 0, .., ``most``, shape [most + 1, repetitions]."""
    sums = np.full((most + 1, len(ratios)), -np.inf)
    sums[0] = 0
    for round_ in ratios.T:
        sums[1:] = np.logaddexp(sums[1:], sums[:-1] + round_)
    return sums


def _owed_check_ins(seed: int, first_round: int, rounds: int, check_ins: NDArray[Any]) -> Iterator[UnitIds]:
    """Each unit in as many rounds as ``check_ins`` says, shape [units], a uniform set of them."""
    owed = check_ins.astype(np.uint32)
    for index in range(rounds):
        # Integer draws make the probability owed / left exact, not exact up to a rounding of the quotient.
        draw = rng.stream(seed, "check-in", first_round + index).integers(rounds - index, len(owed))
        cohort = np.flatnonzero(draw < owed)
        owed[cohort] -= 1
        yield cohort
