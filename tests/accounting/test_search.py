"""Calibration lands on the safe side of the budget, close to it, and reproduces a published table."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedamp.accounting import (
    Allocation,
    Compose,
    Gaussian,
    Laplace,
    NotPrivate,
    Poisson,
    Repeat,
    Submodels,
    WithoutReplacement,
    calibrate,
    calibrate_count,
    calibrate_risk,
    epsilon_from_rdp,
)

DELTA = 1e-5


@given(
    epsilon=st.floats(0.1, 15),
    delta=st.floats(1e-9, 1e-3),
    build=st.sampled_from(
        [
            Gaussian,
            lambda s: Allocation(Gaussian(s), 2, 6),
            lambda s: Repeat(Poisson(Gaussian(s), 0.05), 40),
            lambda s: Submodels(Gaussian(s), 4),
            lambda s: Repeat(WithoutReplacement(Gaussian(s), 10, 100), 20),
        ]
    ),
)
@settings(max_examples=4, deadline=None)
def test_the_budget_is_kept_and_nearly_used(epsilon, delta, build):
    noise = calibrate(build, epsilon, delta)
    assert build(noise).epsilon(delta).upper <= epsilon
    # The tolerance is 1e-4 of the noise; twice that is outside it. Several hidden rounds are known to half a per cent.
    fewer = 1e-2 if isinstance(build(noise), Allocation) else 2e-4
    assert build(noise * (1 - fewer)).epsilon(delta).upper > epsilon


@pytest.mark.slow
def test_repeated_batches_of_fixed_size_are_credited_in_the_search():
    """Half a per cent less noise breaks the budget: the search asks for the charge that the run then pays."""

    def build(noise):
        return Repeat(WithoutReplacement(Gaussian(noise), 10, 100), 20)

    noise = calibrate(build, 1.0, DELTA)
    assert build(noise).epsilon(DELTA).upper <= 1.0 < build(0.995 * noise).epsilon(DELTA).upper


def test_little_noise_is_not_stepped_over():
    """A search that halves its way down must not end on a noise that it has seen to cost more than the budget."""
    for build, epsilon, scale in ((Gaussian, 1e5, 1), (lambda s: Gaussian(1000 * s), 10.0, 1000)):
        noise = calibrate(build, epsilon, DELTA)
        assert build(noise).epsilon(DELTA).upper <= epsilon < build(noise * 0.999).epsilon(DELTA).upper
        assert noise * scale >= 1 / (
            math.sqrt(2 * (epsilon + math.log(1 / DELTA))) + math.sqrt(2 * math.log(1 / DELTA))
        )
    noise = calibrate(lambda s: Gaussian(1000 * s), advantage=0.1)
    assert Gaussian(1000 * noise).delta(0.0).upper <= 0.1


def test_where_epsilon_falls_to_zero_at_once_the_law_answers():
    """Sampling has no slope to follow there."""
    noise = calibrate(lambda s: Allocation(Gaussian(s), 2, 5), 1e-4, 0.1)
    assert 0 <= Allocation(Gaussian(noise), 2, 5).epsilon(0.1).upper <= 1e-4


def partially_split(noise: float, count: int):
    """A tenth of the clients a round, a shared and a split half: the setting of Dong, Chen and Özgür 2025, Table 1."""
    return Repeat(Poisson(Compose([Gaussian(noise), Submodels(Gaussian(noise), count)]), 0.1), 1000)


TABLE = [
    (1, 3.31, 3.08, 2.90),
    pytest.param(3, 2.72, 2.53, 2.39, marks=pytest.mark.slow),
    pytest.param(8, 2.49, 2.32, 2.19, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("count", "loose", "tight", "law"), TABLE)
def test_published_noise_multipliers(count, loose, tight, law):
    """Table 1 at (8, 1e-5): the printed figures with orders 2..100 and the loose conversion, less with better ones."""
    orders = np.arange(2, 101)
    for conversion, noise in (("loose", loose), ("tight", tight)):
        # Figures have two digits: the budget is kept half a digit above and not half a digit below.
        kept, broken = (
            epsilon_from_rdp(orders, partially_split(s, count).rdp(orders), DELTA, conversion)
            for s in (noise + 0.006, noise - 0.006)
        )
        assert kept <= 8 < broken
    assert calibrate(lambda s: partially_split(s, count), 8.0, DELTA) == pytest.approx(law, abs=0.006)


def test_sampling_the_parts_separately_would_understate_the_table():
    """The wrong order of sampling and composition gives 2.66 where the table has 2.72."""
    orders = np.arange(2, 101)
    noise = 2.67
    apart = Repeat(Compose([Poisson(Gaussian(noise), 0.1), Poisson(Submodels(Gaussian(noise), 3), 0.1)]), 1000)
    assert epsilon_from_rdp(orders, apart.rdp(orders), DELTA, "loose") <= 8
    assert epsilon_from_rdp(orders, partially_split(noise, 3).rdp(orders), DELTA, "loose") > 8


def test_whole_numbers_are_the_last_that_fit():
    def allocation(k):
        return Allocation(Gaussian(2.0), k, 12)

    k = calibrate_count(allocation, 2.0, DELTA, largest=12)
    assert allocation(k).epsilon(DELTA).upper <= 2.0 < allocation(k + 1).epsilon(DELTA).upper

    def split(count):
        return Repeat(Submodels(Gaussian(2.0), count), 5)

    count = calibrate_count(split, 2.0, DELTA, largest=50)
    assert split(count).epsilon(DELTA).upper <= 2.0 < split(count - 1).epsilon(DELTA).upper
    assert calibrate_count(allocation, 100.0, DELTA, largest=10) == 10
    assert calibrate_count(split, 100.0, DELTA, largest=10) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate(Gaussian, 0.0, DELTA), "epsilon must be > 0 and finite, got 0.0"),
        (lambda: calibrate(Gaussian, 1.0, 1.0), r"delta must be in \(0, 1\), got 1.0"),
        (lambda: calibrate(lambda s: Gaussian(1.0), 1.0, DELTA), "epsilon = 1 is not reached by any noise multiplier"),
        (
            lambda: calibrate_count(lambda k: Allocation(Gaussian(0.5), k, 9), 0.1, DELTA, largest=9),
            "epsilon = 0.1 is not kept by any number from 1 to 9",
        ),
    ],
)
def test_what_cannot_be_reached_is_said(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def gaussian_noise(epsilon, delta):
    """The least noise multiplier, by Balle, Wang 2018, Theorem 8, in 60 digits."""
    with mpmath.workdps(60):

        def cost(s):
            s = mpmath.mpf(s)
            return mpmath.ncdf(1 / (2 * s) - epsilon * s) - mpmath.exp(epsilon) * mpmath.ncdf(
                -1 / (2 * s) - epsilon * s
            )

        low, high = mpmath.mpf("1e-3"), mpmath.mpf("1e15")
        for _ in range(100):
            middle = mpmath.sqrt(low * high)
            low, high = (middle, high) if cost(middle) > delta else (low, middle)
        return float(high)


@pytest.mark.parametrize(
    ("build", "epsilon", "delta", "exact"),
    [
        (lambda s: Repeat(Gaussian(s), 2_000_000), 0.1, DELTA, gaussian_noise(0.1, DELTA) * math.sqrt(2e6)),
        (Gaussian, 1e-6, DELTA, gaussian_noise(1e-6, DELTA)),
        (Gaussian, 1e-10, 1e-9, gaussian_noise(1e-10, 1e-9)),
        # delta = 1 - exp((epsilon - 1 / b) / 2) for Laplace noise of scale b.
        (Laplace, 1e-6, 1e-9, 1 / (1e-6 - 2 * math.log1p(-1e-9))),
        (Laplace, 1e-10, 1e-9, 1 / (1e-10 - 2 * math.log1p(-1e-9))),
    ],
    ids=["a long run", "Gaussian", "Gaussian below 1e-9", "Laplace", "Laplace below 1e-9"],
)
def test_a_budget_that_takes_much_noise_is_reached(build, epsilon, delta, exact):
    """2e-4: the search's tolerance of 1e-4, and as much for the law. Its rounding, some 3e-13 of epsilon, counts over
    delta.
    """
    assert exact * (1 - 1e-9) <= calibrate(build, epsilon, delta) <= exact * (1 + 2e-4 + 4e-13 / delta)


def test_an_advantage_that_takes_much_noise_is_reached():
    """The advantage of one Gaussian is 2 Phi(1 / (2 s)) - 1."""
    exact = 1 / (2 * float(norm.ppf((1 + 1e-5) / 2)))
    assert exact * (1 - 1e-7) <= calibrate_risk(Gaussian, advantage=1e-5) <= exact * (1 + 2e-4)


def test_a_budget_that_no_noise_keeps_is_refused():
    with pytest.raises(ValueError, match="epsilon = 1 is not reached by any noise multiplier up to 1e"):
        calibrate(lambda s: NotPrivate(), 1.0, DELTA)
