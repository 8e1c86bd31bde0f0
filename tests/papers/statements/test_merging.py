"""Yin, Zaheer, Li 2026, statement by statement: finite laws, and densities on grids."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.papers.statements.merging import excess
from fedamp.accounting import Gaussian, LinearCombination, RandomSelection, Repeat

ROUNDING = 1e-9  # the trapezoidal rule is exact to rounding for smooth densities that vanish at the ends


@pytest.mark.statement("merging", "Theorem 5.2")
def test_a_selection_of_finite_laws_is_below_the_mean():
    generator = np.random.default_rng(3)
    for epsilon in (0.0, 0.4, 1.5):
        first, second = generator.dirichlet(np.ones(4), size=(2, 3))
        weights = generator.dirichlet(np.ones(3))
        bound = sum(w * excess(p, q, epsilon) for w, p, q in zip(weights, first, second, strict=True))
        assert excess(weights @ first, weights @ second, epsilon) <= bound + 1e-15
        told = [(weights[:, None] * laws).ravel() for laws in (first, second)]
        assert excess(*told, epsilon) == pytest.approx(bound, abs=1e-15)
    runs = (Gaussian(1.0), Gaussian(3.0))
    mean = 0.3 * runs[0].delta(1.0).upper + 0.7 * runs[1].delta(1.0).upper
    found = RandomSelection(runs, (0.3, 0.7)).delta(1.0)
    assert found.lower * (1 - ROUNDING) <= mean <= found.upper * (1 + ROUNDING)


@pytest.mark.statement("merging", "Theorem 6.1")
def test_a_combination_of_two_means_costs_less_than_both():
    """Two releases of one number; their mean is a Gaussian, too."""
    orders = np.arange(2.0, 20.0)
    first, second, weights = 1.0, 2.0, np.array([0.4, 0.6])
    merged = Gaussian(math.hypot(*(weights * (first, second)))).rdp(orders)
    joint = LinearCombination((Gaussian(first), Gaussian(second)), tuple(weights))
    assert np.all(merged <= joint.rdp(orders))
    assert joint.rdp(orders) == pytest.approx(orders / 2 * (1 / first**2 + 1 / second**2), rel=1e-8)


@pytest.mark.statement("merging", "Theorem 6.2")
def test_a_clipped_batch_gradient_moves_by_twice_the_clipping_norm():
    """Section 6.2 read literally, one model and one step: others give -1.5, and a person turns that to 1.5.

    Each record may give 3 then. The printed bound has a shift of the clipping norm, as if records were clipped.
    """
    clip, noise, order = 1.0, 1.0, 2
    with_person, without = (float(np.clip(gradient, -clip, clip)) for gradient in (-1.5 + 3.0, -1.5))
    real = order * (with_person - without) ** 2 / (2 * noise**2)
    printed = order * clip**2 / (2 * noise**2)
    assert real == pytest.approx(4 * printed)
    assert Gaussian(noise).rdp([order])[0] == pytest.approx(printed, rel=1e-8)


@pytest.mark.statement("merging", "Proposition 7.1")
@pytest.mark.parametrize("noise", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("releases", [1, 5, 100])
@pytest.mark.parametrize(("delta", "slack"), [(1e-5, 1e-6), (0.4, 0.1), (1e-9, 1e-3)])
def test_renyi_accounting_is_below_advanced_composition(noise, releases, delta, slack):
    def by_renyi(cost, chance):  # min over orders of order * cost + log(1 / chance) / (order - 1)
        return cost + 2 * math.sqrt(cost * math.log(1 / chance))

    total = min(releases * delta + slack, 0.999)
    one = by_renyi(1 / (2 * noise**2), delta)
    composed = math.sqrt(2 * releases * math.log(1 / slack)) * one + releases * one * math.expm1(min(one, 700))
    joint = by_renyi(releases / (2 * noise**2), total)
    assert joint <= composed
    assert Repeat(Gaussian(noise), releases).epsilon(total).upper <= joint * (1 + ROUNDING)


def optimal_composition(epsilon, slack, count, delta):
    """Kairouz, Oh, Viswanath 2015, Theorem 3.3: the least epsilon at delta of ``count`` (epsilon, slack) mechanisms."""
    for steps in range(count // 2, -1, -1):
        shortfall = (
            sum(
                math.comb(count, i) * (math.exp((count - i) * epsilon) - math.exp((count - 2 * steps + i) * epsilon))
                for i in range(steps)
            )
            / (1 + math.exp(epsilon)) ** count
        )
        if 1 - (1 - slack) ** count * (1 - shortfall) <= delta:
            return (count - 2 * steps) * epsilon
    return math.inf


@pytest.mark.statement("merging", "Section 7")
@pytest.mark.parametrize("count", [2, 5, 20])
@pytest.mark.parametrize("noise", [0.7, 3.0, 30.0])
def test_the_joint_release_is_tighter_than_composing_the_models_pairs(count, noise):
    """Each pair is exact (Balle, Wang 2018, Theorem 8), at the slack that composes best."""
    delta, models = 1e-5, (Gaussian(noise),) * count

    def pair(slack):
        def beyond(epsilon):
            ends = (1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise)
            return norm.cdf(ends[0]) - math.exp(epsilon) * norm.cdf(ends[1]) - slack

        return brentq(beyond, 0, 100 / noise)

    pairs = [(pair(slack), slack) for slack in np.geomspace(1e-9, delta / count, 40).tolist()]
    composed = min(optimal_composition(epsilon, slack, count, delta) for epsilon, slack in pairs)
    release = LinearCombination(models, (1 / count,) * count)
    assert release.epsilon(delta).upper < composed
