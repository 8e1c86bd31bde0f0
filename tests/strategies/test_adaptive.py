"""Adaptive clipping against the formula of Andrew et al. 2021, and its cost."""

import math

import numpy as np
import pytest

from fedamp import scenario
from fedamp.plan import make_plan
from fedamp.strategies.adaptive import LARGEST_SCALE, SMALLEST_SCALE, adapt
from tests.federations import small

CLIP = scenario.AdaptiveClip(initial=0.1, quantile=0.7, learning_rate=0.3, noise_multiplier=2.0)


def plan(noise_multiplier: float = 1.0):
    return make_plan(small("check_in={scheme: all}", f"privacy.noise_multiplier={noise_multiplier}"), 60)


@pytest.mark.parametrize("below", [0, 20, 42, 60])
def test_without_noise_it_is_the_geometric_update(below):
    # C <- C exp(-eta_C (b - gamma)), b the share of updates within the norm (Andrew et al. 2021, section 2.1).
    expected = 1.7 * math.exp(-0.3 * (below / 60 - 0.7))
    assert adapt(1.7, plan(0), CLIP, below, reported=60, round_=1) == pytest.approx(expected, rel=1e-12)


def test_the_noise_is_on_the_centred_count_and_of_the_stated_deviation():
    # 1,000 rounds: standard error of the deviation 2.2 %, of the mean 3.2 % of it; five of each.
    private = plan()
    factors = np.array([adapt(1.0, private, CLIP, 30, reported=60, round_=round_) for round_ in range(1, 1001)])
    shares = 0.7 - np.log(factors) / 0.3
    assert shares.std() * 60 == pytest.approx(2.0, rel=0.11)
    assert shares.mean() * 60 == pytest.approx(30, abs=0.32)


def test_it_finds_the_quantile():
    norms = np.random.default_rng(1).lognormal(size=60)
    scale = 1.0
    for round_ in range(1, 200):
        below = int((norms <= 0.1 * scale).sum())
        scale = adapt(scale, plan(0), CLIP, below, reported=60, round_=round_)
    assert np.mean(norms <= 0.1 * scale) == pytest.approx(0.7, abs=0.05)


def test_units_that_do_not_report_leave_the_norm_where_the_centre_puts_it():
    # A unit that is away adds zero to the centred count, neither +1/2 nor -1/2.
    assert adapt(1.0, plan(0), CLIP, below=0, reported=0, round_=1) == pytest.approx(math.exp(-0.3 * (0.5 - 0.7)))


def test_the_norm_stays_within_what_float32_can_clip():
    high = low = 1.0
    for round_ in range(1, 2000):
        high = adapt(high, plan(0), CLIP, below=0, reported=60, round_=round_)
        low = adapt(low, plan(0), CLIP, below=60, reported=60, round_=round_)
    assert high == LARGEST_SCALE
    assert low == SMALLEST_SCALE


def test_its_own_noise_is_charged_within_the_round():
    tree = make_plan(small("privacy.clip={initial: 0.1, noise_multiplier: 3.0}"), 60).mechanism.to_json()
    assert tree["kind"] == "Allocation"
    assert [part["noise_multiplier"] for part in tree["mechanism"]["mechanisms"]] == [1.0, 6.0]
