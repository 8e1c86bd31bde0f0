"""ModelMix, groups, merging, batches without replacement, and dp-accounting events, against independent oracles."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import norm

from fedamp.accounting import (
    Allocation,
    Compose,
    Gaussian,
    Group,
    GroupPoissonGaussian,
    Laplace,
    LinearCombination,
    ModelMix,
    NotPrivate,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Submodels,
    WithoutReplacement,
    group,
)
from fedamp.accounting.events import from_dp_event, to_dp_event

DELTA = 1e-5


def mixed_density(y, noise, width):
    return (norm.cdf((y + width / 2) / noise) - norm.cdf((y - width / 2) / noise)) / width


def mixed_divergence(noise, width, shift, order):
    def integrand(y):
        p, q = mixed_density(y - shift, noise, width), mixed_density(y, noise, width)
        return p**order * q ** (1 - order) if q > 0 else 0.0

    top = width / 2 + 5 * noise  # the difference of distribution functions keeps its digits up to about here
    return math.log(quad(integrand, -top, top + shift, limit=400, epsabs=0)[0]) / (order - 1)


@pytest.mark.parametrize(("noise", "width"), [(1.0, 0.5), (1.5, 4.0)])
@pytest.mark.parametrize("coordinates", [1, 4])
def test_modelmix_is_the_integral_of_corollary_4_1(noise, width, coordinates):
    exact = coordinates * mixed_divergence(noise, width, coordinates**-0.5, 2)
    assert ModelMix(noise, width, coordinates).rdp([2])[0] == pytest.approx(exact, rel=1e-4)  # the integral's cut tails


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_modelmix_costs_less_with_width_and_coordinates_and_never_more_than_its_noise(noise):
    orders = [2, 5, 20]
    by_width = [ModelMix(noise, width).rdp(orders) for width in (0, 1e-3, 0.3, 1, 4, 15)]
    assert np.all(np.diff(by_width, axis=0) <= 1e-9 * by_width[0])
    by_coordinates = [ModelMix(noise, 2.0, p).rdp(orders) for p in (1, 2, 4, 16)]
    assert np.all(np.diff(by_coordinates, axis=0) <= 1e-9 * by_coordinates[0])
    assert ModelMix(noise, 2.0).worst_is_concentrated().all()


def test_modelmix_has_another_worst_case_for_the_hockey_stick():
    """s = 0.5, width 15: delta at epsilon 0 is 0.067 for one coordinate, 0.194 for a norm spread over very many."""
    bounds = ModelMix(0.5, 15.0).delta(0.0)
    assert bounds.lower == pytest.approx(0.067, abs=1e-3)
    assert bounds.upper >= 0.194


def test_modelmix_nests_by_renyi():
    mixed, plain = ModelMix(1.0, 6.0), Gaussian(1.0)
    for build in (
        lambda m: Repeat(Poisson(m, 0.01), 500),
        lambda m: Allocation(m, 5, 50),
        lambda m: Allocation(Submodels(m, 3), 5, 50),
        lambda m: Allocation(m, 5, 50).after(20),
    ):
        assert build(mixed).rdp([2])[0] < 0.9 * build(plain).rdp([2])[0]
        bounds = build(mixed).epsilon(DELTA)
        assert 0 < bounds.lower < bounds.upper <= build(plain).epsilon(DELTA).upper
    assert "Rényi" in Repeat(Poisson(mixed, 0.01), 500).epsilon(DELTA).method


@pytest.mark.parametrize(("noise", "rate", "size"), [(1.0, 0.1, 2), (3.0, 0.05, 5)])
@pytest.mark.parametrize("order", [2, 4])
def test_groups_are_the_integral_of_binomial_shifts(noise, rate, size, order):
    def ratio(z):
        return sum(
            math.comb(size, i) * rate**i * (1 - rate) ** (size - i) * math.exp(i * z / noise - i * i / (2 * noise**2))
            for i in range(size + 1)
        )

    remove, add = (
        quad(lambda z, a=a: norm.pdf(z) * ratio(z) ** a, -12, 12 + order * size / noise, epsabs=0, limit=200)[0]
        for a in (order, 1 - order)
    )
    exact = max(math.log(remove), math.log(add)) / (order - 1)
    mechanism = GroupPoissonGaussian(noise, rate, size)
    assert mechanism.rdp([order])[0] == pytest.approx(exact, rel=1e-7)
    profile = quad(lambda z: norm.pdf(z) * max(ratio(z) - math.exp(0.3), 0), -12, 12 + size / noise, limit=400)[0]
    bounds = mechanism.delta(0.3)
    assert bounds.lower <= profile * (1 + 1e-5)
    assert bounds.upper >= profile * (1 - 1e-5)


def test_group_takes_the_tightest_rule_and_the_generic_one_is_above():
    run = Repeat(Poisson(Gaussian(3.0), 0.02), 100)
    assert group(run, 1) == run
    assert group(run, 4) == Repeat(GroupPoissonGaussian(3.0, 0.02, 4), 100)
    assert group(Gaussian(3.0), 4) == Gaussian(0.75)
    assert group(NotPrivate(), 4) == NotPrivate()
    assert group(run, 4).epsilon(DELTA).upper < Group(run, 4).epsilon(DELTA).upper
    allocation = Allocation(Gaussian(6.0), 2, 10)
    costs = [group(allocation, size).epsilon(DELTA).upper for size in (1, 2, 4)]
    assert costs[0] < costs[1] < costs[2] <= 1.001 * Group(Repeat(Gaussian(6.0), 2), 4).epsilon(DELTA).upper
    with pytest.raises(ValueError, match="apply it to the whole run"):
        Poisson(Group(Laplace(1.0), 2), 0.5).rdp([2])


def test_a_part_without_privacy_costs_its_weight_in_delta_at_every_epsilon():
    def exact(epsilon):
        """3e-6 of the draws show everything; else a Gaussian (Balle and Wang 2018, Theorem 8)."""
        gaussian = norm.cdf(0.5 - epsilon) - math.exp(epsilon) * norm.cdf(-0.5 - epsilon)
        return 3e-6 + (1 - 3e-6) * gaussian

    selected = RandomSelection([Gaussian(1.0), NotPrivate()], [1 - 3e-6, 3e-6])
    for epsilon in (0.0, 1.0, 4.0):
        bracket = selected.delta(epsilon)
        assert bracket.lower <= exact(epsilon) * (1 + 1e-12)
        assert exact(epsilon) <= bracket.upper * (1 + 1e-12)
        assert bracket.width <= 1e-3 * exact(epsilon)  # a law of 1,200 points
    cost = selected.epsilon(DELTA)
    assert exact(cost.upper) <= DELTA <= exact(cost.lower)
    assert cost.width < 1e-3
    assert selected.epsilon(2e-6).lower == math.inf
    assert np.all(np.isinf(selected.rdp([2, 8])))
    hidden = RandomSelection([Gaussian(1.0), Poisson(NotPrivate(), 0.5)], [1 - 3e-6, 3e-6])
    assert hidden.epsilon(DELTA).lower == 0
    assert hidden.epsilon(DELTA).upper == cost.upper
    assert RandomSelection([NotPrivate(), NotPrivate()], [0.5, 0.5]).epsilon(DELTA).upper == math.inf


def test_merging_by_random_selection_and_by_linear_combination():
    runs = [Repeat(Poisson(Gaussian(s), 0.05), 30) for s in (1.0, 2.0)]
    joint = LinearCombination(runs, [0.3, 0.7])
    assert joint.epsilon(DELTA).upper == pytest.approx(Compose(runs).epsilon(DELTA).upper, rel=1e-3)
    per_step = LinearCombination(runs, [0.3, 0.7], "gradients do not depend on the models", [1.0, 1.0])
    selected = RandomSelection(runs, [0.3, 0.7])
    assert per_step.epsilon(DELTA).upper < selected.epsilon(DELTA).upper < joint.epsilon(DELTA).upper
    assert "gradients do not depend" in str(per_step)
    # Full participation and one step: the merged noise is Gaussian with shift sum(w) / sqrt(sum (w s)^2).
    one = LinearCombination([Gaussian(1.0), Gaussian(2.0)], [0.3, 0.7], "gradients do not depend on the models", [1, 1])
    assert_allclose(one.rdp([2, 7]), Gaussian(math.hypot(0.3, 1.4)).rdp([2, 7]), rtol=1e-9)


def test_per_step_charge_would_understate_two_steps_of_dependent_gradients():
    """Weights (0.9, 0.1), equal noise, two steps: the second step can reveal the first jointly.

    The order-a cost is then a / s^2 + 0.61 a / s^2, where the per-step charge claims 2 * 0.61 a / s^2; the default
    covers it.
    """
    runs = [Repeat(Gaussian(1.0), 2)] * 2
    claimed = LinearCombination(runs, [0.9, 0.1], "gradients do not depend on the models", [1.0, 1.0]).rdp([3])[0]
    true = 3 * (1 + 0.5 / (0.9**2 + 0.1**2))
    assert claimed == pytest.approx(3 / (0.9**2 + 0.1**2), rel=1e-9)
    assert claimed < true <= LinearCombination(runs, [0.9, 0.1]).rdp([3])[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([Gaussian(1.0)], [1.0], "gradients do not depend on the models", []), "scales must have 1 entries"),
        (([Laplace(1.0)], [1.0], "gradients do not depend on the models", [1.0]), "must repeat|must be repeated"),
        (
            (
                [Repeat(Gaussian(1.0), 2), Gaussian(1.0)],
                [0.5, 0.5],
                "gradients do not depend on the models",
                [1.0, 1.0],
            ),
            "same number of steps",
        ),
    ],
)
def test_what_the_per_step_charge_cannot_take_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LinearCombination(*arguments)


def test_without_replacement_is_above_dp_accounting_and_above_the_attack():
    """A change of two at noise 4 is a change of one at noise 2, which is what dp-accounting's event takes."""
    mechanism = WithoutReplacement(Gaussian(4.0), 10, 100)
    peer = dp.rdp.RdpAccountant([2, 4, 8], dp.NeighboringRelation.REPLACE_ONE)
    peer.compose(dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(2.0)))
    ours = mechanism.rdp([2, 4, 8])
    assert np.all(ours >= Poisson(Gaussian(4.0), 0.1).rdp([2, 4, 8]))
    assert np.all(ours >= np.array(peer._rdp) * (1 - 1e-9))  # both are Wang et al. 2019; dp-accounting has more terms
    assert ours[0] == pytest.approx(peer._rdp[0], rel=1e-9)
    assert_allclose(ours, peer._rdp, rtol=0.5)
    assert np.all(ours <= Gaussian(2.0).rdp([2, 4, 8]))
    bounds = mechanism.epsilon(DELTA)
    assert 0 < bounds.lower < bounds.upper < WithoutReplacement(Gaussian(4.0), 20, 100).epsilon(DELTA).upper
    assert Repeat(mechanism, 10).epsilon(DELTA).upper < 10 * bounds.upper


