"""ModelMix, groups, merging, batches without replacement, and dp-accounting events, against independent oracles."""

import dataclasses
import functools
import itertools
import math

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad
from scipy.stats import norm

from fedamp.accounting import (
    Allocation,
    Compose,
    Dropout,
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
    Release,
    Repeat,
    Submodels,
    SubstitutedPoissonGaussian,
    WithoutReplacement,
    group,
)
from fedamp.extensions.foreign.accountants import from_dp_accounting, to_dp_accounting
from fedamp.extensions.modelmix.mechanism import worst_is_concentrated
from tests.accounting.oracles import gaussian_delta

DELTA = 1e-5


def mixed_density(y, noise, width):
    return (norm.cdf((y + width / 2) / noise) - norm.cdf((y - width / 2) / noise)) / width


def mixed_divergence(noise, width, shift, order):
    def integrand(y):
        p, q = mixed_density(y - shift, noise, width), mixed_density(y, noise, width)
        return p**order * q ** (1 - order) if q > 0 else 0.0

    top = width / 2 + 5 * noise  # the difference of distribution functions keeps its digits up to about here
    return math.log(quad(integrand, -top, top + shift, limit=400, epsabs=0)[0]) / (order - 1)


@pytest.mark.statement("modelmix", "Theorem 4.1", "Corollary 4.1")
@pytest.mark.parametrize(("noise", "width"), [(1.0, 0.5), (1.5, 4.0)])
@pytest.mark.parametrize("coordinates", [1, 4])
def test_modelmix_is_the_integral_of_corollary_4_1(noise, width, coordinates):
    exact = coordinates * mixed_divergence(noise, width, coordinates**-0.5, 2)
    assert ModelMix(noise, width, coordinates).rdp([2])[0] == pytest.approx(exact, rel=1e-4)  # the integral's cut tails


@pytest.mark.few(0)
@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_modelmix_costs_less_with_width_and_coordinates_never_more_than_its_noise(noise):
    orders = [2, 5, 20]
    by_width = [ModelMix(noise, width).rdp(orders) for width in (0, 1e-3, 0.3, 1, 4, 15)]
    assert np.all(np.diff(by_width, axis=0) <= 1e-9 * by_width[0])
    by_coordinates = [ModelMix(noise, 2.0, p).rdp(orders) for p in (1, 2, 4, 16)]
    assert np.all(np.diff(by_coordinates, axis=0) <= 1e-9 * by_coordinates[0])
    assert worst_is_concentrated(ModelMix(noise, 2.0)).all()


def test_modelmix_has_another_worst_case_for_the_hockey_stick():
    """s = 0.5, width 15: delta at epsilon 0 is 0.067 for one coordinate, 0.194 for a norm spread over very many."""
    bounds = ModelMix(0.5, 15.0).delta(0.0)
    assert bounds.lower == pytest.approx(0.067, abs=1e-3)
    assert bounds.upper >= 0.194


def test_modelmix_nests_by_renyi():
    mixed, plain = ModelMix(1.0, 6.0), Gaussian(1.0)
    for build in (
        lambda m: Repeat(Poisson(m, 0.01), 500),
        lambda m: Allocation(Submodels(m, 3), 2, 12),
        lambda m: Allocation(m, 2, 12).after(5),
    ):
        assert build(mixed).rdp([2])[0] < 0.9 * build(plain).rdp([2])[0]
        bounds = build(mixed).epsilon(DELTA, points=400)
        assert 0 < bounds.lower < bounds.upper <= build(plain).epsilon(DELTA, points=400).upper
    method = Repeat(Poisson(mixed, 0.01), 500).epsilon(DELTA).method
    assert "Rényi" in method
    assert "checked, not proved" in method


@pytest.mark.statement("groups", "Theorem 4.2")
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


