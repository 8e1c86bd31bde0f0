"""Every registered submodel scheme: parts, noise, denominators, hidden choices, and what is charged for them.

A new scheme meets the contract by its name in ``SUBMODELS``; keys without a default have examples. That
it trains what it is charged for is seen from outside in tests/strategies/test_charge.py.
"""

from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
import torch
from scipy import stats

from fedamp.accounting import Allocation, Compose, Gaussian, Poisson, Repeat, Submodels, calibrate, from_json
from fedamp.errors import ScenarioError
from fedamp.federation.choices import AnySubmodels
from fedamp.federation.plan import make_plan
from fedamp.federation.submodels import DisjointSubmodels, DropoutSubmodels, SubmodelScheme
from fedamp.models.model import WHOLE, Model
from tests.federations import small

SCHEMES = get_args(get_args(AnySubmodels)[0])


def example(section: type[SubmodelScheme], rest: str = "shared") -> SubmodelScheme:
    """A section with the first example of every key."""
    keys = {name: field.examples[0] for name, field in section.model_fields.items() if field.examples}
    keys |= {"unowned": rest} if rest != "shared" else {}
    return section(scheme=get_args(section.model_fields["scheme"].annotation)[0], **keys)


UNITS = 60
RESTS = [(each, rest) for each in (DisjointSubmodels, DropoutSubmodels) for rest in ("partitioned", "frozen")]


@pytest.fixture(params=[*map(example, SCHEMES), *(example(*each) for each in RESTS)], ids=str)
def scheme(request) -> SubmodelScheme:
    return request.param


def shares(scheme: SubmodelScheme) -> bool:
    """Whether there is a part that is not hidden."""
    return scheme.training_share(UNITS) < 1 and scheme.unowned == "shared"


# --- the contract -----------------------------------------------------------------------------------------------------


def test_parts_keep_the_given_norm_and_noise_and_divide_by_whom_they_can_expect(scheme):
    parts = scheme.parts(0.5, 1.5, 30.0, UNITS)
    assert (parts[-1].clip, parts[-1].noise_multiplier) == (0.5, 1.5)
    assert parts[-1].denominator == pytest.approx(30 * scheme.training_share(UNITS))
    assert all(part.denominator == 30 for part in parts[:-1])
    names = ["shared", "split"] if shares(scheme) else ["all"] if scheme.training_share(UNITS) == 1 else ["split"]
    assert [part.name for part in parts] == names
    assert all(part.noise_multiplier == 0 for part in scheme.parts(0.5, 0.0, 30.0, UNITS))


def test_hiding_costs_no_more_and_only_what_is_split_is_hidden(scheme):
    release = Gaussian(0.8)
    *shared, last = scheme.parts(0.5, 0.8, 30.0, UNITS)
    assert all(scheme.charge(part, release) == release for part in shared)
    charged = scheme.charge(last, release)
    assert from_json(charged.to_json()) == charged
    assert charged.unamplified() == release
    cost, plain = charged.epsilon(1e-5).upper, release.epsilon(1e-5).upper
    assert cost < plain if scheme.copies > 1 else cost <= plain


def test_submodels_are_uniform_independent_and_drawn_afresh(scheme):
    cohort = np.arange(100, 6100)
    drawn = [scheme.draw(cohort, seed=2, round_=round_) for round_ in (1, 2)]
    assert all(array.shape == cohort.shape for array in drawn)
    if not scheme.choices_are_all:  # masks are the clients' own, from seeds
        return
    possible = sorted(submodel for _, submodel in scheme.possible_draws(1))
    counts = np.array([[((drawn[0] == one) & (drawn[1] == two)).sum() for two in possible] for one in possible])
    assert counts.sum() == len(cohort)
    # Both rounds together, and one unit after the next: a right scheme fails with a chance of 1e-4; the seed is fixed.
    assert counts.size == 1 or stats.chisquare(counts.ravel()).pvalue > 1e-4
    neighbours = [((drawn[0][:-1] == one) & (drawn[0][1:] == two)).sum() for one in possible for two in possible]
    assert counts.size == 1 or stats.chisquare(neighbours).pvalue > 1e-4