EVENTS = [
    Gaussian(1.0),
    Laplace(2.0),
    RandomisedResponse(0.75),
    NotPrivate(),
    Repeat(Poisson(Gaussian(1.0), 0.1), 3),
    Compose([Gaussian(1.0), WithoutReplacement(Gaussian(1.0), 2, 5)]),
]


@pytest.mark.parametrize("mechanism", EVENTS, ids=str)
def test_dp_events_round_trip(mechanism):
    assert from_dp_event(to_dp_event(mechanism)) == mechanism


def test_dp_events_mean_the_same():
    mechanism = Compose([Repeat(Poisson(Gaussian(1.1), 0.1), 20), Laplace(2.0)])
    peer = dp.pld.PLDAccountant(value_discretization_interval=1e-4)
    peer.compose(to_dp_event(mechanism))
    bounds = mechanism.epsilon(DELTA)
    assert bounds.lower <= peer.get_epsilon(DELTA) <= bounds.upper * 1.01


def test_mechanisms_and_events_without_a_counterpart_are_refused():
    with pytest.raises(ValueError, match="no event for Submodels"):
        to_dp_event(Repeat(Submodels(Gaussian(1.0), 3), 2))
    with pytest.raises(ValueError, match="no mechanism for"):
        from_dp_event(dp.ZCDpEvent(0.1))