def test_group_takes_the_tightest_rule_also_where_it_is_asked_for_the_generic_one():
    run = Repeat(Poisson(Gaussian(3.0), 0.02), 100)
    assert group(run, 1) == run
    assert group(run, 4) == Repeat(GroupPoissonGaussian(3.0, 0.02, 4), 100)
    assert group(Gaussian(3.0), 4) == Gaussian(0.75)
    assert group(NotPrivate(), 4) == NotPrivate()
    assert group(run, 4).epsilon(DELTA) == Group(run, 4).epsilon(DELTA)
    allocation = Allocation(Gaussian(6.0), 2, 6)
    costs = [group(allocation, size).epsilon(DELTA, points=400).upper for size in (1, 2, 4)]
    assert costs[0] < costs[1] < costs[2] <= 1.001 * Group(Repeat(Gaussian(6.0), 2), 4).epsilon(DELTA, points=400).upper
    with pytest.raises(ValueError, match="applies to the whole run"):
        Poisson(Group(Laplace(1.0), 2), 0.5)


def test_a_part_without_privacy_costs_its_weight_in_delta_at_every_epsilon():
    def exact(epsilon):
        """3e-6 of the draws show everything; the others are Gaussian."""
        return 3e-6 + (1 - 3e-6) * gaussian_delta(epsilon, 1.0)

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
    coin = RandomSelection([Gaussian(1.0), Poisson(NotPrivate(), 0.5)], [1 - 3e-6, 3e-6]).epsilon(DELTA)
    # Half of those draws show everything; in the others the ratio is 1/2, which tells nothing at these epsilons.
    assert exact(coin.upper) - 1.5e-6 <= DELTA <= exact(coin.lower) - 1.5e-6
    seen = Repeat(Poisson(NotPrivate(), 0.01), 100).delta(0.5)  # in one round at least
    assert seen.lower <= 1 - 0.99**100 <= seen.upper <= seen.lower + 1e-4
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


SUBSTITUTED = Gaussian(2.0, relation="substitution")
EVENTS = [
    Gaussian(1.0),
    Laplace(2.0, relation="add/remove"),
    RandomisedResponse(0.75, relation="substitution"),
    NotPrivate(),
    Repeat(Poisson(Gaussian(1.0), 0.1), 3),
    Compose([SUBSTITUTED, WithoutReplacement(Gaussian(1.0), 2, 5), WithoutReplacement(RandomisedResponse(0.7), 2, 5)]),
]


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("mechanism", EVENTS, ids=str)
def test_dp_events_round_trip_with_their_relation(mechanism, accountant):
    assert from_dp_accounting(*to_dp_accounting(mechanism, accountant), accountant) == mechanism


@pytest.mark.parametrize(
    ("mechanism", "accountant", "room"),
    [
        (Compose([Repeat(Poisson(Gaussian(1.1), 0.1), 20), Laplace(2.0)]), "pld", 1.01),
        (SUBSTITUTED, "rdp", 1.1),  # by Rényi divergences, 8 per cent looser
        (SUBSTITUTED, "pld", 1.001),
    ],
)
def test_dp_events_mean_the_same(mechanism, accountant, room):
    event, relation = to_dp_accounting(mechanism, accountant)
    assert relation.name == ("REPLACE_ONE" if mechanism == SUBSTITUTED else "REPLACE_SPECIAL")
    by_law = functools.partial(dp.pld.PLDAccountant, value_discretization_interval=1e-3)
    peer = {"pld": by_law, "rdp": dp.rdp.RdpAccountant}[accountant](neighboring_relation=relation)
    peer.compose(event)
    bounds = mechanism.epsilon(DELTA)
    assert bounds.lower <= peer.get_epsilon(DELTA) <= bounds.upper * room


def test_mechanisms_and_events_without_a_counterpart_are_refused():
    with pytest.raises(ValueError, match="no event for Submodels"):
        to_dp_accounting(Repeat(Submodels(Gaussian(1.0), 3), 2))
    with pytest.raises(ValueError, match="another randomised response under zero-out"):
        to_dp_accounting(RandomisedResponse(0.75))
    with pytest.raises(ValueError, match='accountant must be "rdp" or "pld" under substitution'):
        to_dp_accounting(SUBSTITUTED)
    with pytest.raises(ValueError, match="no mechanism for"):
        from_dp_accounting(dp.ZCDpEvent(0.1), dp.NeighboringRelation.REPLACE_SPECIAL)
    event = dp.SampledWithoutReplacementDpEvent(5, 2, dp.GaussianDpEvent(1.0))
    with pytest.raises(ValueError, match="for REPLACE_ONE, got ADD_OR_REMOVE_ONE"):
        from_dp_accounting(event, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)


