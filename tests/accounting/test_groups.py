"""Groups under fixed-size batches and under rounds that hide a submodel, against mechanisms written out in full."""

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedamp.accounting import (
    Allocation,
    CappedPoisson,
    Compose,
    Gaussian,
    GroupPoissonGaussian,
    Laplace,
    Poisson,
    RandomisedResponse,
    Repeat,
    Submodels,
    WithoutReplacement,
    calibrate,
    group,
)
from tests.accounting.oracles import bits, delta_of, renyi_of, uniform_sets

DELTA = 1e-5
Z = np.arange(-14, 14, 0.02)


def noisy_sum(values: tuple[int, ...], batch: int, noise: float) -> np.ndarray:
    """The law, on a grid, of a noisy sum over a batch drawn without replacement."""
    sums = [sum(drawn) / noise for drawn in itertools.combinations(values, batch)]
    return np.mean([norm.pdf(Z - s) for s in sums], axis=0) * 0.02


@pytest.mark.parametrize(("batch", "noise"), [(1, 2.0), (2, 4.0)])
def test_groups_in_fixed_batches_contain_real_sums(batch, noise):
    """Two of five people substituted; contributions of at most 1 in size, the worst of all data sets."""
    charged = group(WithoutReplacement(Gaussian(noise), batch, 5), 2)
    divergence, delta = 0.0, 0.0
    for rest in itertools.combinations_with_replacement((-1, 0, 1), 3):
        for old, new in itertools.permutations(itertools.combinations_with_replacement((-1, 0, 1), 2), 2):
            one, other = noisy_sum(rest + old, batch, noise), noisy_sum(rest + new, batch, noise)
            divergence = max(divergence, math.log(np.sum(one**3 * other**-2)) / 2)
            delta = max(delta, float(np.sum(np.maximum(one - math.exp(0.2) * other, 0))))
    assert divergence <= charged.rdp([3])[0] <= 2.5 * divergence  # the joint convexity of the bound costs up to that
    assert delta <= charged.delta(0.2).upper <= 2.5 * delta


@pytest.mark.statement("groups", "Proposition 2.10")
def test_a_group_in_a_fixed_batch_costs_less_than_by_the_generic_property():
    """Mironov 2017, Proposition 2, by hand; rounds compose."""
    for noise, batch, population, halvings in [(4.0, 10, 1000, 1), (8.0, 30, 100, 2), (20.0, 50, 100, 3)]:
        size, one = 2**halvings, WithoutReplacement(Gaussian(noise), batch, population)
        generic = 3**halvings * one.rdp([2 * size, 3 * size])
        charged = Repeat(one, 20)
        assert np.all(group(charged, size).rdp([2, 3]) < 0.8 * 20 * generic)
        assert charged.epsilon(DELTA).upper < group(charged, size).epsilon(DELTA).upper


@settings(max_examples=10)
@given(noise=st.floats(1.0, 20.0), population=st.integers(2, 300), share=st.floats(0.0, 1.0), size=st.integers(1, 12))
def test_a_larger_group_in_a_fixed_batch_costs_more_up_to_all_being_in_it(noise, population, share, size):
    batch, size = max(1, round(share * population)), min(size, population - 1)
    smaller, larger = (WithoutReplacement(Gaussian(noise), batch, population, k) for k in (size, size + 1))
    orders = [2.0, 3.0, 10.0]
    everybody = Gaussian(noise / (2 * min(batch, size))).rdp(orders)
    assert np.all(smaller.rdp(orders) <= larger.rdp(orders) * (1 + 1e-9))
    assert np.all(smaller.rdp(orders) <= everybody * (1 + 1e-9))
    assert smaller.delta(0.5).upper <= larger.delta(0.5).upper * (1 + 1e-6) + 1e-12  # 1e-6: widths of the brackets


