"""ModelMix: uniform between the last two models, never narrower than enforced, and always a multiple of the charge."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedamp.plan import make_plan
from fedamp.release import MixingRounds
from fedamp.strategies.mixing import mix
from tests.federations import small

CONSTANT = MixingRounds(first=1, rounds=10, least=0.1, charged=0.1)


def mixtures(now: float, before: float, rounds: MixingRounds, size: int = 20_000, seed: int = 1) -> np.ndarray:
    current, previous = {"w": np.full(size, now, np.float32)}, {"w": np.full(size, before, np.float32)}
    return mix(current, previous, rounds, seed, round_=3)["w"].astype(np.float64)


@pytest.mark.parametrize(
    ("distance", "width"),
    [(0.0, 0.1), (0.03, 0.1), (-0.03, 0.1), (0.099, 0.1), (0.1001, 0.1), (0.199, 0.1), (0.201, 0.2), (-1.05, 1.0)],
)
def test_the_mixture_is_uniform_about_the_midpoint_on_a_multiple_of_the_charged_width(distance, width):
    before = 0.25
    values = mixtures(before + distance, before, CONSTANT)
    low = before + distance / 2 - width / 2
    # Kolmogorov and Smirnov: a right implementation fails one seed in 10,000; this seed is fixed.
    assert stats.kstest((values - low) / width, "uniform").pvalue > 1e-4
    assert values.min() >= low - 1e-6
    assert values.max() <= low + width + 1e-6


def test_every_coordinate_and_round_is_mixed_by_itself():
    size = 5000
    now, before = np.ones(size, np.float32), np.zeros(size, np.float32)
    one = mix({"v": now, "w": now}, {"v": before, "w": before}, CONSTANT, seed=1, round_=1)
    two = mix({"v": now, "w": now}, {"v": before, "w": before}, CONSTANT, seed=1, round_=2)
    # Correlations of 5,000 independent pairs: standard deviation 0.014; five of them.
    for first, second in [(one["v"], one["w"]), (one["v"], two["v"]), (one["v"][1:], one["v"][:-1])]:
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.07


def test_neither_model_is_changed():
    now, before = np.ones(4, np.float32), np.zeros(4, np.float32)
    mix({"w": now}, {"w": before}, CONSTANT, seed=1, round_=1)
    assert now.tolist() == [1, 1, 1, 1]
    assert before.tolist() == [0, 0, 0, 0]


@given(
    distance=st.floats(-3, 3),
    charged=st.floats(0.01, 1),
    factor=st.floats(1, 5),
)
def test_the_width_is_at_least_what_is_enforced_and_a_whole_multiple_of_what_is_charged(distance, charged, factor):
    rounds = MixingRounds(1, 1, least=charged * factor, charged=charged)
    values = mixtures(distance, 0.0, rounds, size=4000)
    # The range of 4,000 uniforms falls short of the width by 0.05 % on average; 2 % and the rounding of float32.
    width = max(np.ceil(factor * (1 - 1e-9)), np.floor(abs(np.float32(distance)) / charged)) * charged
    assert width * 0.98 - 1e-5 <= np.ptp(values) <= (width + charged if factor % 1 < 1e-6 else width) + 1e-5


def plan(*overrides):
    return make_plan(small("server.momentum=0", "rounds=8", *overrides), 60)


def test_a_schedule_is_charged_round_by_round_where_rounds_are_drawn_apart():
    plans = plan("mixing.width=[[1, 0.2], [4, 0.05]]", "check_in={scheme: poisson, rate: 0.5}")
    assert [plans.mixing_at(round_).least for round_ in range(1, 9)] == [0.2] * 3 + [0.05] * 5
    assert all(plans.mixing_at(round_).charged == plans.mixing_at(round_).least for round_ in range(1, 9))
    tree = plans.mechanism.to_json()
    assert [part["times"] for part in tree["mechanisms"]] == [3, 5]
    widths = [part["mechanism"]["mechanism"]["width"] for part in tree["mechanisms"]]
    step = 0.5 * 0.5 / 30  # server.learning_rate * clip / expected cohort
    assert widths == pytest.approx([0.2 / step, 0.05 / step], rel=1e-12)


@pytest.mark.parametrize("scheme", ["balanced", "stratified"])
def test_a_schedule_is_charged_at_its_smallest_width_where_rounds_are_drawn_together(scheme):
    plans = plan("mixing.width=[[1, 0.2], [4, 0.05]]", f"check_in={{scheme: {scheme}, k: 2}}")
    constant = plan("mixing.width=0.05", f"check_in={{scheme: {scheme}, k: 2}}")
    assert plans.mechanism == constant.mechanism
    assert [plans.mixing_at(round_).least for round_ in (3, 4)] == [0.2, 0.05]
    assert [plans.mixing_at(round_).charged for round_ in (3, 4)] == [0.05, 0.05]


def test_a_width_for_each_round_is_charged_over_all_rounds():
    plans = plan("rounds=2", "mixing.width=[[1, 0.2], [2, 0.05]]", "check_in={scheme: all}")
    assert plans.mechanism.span == 2
    assert plans.mixing_at(1).charged == plans.mixing_at(2).charged == 0.05
