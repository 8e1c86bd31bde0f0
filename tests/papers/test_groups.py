"""Schuchardt et al. 2024: its figures and statements at points that can be computed in another way."""

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy.stats import binom, norm

from benchmarks.papers.__main__ import PAGES
from benchmarks.papers.bounds.groups import coin_rdp, response_rdp, substituted_response_rdp, substitution_baseline
from benchmarks.papers.bounds.mixtures import sampled_gaussian_rdp
from benchmarks.papers.groups import gaussian_curves, response_curves
from benchmarks.papers.groups_substituted import charged, substituted
from fedamp.accounting import (
    Gaussian,
    Group,
    GroupPoissonGaussian,
    Laplace,
    Poisson,
    RandomisedResponse,
    Repeat,
    Submodels,
    WithoutReplacement,
    group,
)
from tests.papers.commands import run_commands

DELTA = 1e-5
ROUNDING = 1 + 1e-10  # sums of some hundred positive terms
Batch = frozenset


def psi(order, first, second):
    """The integral that the paper calls Psi, of two laws on the same points."""
    return float(np.sum(first**order * second ** (1 - order)))


def subsets(universe):
    return [Batch(batch) for size in range(len(universe) + 1) for batch in itertools.combinations(universe, size)]


def poisson(batches, dataset, rate):
    """The chance of each batch."""
    return np.array([rate ** len(y) * (1 - rate) ** (len(dataset) - len(y)) if y <= dataset else 0.0 for y in batches])


@pytest.mark.parametrize(
    ("noise", "rate", "size", "order"), [(1.0, 0.2, 4, 3.0), (0.5, 0.001, 2, 2.0), (5, 0.1, 8, 30)]
)
def test_figures_5_9_and_10_are_integrals_on_a_grid(noise, rate, size, order):
    z = np.arange(-14.0, 16.0 + order * size / noise, 0.01)
    counts = np.arange(size + 1)
    log_ratio = np.logaddexp.reduce(
        binom.logpmf(counts, size, rate)[:, None] + counts[:, None] * z / noise - counts[:, None] ** 2 / (2 * noise**2)
    )
    log_mass = -z * z / 2 + math.log(0.01 / math.sqrt(2 * math.pi))
    both = [np.logaddexp.reduce(log_mass + power * log_ratio) / (order - 1) for power in (order, 1 - order)]
    tight, _, ours = gaussian_curves(noise, rate, size)
    for curve in (tight, ours.rdp):
        assert curve(np.array([float(order)]))[0] == pytest.approx(max(both), rel=1e-7)


@pytest.mark.slow
@pytest.mark.statement("groups", "Theorem 4.2")
def test_figure_11_is_dp_accountings_mixture_of_sensitivities():
    chances = binom.pmf(np.arange(5), 4, 0.001)
    peer = dp.pld.privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.0, list(range(5)), list(chances / chances.sum()), value_discretization_interval=2e-3
    ).self_compose(1000)
    bounds = Repeat(gaussian_curves(1.0, 0.001, 4)[2], 1000).epsilon(DELTA)
    assert bounds.lower <= peer.get_epsilon_for_delta(DELTA) <= 1.02 * bounds.upper + 1e-3  # the peer rounds losses up


@pytest.mark.parametrize(("rate", "size", "rounds"), [(0.1, 2, 100), (0.1, 8, 1000), (0.001, 8, 10_000)])
def test_figure_12_counts_how_often_the_coin_falls(rate, size, rounds):
    """All rounds' answers are a binomial number; delta of two binomial laws is a sum, in both directions."""
    law = Repeat(response_curves(0.6, rate, size)[2], rounds)
    bounds = law.epsilon(DELTA)
    counts = np.arange(rounds + 1)
    heads = 0.6 - 0.2 * (1 - (1 - rate) ** size)
    one, other = (np.exp(binom.logpmf(counts, rounds, p)) for p in (heads, 0.6))

    def delta(epsilon: float) -> float:
        return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ((one, other), (other, one)))

    assert delta(bounds.upper) <= DELTA * (1 + 1e-6)
    assert delta(bounds.lower * (1 - 1e-6)) >= DELTA * (1 - 1e-6)


