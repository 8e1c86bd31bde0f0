"""Check-in in every second round; a hidden coin of each unit says in which ones."""

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from fedamp import rng
from fedamp.accounting import Allocation, Mechanism, Repeat
from fedamp.base.arrays import Floats
from fedamp.federation import facts
from fedamp.federation.check_in import CheckIn, UnitIds


class AlternatingCheckIn(CheckIn):
    """Every unit takes part in every second round; a hidden fair coin says whether in odd or even ones.

    Formal guarantees: the odd rounds or the even rounds, each with probability 1/2, independently over units.
    """

    scheme: Literal["alternating"] = "alternating"
    keeps = frozenset({facts.UNITS_INDEPENDENT})  # each unit has a coin of its own

    def cohorts(self, rounds: int, units: int, seed: int) -> Iterator[UnitIds]:
        """Draw one coin a unit, from a stream of its own purpose; then no round draws anything."""
        odd = rng.happens(rng.stream(seed, "check-in", 0).words(units), 0.5)
        for round_ in range(1, rounds + 1):
            yield np.flatnonzero(odd == (round_ % 2 == 1))

    def charge(self, one_round: Mechanism, rounds: int) -> Mechanism:
        """Charge one of two blocks of rounds, as a hidden choice: the coin is one allocation.

        With an odd number of rounds the blocks differ by a round; the even one is charged as the longer one.
        """
        return Allocation(Repeat(one_round, math.ceil(rounds / 2)), 1, 2)

    def most_check_ins(self, first: int, rounds: int) -> int:
        return math.ceil(first / 2)

    def expected_cohort(self, rounds: int, units: int) -> float:
        return units / 2

    def log_likelihood_ratio(self, ratios: Floats) -> Floats:
        """Mean over both blocks; ``ratios`` has shape [repetitions, rounds]."""
        odd, even = ratios[:, ::2].sum(axis=1), ratios[:, 1::2].sum(axis=1)
        return np.asarray(np.logaddexp(odd, even) - math.log(2))