@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_epsilon_of_a_batch_is_where_its_delta_is(delta):
    batch = WithoutReplacement(Gaussian(1.0), 30, 1000)
    epsilon = batch.epsilon(delta).upper
    assert batch.delta(epsilon).upper <= delta * (1 + 1e-3) <= batch.delta(epsilon * 0.99).upper  # widths of brackets


def test_a_batch_of_one_holds_one_of_the_group():
    """8 of 10 substituted: with a chance of 0.8 the only contribution is another, at most 2 apart, noise 4."""
    grouped = group(WithoutReplacement(Gaussian(4.0), 1, 10), 8)
    exact_if_seen = math.log(0.2 + 0.8 * math.exp((2 / 4) ** 2))  # order 2
    apart = np.array([0.2 * norm.pdf(Z) + 0.8 * norm.pdf(Z - sign / 4) for sign in (1, -1)]) * 0.02
    assert math.log(np.sum(apart[0] ** 2 / apart[1])) <= grouped.rdp([2])[0] <= exact_if_seen * (1 + 2e-11)


@pytest.mark.parametrize(("noise", "rate", "size", "rounds"), [(2.0, 0.1, 4, 20)])
def test_sampled_groups_agree_with_dp_accountings_mixture_of_sensitivities(noise, rate, size, rounds):
    chances = [math.comb(size, i) * rate**i * (1 - rate) ** (size - i) for i in range(size + 1)]
    peer = dp.pld.privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise, list(range(size + 1)), chances, value_discretization_interval=3e-3
    ).self_compose(rounds)
    bounds = Repeat(GroupPoissonGaussian(noise, rate, size), rounds).epsilon(DELTA)
    # The peer rounds losses up by at most 3e-3 a round; its answer is above ours, by little.
    assert bounds.lower <= peer.get_epsilon_for_delta(DELTA) <= bounds.upper * 1.02 + 1e-3


def test_parts_under_one_coin_are_one_gaussian():
    parts = Poisson(Compose([Gaussian(3.0), Gaussian(4.0)]), 0.1)
    assert group(parts, 3) == GroupPoissonGaussian(2.4, 0.1, 3)
    assert group(Laplace(4.0), 2) == Laplace(2.0)


def submodel_group_moment(order: int, shared: float, split: float, count: int, rate: float, size: int) -> float:
    """E[X^order] of people who take part by a coin each and write to a shared part and to one hidden submodel of
    ``count``, all in one direction: the mean, over independent draws of everybody's choices, of exp(sum of overlaps).
    """
    one = [(1 - rate, None)] + [(rate / count, j) for j in range(count)]
    draws = []
    for choices in itertools.product(one, repeat=size):
        shift = np.zeros(1 + count)
        for _, submodel in choices:
            if submodel is not None:
                shift[0] += 1 / shared
                shift[1 + submodel] += 1 / split
        draws.append((math.prod(chance for chance, _ in choices), shift))
    return sum(
        math.prod(chance for chance, _ in drawn)
        * math.exp(sum(a[1] @ b[1] for a, b in itertools.combinations(drawn, 2)))
        for drawn in itertools.product(draws, repeat=order)
    )


@pytest.mark.parametrize(("rate", "size"), [(0.1, 2), (0.5, 3)])
def test_groups_under_rounds_with_hidden_submodels(rate, size):
    """The charge gives the submodel away, not the coin; it is above the exact moment of order 2, and near it."""
    run = Repeat(Poisson(Compose([Gaussian(2.0), Submodels(Gaussian(4.0), 2)]), rate), 10)
    exact = 10 * math.log(submodel_group_moment(2, 2.0, 4.0, 2, rate, size))
    charged = group(run, size).rdp([2])[0]
    assert exact <= charged <= 1.2 * exact
    halvings = math.ceil(math.log2(size))
    assert charged < 0.8 * 3**halvings * run.rdp([2 * 2**halvings])[0]  # Mironov 2017, Proposition 2