def test_a_model_of_two_parts_is_cut_in_two_and_the_cut_is_the_one_of_its_number(scheme):
    model = Model(name="mlp", hidden=(12,))
    pieces = scheme.pieces(model, (4,), 3, seed=5)
    for _, submodel in scheme.possible_draws(2):
        piece = pieces(submodel, 1)
        assert piece.shared == ({"output.bias"} if shares(scheme) else set())
        assert piece.frozen == ({"output.bias"} if getattr(scheme, "unowned", "") == "frozen" else set())
        assert piece is pieces(submodel, 1)
        assert (piece is pieces(submodel, 2)) == (scheme.cut_index(1) == scheme.cut_index(2))


def test_what_is_dealt_or_frozen_moves_for_nobody_else(scheme):
    """Three clients' updates of ones: each keeps those of its own coordinates, the same ones every time."""
    if scheme.training_share(UNITS) == 1:
        return
    model, seeds = Model(name="mlp", hidden=(12,)), np.array([bytes([n]) * 32 for n in range(3)], "V32")
    pieces = scheme.pieces(model, (4,), 100, seed=5)
    kept = []
    for _, submodel in scheme.possible_draws(1):
        piece = pieces(submodel, 1)
        updates = {name: torch.ones(3, *value.shape) for name, value in piece.module.named_parameters()}
        owned = piece.owned(updates, seeds)
        assert set(owned) == set(updates) - set(piece.frozen)
        (mask,) = piece.arguments(seeds) or [torch.ones(3, updates["hidden.0.bias"].shape[1])]
        whose = {"hidden.0.weight": mask[:, :, None], "hidden.0.bias": mask, "output.weight": mask[:, None]}
        assert all((owned[name] == own).all() for name, own in whose.items())
        assert piece.owns_all == (scheme.unowned == "shared" and scheme.choices_are_all)
        kept += list(owned.get("output.bias", []))
    if (
        scheme.unowned == "partitioned" and scheme.choices_are_all
    ):  # three submodels: a coordinate is one's, for all its clients
        assert all(torch.equal(kept[0], other) for other in kept[1:3])
        assert (torch.stack(kept[::3]).sum(0) == 1).all()
        assert {int(each.sum()) for each in kept} == {33, 34}
    elif scheme.unowned == "partitioned":
        assert stats.binomtest(int(torch.stack(kept).sum()), 300, scheme.training_share(UNITS)).pvalue > 1e-4
        assert (kept[0] != kept[1]).any()


def test_a_model_whose_nodes_own_all_of_it_is_dealt_in_one_part():
    """``output.bias`` frozen and partitioned: one clipping norm, one charge, Allocation(Submodels(...))."""
    for rest in ("partitioned", "frozen"):
        split = plan(f"{{scheme: disjoint, count: 3, unowned: {rest}}}", "check_in={scheme: balanced, k: 3}")
        assert [part.name for part in split.parts] == ["split"]
        assert split.charge.mechanism == Allocation(Submodels(Gaussian(1.0), 3), k=3, rounds=8)


# --- classes of devices, and submodels that are known -----------------------------------------------------------------


def classes(**keys) -> DisjointSubmodels:
    return DisjointSubmodels(scheme="disjoint", count=4, **keys)


@pytest.mark.parametrize(
    ("whole", "expected"),
    [(0.25, range(0, 20, 4)), ("0-2, 7", [0, 1, 2, 7]), (0.9, [*range(9), *range(10, 19)]), (None, [])],
)
def test_the_whole_model_is_trained_by_a_public_class(whole, expected):
    scheme, units = classes(whole=whole), np.arange(20)
    drawn = scheme.draw(units, seed=3, round_=1)
    assert np.flatnonzero(drawn == WHOLE).tolist() == list(expected)
    assert np.array_equal(drawn[5:9] == WHOLE, scheme.draw(units[5:9], seed=8, round_=2) == WHOLE), "by its id alone"
    share = len(list(expected)) / 20
    assert scheme.training_share(20) == pytest.approx(share + (1 - share) / 4)
    often = {submodel: chance for chance, submodel in scheme.submodel_frequencies(20)}
    assert sum(often.values()) == pytest.approx(1)
    assert often.get(WHOLE, 0.0) == pytest.approx(share)


