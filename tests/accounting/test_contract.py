"""What every kind of mechanism promises. The tests run over the registry, so that an added kind meets them, too.

``contract`` holds the values of fields and the oracles: add those of an added kind there.
"""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from fedamp.accounting import (
    Allocation,
    CappedPoisson,
    Compose,
    Cyclic,
    Dropout,
    Gaussian,
    GaussianMixture,
    Group,
    GroupPoissonGaussian,
    Laplace,
    LinearCombination,
    Mechanism,
    ModelMix,
    NotPrivate,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Spaced,
    Submodels,
    SubstitutedPoissonGaussian,
    WithoutReplacement,
    epsilon_over_rounds,
    from_json,
)
from fedamp.accounting.bounds import Method
from tests.accounting.contract import MONOTONE, ORACLES, example
from tests.accounting.oracles import delta_of, renyi_of

KINDS = sorted(set(Mechanism.kinds))
PRIVATE = [kind for kind in KINDS if kind != "NotPrivate"]
DELTA = 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_bracket_a_real_mechanism(kind):
    pair, is_worst = ORACLES[kind]()
    mechanism = example(kind)
    for epsilon in (0.0, 0.2, 0.9):
        exact, bounds = delta_of(*pair.T, epsilon), mechanism.delta(epsilon)
        assert bounds.upper >= exact * (1 - 1e-5) - 1e-9  # 1e-5: sums over a grid with a kink
        assert bounds.lower <= exact * (1 + 1e-5) + 1e-9
        if is_worst and kind != "Group":  # the generic rule does not know that it is one bit
            assert bounds.width <= 2e-2 * bounds.upper
    if kind in PRIVATE:
        assert delta_of(*pair.T, mechanism.epsilon(DELTA).upper + 1e-9) <= DELTA * (1 + 1e-3)  # the kink, again
        for order in (2, 5):
            exact = renyi_of(*pair.T, order) if pair.all() else 0.0
            assert mechanism.rdp([order])[0] >= exact * (1 - 1e-6) - 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_written_read_and_said(kind):
    mechanism = example(kind)
    text = json.dumps(mechanism.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == mechanism
    assert hash(from_json(json.loads(text))) == hash(mechanism)
    assert "\n" not in str(mechanism)
    assert str(mechanism).endswith(str(mechanism.relation)) or kind == "NotPrivate"
    without_relation = json.loads(text.replace('"relation": "zero-out", ', ""))  # as ledgers of earlier versions say it
    assert from_json(without_relation) == mechanism
    assert kind in repr(mechanism)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.anything = 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_makes_no_sense_is_refused_by_name(kind):
    for name in {field.name for field in dataclasses.fields(Mechanism.kinds[kind])} - {"relation"}:
        for bad in ("many", -1.0):
            with pytest.raises(ValueError, match=name) as caught:
                example(kind, **{name: bad})
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", PRIVATE)
def test_epsilon_and_delta_are_inverse_and_at_most_those_without_amplification(kind):
    mechanism = example(kind)
    cost = mechanism.epsilon(DELTA)
    assert 0 <= cost.lower <= cost.upper < math.inf
    back = mechanism.delta(cost.upper)
    assert back.lower <= DELTA * (1 + 1e-6)
    if cost.origin.method is not Method.SAMPLED:  # which is asked for epsilon alone
        assert back.upper <= DELTA * (1 + 1e-3)
    assert mechanism.delta(cost.lower).upper >= DELTA * (1 - 1e-6) or cost.lower == 0
    assert cost.lower <= mechanism.unamplified().epsilon(DELTA).upper * 1.001
    assert mechanism.unamplified().relation == mechanism.relation
    assert mechanism.epsilon(DELTA / 10).upper >= cost.upper


@pytest.mark.parametrize("kind", PRIVATE)
def test_cost_is_monotone_in_every_field(kind):
    mechanism, names = example(kind), {field.name for field in dataclasses.fields(Mechanism.kinds[kind])}
    for name, (sign, value) in MONOTONE.items():
        if name in names:
            other = example(kind, **{name: value})
            assert sign * (other.epsilon(DELTA).upper - mechanism.epsilon(DELTA).upper) >= -1e-3, name
            assert np.all(sign * other.rdp([2, 6]) >= sign * mechanism.rdp([2, 6]) - 1e-4), name
    if "mechanism" in names:  # and in what is nested
        noisier = example(kind, mechanism=RandomisedResponse(0.6))
        assert noisier.epsilon(DELTA).upper <= mechanism.epsilon(DELTA).upper


@pytest.mark.parametrize("kind", PRIVATE)
def test_divergences_add_and_hiding_never_costs(kind):
    mechanism = example(kind)
    one = mechanism.rdp([2, 3, 9])
    assert np.allclose(Repeat(mechanism, 3).rdp([2, 3, 9]), 3 * one, rtol=1e-9)
    assert np.allclose(Compose([mechanism, mechanism]).rdp([2, 3, 9]), 2 * one, rtol=1e-9)
    assert Repeat(mechanism, 2).epsilon(DELTA).upper >= mechanism.epsilon(DELTA).lower
    if mechanism.is_of_whole_run or mechanism.relation == "substitution":
        return  # which cannot be hidden
    for hidden in (Poisson(mechanism, 0.5), Submodels(mechanism, 2)):
        assert hidden.epsilon(DELTA).upper <= mechanism.epsilon(DELTA).upper * 1.001


@pytest.mark.parametrize("kind", [kind for kind in PRIVATE if example(kind).span > 1])
def test_a_prefix_is_below_the_whole_and_grows(kind):
    mechanism = example(kind)
    spent = [mechanism.after(r).epsilon(DELTA).upper for r in range(mechanism.span + 1)]
    assert spent[0] == 0
    assert spent[-1] == mechanism.epsilon(DELTA).upper
    assert all(a <= b * 1.001 for a, b in itertools.pairwise(spent))  # 0.001: what a bracket leaves open
    with pytest.raises(ValueError, match="rounds must be >= 0 and <= "):
        mechanism.after(mechanism.span + 1)


def test_an_unknown_kind_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Stranger(Mechanism, is_kind=False):
        in_words = "a stranger"

    for ask in (lambda m: m.epsilon(DELTA), lambda m: m.rdp([2])):
        with pytest.raises(TypeError, match="no evaluator knows mechanisms of kind Stranger"):
            ask(Stranger())


def test_no_noise_costs_everything():
    assert NotPrivate().epsilon(DELTA).lower == math.inf
    assert Compose([Gaussian(1.0), NotPrivate()]).delta(5.0).upper == 1


ONE_OF_ONE = {
    "repeated once": lambda m: Repeat(m, 1),
    "composed alone": lambda m: Compose([m]),
    "composed with no rounds": lambda m: Compose([m, Repeat(m, 0)]),
    "composed with a prefix of no rounds": lambda m: Compose([m, m.after(0)]) if m.span > 1 else m,
    "the only one to select": lambda m: RandomSelection([m, NotPrivate()], [1.0, 0.0]),
    "the only model": lambda m: LinearCombination([m], [1.0]),
    "a group of one": lambda m: Group(m, 1),
}
HIDDEN_ONE_OF_ONE = {
    "always sampled": lambda m: Poisson(m, 1.0),
    "one submodel": lambda m: Submodels(m, 1),
    "all units kept": lambda m: Dropout(m, 1.0),
    "the only round": lambda m: Allocation(m, 1, 1),
    "the only round, sampled": lambda m: CappedPoisson(m, 1.0, 1, 1),
    "the only class": lambda m: Cyclic(m, 1, 1, 1),
    "the only spaced round": lambda m: Spaced(m, 1, 1, 1, ()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_one_is_the_thing_itself(kind, subtests):
    mechanism = example(kind)
    cannot_hide = mechanism.is_of_whole_run or mechanism.relation == "substitution"
    wraps = ONE_OF_ONE if cannot_hide else ONE_OF_ONE | HIDDEN_ONE_OF_ONE
    for name, wrap in wraps.items():
        with subtests.test(name):
            wrapped = wrap(wrap(mechanism))
            assert wrapped.epsilon(DELTA) == mechanism.epsilon(DELTA)
            assert wrapped.delta(0.5) == mechanism.delta(0.5)
            assert np.array_equal(wrapped.rdp([2, 5]), mechanism.rdp([2, 5]))
            if wrapped.span == mechanism.span:
                costs = [epsilon_over_rounds(each, DELTA, precision=0.05) for each in (wrapped, mechanism)]
                assert np.array_equal(*costs)


@pytest.mark.parametrize(
    ("event", "same"),
    [
        (WithoutReplacement(Gaussian(2.0), 1, 1), Gaussian(2.0, relation="substitution")),
        (WithoutReplacement(Gaussian(2.0), 9, 9, size=2), Gaussian(1.0, relation="substitution")),
        (Spaced(Gaussian(1.0), 2, 6, 1, ()), Allocation(Gaussian(1.0), 2, 6)),
        (Spaced(Gaussian(1.0), 1, 6, 3, ()), Allocation(Gaussian(1.0), 1, 6)),
        (Spaced(Gaussian(1.0), 3, 7, 3, ()), Repeat(Gaussian(1.0), 3)),  # there is one such set
        (Allocation(Laplace(1.0), 4, 4), Repeat(Laplace(1.0), 4)),
        (CappedPoisson(Laplace(1.0), 0.5, 4, 4), Repeat(Poisson(Laplace(1.0), 0.5), 4)),
        (CappedPoisson(Gaussian(1.0), 1.0, 2, 4), Allocation(Gaussian(1.0), 2, 4)),
        (GroupPoissonGaussian(1.0, 0.25, 1), Poisson(Gaussian(1.0), 0.25)),
        (SubstitutedPoissonGaussian(1.0, 1.0), Gaussian(1.0, relation="substitution")),
        (GaussianMixture((0.5,), (1.0,)), Gaussian(2.0)),
        (ModelMix(1.0, 0.0), Gaussian(1.0)),
        (Group(Laplace(1.0), 2), Laplace(0.5)),
    ],
    ids=str,
)
def test_a_kind_that_describes_a_simpler_one_costs_what_that_costs(event, same):
    assert event.epsilon(DELTA) == same.epsilon(DELTA)
