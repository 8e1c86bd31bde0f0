"""The data of the contract of all mechanisms: values of their fields, and oracles that know no theorem.

An oracle is a pair of finite laws, with the person in and out, of a real mechanism that the kind describes.
"""

import dataclasses
from functools import partial

import numpy as np
from scipy.stats import norm

from fedamp import accounting
from fedamp.accounting import Mechanism, RandomisedResponse
from tests.accounting.oracles import beginning, bits, capped, product_of, uniform_sets

assert all(map(partial(hasattr, accounting), accounting.__all__))  # imports the kinds of extensions, too

BIT = RandomisedResponse(0.75)
VALUES = {  # of every field that a kind has, by its name
    "noise_multiplier": 1.5,
    "scale": 1.2,
    "probability": 0.75,
    "width": 2.0,
    "shift": 0.8,
    "linf_coordinates": 1,
    "shifts": (0.0, 1.0, 1.5),
    "weights": (0.5, 0.5),
    "rate": 0.25,
    "keep": 0.4,
    "size": 2,
    "count": 3,
    "k": 2,
    "rounds": 4,
    "released": 3,
    "at_most": 2,
    "classes": 2,
    "gap": 2,
    "coefficients": (0.5,),
    "times": 3,
    "batch": 2,
    "population": 5,
    "largest": 2,
    "mechanism": BIT,
    "mechanisms": (BIT, RandomisedResponse(0.6)),
    "present": (0.5, 0.3, 0.2),
    "absent": (0.2, 0.3, 0.5),
    "known_epsilon": 1.0,
    "known_delta": 1e-4,
    "assumption": "joint release",
    "scales": (),
}
SPECIAL = {
    "GaussianMixture": {"weights": (0.5, 0.3, 0.2)},
    "WithoutReplacement": {"size": 1},
    "Cyclic": {"rounds": 9},
    "Spaced": {"rounds": 6, "released": 5},
}


def example(kind, **changes):
    names = [field.name for field in dataclasses.fields(Mechanism.kinds[kind]) if field.name != "relation"]
    values = VALUES | SPECIAL.get(kind, {}) | changes
    missing = [name for name in names if name not in values]
    assert not missing, f"add values of {missing} to VALUES for {kind}"
    return Mechanism.kinds[kind](**{name: values[name] for name in names})


# Oracles: lists of (probability with the person in, out).


def finite(*outputs):
    return np.array(outputs, dtype=float)


def on_grid(density_in, density_out):
    z = np.arange(-14, 16, 2e-3)
    return np.stack([density_in(z), density_out(z)], axis=1) * 2e-3


def mixed(y):
    return (norm.cdf((y + 1) / 1.5) - norm.cdf((y - 1) / 1.5)) / 2


ONE, OTHER = finite((0.75, 0.25), (0.25, 0.75)), finite((0.6, 0.4), (0.4, 0.6))


BLACK_BOX = np.array([1e-4, 0.9999 * np.e / (1 + np.e), 0.9999 / (1 + np.e), 0.0])

# The chance of a coin of 0.25 among four others, of whom at most two of five stay, counted by their number.
CUT = sum(n * 0.25 ** (j + 1) * 0.75 ** (4 - j) * min(1, 2 / (j + 1)) for j, n in enumerate((1, 4, 6, 4, 1)))

EXACT, WITHIN = True, False  # whether the oracle is a worst case of the kind, or only some case
ORACLES = {
    "Gaussian": lambda: (on_grid(norm(1, 1.5).pdf, norm(0, 1.5).pdf), EXACT),
    "Laplace": lambda: (
        on_grid(lambda z: np.exp(-abs(z - 1) / 1.2) / 2.4, lambda z: np.exp(-abs(z) / 1.2) / 2.4),
        EXACT,
    ),
    "RandomisedResponse": lambda: (ONE, EXACT),
    "FiniteOutcomes": lambda: (finite((0.5, 0.2), (0.3, 0.3), (0.2, 0.5)), EXACT),
    "Approximate": lambda: (np.stack([BLACK_BOX, BLACK_BOX[::-1]], axis=1), EXACT),
    "SubstitutedPoissonGaussian": lambda: (
        on_grid(*(lambda z, at=at: 0.75 * norm.pdf(z, 0, 1.5) + 0.25 * norm.pdf(z, at, 1.5) for at in (1, -1))),
        EXACT,
    ),
    "NotPrivate": lambda: (finite((1, 0), (0, 1)), EXACT),
    "MixedCoordinate": lambda: (on_grid(lambda y: mixed(y - 0.8), mixed), EXACT),
    "ModelMix": lambda: (on_grid(lambda y: mixed(y - 1), mixed), WITHIN),
    "GaussianMixture": lambda: (
        on_grid(lambda z: 0.5 * norm.pdf(z) + 0.3 * norm.pdf(z - 1) + 0.2 * norm.pdf(z - 1.5), norm.pdf),
        EXACT,
    ),
    "GroupPoissonGaussian": lambda: (
        on_grid(
            lambda z: 0.5625 * norm.pdf(z, 0, 1.5) + 0.375 * norm.pdf(z, 1, 1.5) + 0.0625 * norm.pdf(z, 2, 1.5),
            norm(0, 1.5).pdf,
        ),
        EXACT,
    ),
    "Compose": lambda: (product_of(ONE.T, OTHER.T).T, EXACT),
    "Repeat": lambda: (product_of(ONE.T, ONE.T, ONE.T).T, EXACT),
    "RandomSelection": lambda: (np.concatenate([ONE / 2, OTHER / 2]), EXACT),
    "LinearCombination": lambda: (ONE, WITHIN),  # the other model tells nothing
    "Poisson": lambda: (ONE @ [[0.25, 0], [0.75, 1]], EXACT),
    "Submodels": lambda: (bits(uniform_sets(3, 1), 3, 0.75).T, EXACT),
    "Dropout": lambda: (ONE @ [[0.4, 0], [0.6, 1]], WITHIN),  # a model of one unit
    "Allocation": lambda: (bits(uniform_sets(4, 2), 4, 0.75).T, WITHIN),
    "AllocationPrefix": lambda: (bits(beginning(uniform_sets(4, 2), 3), 3, 0.75).T, WITHIN),
    "CappedPoisson": lambda: (bits(beginning(capped(4, 0.25, 2), 3), 3, 0.75).T, WITHIN),
    "Cyclic": lambda: (bits(uniform_sets(4, 2), 4, 0.75).T, WITHIN),  # the second class has four of the nine rounds
    "BallsInBins": lambda: (ONE, WITHIN),
    "Spaced": lambda: (ONE, WITHIN),  # of the rounds that are out, one at least is the person's
    "TruncatedPoisson": lambda: (ONE @ [[CUT, 0], [1 - CUT, 1]], WITHIN),
    "Group": lambda: (ONE, EXACT),  # one bit, whoever turns it
    "WithoutReplacement": lambda: (finite((0.75, 0.55), (0.25, 0.45)), EXACT),  # 0.6 * 0.75 + 0.4 * 0.25
}


