"""Chua et al. 2024 against closed forms, quadrature over two rounds and plain simulation."""

import math

import numpy as np
import pytest
from scipy.special import rel_entr
from scipy.stats import beta, norm

from benchmarks.papers.bounds import balls_and_bins
from benchmarks.papers.statements.allocation_bounds import call_option, two_rounds


def one_of_two(noise_multiplier, epsilon):
    return two_rounds(noise_multiplier, None, epsilon, "remove")


@pytest.mark.parametrize(("noise_multiplier", "epsilon"), [(1, 0.5), (0.4, 3), (5, 0), (0.3, 20)])
def test_the_attack_on_one_round_is_the_gaussian_mechanism(noise_multiplier, epsilon):
    exact = call_option(noise_multiplier, math.exp(epsilon))
    # Its likelihood ratio rises with the output, so thresholds are optimal; the search stops at 1e-9 of a threshold.
    assert balls_and_bins.delta_from_below(noise_multiplier, 1, epsilon) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("noise_multiplier", "epsilon"), [(1, 0.5), (0.4, 3), (2, 0.1)])
def test_the_attack_is_the_best_threshold_and_below_the_exact_delta(noise_multiplier, epsilon):
    found = balls_and_bins.delta_from_below(noise_multiplier, 2, epsilon)
    thresholds = np.linspace(-4, 8, 200)
    seen = 1 - norm.cdf(thresholds) * norm.cdf(thresholds, 1 / noise_multiplier)
    attacks = seen - math.exp(epsilon) * (1 - norm.cdf(thresholds) ** 2)
    assert attacks.max() - 1e-12 <= found <= one_of_two(noise_multiplier, epsilon)


def test_sampling_is_unbiased_up_to_a_hundred_rounds():
    epsilons, samples = [0.1, 0.5, 1.0], 40_000
    means, limits = balls_and_bins.sampled_deltas(1.0, 2, epsilons, samples, np.random.default_rng(1))
    exact = np.array([one_of_two(1.0, epsilon) for epsilon in epsilons])
    # Four standard errors of a variable in [0, 1]; the seed is fixed.
    assert np.all(np.abs(means - exact) < 4 * np.sqrt(exact / samples))
    assert np.all(exact < limits)
    one, _ = balls_and_bins.sampled_deltas(1.0, 1, [0.5], samples, np.random.default_rng(2))
    assert one[0] == pytest.approx(call_option(1.0, math.exp(0.5)), abs=4 * math.sqrt(one[0] / samples))


def test_the_limit_solves_chernoffs_equation_and_exceeds_the_exact_limit_of_coins():
    samples = 1000
    means, limits = balls_and_bins.sampled_deltas(1.0, 5, [0.1, 0.6], samples, np.random.default_rng(4), 0.95)
    divergences = rel_entr(means, limits) + rel_entr(1 - means, 1 - limits)
    np.testing.assert_allclose(divergences, math.log(20) / samples, rtol=1e-9)
    heads = np.floor(means * samples)
    assert np.all(limits > beta.ppf(0.95, heads + 1, samples - heads))  # Clopper and Pearson


def test_the_limit_holds_as_often_as_it_says():
    exact = one_of_two(1.0, 1.0)
    limits = [
        balls_and_bins.sampled_deltas(1.0, 2, [1.0], 200, np.random.default_rng([6, seed]), 0.9)[1][0]
        for seed in range(300)
    ]
    # At most 10 % may fall below; five standard deviations of a binomial of 300 are 9 % more.
    assert np.mean(np.array(limits) < exact) < 0.19
