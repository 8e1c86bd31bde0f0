"""Few of many hidden rounds, in blocks: laws of blocks and lower ends, by enumeration and by plain draws."""

import itertools
import math

import numpy as np
import pytest

from fedamp.accounting import Allocation, CappedPoisson, Gaussian, Poisson, Submodels
from fedamp.accounting.blocks import FittedProposal, HiddenBlocks, Pairs, lower_epsilon
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.law import Law
from fedamp.accounting.sampling import FiniteRound, SampledRun
from tests.accounting.oracles import bits, uniform_sets

RATIOS, MASSES = (0.25, 1.0, 2.5), (0.4, 0.4, 0.2)  # of one round


def blocks_of(law, chances, rounds, size):
    pairs = Pairs.of(law, size)
    return HiddenBlocks(FiniteRound(pairs.law, pairs.rounding), chances, rounds // size, pairs=pairs)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_products_of_a_block_are_those_given_its_mean(size):
    pairs = Pairs.of(Law.from_points(RATIOS, MASSES), size)
    seen = {}  # mean: [chance, chance times the product of the first two]
    for some in itertools.product(range(3), repeat=size):
        x, chance = [RATIOS[i] for i in some], math.prod(MASSES[i] for i in some)
        one = seen.setdefault(round(sum(x) / size, 9), [0.0, 0.0])
        one[0] += chance
        one[1] += chance * x[0] * x[1]
    found = sorted(zip(np.exp(pairs.law.log_ratio), pairs.law.mass_out, pairs.products, strict=True))
    assert [(m, q, p) for m, q, p in found] == [
        pytest.approx((mean, chance, product / chance)) for mean, (chance, product) in sorted(seen.items())
    ]


@pytest.mark.parametrize(("k", "rounds", "size"), [(2, 6, 3), (3, 6, 3), (4, 8, 4), (4, 8, 2)])
def test_blocks_are_below_the_enumerated_law_and_close(k, rounds, size):
    """All rows of bits: X of the blocks, which tell their numbers of bits alone, against the laws of all sets."""
    factor = blocks_of(Law.from_points((4.0, 0.25), (0.2, 0.8)), (*(0.0,) * k, 1.0), rounds, size)
    inside, outside = bits(uniform_sets(rounds, k), rounds, 0.8)
    values = []
    for row in itertools.product((0, 1), repeat=rounds):
        means = [sum((4.0, 0.25)[bit] for bit in row[i : i + size]) / size for i in range(0, rounds, size)]
        values.append([int(np.argmin(np.abs(factor.ratios - mean))) for mean in means])
    ratio, chance = np.exp(factor.log_at(np.array(values, float))), np.zeros(len(values))
    for i, row in enumerate(itertools.product((0, 1), repeat=rounds)):
        chance[i] = math.prod((0.2, 0.8)[bit] for bit in row)
    assert ratio @ chance == pytest.approx(1.0, rel=1e-6)
    for epsilon in (0.0, 0.3, 0.8, 1.5):
        below = np.maximum(ratio - math.exp(epsilon), 0.0) @ chance
        exact = np.maximum(inside - math.exp(epsilon) * outside, 0.0).sum()
        # The widest case loses 23 %: 2 of 70 sets have four rounds in a block, and count as none.
        assert 0.7 * exact - 1e-3 <= below <= exact + 1e-9


def test_fitted_draws_have_the_enumerated_mean_and_a_smaller_spread():
    """2 of 9 bits in three blocks of three: all 64 places of the blocks, with their chances."""
    factor = blocks_of(Law.from_points((4.0, 0.25), (0.2, 0.8)), (0.0, 0.0, 1.0), 9, 3)
    places = np.array(list(itertools.product(range(4), repeat=3)), float)
    chances = np.prod(
        [[math.comb(3, int(place)) * 0.8 ** (3 - place) * 0.2**place for place in row] for row in places], axis=1
    )
    exact = np.maximum(np.exp(factor.log_at(places)) - math.e, 0.0) @ np.array(chances)
    first = FittedProposal(SampledRun((factor,)), math.log(1e3), 1.0, 0.0, 0.0, 0.0)
    second = first.fitted(1.0, np.random.default_rng(1), 4000)
    spreads = []
    for proposal in (first, second):
        log_a, log_b = proposal.draw(np.random.default_rng(2), 40_000)
        values = np.maximum(np.exp(log_a) - math.e * np.exp(log_b), 0.0)
        assert values.mean() == pytest.approx(exact, abs=5 * values.std() / 200)  # five standard deviations
        spreads.append(values.std())
    assert spreads[1] < spreads[0]


@pytest.mark.slow
def test_lower_ends_do_not_depend_on_the_size_of_blocks_but_for_their_width():
    """Three sizes of blocks, each with draws of its own: every lower end is below the smallest upper end."""
    law, chances = Law.gaussian(1.0), (0.0, 0.0, 0.0, 1.0)
    upper = Allocation(Gaussian(1.0), 3, 240).epsilon(1e-4, precision=5e-3).upper
    found = [lower_epsilon(law, chances, 240, 0.0, size, 1e-4, 5e-3) for size in (2, 4, 6)]
    assert all(0.97 * upper <= lower <= upper for lower in found)


def test_ratios_that_may_be_zero_have_no_blocks():
    with pytest.raises(NotEvaluable, match="0 or infinite"):
        Pairs.of(Law.from_points((0.0, 2.0), (0.5, 0.5)), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (Allocation(Gaussian(1.0), 10, 10_000), 1e-5),
        (Allocation(Gaussian(0.4), 3, 3000), 1e-5),
        (Allocation(Submodels(Gaussian(0.6), 4), 10, 1000), 1e-5),
        (Allocation(Poisson(Gaussian(0.8), 0.9), 10, 1000), 1e-5),
        (CappedPoisson(Gaussian(0.8), 0.01, 12, 1000), 1e-5),
        (Allocation(Gaussian(1.0), 10, 1_000_000), 1e-6),
    ],
    ids=str,
)
def test_few_of_many_rounds_are_known_to_a_per_cent_and_a_half(event, delta):
    found = event.epsilon(delta)
    assert found.lower >= 0.985 * found.upper