def test_a_bit_of_a_batch_is_a_sampled_bit():
    """Schuchardt et al. 2024, Theorem 3.7, over all answers that a batch may get, at rate 1/1000."""
    mechanism, orders = WithoutReplacement(RandomisedResponse(0.75), 1, 1000), np.array([2.0, 8.0, 30.0])

    def renyi(p, q, order):
        return math.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1)

    answers = [
        (0.999 * r + 0.001 * o, 0.999 * r + 0.001 * n) for r in (0.25, 0.75) for o, n in ((0.25, 0.75), (0.75, 0.25))
    ]
    exact = [max(renyi(p, q, order) for p, q in answers) for order in orders]
    assert_allclose(mechanism.rdp(orders), exact, rtol=1e-9)
    exact = max(max(p - q * math.exp(1e-4), 1 - p - (1 - q) * math.exp(1e-4)) for p, q in answers)
    assert mechanism.delta(1e-4).upper == pytest.approx(exact, rel=1e-6)


@pytest.mark.slow
def test_many_bits_of_batches_cost_less_than_by_their_moments_alone():
    run = Repeat(WithoutReplacement(RandomisedResponse(0.75), 1, 1000), 10_000)
    assert run.epsilon(1e-6).upper < 0.6  # Wang et al. 2019 alone: 0.87


def test_relations_are_not_mixed():
    with pytest.raises(ValueError, match="one neighbouring relation, got zero-out and substitution"):
        Compose([Gaussian(1.0), WithoutReplacement(Gaussian(1.0), 2, 5)])
    with pytest.raises(ValueError, match="got zero-out and add/remove"):
        RandomSelection([Gaussian(1.0), Gaussian(1.0, relation="add/remove")], [0.5, 0.5])
    for kind in (lambda m: Poisson(m, 0.1), lambda m: Submodels(m, 2), lambda m: Allocation(m, 1, 2)):
        with pytest.raises(ValueError, match="expected zero-out or add/remove"):
            kind(SUBSTITUTED)
    with pytest.raises(ValueError, match="charges substitution itself"):
        WithoutReplacement(SUBSTITUTED, 1, 2)
    with pytest.raises(ValueError, match="substitution is not charged"):
        ModelMix(1.0, 1.0, relation="substitution")
    assert SUBSTITUTED.epsilon(DELTA).upper == Gaussian(1.0).epsilon(DELTA).upper
    assert str(WithoutReplacement(Gaussian(4.0), 2, 5).unamplified()) == "Gaussian noise of multiplier 4, substitution"


@pytest.mark.parametrize(
    ("event", "largest"),
    [
        (Compose([Repeat(Laplace(1.0), 3), Repeat(Laplace(2.0), 2)]), 4.0),
        (Allocation(Laplace(0.5), 2, 6), 4.0),
        (Submodels(RandomisedResponse(0.75), 3), math.log(3)),
        (Poisson(Laplace(1.0), 0.1), math.log(0.9 + 0.1 * math.e)),
        (group(Allocation(Laplace(1.0), 1, 3), 2), 2.0),
        (Repeat(Laplace(1.0, relation="substitution"), 2), 4.0),
        (RandomSelection([Laplace(1.0), Laplace(0.5)], [0.5, 0.5]), 2.0),
    ],
    ids=str,
)
def test_bounded_losses_add_up_to_an_epsilon_at_every_delta(event, largest):
    """The worst output of a pure mechanism, by hand."""
    upper = event.epsilon(1e-300).upper
    assert upper == pytest.approx(largest, rel=1e-14)  # rounded up
    assert event.delta(upper).upper == 0.0
    assert event.delta(0.9 * largest).upper > 0


