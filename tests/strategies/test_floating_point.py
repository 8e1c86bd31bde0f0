"""Mironov 2012, On significance of the least significant bits: who is in a sum, read from the low bits of its release.

A float64 near zero has many more digits after the point than one half has. So a noisy sum that comes out near zero
shows whether one half was added on the way: if so, it is a multiple of one half's last digit.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedamp.client.clipping import quantum
from fedamp.errors import FederationError
from fedamp.server.setup import RunInputs, prepare
from fedamp.strategies.aggregation import Aggregate
from fedamp.strategies.pipeline import RoundRelease
from tests.federations import small

LAST_DIGIT_OF_ONE_HALF = 2.0**-53  # a coordinate of the sum that is 1/2 with noise about -1/2


@pytest.fixture(scope="module")
def prepared() -> RunInputs:
    """A federation whose clipping norm is 1, with noise of the same size."""
    return prepare(small("privacy={clip: 1.0, noise_multiplier: 1.0}", "model={name: mlp, hidden: [1000]}"))


def released(prepared: RunInputs, present: bool, seed: int) -> RoundRelease:
    """One round, in which the only update is a client's, of 1/2 in one coordinate after the other, or nobody's."""
    pipeline = replace(prepared.pipeline, plan=replace(prepared.plan, seed=seed))
    sums = pipeline.model.zeros()
    if present:  # what each coordinate does is what it would do if it alone were not zero
        for array in sums.values():
            array += 0.5
    aggregate = Aggregate(sums, asked_nodes=1, reported=1)
    return pipeline.release(prepared.state, 1, aggregate, needs_quorum=False)[1]


def seen_by_the_attack(release: RoundRelease) -> np.ndarray:
    """For every coordinate near zero: whether it has no digits beyond those of one half."""
    noisy = np.concatenate([array.ravel() for array in release.noisy_sums.values()])
    small_ones = noisy[np.abs(noisy) < 2.0**-6]
    assert len(small_ones) > 500  # of some 75,000, about one in a hundred
    digits = small_ones / LAST_DIGIT_OF_ONE_HALF
    return digits == np.rint(digits)


def test_low_bits_do_not_tell_whether_a_client_was_present(prepared):
    present, absent = (seen_by_the_attack(released(prepared, there, seed=3 + there)) for there in (True, False))
    # With noise in float64 the attack is right about all that are there, and about nearly all that are not.
    assert present.mean() == absent.mean()


def test_releases_of_neighbouring_sums_lie_on_the_same_grid(prepared):
    grids = []
    for present in (True, False):
        sums = released(prepared, present, seed=1).noisy_sums.values()
        whole = np.concatenate([array.ravel() for array in sums]) / 2.0**-55
        assert (whole == np.rint(whole)).all()
        digits = int(np.bitwise_or.reduce(np.abs(whole).astype(np.uint64)))
        grids.append(digits & -digits)  # the largest power of two of which all are multiples
    assert grids[0] == grids[1]


def test_a_cohort_whose_sum_float64_cannot_hold_exactly_is_refused(prepared):
    units = 2**22 + 1  # each at full clip, in quanta
    assert units / quantum(1.0) > 2**53 / 2
    plan = replace(prepared.plan, units=2**23)
    vars(plan)["attendance"] = type("Everybody", (), {"cohort_of": lambda self, round_: np.arange(units)})()
    pipeline = replace(prepared.pipeline, plan=plan)
    with pytest.raises(FederationError, match="expected: at most 4194304"):
        pipeline.release(prepared.state, 1, Aggregate(pipeline.model.zeros(), 1, reported=units))
