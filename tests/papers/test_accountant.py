"""The accountant's mechanisms against the papers' own bounds, which share no code with it.

Where a paper is exact the two must agree; where it bounds, the certified bracket must not contradict it; where it
prints something that does not hold, the accountant must not fall for it.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks.papers.bounds import allocation, base, merging, modelmix, partitioning, selection
from benchmarks.papers.bounds.allocation_sampling import monte_carlo_delta
from benchmarks.papers.bounds.groups import (
    group_poisson_gaussian,
    group_poisson_randomized_response,
    group_property,
    group_weights,
)
from benchmarks.papers.bounds.mixtures import delta_of_mixture
from benchmarks.papers.bounds.subsampling import (
    poisson_baseline,
    substitution_baseline,
    substitution_randomized_response,
)
from fedamp.accounting import (
    FIXED_GRADIENTS,
    Allocation,
    Compose,
    Dropout,
    Gaussian,
    Group,
    GroupPoissonGaussian,
    Laplace,
    LinearCombination,
    ModelMix,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Submodels,
    WithoutReplacement,
)

ORDERS = np.array([2.0, 3.0, 8.0, 32.0, 100.0])

# Both sides are closed forms or quadratures good to about 1e-12; 1e-8 leaves room for sums over many orders.
EXACT = {"rtol": 1e-8, "atol": 1e-13}


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    return float(allocation.gaussian_delta(noise_multiplier, epsilon))


# Base mechanisms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "divergence"),
    [
        (Gaussian(0.8), base.gaussian(0.8)),
        (Laplace(1.5), base.laplace(1.5)),
        (RandomisedResponse(0.75), base.randomized_response(0.75)),
    ],
)
def test_base_mechanisms_have_the_divergences_of_the_papers(mechanism, divergence):
    assert_allclose(mechanism.rdp(ORDERS), divergence(ORDERS, 1), **EXACT)
    # Proposition E.4 without its factor 2 is the remove direction of Poisson sampling, exactly.
    sampled = poisson_baseline(divergence, 0.1, ORDERS, symmetric=True)
    assert_allclose(Poisson(mechanism, 0.1).rdp(ORDERS), sampled, **EXACT)


# Submodels, dropout and sampling (Dong, Chen, Özgür 2025) ------------------------------------------------------------


@pytest.mark.parametrize(("noise", "count"), [(0.5, 2), (1.0, 4), (3.0, 50)])
def test_submodels_have_the_exact_divergence(noise, count):
    """Theorem 3.4; the remove direction is the larger here."""
    exact = partitioning.submodel_rdp(noise, count, ORDERS)
    assert_allclose(Submodels(Gaussian(noise), count).rdp(ORDERS), exact, **EXACT)
    assert_allclose(Dropout(Gaussian(noise), 1 / count).rdp(ORDERS), exact, **EXACT)


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.01), (1.0, 0.1), (2.0, 0.5)])
def test_poisson_sampling_has_the_exact_divergence(noise, rate):
    """Theorem 3.11 of Dong et al., and Theorem 4.2 of Schuchardt et al. for a group of one."""
    ours = Poisson(Gaussian(noise), rate).rdp(ORDERS)
    assert_allclose(ours, partitioning.poisson_rdp(noise, rate, ORDERS), **EXACT)
    assert_allclose(ours, group_poisson_gaussian(noise, rate, 1, ORDERS), **EXACT)


def test_a_partly_split_round_is_composed_before_it_is_sampled():
    """Table 1's model. The parts sampled one by one would cost less, wrongly."""
    round_ = Poisson(Compose((Gaussian(2.0), Submodels(Gaussian(2.0), 3))), 0.1)
    ours = round_.rdp(ORDERS)
    assert_allclose(ours, partitioning.partial_split_rdp(2.0, 3, 0.1, ORDERS), **EXACT)
    assert np.all(ours > partitioning.partial_split_rdp_added_separately(2.0, 3, 0.1, ORDERS))


@pytest.mark.parametrize(("noise", "count"), [(1.0, 2), (1.0, 5), (0.6, 3)])
def test_the_add_direction_is_not_taken_from_lemma_3_18(noise, count):
    """Lemma 3.18's value is no bound; the certified delta of the add direction must not be built on it."""
    mechanism = Submodels(Gaussian(noise), count)
    orders = np.arange(2.0, 12.0)
    assert np.all(mechanism.rdp(orders) > partitioning.reverse_divergence_as_printed(noise, count, orders))