@pytest.mark.statement("groups", "Proposition 2.10")
def test_the_generic_property_halves_groups_of_any_size():
    """Three people in a run of hidden submodels: above the exact moment, and the halving written out."""
    run = Submodels(Gaussian(6.0), 3)
    exact = math.log(submodel_group_moment(2, math.inf, 6.0, 3, 1.0, 3))
    one = run.rdp(np.arange(2.0, 9.0)) * np.arange(1, 8)  # log moments of orders 2 to 8

    def of_two(order: int) -> float:
        return (one[2 * order - 2] + one[2 * order - 3]) / 2

    by_hand = (of_two(4) + one[1]) / 2
    charged = group(run, 3).rdp([2])[0]
    assert charged == pytest.approx(min(by_hand, Gaussian(2.0).rdp([2])[0]), rel=1e-9)
    assert exact <= charged


def test_a_bit_and_a_number_of_everybody():
    """A bit is turned by any of the group; Laplace noise under sampling is above the mixture of shifts, on a grid."""
    turned = Poisson(RandomisedResponse(0.75), 1 - 0.95**3)
    assert group(Poisson(RandomisedResponse(0.75), 0.05), 3) == turned
    assert group(RandomisedResponse(0.75), 3) == RandomisedResponse(0.75)
    scale, rate, size, order = 4.0, 0.05, 3, 3
    y = np.arange(-120, 120, 0.001) + 0.0005
    counts = np.arange(size + 1)
    shifted = np.exp(-np.abs(y[:, None] - counts) / scale) / (2 * scale)
    mixture = shifted @ np.array([math.comb(size, i) * rate**i * (1 - rate) ** (size - i) for i in counts])
    exact = math.log(np.sum(mixture**order * shifted[:, 0] ** (1 - order)) * 0.001) / (order - 1)
    assert exact <= group(Poisson(Laplace(scale), rate), size).rdp([order])[0] < 1.5 * exact


BIT = RandomisedResponse(0.75)
CHOICES_OF_BITS = [
    (Submodels(BIT, 2), uniform_sets(2, 1), 2),
    (Poisson(Submodels(BIT, 2), 0.5), [((), 0.5), *uniform_sets(2, 1, 0.5)], 2),
    (Allocation(BIT, 2, 3), uniform_sets(3, 2), 3),
    (CappedPoisson(BIT, 0.5, 1, 2), [((), 0.25), *uniform_sets(2, 1, 0.75)], 2),
]


@pytest.mark.parametrize(("run", "chosen", "count"), CHOICES_OF_BITS)
def test_people_who_choose_different_bits_turn_several(run, chosen, count):
    """Two people in one of two hidden submodels tell log 6 of each other, not the log 3 of one bit."""
    of_two = [((*a, *b), p * q) for (a, p), (b, q) in itertools.product(chosen, repeat=2)]
    inside, outside = bits(of_two, count, 0.75)
    charged = [group(run, 2)]
    if run.span == 1:  # everybody of a batch of two is replaced, or falls silent
        charged.append(WithoutReplacement(run, 2, 2, 2))
    charged += [event.unamplified() for event in charged]  # nothing is cheaper for being known
    for event in charged:
        for epsilon in (0.0, 0.5, 1.0, 1.5):
            assert event.delta(epsilon).upper >= delta_of(inside, outside, epsilon) * (1 - 1e-9)
        largest = np.log(inside / outside).max()
        assert event.epsilon(1e-9, points=400).upper >= largest - 1e-6  # 1e-9 of mass lies below it
        for order in (2, 12):
            assert event.rdp([order])[0] >= renyi_of(inside, outside, order) * (1 - 1e-9)