def test_one_release_with_an_unbounded_loss_has_no_pure_epsilon():
    assert Compose([Laplace(1.0), Gaussian(2.0)]).epsilon(1e-9).upper > 1.0
    assert Compose([Laplace(1.0), Gaussian(2.0)]).delta(1.5).upper > 0


@pytest.mark.parametrize(("keep", "noise"), [(0.25, 2.0), (0.5, 1.0), (0.1, 3.0)])
def test_the_lower_end_of_dropout_is_met_by_a_wide_network(keep, noise):
    """A contribution that is spread evenly over what was kept of n units, seen through the sum over all units."""
    units, bounds = 10**6, Dropout(Gaussian(noise), keep).delta(0.3)
    kept = np.arange(int(units * keep - 8 * math.sqrt(units)), int(units * keep + 8 * math.sqrt(units)), 40)
    weights = stats.binom(units, keep).pmf(kept)
    x, step = np.linspace(-12 * noise, 12 * noise, 4001, retstep=True)
    shifts = np.sqrt(kept / units)
    density = stats.norm.pdf(x[:, None], shifts, noise) @ (weights / weights.sum())
    delta = np.maximum(density - math.exp(0.3) * stats.norm.pdf(x, 0, noise), 0).sum() * step
    assert bounds.lower <= delta * 1.001  # the limit is reached to one part in n; the sum to the square of its step
    assert bounds.lower >= 0.99 * delta


@pytest.mark.parametrize(("keep", "noise", "epsilon"), [(0.3, 1.0, 2.0), (0.5, 0.8, 3.0), (0.8, 1.0, 2.5)])
def test_the_lower_end_of_dropout_is_met_by_gradients_of_unlike_sizes(keep, noise, epsilon):
    """A few units, each with a gradient ten thousand times that of the next one, and a million with equal tiny ones.

    The update has norm 1. The attacker knows all but the mask, and sees the few units' outputs and the others' sum.
    """
    few, many = math.ceil(1 / keep), 10**6
    sizes, tiny = 1e-4 ** np.arange(few), 1e-4**few / math.sqrt(many)
    patterns = np.array(list(itertools.product((0, 1), repeat=few)))
    kept = stats.binom(many, keep).ppf([0.1, 0.3, 0.5, 0.7, 0.9])
    norms = np.sqrt(((sizes * patterns) ** 2).sum(1)[:, None] + kept * tiny**2)
    updates = np.empty((len(patterns), len(kept), few + 1))
    updates[..., :few] = (sizes * patterns)[:, None] / norms[..., None]
    updates[..., few] = kept * tiny / math.sqrt(many) / norms
    chances = np.repeat((keep**patterns * (1 - keep) ** (1 - patterns)).prod(1) / len(kept), len(kept))
    means = updates.reshape(-1, few + 1) / noise
    rng = np.random.default_rng(11)
    z = means[rng.choice(len(means), 200_000, p=chances)] + rng.standard_normal((200_000, few + 1))
    values = np.maximum(1 - math.exp(epsilon) / (np.exp(z @ means.T - (means**2).sum(1) / 2) @ chances), 0)
    margin = 4 * values.std() / math.sqrt(len(values))
    bounds = Dropout(Gaussian(noise), keep).delta(epsilon)
    assert 0.97 * (values.mean() - margin) <= bounds.lower <= values.mean() + margin
    assert bounds.lower > Poisson(Gaussian(noise), keep).delta(epsilon).upper  # what one unit shows