def test_each_class_pays_for_what_is_hidden_about_it():
    private = plan(
        "{scheme: disjoint, count: 3, unowned: partitioned, whole: 0.5}", "check_in={scheme: balanced, k: 3}"
    )
    assert private.charge.mechanism == Allocation(Gaussian(1.0), k=3, rounds=8), "the run's charge is the largest"
    hidden = plan("{scheme: disjoint, count: 3, unowned: partitioned}", "check_in={scheme: balanced, k: 3}")
    found = private.charge.epsilon_by_capacity
    assert list(found) == ["whole", "1/3"]
    assert found["whole"] == private.charge.planned_epsilon
    assert found["1/3"] == hidden.charge.planned_epsilon
    assert found["1/3"].upper < 0.9 * found["whole"].lower
    assert hidden.charge.epsilon_by_capacity == {}


@pytest.mark.parametrize(("assignment", "expected"), [("rolling", [0, 1, 2, 3, 0]), ("static", [0] * 5)])
def test_a_known_choice_is_credited_with_nothing(assignment, expected):
    scheme = classes(assignment=assignment)
    drawn = [scheme.draw(np.arange(30), seed=1, round_=round_) for round_ in range(1, 6)]
    assert [set(each.tolist()) for each in drawn] == [{each} for each in expected]
    assert [scheme.possible_draws(1, round_)[0][1] for round_ in range(1, 6)] == expected
    release = Gaussian(1.0)
    assert scheme.charge(scheme.parts(1.0, 1.0, 30, UNITS)[-1], release) == release
    assert scheme.copies == 1


def test_a_whole_piece_has_the_parts_of_the_submodels():
    for rest, shared, frozen in (("shared", {"output.bias"}, set()), ("frozen", set(), {"output.bias"})):
        piece = classes(whole=0.5, unowned=rest).pieces(Model(name="mlp", hidden=(12,)), (4,), 3, seed=5)(WHOLE, 1)
        assert (piece.shared, piece.frozen, piece.owns_all) == (shared, frozen, rest == "shared")
        updates = {name: torch.ones(1, *value.shape) for name, value in piece.module.named_parameters()}
        assert set(piece.owned(updates, np.zeros(1, "V32"))) == set(updates) - frozen


def test_who_trains_the_whole_model_must_be_ids():
    with pytest.raises(
        ScenarioError, match="whole must be ids and ranges such as 0-9,12, got the range 9-2, or a share"
    ):
        plan("{scheme: disjoint, count: 3, whole: 9-2}")


# --- noise of the parts, and what is refused --------------------------------------------------------------------------

MLP = "model={name: mlp, hidden: [12]}"


def plan(submodels: str, *overrides: str):
    return make_plan(small(MLP, "check_in={scheme: poisson, rate: 0.5}", f"submodels={submodels}", *overrides), 60)


def test_each_part_has_its_own_clip_and_public_denominator():
    shared, split = plan("{scheme: disjoint, count: 3, shared_clip: 0.2, shared_noise_multiplier: 4.0}").parts
    assert (shared.name, shared.clip, shared.noise_multiplier, shared.denominator) == ("shared", 0.2, 4.0, 30.0)
    assert (split.name, split.clip, split.noise_multiplier, split.denominator) == ("split", 0.5, 1.0, 10.0)
    shared, split = plan("{scheme: dropout, keep: 0.3}").parts
    assert (shared.clip, shared.noise_multiplier, shared.denominator) == (0.5, 1.0, 30.0)
    assert split.denominator == pytest.approx(9.0)


def test_without_noise_no_part_has_any():
    for noise in ("2.0", "balanced", "same"):
        submodels = f"{{scheme: disjoint, count: 3, shared_noise_multiplier: {noise}}}"
        silent = plan(submodels, "privacy.noise_multiplier=0")
        assert [part.noise_multiplier for part in silent.parts] == [0, 0]
        assert silent.charge.planned_epsilon.upper == np.inf