def test_figure_7_contains_a_real_sum():
    """One of ten, group of eight: with eight chances in ten the contribution turns from 1/2 to -1/2 (noise 5)."""
    z = np.arange(-14, 14, 0.01)
    density = np.array([0.2 * np.exp(-z * z / 2) + 0.8 * np.exp(-((z - m / 10) ** 2) / 2) for m in (1, -1)])
    density *= 0.01 / math.sqrt(2 * math.pi)
    exact = math.log(np.sum(density[0] ** 4 * density[1] ** -3)) / 3
    transport, generic = substituted(1, 10, 8)
    ours = charged(1, 10, 8, np.array([4.0]))[0]
    assert exact <= ours <= transport(np.array([4.0]))[0] * (1 + 1e-10) <= generic(np.array([4.0]))[0]


@pytest.mark.statement("groups", "Proposition E.5")
@pytest.mark.parametrize(("batch", "population", "size"), [(100, 1000, 2), (100, 1000, 8), (1, 100, 8)])
def test_figure_7_fedamps_bound_is_never_above_the_two_others(batch, population, size):
    orders = np.array([2.0, 3.0, 8.0, 20.0, 64.0])
    transport, generic = (curve(orders) for curve in substituted(batch, population, size))
    ours = charged(batch, population, size, orders)
    assert np.all(ours <= np.minimum(transport, generic) * (1 + 1e-9))


@pytest.mark.slow
def test_the_pages_commands_run(fedamp, monkeypatch):
    run_commands(PAGES["groups"], fedamp, monkeypatch)


@pytest.mark.statement("groups", "Proposition E.2")
@pytest.mark.parametrize(("noise", "batch", "population"), [(4.0, 10, 1000), (2.0, 1, 50), (6.0, 300, 900)])
def test_a_fixed_batch_is_charged_no_more_than_proposition_e2(noise, batch, population):
    """A substitution moves a sum of contributions of norm 1 by 2."""
    share = batch / population
    for order in (2, 3, 8, 24):
        terms = (
            math.comb(order, i) * share**i * math.exp(i * (i - 1) * 4 / (2 * noise**2)) for i in range(2, order + 1)
        )
        printed = math.log1p(2 * sum(terms)) / (order - 1)
        charged = WithoutReplacement(Gaussian(noise), batch, population).rdp([order])[0]
        assert charged <= printed * ROUNDING


@pytest.mark.statement("groups", "Proposition E.4")
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_a_poisson_sample_is_charged_no_more_than_proposition_e4(rate):
    """Psi in closed form: Gaussian noise, Laplace noise, a randomised bit. fedamp never charges the factor of 2."""
    b, truth = 1.5, 0.8
    closed = {
        Gaussian(1.2): lambda i: math.exp(i * (i - 1) / (2 * 1.2**2)),
        Laplace(b): lambda i: (i * math.exp((i - 1) / b) + (i - 1) * math.exp(-i / b)) / (2 * i - 1),
        RandomisedResponse(truth): lambda i: truth**i * (1 - truth) ** (1 - i) + (1 - truth) ** i * truth ** (1 - i),
    }
    for mechanism, moment in closed.items():
        for order in (2, 3, 10):
            terms = (math.comb(order, i) * rate**i * (1 - rate) ** (order - i) * moment(i) for i in range(order + 1))
            total = sum(terms)
            charged = math.exp((order - 1) * Poisson(mechanism, rate).rdp([order])[0])
            assert charged <= total * (1 + 1e-7)  # the digits of the evaluator: Laplace noise on a grid
            assert charged < 2 * total


@pytest.mark.statement("groups", "Proposition 2.10")
@pytest.mark.parametrize("size", [2, 4])
def test_the_group_property(size):
    """Where there is no exact rule, fedamp charges no more than the property."""
    factor = 3 ** math.log2(size)
    run = Submodels(Gaussian(3.0), 4)
    assert isinstance(group(run, size), Group)
    for order in (2, 3, 6):
        charged = group(run, size).rdp([order])[0]
        assert charged <= factor * run.rdp([order * size])[0] * ROUNDING


