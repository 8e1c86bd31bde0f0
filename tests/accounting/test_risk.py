"""Risks are asked, calibrated to and said in words: on the safe side, and not by much."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedamp.accounting import (
    Compose,
    Gaussian,
    NotPrivate,
    Poisson,
    Repeat,
    Submodels,
    TradeOff,
    calibrate_risk,
    in_words,
    privacy_profile,
    trade_off,
)


def test_the_profile_is_delta_on_a_grid_of_any_shape():
    run = Repeat(Poisson(Gaussian(1.1), 0.1), 10)
    epsilons = np.array([[2.0, 0.0], [0.5, 1.0]])
    lower, upper = privacy_profile(run, epsilons)
    assert lower.shape == upper.shape == (2, 2)
    for index, epsilon in np.ndenumerate(epsilons):
        answer = run.delta(epsilon)
        assert (lower[index], upper[index]) == (answer.lower, answer.upper)


@pytest.mark.parametrize("advantage", [0.05, 0.4])
def test_calibration_to_an_advantage(advantage):
    exact = 1 / (2 * norm.ppf((1 + advantage) / 2))  # Phi(mu / 2) - Phi(-mu / 2) = advantage
    noise = calibrate_risk(Gaussian, advantage=advantage)
    assert Gaussian(noise).delta(0.0).upper <= advantage
    assert exact <= noise <= exact * (1 + 3e-4)  # the tolerance, and delta's bracket


@pytest.mark.parametrize(("false", "true"), [(0.01, 0.07), (0.001, 0.5), (0.1, 0.12)])
def test_calibration_to_a_true_positive_rate(false, true):
    exact = 1 / (norm.ppf(true) - norm.ppf(false))
    noise = calibrate_risk(Gaussian, tpr_at=(false, true))
    assert trade_off(Gaussian(noise)).true_positive_rate(false)[1] <= true
    assert exact <= noise <= exact * (1 + 3e-3)  # the certified end of the trade-off function, at 100 values


def test_calibration_of_a_run():
    def build(noise):
        return Repeat(Poisson(Compose([Gaussian(noise), Submodels(Gaussian(noise), 2)]), 0.1), 8)

    noise = calibrate_risk(build, tpr_at=(0.01, 0.05), tolerance=3e-3)
    assert trade_off(build(noise)).true_positive_rate(0.01)[1] <= 0.05
    assert trade_off(build(noise * 0.99)).true_positive_rate(0.01)[1] > 0.05


def test_in_words():
    assert in_words(Gaussian(1.0)) == (  # Phi(Phi^-1(0.01) + 1) = 0.0924
        "Somebody who suspects that you took part, and accepts a false alarm in 1 of 100 cases in which you did not, "
        "is right in at most 9.3 of 100 cases in which you did."
    )
    said = in_words(Gaussian(1.0), 0.0025)  # Phi(Phi^-1(0.0025) + 1) = 0.0353
    assert "in 2.5 of 1000 cases in which you did not, is right in at most 35.4 of 1000" in said
    assert "is right in possibly every case in which you did." in in_words(NotPrivate())
    assert "a suspicion stays a guess" in in_words(Repeat(Gaussian(1.0), 0))
    assert "that a record of yours took part, and" in in_words(Gaussian(1.0), whom="a record of yours")
    # Phi(Phi^-1(0.01) + 2) = 0.372: the other world is not one without the person
    assert in_words(Gaussian(1.0, relation="substitution")) == (
        "Somebody who suspects that certain data was used and not certain other data, and accepts a false alarm in 1 "
        "of 100 cases in which the other was, is right in at most 37.3 of 100 cases in which it was."
    )


@given(noise=st.floats(0.3, 30.0), exponent=st.floats(-5.0, -0.05))
@settings(max_examples=40, deadline=None)
def test_words_do_not_promise_too_much(noise, exponent):
    """The printed rates, read back: the best test does not exceed what is said, and not by much."""
    said = in_words(Gaussian(noise), 10**exponent)
    numbers = [float(number) for number in re.findall(r"[\d.]*\d", said)]
    false, true = numbers[0] / numbers[1], (numbers[2] / numbers[3] if len(numbers) > 2 else 1.0)
    assert false == pytest.approx(10**exponent, rel=5e-3)  # three digits
    best = norm.sf(norm.isf(false) - 1 / noise)
    assert best <= true <= best * 1.02 + 0.11 / numbers[1]  # the bracket, and rounding up to a tenth of a case


NO_SENSE = [
    (lambda: trade_off(Gaussian(1.0), 5), "values must be >= 20, got 5"),
    (lambda: trade_off(Gaussian(1.0)).true_positive_rate([0.5, 1.5]), r"false_positive_rate must be in \[0, 1\]"),
    (lambda: trade_off(Gaussian(1.0)).identification(0.5), "candidates must be whole numbers >= 1, got 0.5"),
    (lambda: trade_off(Gaussian(1.0)).posterior(0.5, 0.0), "false_positive_rate must be > 0 for a posterior"),
    (lambda: trade_off(Gaussian(1.0)).gaussian(0.5), r"smallest_rate must be in \(0, 0.5\), got 0.5"),
    (lambda: in_words(Gaussian(1.0), 0.0), r"false_positive_rate must be in \(0, 1\), got 0.0"),
    (lambda: privacy_profile(Gaussian(1.0), [-1.0]), "epsilon must be >= 0, got -1.0"),
    (lambda: TradeOff(np.ones(1), np.zeros(1), np.ones(1)), "epsilons must be increasing from 0 and finite"),
    (lambda: TradeOff(np.zeros(1), np.ones(1), np.zeros(1)), "lower must not exceed upper"),
    (lambda: TradeOff(np.zeros(1), np.zeros(1), 2 * np.ones(1)), r"lower and upper must be in \[0, 1\]"),
    (lambda: calibrate_risk(Gaussian), "exactly one of advantage and tpr_at must be given"),
    (lambda: calibrate_risk(Gaussian, advantage=1.0), r"advantage must be in \(0, 1\), got 1.0"),
    (lambda: calibrate_risk(Gaussian, tpr_at=(0.1, 0.1)), "tpr_at must be two rates, 0 < first < second < 1, got"),
    (lambda: calibrate_risk(Gaussian, tpr_at=0.1), "tpr_at must be two rates, 0 < first < second < 1, got 0.1"),
    (lambda: calibrate_risk(lambda s: Gaussian(1.0), advantage=0.1), "advantage = 0.1 is not reached by any noise"),
]


def test_questions_that_make_no_sense(subtests):
    for call, message in NO_SENSE:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