# Allocation (Dong, Chen, Özgür 2025; Feldman, Shenfeld 2025) ---------------------------------------------------------


@pytest.mark.parametrize(("noise", "rounds"), [(0.6, 3), (1.0, 50), (2.0, 1000)])
def test_one_hidden_round_has_the_exact_divergence(noise, rounds):
    """Theorem 4.8 by integer partitions, Eq. (2) by generating functions, and ours."""
    ours = Allocation(Gaussian(noise), 1, rounds).rdp(ORDERS)
    assert_allclose(ours, partitioning.forward_rdp(noise, rounds, ORDERS), **EXACT)
    few = ORDERS[:4]
    partitions = allocation.direct_remove_rdp(allocation.gaussian_log_moments(noise, 32), rounds, few)
    assert_allclose(ours[:4], partitions, **EXACT)


@pytest.mark.parametrize(("chosen", "rounds"), [(2, 5), (2, 12), (3, 7)])
def test_several_hidden_rounds_lie_between_the_exact_divergence_and_no_amplification(chosen, rounds):
    """Eq. (2) for k > 1 is exact; nobody may be below it."""
    orders = np.array([2.0, 3.0, 4.0])
    ours = Allocation(Gaussian(1.0), chosen, rounds).rdp(orders)
    assert np.all(ours >= partitioning.forward_rdp(1.0, rounds, orders, chosen) * (1 - 1e-9))
    assert np.all(ours < chosen * orders / 2)


@pytest.mark.parametrize(("noise", "rounds", "epsilon"), [(1.0, 100, 0.5), (0.7, 20, 1.0), (2.0, 10, 0.1)])
def test_one_hidden_round_against_the_sampled_delta_and_the_paper_bounds(noise, rounds, epsilon):
    bracket = Allocation(Gaussian(noise), 1, rounds).delta(epsilon)
    generator = np.random.default_rng(7)
    # Limits that fail once in a million; the seed is fixed.
    remove = monte_carlo_delta(noise, rounds, epsilon, 100_000, generator, confidence=1 - 1e-6)
    add = monte_carlo_delta(noise, rounds, epsilon, 100_000, generator, direction="add", confidence=1 - 1e-6)
    assert bracket.upper >= max(remove.lower, add.lower)
    assert bracket.lower <= max(remove.upper, add.upper)

    def poisson_delta(rate: float, at: float) -> float:
        return Repeat(Poisson(Gaussian(noise), rate), rounds).delta(at).upper

    # Theorem 4.6 bounds the remove direction, Theorem 4.9 the add direction.
    assert remove.lower <= allocation.decomposition_remove(poisson_delta, rounds, epsilon)
    larger = max(
        allocation.decomposition_remove(poisson_delta, rounds, epsilon), allocation.direct_add(noise, rounds, epsilon)
    )
    assert bracket.lower <= larger
    assert bracket.upper <= larger * (1 + 1e-3)  # the bracket's own accuracy


def test_several_hidden_rounds_against_the_sampled_delta():
    """The k-fold split is an upper bound, a few per cent above the exact law."""
    bracket = Allocation(Gaussian(2.0), 4, 10).delta(1.0)
    exact = monte_carlo_delta(2.0, 10, 1.0, 200_000, np.random.default_rng(3), chosen=4, confidence=1 - 1e-6)
    assert exact.lower <= bracket.upper
    assert bracket.lower <= exact.upper


# Merging (Yin, Zaheer, Li 2026) ---------------------------------------------------------------------------------------

MODELS = (Gaussian(2.0), Poisson(Gaussian(0.8), 0.3), Gaussian(0.8))


@pytest.mark.parametrize("weights", [(0.6, 0.3, 0.1), (0.0, 0.5, 0.5), (1.0, 0.0, 0.0)])
def test_random_selection_is_theorem_5_1_and_5_2(weights):
    mechanism = RandomSelection(MODELS, weights)
    curves = [ORDERS / 8, partitioning.poisson_rdp(0.8, 0.3, ORDERS), ORDERS / 1.28]
    assert_allclose(mechanism.rdp(ORDERS), selection.random_selection_rdp(curves, weights, ORDERS), **EXACT)

    sampled = merging.Step((1.0,), (0.8,), (0.3,))
    for epsilon in (0.2, 1.0, 3.0):
        # Gaussians cost the same both ways; removing costs more under Poisson sampling, so the larger is the first sum.
        deltas = [gaussian_delta(2.0, epsilon), merging.step_delta(sampled, epsilon), gaussian_delta(0.8, epsilon)]
        exact = float(selection.random_selection_delta(deltas, deltas, weights))
        bracket = mechanism.delta(epsilon)
        assert bracket.lower <= exact * (1 + 1e-9)
        assert exact <= bracket.upper * (1 + 1e-9)
        assert bracket.upper <= exact * (1 + 1e-2) + 1e-12