@pytest.mark.parametrize(("keep", "noise"), [(0.3, 1.0), (0.6, 0.7), (0.6, 4.0), (0.85, 1.5)])
def test_no_update_under_a_mask_has_larger_moments_than_charged(keep, noise):
    """Both directions, for updates at random: all pairs of masks for whole orders, and quadrature over two units."""
    rng, charged = np.random.default_rng(5), Dropout(Gaussian(noise), keep).rdp([2, 3, 4])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    z = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    mass = np.multiply.outer(weights, weights).ravel() / (2 * math.pi)
    for units in (1, 2, 4) * 20:
        masks = np.array(list(itertools.product((0, 1), repeat=units)))
        chances = (keep**masks * (1 - keep) ** (1 - masks)).prod(1)
        sizes = np.exp(rng.normal(0, rng.choice([0.1, 1, 5]), units) + rng.normal(0, rng.choice([0, 1]), masks.shape))
        means = masks * sizes * rng.choice([-1, 1], masks.shape) ** rng.integers(2)
        means /= noise * np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-300)
        pairs = np.exp(means @ means.T)
        second = chances @ pairs @ chances
        third = np.einsum("i,j,k,ij,ik,jk", chances, chances, chances, pairs, pairs, pairs, optimize=True)
        assert math.log(second) <= charged[0]
        assert math.log(third) <= 2 * charged[1]
        if units == 2:
            ratio = np.exp(z @ means.T - (means**2).sum(1) / 2) @ chances
            for order, most in zip((2, 3, 4), charged, strict=True):
                assert math.log(mass @ ratio**order) <= (order - 1) * most
                assert math.log(mass @ ratio ** (1 - order)) <= (order - 1) * most


@pytest.mark.parametrize(("keep", "noise"), [(0.3, 1.0), (0.5, 0.8), (0.7, 2.0)])
def test_the_worst_third_moment_that_a_search_finds_is_close_below_what_is_charged(keep, noise):
    """Five units and very many others, by ascent over updates: each becomes the gradient of the moment in it."""
    masks = np.array([(*few, 1) for few in itertools.product((0, 1), repeat=5)])
    chances = (keep ** masks[:, :5] * (1 - keep) ** (1 - masks[:, :5])).prod(1)
    seen = np.array([1, 1, 1, 1, 1, math.sqrt(keep)])  # two masks share a part of the others
    updates, moments = np.random.default_rng(3).random(masks.shape), list[float]()
    for _ in range(120):
        updates *= masks / np.linalg.norm(updates * masks, axis=1, keepdims=True)
        means = updates * seen / noise
        pairs = np.exp(means @ means.T)
        joint = np.einsum("i,j,k,ij,ik,jk->ij", chances, chances, chances, pairs, pairs, pairs, optimize=True)
        moments.append(joint.sum())
        updates = joint @ means * seen
    (charged,) = Dropout(Gaussian(noise), keep).rdp([3])
    assert 1.01 * math.log(moments[0]) < math.log(moments[-1]) <= 2 * charged <= 1.15 * math.log(moments[-1])


def hockey_sticks(means, chances, epsilon):
    """Both directions of a mixture of unit Gaussians in the plane against the one around 0, by sums over a grid."""
    axes = [np.linspace(min(means[:, i].min(), 0) - 7, max(means[:, i].max(), 0) + 7, 420) for i in (0, 1)]
    z = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    out = np.exp(-(z**2).sum(1) / 2) * np.prod([axis[1] - axis[0] for axis in axes]) / (2 * math.pi)
    person_in = out * (np.exp(z @ means.T - (means**2).sum(1) / 2) @ chances)
    return [np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in ((person_in, out), (out, person_in))]


@pytest.mark.parametrize("keep", [0.02, 0.3, 0.35, 0.5, 0.6, 0.97])
@pytest.mark.parametrize(("noise", "epsilons"), [(0.5, (1.0, 6.0)), (1.0, (0.0, 1.0, 3.0)), (4.0, (0.02, 0.5))])
def test_no_update_under_a_mask_costs_more_than_charged(keep, noise, epsilons):
    """Updates that share a norm between two units, or between one unit and very many others, at every angle.

    Very many units are seen through their sum, in which an update that is spread over those kept has sqrt(keep) left.
    """
    for epsilon in epsilons:
        charged = Dropout(Gaussian(noise), keep).delta(epsilon).upper
        for angle in np.linspace(0, math.pi / 2, 7):
            share, other = math.cos(angle), math.sin(angle)
            units = (
                [[share, other], [1, 0], [0, 1], [0, 0]],
                [keep**2, keep * (1 - keep), keep * (1 - keep), (1 - keep) ** 2],
            )
            many = [[share, other * math.sqrt(keep)], [0, math.sqrt(keep)]], [keep, 1 - keep]
            for means, chances in (units, many):
                both = hockey_sticks(np.array(means) / noise, np.array(chances), epsilon)
                assert max(both) <= 1.001 * charged  # the sums err by less


