"""Check-in schemes: decide who takes part in which round, and how much privacy that saves.

A section of a scenario is the scheme itself. It draws the cohorts, and it gives the expression that is charged and the
likelihood ratio with which an audit attacks. So the three cannot disagree. Its keys are public; the numbers of rounds
and units and the seed are arguments.

A further scheme is one class here and its name in ``CHECK_INS``. Each key needs an example, ``Field(examples=[...])``,
which tests/federation/test_check_in.py tries. Schemes of extensions and of other packages subclass :class:`CheckIn`,
too (:mod:`fedamp.federation.choices`).

>>> scheme = BalancedCheckIn(scheme="balanced", k=3)
>>> sum(len(cohort) for cohort in scheme.cohorts(rounds=5, units=100, seed=7))
300
>>> print(scheme.charge(accounting.Gaussian(2.0), rounds=5))
3 hidden rounds of 5 (Gaussian noise of multiplier 2), zero-out
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from fedamp import rng
from fedamp.base.arrays import Floats
from fedamp.base.section import Count, Probability
from fedamp.base.start import Later
from fedamp.federation import facts
from fedamp.federation.facts import Claim, Declared

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism
else:
    accounting = Later("fedamp.accounting")  # a node charges nothing, and its processes start sooner

CANARY = 1 << 40  # the id of the first canary (``privacy.canaries``): a unit of no person, to audit the run

UnitIds = NDArray[np.int64]

CheckInRate = Annotated[
    Probability, Field(examples=[0.4], description="probability that a unit takes part in a round (a coin of a round)")
]


USUAL_FACTS = frozenset({facts.UNITS_INDEPENDENT, facts.UNITS_ALIKE, facts.GROUPS_CHARGED})


class CheckIn(Declared, ABC):
    """Base of the schemes that decide who takes part in which round.

    A scheme draws one cohort a round from a seed, and charges exactly that law. Units of a scheme that keeps
    ``facts.UNITS_INDEPENDENT`` check in independently, so that a unit's rounds tell nothing of another's.

    Attributes:
        scheme: its name in a scenario.
        drawn_by: ``server`` or ``node``, which draws the rounds.
        rounds_are_independent: whether a unit's rounds are drawn independently, each by the same law. Otherwise rounds
            with different costs cannot be charged one after the other. Default: False, which claims nothing.
        is_hidden: whether anything about the cohorts is drawn at random.
        relation: the neighbours that are charged (``accounting.Relation``).
    """

    scheme: str
    drawn_by: Literal["server", "node"] = Field(
        "server",
        description="who draws the rounds; node: each node those of its units, so that the server does not know them "
        "(aggregation: {scheme: secure})",
        exclude_if=lambda who: who == "server",
        examples=["node"],
    )
    rounds_are_independent: ClassVar[bool] = False
    is_hidden: ClassVar[bool] = True
    relation: ClassVar[str] = "zero-out"
    concerns = frozenset(
        {
            facts.ROUNDS_APART,
            facts.ANY_ROUNDS_APART,
            facts.UNITS_INDEPENDENT,
            facts.UNITS_ALIKE,
            facts.GROUPS_CHARGED,
        }
    )
    needs: ClassVar[tuple[Claim, ...]] = (
        Claim(facts.SUM_OF_ALL, "drawn_by", "server", lambda scenario: scenario.check_in.drawn_by == "node"),
        Claim(facts.UNITS_INDEPENDENT, "drawn_by", "server", lambda scenario: scenario.check_in.drawn_by == "node"),
    )

    @property
    def units_are_independent(self) -> bool:
        """Say whether a unit's check-ins tell nothing about another's.

        Otherwise a party that sees the check-ins of some units, as a node does, is charged as if it saw all.
        """
        return facts.UNITS_INDEPENDENT in self.keeps

    def check_rounds(self, rounds: int) -> None:
        """Refuse keys that do not fit the number of rounds.

        Raises:
            ValueError: one line with the path of the key.
        """

    def check_units(self, units: int) -> None:
        """Refuse keys that do not fit the number of units.

        Raises:
            ValueError: one line with the path of the key.
        """

    @abstractmethod
    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        """Draw the cohort of every round in turn.

        Args:
            rounds: of the run, at least 1.
            units: their ids are 0 to ``units - 1``.
            seed: the same one gives the same cohorts, on every machine. Each round has a stream of its own.

        Yields:
            Sorted ids of the units that check in, shape [cohort]; perhaps empty.
        """

    @abstractmethod
    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        """Make the cost of all rounds for a unit.

        Args:
            one_round: the cost of taking part in one round.
            rounds: of the run.

        Returns:
            An expression that costs no less than the law of :meth:`cohorts`; the contract of :mod:`fedamp.testing`
            checks it by a simulation.
        """

    @abstractmethod
    def most_check_ins(self, first: int, rounds: int) -> int:
        """Count the most check-ins that a unit can have in the first rounds: its cost without amplification.

        Args:
            first: number of first rounds, from 1 to ``rounds``.
            rounds: of the run.
        """

    @abstractmethod
    def expected_cohort(self, rounds: int, units: int) -> float:
        """Compute the expected cohort size of a round, a public number: the denominator of the mean update.

        Every round of a run is divided by the same number, also where a scheme's rounds differ.
        """

    @abstractmethod
    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        """Compute the log-likelihood ratio of a whole run, with a unit against without it, for an audit.

        Args:
            ratios: shape [repetitions, rounds], log-likelihood ratios of each round, the unit taking part against not.

        Returns:
            Array of shape [repetitions].
        """

    def known_cost(self, one_round: "Mechanism") -> "Mechanism":
        """Make the cost of a round for a unit that is known to take part.

        Args:
            one_round: the cost of taking part in one round, in which a submodel may be hidden.

        Returns:
            The cost without any amplification; a scheme overrides it if being known costs even more.
        """
        return one_round.unamplified()

    def fitted_to(self, coefficients: tuple[float, ...], units: int) -> Self:
        """Return the scheme of a run, where it depends on the noise or on the number of units.

        Args:
            coefficients: c_1, c_2, .. of correlated noise; empty for independent noise.
            units: of the run.
        """
        return self

    @property
    def independent_scheme(self) -> "CheckIn | None":
        """Scheme with which noise is compared: balanced check-in of as many rounds a unit; None: there is none."""
        return None

    @property
    def stand_in(self) -> "CheckIn":
        """Scheme of about the same cost that is quickly charged, to compare numbers of bands with."""
        return self

    def for_fewer_rounds(self, rounds: int, shorter: int) -> Self:
        """Return a scheme for fewer rounds with about the same rate of check-ins, as an audit plays it.

        Args:
            rounds: of the run.
            shorter: how many are played.
        """
        return self


class IndependentRounds(CheckIn):
    """Base of schemes whose rounds are drawn independently: a unit may take part in every one of them."""

    rounds_are_independent = True
    keeps = USUAL_FACTS

    def most_check_ins(self, first: int, rounds: int) -> int:
        return first


class AllCheckIn(IndependentRounds):
    """Every unit takes part in every round.

    Formal guarantees: every cohort is all units. No amplification is charged.
    """

    scheme: Literal["all"] = "all"
    is_hidden = False

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        for _ in range(rounds):
            yield np.arange(units)

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        return accounting.Repeat(one_round, rounds)

    def expected_cohort(self, rounds: int, units: int) -> float:
        return float(units)

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        return np.asarray(ratios.sum(1))


class PoissonCheckIn(IndependentRounds):
    """Each unit takes part in each round with the same probability, independently.

    Formal guarantees: check-ins are independent over units and over rounds, each of probability ``rate``; cohorts may
    be empty, and an empty round is released like any other.
    """

    scheme: Literal["poisson"]
    rate: CheckInRate

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        for round_ in range(1, rounds + 1):
            yield np.flatnonzero(rng.happens(rng.stream(seed, "check-in", round_).words(units), self.rate))

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        return accounting.Repeat(accounting.Poisson(one_round, self.rate), rounds)

    def expected_cohort(self, rounds: int, units: int) -> float:
        return self.rate * units

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        if self.rate == 1:
            return np.asarray(ratios.sum(1))
        return np.asarray(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + ratios).sum(1))


class CappedPoissonCheckIn(CheckIn):
    """Poisson sampling with a cap: as many hidden rounds as coins of probability ``rate`` give, up to ``at_most``.

    Formal guarantees: the number of a unit's check-ins is that of ``rounds`` coins, capped; its rounds are uniform
    among all sets of that size, and units are independent (the scheme in the proof of Feldman, Shenfeld 2025,
    Corollary 4.7). A unit that reaches the cap is not excluded from later rounds: all rounds expect as many units.
    """

    scheme: Literal["capped-poisson"]
    rate: CheckInRate
    at_most: Count = Field(description="largest number of rounds in which a unit takes part", examples=[3])
    keeps = USUAL_FACTS

    def check_rounds(self, rounds: int) -> None:
        _check_most("at_most", self.at_most, rounds)

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        numbers = np.zeros(units, dtype=np.uint32)
        for coin in range(1, rounds + 1):
            numbers += rng.happens(rng.stream(seed, "check-in coin", coin).words(units), self.rate)
        return uniform_sets(seed, 1, rounds, np.minimum(numbers, self.at_most))

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        return accounting.CappedPoisson(one_round, self.rate, self.at_most, rounds)

    def most_check_ins(self, first: int, rounds: int) -> int:
        return min(first, self.at_most)

    def expected_cohort(self, rounds: int, units: int) -> float:
        return (
            units
            * float(np.minimum(np.arange(rounds + 1), self.at_most) @ self._success_probabilities(rounds))
            / rounds
        )

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        rounds = ratios.shape[1]
        probabilities, numbers = self._success_probabilities(rounds), np.minimum(np.arange(rounds + 1), self.at_most)
        sums = log_sums_over_sets(ratios, self.at_most)
        means = [sums[k] - math.log(math.comb(rounds, k)) for k in range(self.at_most + 1)]
        with np.errstate(divide="ignore"):
            capped = np.log(np.bincount(numbers, probabilities))
        return np.asarray(np.logaddexp.reduce(np.stack(means) + capped[:, None], axis=0))

    def for_fewer_rounds(self, rounds: int, shorter: int) -> Self:
        return self.model_copy(update={"at_most": max(1, round(self.at_most * shorter / rounds))})

    def _success_probabilities(self, rounds: int) -> Floats:
        """Compute the probability of each number of successes among ``rounds`` coins, shape [rounds + 1]."""
        from scipy.stats import binom  # only here: the import takes long

        return np.asarray(binom.pmf(np.arange(rounds + 1), rounds, self.rate))


class KOfRounds(CheckIn):
    """Base of schemes with exactly ``k`` hidden rounds for every unit.

    A unit that declines counts as zero and is charged as if it took part. That covers any declining
    (docs/research/k-of-t.md); a smaller charge would not.
    """

    k: Count = Field(examples=[4], description="number of hidden rounds in which each unit takes part")
    keeps = USUAL_FACTS

    def check_rounds(self, rounds: int) -> None:
        _check_most("k", self.k, rounds)

    def expected_cohort(self, rounds: int, units: int) -> float:
        return units * self.k / rounds

    def for_fewer_rounds(self, rounds: int, shorter: int) -> Self:
        return self.model_copy(update={"k": max(1, round(self.k * shorter / rounds))})


class BalancedCheckIn(KOfRounds):
    """Balanced iteration subsampling: exactly ``k`` hidden rounds for every unit.

    Formal guarantees: the set of rounds of every unit is uniform among all sets of ``k`` out of ``rounds``, and
    independent over units (Dong, Chen, Özgür 2025, section 3.3; Feldman, Shenfeld 2025, k-out-of-t allocation).

    Each round takes a unit with probability (check-ins that remain) / (rounds that remain). That is exactly this law;
    it needs one small integer a unit, and never looks ahead.
    """

    scheme: Literal["balanced"]

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        return uniform_sets(seed, 1, rounds, np.full(units, self.k, dtype=np.uint32))

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        return accounting.Allocation(one_round, self.k, rounds)

    def most_check_ins(self, first: int, rounds: int) -> int:
        return min(first, self.k)

    @property
    def independent_scheme(self) -> CheckIn:
        return self

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        sums = log_sums_over_sets(ratios, self.k)
        return np.asarray(sums[self.k] - math.log(math.comb(ratios.shape[1], self.k)))


class StratifiedCheckIn(KOfRounds):
    """One hidden round in each of ``k`` consecutive blocks, their lengths as equal as integers allow.

    Formal guarantees: in every block every unit is scheduled exactly once, in a uniformly random round, independently
    over blocks and units.
    """

    scheme: Literal["stratified"]

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        first_round = 1
        for length in self.block_lengths(rounds):
            yield from uniform_sets(seed, first_round, length, np.ones(units, dtype=np.uint32))
            first_round += length

    def block_lengths(self, rounds: int) -> list[int]:
        """Compute the number of rounds of every block; the first ones are longer by one where ``k`` does not divide."""
        shorter, longer = divmod(rounds, self.k)
        return [shorter + (block < longer) for block in range(self.k)]

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        blocks = [accounting.Allocation(one_round, 1, length) for length in self.block_lengths(rounds)]
        return accounting.Repeat(blocks[0], self.k) if len(set(blocks)) == 1 else accounting.Compose(tuple(blocks))

    def most_check_ins(self, first: int, rounds: int) -> int:
        starts = np.cumsum([0, *self.block_lengths(rounds)[:-1]])
        return int((starts < first).sum())

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        lengths = self.block_lengths(ratios.shape[1])
        blocks = np.split(ratios, np.cumsum(lengths)[:-1], axis=1)
        return np.asarray(np.sum([log_mean(block, axis=1) for block in blocks], axis=0))


CHECK_INS: tuple[type[CheckIn], ...] = (
    AllCheckIn,
    PoissonCheckIn,
    CappedPoissonCheckIn,
    BalancedCheckIn,
    StratifiedCheckIn,
)


class Attendance:
    """The cohorts of one run, by round.

    Asking for rounds in order, or for the one before, costs nothing extra. An earlier round draws all rounds anew.

    Canaries check in as ``units`` do, after them, and do not change which people are drawn. Those that are out are in
    no cohort; the others have the ids :data:`CANARY` and following.

    Args:
        check_in: the scheme.
        rounds: of the run.
        units: number of people's units.
        seed: of the run; with it anybody can compute the cohorts.
        coins: True for each canary that is in, shape [canaries].
    """

    def __init__(self, check_in: CheckIn, rounds: int, units: int, seed: int, coins: ArrayLike = ()) -> None:
        self._units, self._coins = units, np.asarray(coins, dtype=bool)
        self._scheme = f"check_in.scheme {check_in.scheme}"
        self._rounds, self._draw = rounds, partial(check_in.cohorts, rounds, units + len(self._coins), seed)
        self._drawn, self._cohorts = 0, self._draw()
        self._last: deque[UnitIds] = deque(maxlen=2)

    def cohort_of(self, round_: int) -> UnitIds:
        """Return the sorted ids of the units that check in to a round.

        Args:
            round_: from 1.

        Raises:
            ValueError: the run has no such round, or the scheme draws no cohort of it.
        """
        if not 1 <= round_ <= self._rounds:
            raise ValueError(f"round must be in 1..{self._rounds}, got {round_}")
        if round_ <= self._drawn - len(self._last):
            self._drawn, self._cohorts = 0, self._draw()
            self._last.clear()
        while self._drawn < round_:
            cohort = next(self._cohorts)
            self._check_cohort(cohort)
            canaries = cohort[np.searchsorted(cohort, self._units) :] - self._units
            people = cohort[: len(cohort) - len(canaries)]
            self._last.append(np.concatenate([people, CANARY + canaries[self._coins[canaries]]]))
            self._drawn += 1
        return self._last[round_ - self._drawn - 1]

    def _check_cohort(self, cohort: UnitIds) -> None:
        """Refuse a cohort of a scheme that names a unit twice: the unit would add twice what is charged.

        Raises:
            ValueError: ids are repeated, not in order, or of no unit.
        """
        units = self._units + len(self._coins)
        if len(cohort) and not (cohort[0] >= 0 and cohort[-1] < units and (np.diff(cohort) > 0).all()):
            found = f"the cohort of round {self._drawn + 1} has ids that are repeated, not in order, or of no unit"
            raise ValueError(f"{self._scheme}: {found}; expected: ids below {units} in ascending order, each once")


def log_mean(logs: Floats, axis: int) -> Floats:
    """Compute the log of the mean of exponentials along an axis."""
    return np.asarray(np.logaddexp.reduce(logs, axis=axis) - math.log(logs.shape[axis]))


def _check_most(key: str, number: int, rounds: int) -> None:
    """Refuse more check-ins than rounds."""
    if number > rounds:
        raise ValueError(f"check_in.{key} must be at most rounds ({rounds}), got {number}")


def log_sums_over_sets(ratios: Floats, most: int, gap: int = 1) -> Floats:
    """Compute logs of sums of products of likelihood ratios over all sets of rounds.

    The sets have 0, 1, .. rounds that are at least ``gap`` apart. For gap 1 the sums are elementary symmetric
    polynomials.

    Args:
        ratios: logs of the ratios, shape [repetitions, rounds].
        most: the largest size of a set.
        gap: least distance of two rounds of a set.

    Returns:
        Array of shape [most + 1, repetitions], by the size of the sets.
    """
    sums = np.full((most + 1, len(ratios)), -np.inf)
    sums[0] = 0
    earlier = deque([sums] * gap, maxlen=gap)
    for round_ in ratios.T:
        sums = sums.copy()
        sums[1:] = np.logaddexp(sums[1:], earlier[0][:-1] + round_)
        earlier.append(sums)
    return sums


def uniform_sets(seed: int, first_round: int, rounds: int, check_ins: NDArray[Any]) -> Iterator[UnitIds]:
    """Draw cohorts in which each unit has a given number of rounds, a uniform set of them.

    In each round a unit takes part with probability (rounds that it still owes) / (rounds that remain).

    Args:
        seed: of the run.
        first_round: number of the first round, which addresses its stream.
        rounds: how many rounds there are.
        check_ins: shape [units], the number of rounds of each unit, at most ``rounds``.

    Yields:
        Sorted ids of the units that check in.
    """
    owed = check_ins.astype(np.uint32)
    for index in range(rounds):
        # Integer draws make the probability owed / left exact, not exact up to a rounding of the quotient.
        draw = rng.stream(seed, "check-in", first_round + index).integers(rounds - index, len(owed))
        cohort = np.flatnonzero(draw < owed)
        owed[cohort] -= 1
        yield cohort
