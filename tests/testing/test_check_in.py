"""The contract of check-in finds charges that are right for some numbers of rounds alone."""

import math
from typing import Literal

import numpy as np
import pytest

from fedamp import rng
from fedamp.accounting import Allocation, Repeat
from fedamp.federation import facts
from fedamp.federation.check_in import CheckIn
from fedamp.testing import CheckInContract


class Halves(CheckIn):
    """Every second round: the odd ones or the even ones, by a coin of each unit."""

    scheme: Literal["halves"] = "halves"
    down: bool = False
    keeps = frozenset({facts.UNITS_INDEPENDENT})

    def cohorts(self, rounds, units, seed):
        odd = rng.happens(rng.stream(seed, "check-in", 0).words(units), 0.5)
        return (np.flatnonzero(odd == (round_ % 2 == 1)) for round_ in range(1, rounds + 1))

    def charge(self, one_round, rounds):
        return Allocation(Repeat(one_round, rounds // 2 if self.down else math.ceil(rounds / 2)), 1, 2)

    def most_check_ins(self, first, rounds):
        return math.ceil(first / 2)

    def expected_cohort(self, rounds, units):
        return units / 2

    def log_likelihood_ratio(self, ratios):
        return np.logaddexp(ratios[:, ::2].sum(axis=1), ratios[:, 1::2].sum(axis=1)) - math.log(2)


@pytest.mark.parametrize("down", [False, True])
def test_a_charge_that_rounds_down_is_found_where_blocks_do_not_divide_the_rounds(down):
    suite = type("Suite", (CheckInContract,), {"scheme": Halves(down=down)})()
    suite.test_the_charge_covers_an_attack_on_gaussian_noise(noise_multiplier=0.7)  # of six rounds both are right
    if down:
        with pytest.raises(AssertionError, match="an attack has delta"):
            suite.test_the_charge_covers_an_attack_in_a_run_of_one_round_less()
    else:
        suite.test_the_charge_covers_an_attack_in_a_run_of_one_round_less()