def test_as_many_disjoint_masks_fit_as_are_charged():
    """One tenth in floating point is a little more: ten labels of that probability would come to more than one."""
    schemes = [DropoutSubmodels(scheme="dropout", keep=1 / copies) for copies in range(2, 200)]
    assert any(scheme.copies * Fraction(scheme.keep) > 1 for scheme in schemes)
    assert all(scheme.copies * Fraction(scheme.keeping_probability) <= 1 for scheme in schemes)
    assert all(scheme.keep * (1 - 2e-16) <= scheme.keeping_probability <= scheme.keep for scheme in schemes)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("submodels", "copies", "share"),
    [
        ("scheme: disjoint, count: 8", 8, 1 / 8),
        ("scheme: dropout, keep: 0.5", 2, 0.5),
    ],
)
def test_balanced_noise_is_near_the_best_split_of_the_budget(submodels, copies, share):
    """The best one is searched for here, at the exact cost; the objective is the noise of both parts' mean updates."""
    budget, rate, rounds = 1.0, 0.1, 50

    def objective(ratio: float) -> float:
        noise = calibrate(
            lambda s: Repeat(Poisson(Compose((Gaussian(ratio * s), Submodels(Gaussian(s), copies))), rate), rounds),
            budget,
            1e-5,
        )
        return noise**2 * (ratio**2 + 1 / share**2)

    balanced = plan(f"{{{submodels}, shared_noise_multiplier: balanced}}")
    ratio = balanced.parts[0].noise_multiplier / balanced.parts[1].noise_multiplier
    found = [objective(ratio * factor) for factor in (0.7, 1.0, 1.4)]
    # The ratio is the best one for small costs; at this budget it is within 1 % of the best of its neighbours.
    assert found[1] <= 1.01 * min(found)
    assert found[1] < 1.001 * objective(1.0)
    if copies > 2:
        assert found[1] < 0.8 * objective(1.0)


def test_noise_of_the_shared_part_that_exceeds_the_budget_alone_is_refused():
    submodels = "{scheme: disjoint, count: 3, shared_noise_multiplier: 0.1}"
    with pytest.raises(ScenarioError, match=r"privacy\.noise_multiplier: auto finds none") as caught:
        _ = plan(submodels, "privacy.noise_multiplier=auto", "privacy.epsilon=1").parts
    assert "\n" not in str(caught.value)


REFUSED = [
    ("submodels={scheme: disjoint, count: 13}", "submodels.count: 13 submodels, but model mlp has 12 nodes"),
    ("submodels={scheme: disjoint, count: 2, shared: [hidden.0]}", "0 nodes to partition beside submodels.shared"),
    ("submodels={scheme: disjoint, count: 2, shared: [outptu]}", "did you mean 'output'"),
    ("submodels={scheme: dropout, layers: [hidden.0]}", "layers was removed; expected: all hidden layers"),
    ("model={name: reznet20}", "model.name 'reznet20' is unknown"),
    (
        "submodels={scheme: dropout, unowned: partitioned, shared_clip: 0.2}",
        "shared_clip must be left out with unowned: partitioned",
    ),
]


def test_submodels_that_the_model_cannot_have_are_refused_by_key(subtests):
    for override, message in REFUSED:
        with subtests.test(override):
            with pytest.raises(ScenarioError) as caught:
                small(MLP, override)
            assert message in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["disjoint, count: 3", "dropout"])
def test_one_rule_chooses_the_norms_of_both_parts(scheme):
    shared, split = make_plan(small(MLP, f"submodels={{scheme: {scheme}}}", "privacy.clip=auto"), UNITS).parts
    assert shared.clip == split.clip


def test_models_without_hidden_layers_have_neither_submodels_nor_masks():
    for scheme in ("{scheme: disjoint, count: 2}", "{scheme: dropout}"):
        with pytest.raises(ScenarioError, match="model logistic"):
            small(f"submodels={scheme}")


NAMES_OF_LAYERS = ["hidden.1", "hidden.1.weight", "output"]


def test_layers_are_named_whole_or_by_parameter(subtests):
    for shared in NAMES_OF_LAYERS:
        with subtests.test(shared):
            model = "model={name: mlp, hidden: [6, 6]}"
            loaded = small(model, f"submodels={{scheme: disjoint, count: 2, shared: [{shared}]}}")
            assert loaded.submodels.shared == (shared,)