@pytest.mark.statement("groups", "Theorem G.1", "Theorem G.2")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_bit_of_the_number_drawn_attains_what_a_group_is_charged(size):
    """All assignments of answers to the number of the group in the batch; a real data set of one more record."""
    rate, truth = 0.25, 0.8
    people = Batch(range(1, size + 1))
    batches = subsets(range(size + 1))
    large, small = poisson(batches, Batch(range(size + 1)), rate), poisson(batches, Batch({0}), rate)
    for order in (2.0, 4.0):  # fedamp interpolates between whole ones
        attained = 0.0
        for bits in itertools.product((0, 1), repeat=size + 1):
            heads = np.array([(truth, 1 - truth)[bits[len(y & people)]] for y in batches])
            laws = np.stack([heads, 1 - heads], axis=1)
            for pair in ((large, small), (small, large)):
                attained = max(attained, psi(order, *(chances @ laws for chances in pair)))
        charged = group(Poisson(RandomisedResponse(truth), rate), size).rdp([order])[0]
        assert charged == pytest.approx(math.log(attained) / (order - 1), rel=1e-8)


@pytest.mark.statement("groups", "Theorem G.3", "Theorem 4.2")
@pytest.mark.parametrize(("noise", "rate", "size"), [(1.0, 0.2, 2), (0.7, 0.5, 3)])
def test_a_count_of_the_group_attains_theorem_4_2(noise, rate, size):
    """f(y) = |g in y| in the first of two coordinates: a real mechanism, its batches enumerated, its law on a grid."""
    people = Batch(range(1, size + 1))
    batches = subsets(range(size + 1))
    large = poisson(batches, Batch(range(size + 1)), rate)
    order, step = 3, 0.2 * noise
    axis = np.arange(-12 * noise - order * size, 12 * noise + order * size, step)
    across = norm.pdf(axis[:64] - axis[32], scale=noise)  # the second coordinate, six deviations on either side
    line = sum(p * norm.pdf(axis, loc=len(y & people), scale=noise) for p, y in zip(large, batches, strict=True))
    first = np.outer(line, across).ravel() * step**2
    second = np.outer(norm.pdf(axis, scale=noise), across).ravel() * step**2
    kept = (first > 0) & (second > 0)
    both = [psi(order, *pair) for pair in ((first[kept], second[kept]), (second[kept], first[kept]))]
    charged = group(Poisson(Gaussian(noise), rate), size).rdp([order])[0]
    # A grid of a fifth of the noise is good to more digits; the second coordinate keeps 1 - 2e-9 of its mass.
    assert math.log(max(both)) / (order - 1) == pytest.approx(charged, rel=1e-7)


@pytest.mark.statement("groups", "Theorem 3.7")
@pytest.mark.parametrize("theta", [0.6, 0.75, 0.9])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5])
def test_fedamp_charges_a_bit_what_theorem_3_7_does(theta, fraction):
    orders = np.array([2.0, 5.0, 30.0, 200.0])
    tight = substituted_response_rdp(theta, fraction, orders)
    charged = WithoutReplacement(RandomisedResponse(theta), round(1000 * fraction), 1000).rdp(orders)
    np.testing.assert_allclose(charged, tight, rtol=1e-8, atol=1e-13)
    pure = math.log(theta / (1 - theta))
    assert np.all(tight <= substitution_baseline(lambda a: coin_rdp(theta, 1 - theta, a), pure, fraction, orders))


@pytest.mark.statement("groups", "Theorem G.1")
@pytest.mark.parametrize(("rate", "size"), [(0.2, 2), (0.2, 8), (0.001, 8)])
def test_fedamp_charges_a_group_what_theorem_g1_does(rate, size):
    orders = np.array([2.0, 8.0, 100.0])
    charged = group(Poisson(RandomisedResponse(0.75), rate), size).rdp(orders)
    np.testing.assert_allclose(charged, response_rdp(0.75, rate, size, orders), rtol=1e-8, atol=1e-13)


@pytest.mark.statement("groups", "Theorem 4.2")
@pytest.mark.parametrize(("noise", "rate", "size"), [(1.0, 0.1, 1), (1.0, 0.2, 4), (4.0, 0.01, 8), (2.0, 1.0, 5)])
def test_fedamps_group_has_the_divergence_of_theorem_4_2(noise, rate, size):
    orders = np.array([2.0, 3.0, 8.0, 32.0, 100.0])
    exact = sampled_gaussian_rdp(noise, rate, orders, size)
    np.testing.assert_allclose(GroupPoissonGaussian(noise, rate, size).rdp(orders), exact, rtol=1e-8, atol=1e-13)