def test_feasible_weights_stay_feasible_with_the_certified_bracket():
    """What the papers' Rényi test accepts for a budget the accountant accepts too: it is never looser."""
    epsilon, delta = 3.0, 1e-5
    orders = np.arange(2.0, 64.0)
    weight = selection.largest_weight_by_rdp(orders / 32, orders / 2, orders, epsilon, delta)
    assert weight is not None
    assert RandomSelection((Gaussian(4.0), Gaussian(1.0)), (1 - weight, weight)).epsilon(delta).upper <= epsilon
    deltas = [gaussian_delta(4.0, epsilon), gaussian_delta(1.0, epsilon)]
    by_delta = selection.largest_weight_by_delta(deltas, deltas, delta)
    assert by_delta is not None
    for factor, feasible in ((0.99, True), (1.01, False)):
        weights = (1 - factor * by_delta, factor * by_delta)
        bracket = RandomSelection((Gaussian(4.0), Gaussian(1.0)), weights).delta(epsilon)
        assert (bracket.upper <= delta) == feasible
        assert (bracket.lower <= delta) == feasible


def test_joint_release_is_composition():
    """Theorem 6.1, Rényi and privacy loss, for two models of some sampled steps each."""
    models = [(0.9, 0.2, 5), (1.5, 0.5, 3)]
    ours = Compose(tuple(Repeat(Poisson(Gaussian(s), q), t) for s, q, t in models))
    curves = [t * partitioning.poisson_rdp(s, q, ORDERS) for s, q, t in models]
    assert_allclose(ours.rdp(ORDERS), merging.joint_release_rdp(curves), **EXACT)
    steps = [merging.Step((1.0,), (s,), (q,)).worst_case() for s, q, t in models for _ in range(t)]
    printed, bracket = merging.joint_release_delta(steps, 1.0), ours.delta(1.0)
    assert bracket.lower <= printed
    assert bracket.upper == pytest.approx(printed, rel=2e-3)  # grids of 1e-3 nats on either side


STEP = merging.Step((0.7, 0.3), (0.8, 2.0), (0.2, 0.05), learning_rates=(0.1, 0.4), clipping_norms=(1.0, 0.5))
RUNS = (Poisson(Gaussian(0.8), 0.2), Poisson(Gaussian(2.0), 0.05))
SCALES = (0.1 * 1.0, 0.4 * 0.5)


def test_one_merged_step_is_theorem_6_2_and_6_4():
    merged = LinearCombination(RUNS, (0.7, 0.3), FIXED_GRADIENTS, SCALES)
    assert_allclose(merged.rdp(ORDERS), merging.step_rdp(STEP, ORDERS), **EXACT)
    for epsilon in (0.0, 0.5, 2.0):
        exact, bracket = merging.step_delta(STEP, epsilon), merged.delta(epsilon)
        assert bracket.lower <= exact * (1 + 1e-9)
        assert exact <= bracket.upper * (1 + 1e-9)


def test_linear_combination_charges_the_joint_release_unless_told_otherwise():
    """Corollary 6.5 must be asked for by its assumption; the default is Theorem 6.1."""
    runs = tuple(Repeat(run, 3) for run in RUNS)
    steps = [STEP] * 3
    cheap = LinearCombination(runs, (0.7, 0.3), FIXED_GRADIENTS, SCALES)
    assert_allclose(cheap.rdp(ORDERS), merging.not_a_bound_algorithm_3(steps, ORDERS), **EXACT)
    assert cheap.delta(0.5).upper == pytest.approx(merging.not_a_bound_algorithm_4(steps, 0.5), rel=2e-3)

    default = LinearCombination(runs, (0.7, 0.3))
    curves = [3 * partitioning.poisson_rdp(s, q, ORDERS) for s, q in ((0.8, 0.2), (2.0, 0.05))]
    assert_allclose(default.rdp(ORDERS), merging.joint_release_rdp(curves), **EXACT)
    alone = [merging.Step((1.0,), (s,), (q,)).worst_case() for s, q in ((0.8, 0.2), (2.0, 0.05))]
    assert default.delta(0.5).upper == pytest.approx(merging.joint_release_delta(alone * 3, 0.5), rel=2e-3)


