"""Schuchardt et al. 2024, statement by statement: small spaces in full, and Gaussians in the plane by quadrature.

The integral that the paper calls Psi is written out from its definition. A base mechanism on a finite space is a random
law for each batch, so that nothing but the distance of batches restricts it.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from benchmarks.papers.statements.groups import ORDERS, ROUNDING, Batch, poisson, psi, subsets
from fedamp.accounting import (
    Gaussian,
    Group,
    Laplace,
    Poisson,
    RandomisedResponse,
    Submodels,
    WithoutReplacement,
    group,
)


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
    """A chain of random neighbouring laws; and fedamp charges no more than the property, where it has no exact rule."""
    factor = 3 ** math.log2(size)
    generator = np.random.default_rng(size)
    for _ in range(200):
        laws = generator.dirichlet(np.full(3, generator.choice([0.5, 3.0])), size=size + 1) + 1e-3
        laws /= laws.sum(axis=1, keepdims=True)
        order = size * generator.uniform(2, 5)
        neighbours = [pair for one in itertools.pairwise(laws) for pair in (one, one[::-1])]
        epsilon = max(math.log(psi(order, *pair)) / (order - 1) for pair in neighbours)
        whole = math.log(psi(order / size, laws[0], laws[-1])) / (order / size - 1)
        assert whole <= factor * epsilon * ROUNDING
    run = Submodels(Gaussian(3.0), 4)
    assert isinstance(group(run, size), Group)
    for order in (2, 3, 6):
        charged = group(run, size).rdp([order])[0]
        assert charged <= factor * run.rdp([order * size])[0] * ROUNDING


def printed_g1(power, order, truth, rate, size):
    """The largest second term of Theorem G.1; ``power`` is its numerator's: alpha - 1 as printed, alpha corrected."""
    weights = binom.pmf(range(size + 1), size, rate)
    values = []
    for answers in itertools.product((truth, 1 - truth), repeat=size + 1):
        mixed = float(weights @ answers)
        values.append(
            answers[0] ** power * mixed ** (1 - order) + (1 - answers[0]) ** power * (1 - mixed) ** (1 - order)
        )
    return max(values)


@pytest.mark.statement("groups", "Theorem G.2")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_bit_of_theorem_g2_attains_the_corrected_maximum(size):
    """All assignments of answers to the number of the group in the batch; a real data set of one more record.

    The power that the second term prints gives a value that none of them attains at small orders.
    """
    rate, truth = 0.25, 0.8
    people = Batch(range(1, size + 1))
    batches = subsets(range(size + 1))
    large, small = poisson(batches, Batch(range(size + 1)), rate), poisson(batches, Batch({0}), rate)
    for order in ORDERS:
        attained = 0.0
        for bits in itertools.product((0, 1), repeat=size + 1):
            heads = np.array([(truth, 1 - truth)[bits[len(y & people)]] for y in batches])
            laws = np.stack([heads, 1 - heads], axis=1)
            for pair in ((large, small), (small, large)):
                attained = max(attained, psi(order, *(chances @ laws for chances in pair)))
        second = printed_g1(order, order, truth, rate, size)
        mixed = truth + (1 - (1 - rate) ** size) * (1 - 2 * truth)
        first = psi(order, np.array([mixed, 1 - mixed]), np.array([truth, 1 - truth]))
        assert attained == pytest.approx(max(first, second), rel=1e-12)
        charged = group(Poisson(RandomisedResponse(truth), rate), size).rdp([max(order, 2.0)])[0]
        if order >= 2:
            assert charged >= math.log(attained) / (order - 1) * (1 - 1e-9)
        if order <= 2:
            assert printed_g1(order - 1, order, truth, rate, size) > 1.05 * attained


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