MONOTONE = {  # which way the cost goes with a field, and another value of it
    "noise_multiplier": (-1, 2.0),
    "scale": (-1, 2.0),
    "known_epsilon": (1, 1.5),
    "known_delta": (1, 5e-4),
    "width": (-1, 4.0),
    "probability": (1, 0.9),
    "shift": (1, 1.2),
    "rate": (1, 0.5),
    "count": (-1, 5),
    "k": (1, 3),
    "at_most": (1, 3),
    "classes": (1, 3),
    "rounds": (-1, 8),
    "released": (1, 4),
    "times": (1, 6),
    "batch": (1, 3),
    "size": (1, 3),
    "linf_coordinates": (-1, 4),
}

PROOFS = {  # of each kind, the tests that share no code with what is charged
    "Allocation": (
        "test_brackets_hold_the_integral_in_both_directions_and_epsilon_inverts_it",
        "test_k_of_t_is_between_what_is_open_and_that_less_the_log_of_the_choices",
    ),
    "AllocationPrefix": ("test_prefix_bounds_the_exact_law_and_is_close",),
    "Approximate": ("test_black_boxes_of_later_versions_compose",),
    "CappedPoisson": ("test_leaving_rounds_out_never_costs",),
    "Compose": ("test_unlike_factors_compose_like_gaussians", "test_every_answer_brackets_the_enumerated_truth"),
    "Cyclic": ("test_bounds_bracket_a_real_mechanism",),
    "Dropout": (
        "test_the_lower_end_of_dropout_is_met_by_a_wide_network",
        "test_the_lower_end_of_dropout_is_met_by_gradients_of_unlike_sizes",
        "test_no_update_under_a_mask_has_larger_moments_than_charged",
        "test_the_worst_third_moment_that_a_search_finds_is_close_below_what_is_charged",
        "test_no_update_under_a_mask_costs_more_than_charged",
        "test_the_lower_end_of_dropout_in_hidden_rounds_is_met_by_a_wide_network",
    ),
    "FiniteOutcomes": ("test_finite_laws_by_enumeration_in_both_directions",),
    "Gaussian": ("test_gaussian_brackets_the_closed_form_in_both_directions",),
    "GaussianMixture": ("test_a_mixture_of_gaussians_is_within_our_bracket",),
    "Group": (
        "test_the_generic_property_halves_groups_of_any_size",
        "test_people_who_choose_different_bits_turn_several",
        "test_two_people_in_hidden_rounds_agree_with_plain_draws_over_all_their_sets",
    ),
    "GroupPoissonGaussian": ("test_groups_are_the_integral_of_binomial_shifts",),
    "Laplace": ("test_bounds_bracket_a_real_mechanism",),
    "LinearCombination": ("test_per_step_charge_would_understate_two_steps_of_dependent_gradients",),
    "MixedCoordinate": ("test_bounds_bracket_a_real_mechanism",),
    "ModelMix": ("test_modelmix_is_the_integral_of_corollary_4_1",),
    "NotPrivate": ("test_no_noise_costs_everything",),
    "Poisson": (
        "test_thinning_mixing_and_nesting_finite_laws",
        "test_composed_poisson_gaussian_contains_the_reference",
    ),
    "RandomSelection": ("test_a_part_without_privacy_costs_its_weight_in_delta_at_every_epsilon",),
    "RandomisedResponse": ("test_randomised_response_composes_to_a_binomial",),
    "Repeat": ("test_product_of_gaussians_is_a_gaussian",),
    "BallsInBins": ("test_brackets_hold_the_integral_and_the_add_direction_is_the_smaller_one",),
    "Spaced": ("test_brackets_hold_the_integral_and_the_add_direction_is_the_smaller_one",),
    "Submodels": ("test_mean_of_a_finite_law", "test_mean_of_few_against_quadrature"),
    "SubstitutedPoissonGaussian": ("test_no_pair_of_contributions_costs_more_than_opposite_ones",),
    "TruncatedPoisson": ("test_a_cut_sample_costs_at_least_what_any_others_reveal",),
    "WithoutReplacement": (
        "test_no_records_cost_more_than_opposite_ones_among_equal_ones",
        "test_an_adversary_who_looks_at_releases_stays_below",
    ),
}