def test_linear_combination_covers_the_run_that_breaks_algorithm_3():
    """Weights (0.9, 0.1), full participation, two steps: the merged model can reveal 1.61 a / s^2 (test_merging)."""
    merged = LinearCombination((Repeat(Gaussian(1.0), 2),) * 2, (0.9, 0.1))
    assert np.all(merged.rdp(ORDERS) >= ORDERS * (1 + 0.5 / 0.82))


# Groups (Schuchardt et al. 2024) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "rate", "size"),
    [(1.0, 0.1, 1), (1.0, 0.2, 4), (4.0, 0.01, 8), (0.4, 0.5, 3), (2.0, 1.0, 5), (2.0, 0.0, 5), (0.4175, 5.8e-5, 3)],
)
def test_groups_have_the_tight_divergence_and_its_delta(noise, rate, size):
    """Theorem 4.2; and its worst case's hockey-stick divergence, as a difference of Gaussian tails."""
    mechanism = GroupPoissonGaussian(noise, rate, size)
    assert_allclose(mechanism.rdp(ORDERS), group_poisson_gaussian(noise, rate, size, ORDERS), **EXACT)
    for epsilon in (0.0, 0.7):
        exact = max(delta_of_mixture(epsilon, group_weights(rate, size), np.arange(size + 1) / noise))
        bracket = mechanism.delta(epsilon)
        assert bracket.lower <= exact * (1 + 1e-9)
        assert exact <= bracket.upper * (1 + 1e-9)


def test_the_tight_group_is_below_the_generic_one():
    """Section 6, and the accountant's generic rule against Appendix B.1, or the group without sampling."""
    person = Poisson(Gaussian(1.0), 0.2)
    generic = Group(person, 4).rdp(ORDERS[:3])
    assert np.all(GroupPoissonGaussian(1.0, 0.2, 4).rdp(ORDERS[:3]) < generic)
    halved, unsampled = group_property(person.rdp, 4, ORDERS[:3]), np.array(ORDERS[:3]) * 4**2 / 2
    assert_allclose(generic, np.minimum(halved, unsampled), rtol=1e-8)


def test_randomised_response_group_counts_as_one_person_at_a_higher_rate():
    """Theorem G.1 in the accountant's terms."""
    rate, size = 0.1, 4
    as_one = Poisson(RandomisedResponse(0.75), 1 - (1 - rate) ** size)
    assert_allclose(as_one.rdp(ORDERS), group_poisson_randomized_response(0.75, rate, size, ORDERS), **EXACT)
    assert math.isclose(as_one.delta(0.0).upper, (1 - (1 - rate) ** size) * 0.5, rel_tol=1e-6)


@pytest.mark.parametrize(("batch", "population"), [(10, 1000), (3, 10), (7, 7)])
def test_batches_without_replacement_are_charged_as_proposition_e2(batch, population):
    """Two steps of insertion/removal apart; Wang et al.'s term of order 2 makes it less than Proposition E.2."""
    fraction, noise = batch / population, 3.0
    printed = substitution_baseline(base.gaussian(noise), fraction, ORDERS, distance=2)
    expected = np.minimum(printed, base.gaussian(noise)(ORDERS, 2))
    charged = WithoutReplacement(Gaussian(noise), batch, population).rdp(ORDERS)
    assert np.all(charged <= expected * (1 + 1e-9))
    assert_allclose(charged[3:], expected[3:], rtol=1e-5)  # where the term of order 2 no longer matters
    tight = substitution_randomized_response(0.75, fraction, ORDERS)
    answers = WithoutReplacement(RandomisedResponse(0.75), batch, population).rdp(ORDERS)
    assert np.all(tight <= answers * (1 + 1e-9))


# ModelMix (Xiao, Wan, Devadas 2022) -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "width", "coordinates"), [(0.5, 2.0, 1), (1.0, 0.1, 1), (1.0, 3.0, 4)])
def test_modelmix_has_the_divergence_of_theorem_4_1(noise, width, coordinates):
    orders = np.array([2.0, 3.0, 8.0])
    mechanism = ModelMix(noise, width, coordinates)
    assert_allclose(mechanism.rdp(orders), modelmix.mixed_rdp(noise, width, orders, 1.0, coordinates), **EXACT)
    sampled = modelmix.mixed_rdp(noise, width, orders, 0.1, coordinates)
    assert_allclose(Poisson(mechanism, 0.1).rdp(orders), sampled, **EXACT)
