"""Every schedule keeps the formal guarantees of its docstring."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedamp import scenario
from fedamp.accounting import Allocation, Gaussian, Poisson, Repeat
from fedamp.check_in import Attendance, Balanced, Everybody, Independent, Stratified, schedule_of

# Deterministic seeds make these checks repeatable; a correct schedule fails one with this probability.
UNLIKELY = 1e-4


def attendance_matrix(schedule, units, seed):
    """Boolean array [units, rounds]: who takes part when."""
    matrix = np.zeros((units, schedule.rounds), dtype=bool)
    for index, cohort in enumerate(schedule.cohorts(units, seed)):
        matrix[cohort, index] = True
    return matrix


@st.composite
def rounds_and_k(draw):
    rounds = draw(st.integers(1, 30))
    return rounds, draw(st.integers(1, rounds))


@given(rounds_and_k(), st.integers(0, 40), st.integers(0, 2**64))
@settings(max_examples=60)
def test_balanced_takes_everybody_exactly_k_times(rounds_k, units, seed):
    rounds, k = rounds_k
    assert (attendance_matrix(Balanced(rounds, k), units, seed).sum(axis=1) == k).all()


@given(rounds_and_k(), st.integers(1, 40), st.integers(0, 2**64))
@settings(max_examples=60)
def test_stratified_takes_everybody_once_in_each_block(rounds_k, units, seed):
    rounds, k = rounds_k
    schedule = Stratified(rounds, k)
    lengths = schedule.block_lengths()
    assert sum(lengths) == rounds
    assert max(lengths) - min(lengths) <= 1
    matrix = attendance_matrix(schedule, units, seed)
    for block in np.split(matrix, np.cumsum(lengths)[:-1], axis=1):
        assert (block.sum(axis=1) == 1).all()


@given(st.integers(1, 20), st.integers(1, 50))
def test_everybody_is_everybody(rounds, units):
    assert attendance_matrix(Everybody(rounds), units, 0).all()


def test_balanced_sets_of_rounds_are_uniform():
    matrix = attendance_matrix(Balanced(5, 2), 20_000, seed=1)
    drawn = Counter(tuple(np.flatnonzero(row)) for row in matrix)
    assert set(drawn) == set(combinations(range(5), 2))
    assert stats.chisquare(list(drawn.values())).pvalue > UNLIKELY


def test_balanced_is_independent_over_units():
    # Cohort sizes of independent units are Binomial(units, k / rounds); dependence would change their spread.
    sizes = np.concatenate([attendance_matrix(Balanced(10, 3), 200, seed)[:, 0:1].sum(axis=0) for seed in range(400)])
    expected = stats.binom(200, 0.3)
    assert abs(sizes.mean() - expected.mean()) < 4 * expected.std() / np.sqrt(400)
    ratio = sizes.var(ddof=1) / expected.var()
    low, high = stats.chi2(399).ppf([UNLIKELY / 2, 1 - UNLIKELY / 2]) / 399
    assert low < ratio < high


def test_poisson_memberships_are_independent_with_the_rate():
    matrix = attendance_matrix(Independent(50, 0.2), 2000, seed=3)
    assert stats.binomtest(int(matrix.sum()), matrix.size, 0.2).pvalue > UNLIKELY
    per_unit = Counter(matrix.sum(axis=1))
    counts = np.array([per_unit[j] for j in range(51)])
    expected = stats.binom(50, 0.2).pmf(np.arange(51)) * 2000
    usual = expected > 5
    statistic = ((counts - expected)[usual] ** 2 / expected[usual]).sum()
    assert stats.chi2(usual.sum() - 1).sf(statistic) > UNLIKELY


def test_stratified_rounds_are_uniform_in_a_block():
    matrix = attendance_matrix(Stratified(12, 3), 12_000, seed=5)
    assert stats.chisquare(matrix[:, 4:8].sum(axis=0)).pvalue > UNLIKELY


def test_cohorts_depend_on_the_seed_and_on_nothing_else():
    one, same, other = (attendance_matrix(Balanced(20, 5), 100, seed) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize("schedule", [Everybody(9), Independent(9, 0.4), Balanced(9, 4), Stratified(9, 4)])
def test_the_expected_cohort_is_what_the_average_cohort_comes_to(schedule):
    matrix = attendance_matrix(schedule, 5000, seed=8)
    assert matrix.sum() / 9 == pytest.approx(schedule.expected_cohort(5000), rel=0.03)  # 4 standard errors of Poisson


@pytest.mark.parametrize("schedule", [Everybody(9), Independent(9, 0.9), Balanced(9, 4), Stratified(9, 4)])
def test_nobody_takes_part_more_often_than_is_charged_without_amplification(schedule):
    taken = attendance_matrix(schedule, 3000, seed=2).cumsum(axis=1).max(axis=0)
    most = [schedule.most_check_ins(rounds) for rounds in range(1, 10)]
    assert (taken <= most).all()
    assert (taken == most).all()  # with so many units somebody does


def test_attendance_answers_in_any_order():
    attendance = Attendance(Balanced(12, 3), 50, seed=4)
    in_order = [attendance.cohort(round_) for round_ in range(1, 13)]
    for round_ in (12, 3, 3, 7, 1):
        assert np.array_equal(attendance.cohort(round_), in_order[round_ - 1])
    with pytest.raises(ValueError, match=r"round must be in 1\.\.12, got 13"):
        attendance.cohort(13)


def test_what_is_charged_is_what_is_drawn():
    gaussian = Gaussian(1.5)
    assert Balanced(100, 10).charge(gaussian) == Allocation(gaussian, 10, 100)
    assert Independent(100, 0.1).charge(gaussian) == Repeat(Poisson(gaussian, 0.1), 100)
    assert Everybody(100).charge(gaussian) == Repeat(gaussian, 100)
    assert Stratified(100, 10).charge(gaussian) == Repeat(Allocation(gaussian, 1, 10), 10)
    assert {block.rounds for block in Stratified(7, 2).charge(gaussian).mechanisms} == {3, 4}


@pytest.mark.parametrize(
    ("section", "schedule"),
    [
        (scenario.AllCheckIn(), Everybody(8)),
        (scenario.PoissonCheckIn(scheme="poisson", rate=0.5), Independent(8, 0.5)),
        (scenario.BalancedCheckIn(scheme="balanced", k=2), Balanced(8, 2)),
        (scenario.StratifiedCheckIn(scheme="stratified", k=2), Stratified(8, 2)),
    ],
)
def test_scenarios_name_schedules(section, schedule):
    assert schedule_of(section, 8) == schedule
