"""Keep the check-ins of a unit a number of rounds apart, as correlated noise needs it.

:mod:`fedamp.federation.check_in` has the base of the schemes, and what each method promises.
:mod:`fedamp.extensions.correlated.spaced` has the charges.
"""

import math
from collections.abc import Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from fedamp import rng
from fedamp.base.arrays import Floats
from fedamp.base.section import Count
from fedamp.base.start import Later
from fedamp.federation import facts
from fedamp.federation.check_in import BalancedCheckIn, CheckIn, KOfRounds, UnitIds, log_sums_over_sets, uniform_sets
from fedamp.federation.facts import Claim

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism
    from fedamp.extensions.correlated import spaced
else:  # as in fedamp.federation.check_in
    accounting, spaced = Later("fedamp.accounting"), Later("fedamp.extensions.correlated.spaced")


def _separation_needs(key: str) -> tuple[Claim, ...]:
    """Make the claims of a separation that is ``auto``: noise with bands, which are compared if they are ``auto``, too.

    Args:
        key: name of the field that says the separation.
    """

    def follows_bands(scenario: facts.AnyScenario) -> bool:
        return bool(scenario.check_in.separation == "auto")

    def follows_budget(scenario: facts.AnyScenario) -> bool:
        return follows_bands(scenario) and getattr(scenario.privacy.noise, "bands", None) == "auto"

    named = {facts.NOISE_HAS_BANDS: follows_bands, facts.NOISE_FOLLOWS: follows_budget}
    return (*CheckIn.needs, *(Claim(fact, key, "a number", when) for fact, when in named.items()))