@pytest.mark.parametrize("keep", [0.27, 0.35, 0.6, 0.75])
def test_dropout_of_many_rounds_is_known_to_one_per_cent_for_every_chance(keep):
    run, whole = (Repeat(each, 1000).epsilon(DELTA) for each in (Dropout(Gaussian(20.0), keep), Gaussian(20.0)))
    assert 0.99 * run.upper < run.lower < run.upper < 0.95 * whole.lower
    spread = Gaussian(20.0 / math.sqrt(1000 * keep)).epsilon(DELTA)  # very many units, seen through their sum
    assert run.upper > spread.lower


# What is attained: lower ends.


def substituted_sample(noise, rate, delta):
    """epsilon of ``SubstitutedPoissonGaussian`` at a delta. The ratio of both densities rises with the noisy number, so
    that the best set is a half-line."""
    with mpmath.workdps(80):
        shift = 1 / mpmath.mpf(noise)

        def tails(z):
            out, one, other = (mpmath.ncdf(moved - z) for moved in (0, shift, -shift))
            return (1 - rate) * out + rate * one, (1 - rate) * out + rate * other

        def log_ratio(z):
            first, second = (mpmath.exp(side * shift * z - shift**2 / 2) for side in (1, -1))
            return mpmath.log((1 - rate + rate * first) / (1 - rate + rate * second))

        low, high = mpmath.mpf(0), mpmath.mpf(100)
        for _ in range(200):
            z = (low + high) / 2
            mass_in, mass_out = tails(z)
            low, high = (z, high) if mass_in - mpmath.exp(log_ratio(z)) * mass_out > delta else (low, z)
        return float(log_ratio(low))


def test_a_rare_loss_of_a_substituted_sample_is_no_lower_end_without_sampling():
    """Its cost without sampling, 7.696, was both ends."""
    truth, found = substituted_sample(3.0, 0.1, 1e-30), SubstitutedPoissonGaussian(3.0, 0.1).epsilon(1e-30)
    assert found.lower <= truth <= found.upper
    assert truth == pytest.approx(1.705, abs=1e-3)
    usual = SubstitutedPoissonGaussian(3.0, 0.1).epsilon(1e-6)
    assert usual.lower <= substituted_sample(3.0, 0.1, 1e-6) <= usual.upper < 1.001 * usual.lower


def test_a_run_of_substituted_samples_is_below_a_known_number_of_samples():
    """Given h samples, X is that of a Gaussian of distance 20 sqrt(h); the tail alone bounds its delta from above."""
    run = Repeat(SubstitutedPoissonGaussian(0.1, 0.001), 10)
    hits, losses = np.arange(1, 11), np.linspace(0, 2000, 20_001)
    distance = 20 * np.sqrt(hits)
    delta = stats.binom.pmf(hits, 10, 0.001) @ norm.cdf(distance[:, None] / 2 - losses / distance[:, None])
    assert run.epsilon(1e-6).lower <= losses[np.argmax(delta <= 1e-6)]
    assert run.epsilon(1e-6).upper < math.inf


def test_what_a_kind_attains_is_said_not_assumed():
    """A kind that says only what it is charged as has no lower end, alone and inside others."""

    @dataclasses.dataclass(frozen=True)
    class Stranger(Release, is_kind=False):
        text = "a stranger"

        def charged_as(self):
            return Gaussian(1.0)

    for event in (Stranger(), Repeat(Stranger(), 3), Poisson(Stranger(), 0.5), Allocation(Stranger(), 2, 5)):
        assert event.epsilon(DELTA).lower == 0 < event.epsilon(DELTA).upper < math.inf
