"""The contract of submodel schemes holds for the core's own ones, and finds a choice that lasts for several rounds."""

import pytest

from fedamp.federation.check_in import BalancedCheckIn
from fedamp.federation.submodels import DisjointSubmodels
from fedamp.testing import CheckInContract, SubmodelContract


class TestDisjoint(SubmodelContract):
    scheme = DisjointSubmodels(scheme="disjoint", count=3)


class Lasting(DisjointSubmodels):
    """A unit draws once for the whole run, and is charged as if it drew in each round."""

    def draw(self, cohort, seed, round_):
        return super().draw(cohort, seed, 1)


def test_a_choice_that_lasts_for_several_rounds_is_found():
    suite = type("Suite", (SubmodelContract,), {"scheme": Lasting(scheme="disjoint", count=3)})()
    with pytest.raises(AssertionError, match="draw it in the next one too often"):
        suite.test_the_draws_of_rounds_are_independent()


@pytest.mark.parametrize(
    ("contract", "scheme", "sizes"),
    [
        (CheckInContract, BalancedCheckIn(scheme="balanced", k=1), {"units": 500}),
        (CheckInContract, BalancedCheckIn(scheme="balanced", k=1), {"rounds": 1}),
        (SubmodelContract, DisjointSubmodels(scheme="disjoint", count=3), {"units": 50}),
    ],
)
def test_a_simulation_that_shows_no_small_charge_meets_no_contract(contract, scheme, sizes):
    with pytest.raises(AssertionError, match=f"{next(iter(sizes))} must be"):
        type("Suite", (contract,), {"scheme": scheme} | sizes)().test_the_simulation_is_large_enough()