class MinSeparation(KOfRounds):
    """Base of schemes whose rounds of a unit have a min-separation, as banded noise needs it.

    Attributes:
        separation_key: name of the field that says the separation.
    """

    separation_key: ClassVar[str]

    @property
    def separation(self) -> int | Literal["auto"]:
        """Separation in rounds, or ``auto``: that of the bands."""
        separation: int | Literal["auto"] = getattr(self, self.separation_key)
        return separation

    @property
    def count(self) -> int:
        """Separation in rounds; 1 as long as it is ``auto``."""
        return 1 if self.separation == "auto" else self.separation

    @property
    def independent_scheme(self) -> CheckIn:
        """Scheme with which noise is compared: balanced check-in of as many rounds a unit."""
        return BalancedCheckIn(scheme="balanced", k=self.k)

    def fitted_to(self, coefficients: tuple[float, ...], units: int) -> Self:
        """Return the scheme with the separation of the noise's bands in place of ``auto``."""
        return self.model_copy(update={self.separation_key: len(coefficients) + 1} if self.separation == "auto" else {})

    def most_check_ins(self, first: int, rounds: int) -> int:
        """Return the most rounds among the first ones in which a unit can take part."""
        return min(-(-first // self.count), self.k)


class ClassesCheckIn(MinSeparation):
    """Exactly ``k`` hidden rounds for every unit among the rounds of its public class.

    Formal guarantees: round t is of class (t - 1) modulo ``classes``, unit u of class u modulo ``classes``. The set of
    rounds of every unit is uniform among all sets of ``k`` rounds of its class, and independent over units. The
    min-separation is ``classes``, as banded noise needs it (Choquette-Choo et al. 2023).
    """

    scheme: Literal["classes"]
    separation_key = "classes"
    needs = _separation_needs(separation_key)
    keeps = frozenset({facts.ROUNDS_APART, facts.UNITS_INDEPENDENT})
    classes: Count | Literal["auto"] = Field(
        "auto", description="number of public classes; auto: that of the bands of the noise", examples=[2]
    )

    def check_rounds(self, rounds: int) -> None:
        """Refuse more check-ins than a class has rounds.

        Raises:
            ValueError: it names the key.
        """
        if self.k * self.count > rounds:
            raise ValueError(f"check_in.k times classes must be at most rounds ({rounds}), got {self.k * self.count}")

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        """Yield each round's cohort, sorted ids of the round's class.

        A unit that owes k rounds, of n rounds left in its class, is chosen with probability k / n.
        """
        members = [np.arange(first, units, self.count) for first in range(self.count)]
        owed = [np.full(len(ids), self.k, dtype=np.uint32) for ids in members]
        for index in range(rounds):
            ours = index % self.count
            left = (rounds - 1 - index) // self.count + 1
            draw = rng.stream(seed, "check-in", 1 + index).integers(left, len(members[ours]))
            chosen = draw < owed[ours]
            owed[ours][chosen] -= 1
            yield members[ours][chosen]

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        """Charge ``k`` random rounds of a unit's class."""
        return spaced.Cyclic(one_round, self.k, rounds, self.count)

    def for_fewer_rounds(self, rounds: int, shorter: int) -> Self:
        """Return the scheme for fewer rounds, at about the same rate of check-ins, for an audit.

        Raises:
            ValueError: the rounds do not hold one of each class.
        """
        if shorter < self.count:
            raise ValueError(f"{shorter} rounds do not hold one of each class; expected: at least {self.count}")
        return self.model_copy(update={"k": max(1, min(round(self.k * shorter / rounds), shorter // self.count))})

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        """Return the ratio of unit 0, whose class has the first round."""
        own = ratios[:, :: self.count]
        return np.asarray(log_sums_over_sets(own, self.k)[self.k] - math.log(math.comb(own.shape[1], self.k)))


class SpacedCheckIn(MinSeparation):
    """Exactly ``k`` hidden rounds for every unit, with min-separation ``gap``, without classes.

    Formal guarantees: the set of rounds of every unit is uniform among all sets of ``k`` rounds of that separation,
    and independent over units: the i-th one of a uniform set of k of rounds - (k - 1) (gap - 1) rounds is moved by (i -
    1) (gap - 1). More units are in the first and the last rounds than in others.
    """

    scheme: Literal["spaced"]
    separation_key = "gap"
    needs = _separation_needs(separation_key)
    keeps = frozenset({facts.ROUNDS_APART, facts.ANY_ROUNDS_APART, facts.UNITS_INDEPENDENT, facts.UNITS_ALIKE})
    gap: Count | Literal["auto"] = Field(
        "auto",
        description="min-separation: the least distance of two rounds of a unit; auto: the bands of the noise",
        examples=[2],
    )
    _coefficients: tuple[float, ...] = ()

    def check_rounds(self, rounds: int) -> None:
        """Refuse more check-ins, so far apart, than the rounds hold.

        Raises:
            ValueError: it names the key.
        """
        if self.count > rounds:
            raise ValueError(f"check_in.gap must be at most rounds ({rounds}), got {self.count}")
        if (most := -(-rounds // self.count)) < self.k:
            raise ValueError(f"check_in.k must be at most {most}, {self.count} apart in {rounds} rounds, got {self.k}")

    def fitted_to(self, coefficients: tuple[float, ...], units: int) -> Self:
        """Return the scheme with the noise's coefficients, which its charge needs."""
        fitted = super().fitted_to(coefficients, units)
        fitted._coefficients = coefficients
        return fitted

    @property
    def stand_in(self) -> CheckIn:
        """Scheme of about the same cost that is quickly charged, to compare numbers of bands with."""
        return ClassesCheckIn(scheme="classes", k=self.k)

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        """Yield each round's cohort, sorted ids.

        Uniform sets in fewer rounds are drawn, and each unit's later rounds are moved apart.
        """
        drawn = uniform_sets(seed, 1, self._packed(rounds), np.full(units, self.k, dtype=np.uint32))
        nobody, done = np.zeros(0, dtype=np.int64), np.zeros(units, dtype=np.int64)
        later = [[nobody] for _ in range(rounds)]
        for index, cohort in zip(range(rounds), chain(drawn, repeat(nobody)), strict=False):
            for before in np.unique(done[cohort]):
                later[index + before * (self.count - 1)].append(cohort[done[cohort] == before])
            done[cohort] += 1
            yield np.sort(np.concatenate(later[index]))

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        """Charge spaced rounds; without a gap and without bands they are an ordinary allocation."""
        if self.count == 1 and not self._coefficients:
            return accounting.Allocation(one_round, self.k, rounds)
        return spaced.Spaced(one_round, self.k, rounds, self.count, self._coefficients)

    def for_fewer_rounds(self, rounds: int, shorter: int) -> Self:
        """Return the scheme for fewer rounds, at about the same rate of check-ins, for an audit."""
        most = -(-shorter // self.count)
        return self.model_copy(update={"k": max(1, min(round(self.k * shorter / rounds), most))})

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        """Average a unit's ratios over all sets of rounds that may be drawn, [repetitions]."""
        sets = math.comb(self._packed(ratios.shape[1]), self.k)
        return np.asarray(log_sums_over_sets(ratios, self.k, self.count)[self.k] - math.log(sets))

    def _packed(self, rounds: int) -> int:
        """Count the rounds without those that must lie between a unit's."""
        return rounds - (self.k - 1) * (self.count - 1)