@pytest.mark.slow
@pytest.mark.slow
def test_where_blocks_are_too_wide_single_rounds_are_drawn():
    """By blocks alone the bracket is 1.7 per cent wide, three times what is asked for."""
    found = Allocation(Gaussian(0.6), 32, 1024).epsilon(1e-6)
    assert found.upper < 1.007 * found.lower


@pytest.mark.slow
def test_the_lower_end_of_very_many_rounds_holds_plain_draws():
    """3 of 10,000 rounds; X by elementary symmetric polynomials from power sums, P by a signal in three rounds."""
    noise, rounds, epsilon, rng = 0.4, 10_000, 1.0, np.random.default_rng(8)
    values = []
    for _ in range(12):
        z = rng.standard_normal((500, rounds))
        z[:, :3] += 1 / noise
        x = np.exp(z / noise - 1 / (2 * noise**2))
        one, two, three = np.sum(x, axis=1), np.sum(x * x, axis=1), np.sum(x * x * x, axis=1)  # powers take seconds
        ratio = (one**3 - 3 * one * two + 2 * three) / (rounds * (rounds - 1) * (rounds - 2))
        values.append(np.maximum(1 - math.exp(epsilon) / ratio, 0))
    found = Allocation(Gaussian(noise), 3, rounds).epsilon(float(np.mean(values)), precision=0.02)
    # The mean is known to 5 %, and delta falls by 15 % for 0.1: three standard deviations.
    assert 0.7 * epsilon <= found.lower <= 1.1 * epsilon
    assert found.upper >= 0.9 * epsilon
