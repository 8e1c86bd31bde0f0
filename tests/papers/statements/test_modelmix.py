"""Xiao, Wan, Devadas 2022, statement by statement: small optimisations, quadrature, and exact compositions.

Algorithm 1 is written out here in a few lines; nothing of fedamp's training is used.
"""

import math

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.papers.statements.modelmix import DELTA, losses, rough_descent
from fedamp.accounting import Gaussian, ModelMix, Poisson, RandomisedResponse, Repeat
from tests.accounting.oracles import gaussian_delta

# --- composition ------------------------------------------------------------------------------------------------------


@pytest.mark.statement("modelmix", "Theorem 2.1")
@pytest.mark.parametrize(("epsilon", "rounds"), [(0.05, 400), (0.5, 40)])
def test_advanced_composition_contains_the_worst_mechanism(epsilon, rounds):
    """Kairouz et al. 2015: with chance delta everything is shown, else a bit is randomised. Its rounds, counted."""
    one, slack = 1e-7, 1e-5
    total = math.sqrt(2 * rounds * math.log(1 / slack)) * epsilon + rounds * epsilon * math.expm1(epsilon)
    counts, truth = np.arange(rounds + 1), 1 / (1 + math.exp(-epsilon))
    laws = [binom.pmf(counts, rounds, p) for p in (truth, 1 - truth)]
    of_bits = np.maximum(laws[0] - math.exp(total) * laws[1], 0).sum()
    exact = 1 - (1 - one) ** rounds * (1 - of_bits)
    assert exact <= rounds * one + slack
    # Half that epsilon would be too little, and fedamp charges the rounds less.
    half = np.maximum(laws[0] - math.exp(total / 2) * laws[1], 0).sum()
    assert half > rounds * one + slack
    assert Repeat(RandomisedResponse(truth), rounds).epsilon(slack).upper <= total


@pytest.mark.statement("modelmix", "Theorem 2.2")
@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 10), (10.0, 400)])
def test_composition_by_renyi_divergence(noise, rounds):
    """The rounds' divergences add; the exact delta of Gaussian rounds lies below, and so does fedamp's charge."""
    orders = np.arange(2.0, 65.0)
    printed = float(np.min(rounds * orders / (2 * noise**2) - math.log(DELTA) / (orders - 1)))
    assert gaussian_delta(printed, noise / math.sqrt(rounds)) <= DELTA
    assert gaussian_delta(0.7 * printed, noise / math.sqrt(rounds)) > DELTA
    for mechanism in (Gaussian(noise), Poisson(Gaussian(noise), 0.2), ModelMix(noise, 3.0)):
        one = mechanism.rdp(orders)
        np.testing.assert_allclose(Repeat(mechanism, rounds).rdp(orders), rounds * one, rtol=1e-9)
        bound = float(np.min(rounds * one - math.log(DELTA) / (orders - 1)))
        assert Repeat(mechanism, rounds).epsilon(DELTA).upper <= bound * (1 + 1e-9)


@pytest.mark.statement("modelmix", "Theorem B.1", "Theorem 3.2")
@pytest.mark.parametrize(("mixing", "scale"), [(False, 300.0), (True, 450.0)])
def test_clipped_descent_at_a_low_sampling_rate_needs_another_factor(mixing, scale):
    """The proofs' step size is proportional to q, and (29) keeps a power of 1 / q that the printed bounds drop.

    All gradients are equal, so that Assumption 2.1 holds with any kappa. The noise of v = 2 does give the budget of
    this scale, epsilon = scale sqrt(log(1 / delta)) / n.
    """
    rate, people = 0.002, 10_000
    run = Repeat(Poisson(Gaussian(math.sqrt(2) * people * rate), rate), round(scale**2))
    assert run.epsilon(DELTA).upper <= scale * math.sqrt(math.log(1 / DELTA)) / people
    measured, bound = rough_descent(rate, scale, 1.0, mixing)
    assert measured > 1.4 * bound
    assert measured <= bound / rate


@pytest.mark.statement("modelmix", "Corollary 4.1", "Theorem 4.1")
@pytest.mark.parametrize("coordinates", [1, 25])
def test_corollary_4_1_prints_a_negative_epsilon_for_one_round(coordinates):
    """Its denominator 1 - alpha is negative, and the number of rounds T is missing; fedamp charges it corrected."""
    noise, width, rate, rounds = 0.8, 4.0, 0.1, 200
    chances, loss = losses(noise, width, coordinates**-0.5, 12)  # under the shifted law: E[X^k] is a mean of X^(k - 1)
    moments = np.array([float(np.sum(chances * np.exp((k - 1) * loss))) ** coordinates for k in range(13)])
    orders = np.arange(2, 13)
    sums = np.array([np.sum(binom.pmf(range(a + 1), a, rate) * moments[: a + 1]) for a in orders])
    printed = np.min((np.log(sums) - math.log(DELTA)) / (1 - orders))
    assert printed < 0
    without_rounds = np.min((np.log(sums) - math.log(DELTA)) / (orders - 1))
    corrected = np.min((rounds * np.log(sums) - math.log(DELTA)) / (orders - 1))
    one = Poisson(ModelMix(noise, width, coordinates), rate)
    np.testing.assert_allclose(one.rdp(orders), np.log(sums) / (orders - 1), rtol=1e-6)  # the grid's step
    charged = Repeat(one, rounds).epsilon(DELTA)
    assert charged.upper <= corrected
    assert charged.lower > without_rounds