@pytest.mark.few(0)
@pytest.mark.parametrize(("noise", "k", "rounds", "size"), [(1.0, 2, 5, 2), (2.0, 3, 6, 2), (1.5, 1, 4, 2)])
def test_the_lower_end_of_a_group_of_hidden_rounds_is_met(noise, k, rounds, size):
    """People who all add the same in their rounds, by drawn releases: 100,000 and four standard errors."""
    run, generator, draws = Allocation(Gaussian(noise), k, rounds), np.random.default_rng(3), 100_000
    together = group(run, size)
    bounds, alone = together.delta(0.5), run.delta(0.5)
    assert alone.lower <= bounds.lower <= bounds.upper
    sets = [np.isin(np.arange(rounds), chosen) for chosen in itertools.combinations(range(rounds), k)]
    shifts = np.array([np.sum(chosen, axis=0) for chosen in itertools.product(sets, repeat=size)]) / noise
    z = generator.standard_normal((draws, rounds))
    ratios = np.mean([np.exp(z @ shift - shift @ shift / 2) for shift in shifts], axis=0)
    delta = np.maximum(1 - math.exp(0.5) / ratios, 0) * ratios  # bounded under the group's law, here under the other
    assert bounds.lower <= delta.mean() + 4 * delta.std() / math.sqrt(draws)
    assert bounds.upper >= delta.mean() - 4 * delta.std() / math.sqrt(draws)
    assert bounds.lower >= 0.5 * delta.mean()  # it is no trivial end


@pytest.mark.few(1, 2)
@pytest.mark.parametrize(("k", "rounds", "noise", "released"), [(2, 5, 1.3, 5), (1, 4, 0.8, 4), (2, 6, 1.0, 4)])
def test_two_people_in_hidden_rounds_agree_with_plain_draws_over_all_their_sets(k, rounds, noise, released):
    """Both contribute the same; the mean of each pair of sets is written out."""
    choices = [np.isin(np.arange(rounds), each) for each in itertools.combinations(range(rounds), k)]
    means = np.array([(a + 0.0 + b)[:released] / noise for a in choices for b in choices])
    rng = np.random.default_rng(5)
    event = group(Allocation(Gaussian(noise), k, rounds).after(released), 2)
    z = rng.standard_normal((60_000, released)) + means[rng.integers(len(means), size=60_000)]
    ratio = np.exp(z @ means.T - (means**2).sum(1) / 2).mean(1)
    for epsilon in (1.0, 3.0):
        values = np.maximum(1 - math.exp(epsilon) / ratio, 0)
        margin = 5 * values.std() / math.sqrt(len(values))
        bounds = event.delta(epsilon, precision=0.05)
        assert bounds.lower - margin <= values.mean() <= bounds.upper + margin
        assert bounds.width <= 0.1 * bounds.upper


def test_noise_for_two_people_is_found_by_sampling():
    """By the group property that noise costs more than the budget."""

    def build(noise):
        return group(Allocation(Gaussian(noise), 2, 6), 2)

    noise = calibrate(build, 4.0, 1e-4, precision=0.05)
    found = build(noise).epsilon(1e-4, precision=0.05)
    assert 3.5 < found.upper <= 4.0
    assert build(noise).epsilon(1e-4, points=200).upper > 4.05


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_two_people_cost_no_more_with_any_contributions_in_the_plane(seed):
    """Contributions of norms up to 1 in any directions, one of 3 rounds each, by draws that all of them share."""
    rng = np.random.default_rng(seed)
    noise, epsilon = rng.uniform(0.7, 2), rng.uniform(0, 2)
    angles, norms = rng.uniform(0, 2 * math.pi, (2, 3)), rng.uniform(0, 1, (2, 3)) ** 0.3
    given = (norms[..., None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)) / noise  # (person, round, 2)
    means = np.zeros((9, 3, 2))
    for i, (a, b) in enumerate(itertools.product(range(3), repeat=2)):
        means[i, a] += given[0, a]
        means[i, b] += given[1, b]
    means = means.reshape(9, 6)
    z = rng.standard_normal((8000, 6)) + means[rng.integers(9, size=8000)]
    values = np.maximum(1 - math.exp(epsilon) / np.exp(z @ means.T - (means**2).sum(1) / 2).mean(1), 0)
    margin = 5 * values.std() / math.sqrt(len(values)) + 1e-9
    assert values.mean() <= group(Allocation(Gaussian(noise), 1, 3), 2).delta(epsilon, precision=0.1).upper + margin
