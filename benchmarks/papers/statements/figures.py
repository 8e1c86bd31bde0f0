"""Figures of the papers, whose code calls nothing of fedamp, against simulation, quadrature and closed forms."""

import math

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

from benchmarks.papers import allocation_mean, linear
from benchmarks.papers import merging_estimation as estimation
from benchmarks.papers.bounds import allocation
from benchmarks.papers.merging_costs import frontier, simplex
from benchmarks.training import best_power


@pytest.mark.parametrize("scheme", allocation_mean.SCHEMES)
@pytest.mark.parametrize("deviation", [0.0, 20.0])
def test_simulated_errors_are_the_predicted_ones(scheme, deviation):
    generator = np.random.default_rng(int(deviation))
    errors = allocation_mean.square_errors(scheme, 100, deviation, 4000, generator)
    margin = 5 * errors.std() / math.sqrt(4000)
    assert errors.mean() == pytest.approx(allocation_mean.predicted_error(scheme, 100, deviation), abs=margin)


def test_the_direct_bound_of_many_epochs_needs_all_their_shifts():
    """Ten epochs of one round of two, add direction: what the authors' package computes is below a simulated attack."""
    noise, part, epochs, delta, samples = 1.0, 2, 10, 1e-2, 200_000
    once = (1 - 1 / part) / (2 * noise**2)
    as_in_the_package = once + allocation.local_epsilon(noise * math.sqrt(part / epochs), delta)
    z = np.random.default_rng(4).standard_normal((samples, epochs, part)) / noise - 1 / (2 * noise**2)
    loss = -np.log(np.exp(z).mean(axis=2)).sum(axis=1)
    gained = np.maximum(-np.expm1(as_in_the_package - loss), 0)
    assert gained.mean() > delta + 5 * gained.std() / math.sqrt(samples)
    right = allocation.direct_add_epsilon(noise, epochs * part, delta, epochs)
    assert np.maximum(-np.expm1(right - loss), 0).mean() <= delta


def mixture(share: float):
    """The number that a selection releases: a density, and a sampler."""
    noises, weights = estimation.NOISES, (1 - share, share)

    def density(x):
        return sum(w * norm.pdf(x, scale=s) for w, s in zip(weights, noises, strict=True))

    def sample(count: int, generator: np.random.Generator):
        return generator.normal(size=count) * np.where(generator.random(count) < share, noises[1], noises[0])

    return density, sample


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_the_exact_cost_of_a_selection_is_what_sampling_finds(share):
    """At a delta that a million numbers can see."""
    density, sample = mixture(share)
    delta = 1e-2
    epsilon = estimation.selection_hidden(share, delta=delta)
    x = sample(1_000_000, np.random.default_rng(5))
    excess = np.maximum(1 - math.exp(epsilon) * density(x - 1) / density(x), 0)
    assert abs(excess.mean() - delta) < 4 * excess.std() / 1000  # four standard errors


@pytest.mark.parametrize("order", [2.0, 20.0])
def test_renyi_divergences_of_the_mixture_agree_with_quadrature(order):
    wide, narrow = estimation.NOISES

    def log_density(x: float) -> float:
        return float(np.logaddexp(norm.logpdf(x, scale=wide), norm.logpdf(x, scale=narrow))) - math.log(2)

    def integrand(x: float) -> float:
        return math.exp(order * log_density(x) + (1 - order) * log_density(x - 1))

    moment, _ = integrate.quad(integrand, -80, 80, points=[-20, -4, 0, 4, 20], limit=400)
    assert estimation.hidden_rdp(order, 0.5) == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)


def test_errors_are_those_of_real_numbers():
    generator = np.random.default_rng(1)
    samples = np.clip(generator.normal(size=(40_000, estimation.SAMPLES)), -1, 1).mean(axis=1)
    noise = estimation.SENSITIVITY * estimation.NOISES[1] * generator.normal(size=samples.shape)
    # A variance of 40,000 numbers is known to 0.7 %; four times that.
    assert np.mean((samples + noise) ** 2) == pytest.approx(
        float(estimation.mean_squared_error(estimation.NOISES[1] ** 2)), rel=0.03
    )


def test_frontiers_and_simplices():
    epsilons, best = frontier(np.array([3.0, 1.0, 2.0, math.inf, 1.0]), np.array([0.6, 0.5, 0.4, 0.9, 0.3]))
    assert epsilons.tolist() == [1.0, 3.0]
    assert best.tolist() == [0.5, 0.6]
    points = simplex(3, 4)
    assert len(points) == 15
    np.testing.assert_allclose(points.sum(axis=1), 1)
    assert len(np.unique(points, axis=0)) == 15


@pytest.mark.statement("modelmix", "Algorithm 2")
def test_truncation_of_linear_models_is_that_of_every_coordinate():
    generator = np.random.default_rng(0)
    inputs, errors = (generator.standard_normal(shape).astype(np.float32) for shape in ((40, 7), (40, 3)))
    gradients = inputs[:, :, None] * errors[:, None, :]
    truncated = (inputs.T @ errors) - linear.excess(inputs, errors, 0.8)
    np.testing.assert_allclose(truncated, np.clip(gradients, -0.8, 0.8).sum(0), atol=1e-4)


@pytest.mark.statement("modelmix", "Algorithm 1")
def test_linear_models_are_mixed_and_noised_as_much_as_they_are_charged_for():
    """No gradient (a class alone has no error): what moves is noise, and the mixture of the first models, one point."""
    records = linear.Records.of(np.zeros((30, 4000), np.float32), np.arange(30) % 2)
    noised, mixed = linear.Training(2.0, 0.5, 3.0), linear.Training(2.0, 0.5, 0.0, (0.1,))
    first, second = linear.train([noised, mixed], records, linear.Sampling(1, 1.0), seed=2)
    # 8,000 numbers each: their deviation is known to 0.8 %; five times that.
    assert first[:-1].std() == pytest.approx(2.0 / 30 * 3.0 * 0.5, rel=0.04)
    assert np.abs(second[:-1]).max() == pytest.approx(0.1 * 2.0 / 2, rel=0.01)
    assert second[:-1].std() == pytest.approx(0.1 * 2.0 / math.sqrt(12), rel=0.04)


@pytest.mark.parametrize("start", [-3, 5, 9])
def test_the_best_rate_is_never_at_an_edge(start):
    asked = []
    assert best_power(lambda power: asked.append(power) or -abs(power - 5.2), start) == 5
    assert {4, 5, 6} <= set(asked)
