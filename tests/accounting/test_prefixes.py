"""What the first rounds of an allocation cost, against the exact law where it can be integrated."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedamp.accounting import (
    Allocation,
    CappedPoisson,
    Compose,
    Gaussian,
    Poisson,
    RandomisedResponse,
    Repeat,
    Submodels,
    epsilon_over_rounds,
)
from fedamp.accounting.hidden import coin_groups
from fedamp.accounting.mechanism import moments_of
from fedamp.accounting.sampling import Block, RemoveProposal, certify_deltas
from fedamp.accounting.search import factor_beginnings
from tests.accounting.oracles import allocation_on_grid, beginning, bits, capped, declined, delta_of, uniform_sets

DELTA = 1e-5


def hypergeometric(rounds: int, k: int, released: int, h: int) -> float:
    return math.comb(released, h) * math.comb(rounds - released, k - h) / math.comb(rounds, k) if h <= k else 0.0


@pytest.mark.few(2, 4)
@pytest.mark.parametrize(
    ("noise", "k", "rounds", "released"),
    [
        (0.8, 2, 4, 2),
        (0.8, 2, 4, 3),
        (0.8, 3, 4, 2),
        (0.8, 2, 10, 3),
        (0.8, 1, 5, 3),
        (2.0, 5, 10, 2),
        (2.0, 2, 3, 3),
        (2.0, 2, 4, 2),
    ],
)
def test_prefix_bounds_the_exact_law_and_is_close(noise, k, rounds, released):
    value, weight = allocation_on_grid(noise, k, rounds, released)
    prefix = Allocation(Gaussian(noise), k, rounds).after(released)
    for order in (2, 3, 6):
        remove, add = math.log(weight @ value**order), math.log(weight @ value ** (1.0 - order))
        assert moments_of(prefix).raw_moments(256)[order] >= remove * (1 - 1e-6)
        assert moments_of(prefix).negative_moments(256)[order - 1] >= add * (1 - 1e-6)
        assert prefix.rdp(order)[0] <= 1.5 * max(remove, add) / (order - 1)
    for epsilon in (0.0, 0.5, 2.0):
        scale = math.exp(epsilon)
        remove = weight @ np.maximum(value - scale, 0)
        add = weight @ np.maximum(1 - scale * value, 0)
        bounds = prefix.delta(epsilon)
        # The trapezoid sum over a kink is good to 1 % at these steps.
        assert bounds.lower <= max(remove, add) * 1.01 + 1e-6
        assert bounds.upper >= max(remove, add) * 0.99 - 1e-6


def laws_of(groups, k, rounds, released):
    """The law of the sum of all coins, and the hypergeometric one."""
    each = [np.array([1 - p, p]) for p, _, n in groups for _ in range(n)]
    law = functools.reduce(np.convolve, each, np.ones(1))
    return law, np.array([hypergeometric(rounds, k, released, h) for h in range(len(law))])


@given(st.integers(1, 40), st.data())
@settings(max_examples=100, deadline=None)
def test_groups_of_a_prefix_have_the_right_number_of_rounds(rounds, data):
    k = data.draw(st.integers(1, rounds))
    released = data.draw(st.integers(1, rounds))
    groups = coin_groups(k, rounds, released, most=100)
    assert sum(size * n for _, size, n in groups) == released
    law, expected = laws_of(groups, k, rounds, released)
    assert_allclose(law, expected, atol=1e-9)  # the probabilities are rounded up by 1e-12


@pytest.mark.parametrize(("k", "rounds", "released"), [(30, 60, 40), (100, 1000, 500), (20, 25, 24)])
def test_coins_that_share_a_group_take_part_no_less_often(k, rounds, released):
    """With few distinct groups coins are rounded up, so that every number of rounds is exceeded at least as often."""
    groups = coin_groups(k, rounds, released)
    assert len(groups) <= 12
    assert sum(size * n for _, size, n in groups) <= released
    law, expected = laws_of(groups, k, rounds, released)
    above, at_least = (np.cumsum(each[::-1])[::-1] for each in (law, expected))
    assert np.all(above >= at_least - 1e-12)  # sums of doubles
    assert law @ np.arange(len(law)) <= 1.15 * k * released / rounds  # a dozen groups are not far off


@pytest.mark.few(0)
@pytest.mark.parametrize(
    "run",
    [
        Allocation(Gaussian(1.0), 1, 6),
        Allocation(Submodels(Gaussian(1.0), 3), 2, 4),
        Repeat(Poisson(Gaussian(1.0), 0.2), 6),
        Repeat(Allocation(Gaussian(2.0), 1, 3), 2),
        Compose([Allocation(Gaussian(2.0), 2, 4), Repeat(Gaussian(9.0), 2)]),
    ],
    ids=str,
)
def test_prefixes_grow_to_the_whole(run):
    whole = run.epsilon(DELTA)
    spent = [run.after(r).epsilon(DELTA).upper for r in range(1, run.span + 1)]
    assert spent[-1] == whole.upper
    # 0.001: the bracket's own accuracy. Inside a composition whole group sizes may show, by a few per cent.
    room = 1.05 if isinstance(run, Compose) else 1.001
    assert all(a <= b * room for a, b in itertools.pairwise(spent))
    assert max(spent) <= whole.upper * 1.001
    curve = epsilon_over_rounds(run, DELTA)
    assert np.all(np.diff(curve) >= 0)
    assert curve[-1] == whole.upper
    assert np.all(curve >= [run.after(r).epsilon(DELTA).lower for r in range(1, run.span + 1)])


def test_single_releases_and_too_many_rounds_are_refused():
    with pytest.raises(ValueError, match=r"rounds must be >= 0 and <= 12, got 13"):
        Allocation(Gaussian(1.0), 3, 12).after(13)
    with pytest.raises(ValueError, match=r"rounds must be a whole number, got 1.5"):
        Allocation(Gaussian(1.0), 3, 12).after(1.5)
    with pytest.raises(ValueError, match="Gaussian has no prefix"):
        Gaussian(1.0).after(0)


def test_simulated_allocation_lies_in_the_bracket():
    """The first 9 of 12 rounds, 4 hidden: X = sum_h P(h) e_h(X_1..X_r) / C(r, h), drawn 300,000 times."""
    rounds, k, released, noise, draws = 12, 4, 9, 1.2, 300_000
    rng = np.random.default_rng(11)
    symmetric = [np.ones(draws)] + [np.zeros(draws) for _ in range(k)]
    for _ in range(released):
        x = np.exp(rng.standard_normal(draws) / noise - 0.5 / noise**2)
        for h in range(k, 0, -1):
            symmetric[h] += x * symmetric[h - 1]
    taken = range(max(0, k + released - rounds), min(k, released) + 1)
    value = sum(hypergeometric(rounds, k, released, h) * symmetric[h] / math.comb(released, h) for h in taken)
    prefix = Allocation(Gaussian(noise), k, rounds).after(released)
    for epsilon in (0.0, 0.5):
        add = np.maximum(1 - math.exp(epsilon) * value, 0)  # bounded, so its mean is normal to good accuracy
        bounds, error = prefix.delta(epsilon), 4 * add.std() / math.sqrt(draws)
        assert bounds.upper >= add.mean() - error
        remove = np.maximum(value - math.exp(epsilon), 0)
        exact, error = max(add.mean(), remove.mean()), 6 * remove.std() / math.sqrt(draws)
        assert bounds.lower <= exact + error
        assert exact - error <= bounds.upper <= 1.8 * exact + error


# Every round of a curve, from draws of the whole run: against all choices and outputs, and plain draws.

BIT = RandomisedResponse(0.75)
CURVES = {
    "k of T": (Allocation(BIT, 3, 8), lambda: uniform_sets(8, 3)),
    "declining": (Allocation(Poisson(BIT, 0.7), 3, 6), lambda: declined(uniform_sets(6, 3), 0.7)),
    "opting out": (Poisson(Allocation(BIT, 3, 7), 0.6), lambda: [*uniform_sets(7, 3, 0.6), ((), 0.4)]),
    "a cap": (CappedPoisson(BIT, 0.4, 3, 6), lambda: capped(6, 0.4, 3)),
}


@pytest.mark.few(0, 3)
@pytest.mark.parametrize(("run", "choices"), CURVES.values(), ids=CURVES)
def test_every_round_of_a_curve_is_known_to_one_per_cent(run, choices):
    for released, spent in enumerate(epsilon_over_rounds(run, 1e-3), start=1):
        laws = bits(beginning(choices(), released), released, 0.75)
        assert delta_of(*laws, spent) <= 1e-3
        if released > 1:  # the first round of an opting-out run is charged by a bound
            assert delta_of(*laws, 0.985 * spent) > 1e-3, released


@pytest.mark.few(0, 3, 5, 6, 9, 10, 12, 15)
@pytest.mark.parametrize(("order", "coins"), [(2, 0), (3, 0), (3, 4), (4, 3)])
@pytest.mark.parametrize("name", CURVES)
def test_draws_of_the_run_bracket_every_beginning_of_it(name, order, coins):
    """Both certified ends, a few per cent apart. They share a failure probability of one in a million."""
    run, choices = CURVES[name]
    parts = list(factor_beginnings(run, range(2, run.span)).values())[-5:]
    laws = [bits(beginning(choices(), part.rounds), part.rounds, 0.75) for part in parts]
    epsilons = np.array([[0.1], [0.2], [0.4], [0.5], [0.6]])[-len(parts) :]
    block = Block(RemoveProposal(run.after(parts[-1].rounds).sampled_profile().upper, order, coins), parts)
    upper, lower = certify_deltas(block, epsilons, epsilons, 100_000, 1e-6)
    for (inside, outside), epsilon, above, below in zip(laws, epsilons[:, 0], upper[:, 0], lower[:, 0], strict=True):
        exact = np.maximum(inside - math.exp(epsilon) * outside, 0).sum()
        assert below <= exact <= above
        assert above - below <= 0.4 * exact
