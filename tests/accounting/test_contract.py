"""What every kind of mechanism promises: run over the registry, so that a new kind meets it by existing.

The oracles know no theorem: each is a pair of finite laws, of some real mechanism that the kind describes.
"""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from fedamp.accounting import (
    Compose,
    Gaussian,
    Mechanism,
    NotPrivate,
    Poisson,
    RandomisedResponse,
    Repeat,
    Submodels,
    WithoutReplacement,
    from_json,
)

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
    "times": 3,
    "batch": 2,
    "population": 5,
    "mechanism": BIT,
    "mechanisms": (BIT, RandomisedResponse(0.6)),
    "assumption": "joint release",
    "scales": (),
}
SPECIAL = {"GaussianMixture": {"weights": (0.5, 0.3, 0.2)}, "WithoutReplacement": {"size": 1}}
KINDS = sorted(set(Mechanism.kinds))
PRIVATE = [kind for kind in KINDS if kind != "NotPrivate"]
DELTA = 1e-3


def example(kind, **changes):
    names = [field.name for field in dataclasses.fields(Mechanism.kinds[kind]) if field.name != "relation"]
    values = VALUES | SPECIAL.get(kind, {}) | changes
    missing = [name for name in names if name not in values]
    assert not missing, f"tell the contract a value for {missing} of {kind}"
    return Mechanism.kinds[kind](**{name: values[name] for name in names})


# Oracles: lists of (probability with the person in, out).


def finite(*outputs):
    return np.array(outputs, dtype=float)


def on_grid(density_in, density_out):
    z = np.arange(-14, 16, 2e-3)
    return np.stack([density_in(z), density_out(z)], axis=1) * 2e-3


def product(*pairs):
    return np.array([np.prod(rows, axis=0) for rows in itertools.product(*pairs)])


def in_rounds(pair, count, choices, weights=None):
    """``count`` releases of which the person is in those of a hidden choice; choices are equally likely or weighted."""
    listed = []
    for outputs in itertools.product(pair, repeat=count):
        inside = [math.prod(out[int(i not in chosen)] for i, out in enumerate(outputs)) for chosen in choices]
        listed.append((np.average(inside, weights=weights), math.prod(out[1] for out in outputs)))
    return finite(*listed)


def mixed(y):
    return (norm.cdf((y + 1) / 1.5) - norm.cdf((y - 1) / 1.5)) / 2


ONE, OTHER = finite((0.75, 0.25), (0.25, 0.75)), finite((0.6, 0.4), (0.4, 0.6))
PAIRS = [set(c) for c in itertools.combinations(range(4), 2)]
COINS = [set(c) for h in range(5) for c in itertools.combinations(range(4), h)]
CAPPED = [  # four coins of 1/4, and a pair of their rounds where more than two came up; each with its chance
    (set(kept), 0.25 ** len(coins) * 0.75 ** (4 - len(coins)) / math.comb(len(coins), min(2, len(coins))))
    for coins in COINS
    for kept in itertools.combinations(sorted(coins), min(2, len(coins)))
]
EXACT, WITHIN = True, False  # whether a worst case of the kind, or only some case of it
ORACLES = {
    "Gaussian": lambda: (on_grid(norm(1, 1.5).pdf, norm(0, 1.5).pdf), EXACT),
    "Laplace": lambda: (
        on_grid(lambda z: np.exp(-abs(z - 1) / 1.2) / 2.4, lambda z: np.exp(-abs(z) / 1.2) / 2.4),
        EXACT,
    ),
    "RandomisedResponse": lambda: (ONE, EXACT),
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
    "Compose": lambda: (product(ONE, OTHER), EXACT),
    "Repeat": lambda: (product(ONE, ONE, ONE), EXACT),
    "RandomSelection": lambda: (np.concatenate([ONE / 2, OTHER / 2]), EXACT),
    "LinearCombination": lambda: (ONE, WITHIN),  # the other model tells nothing
    "Poisson": lambda: (ONE @ [[0.25, 0], [0.75, 1]], EXACT),
    "Submodels": lambda: (in_rounds(ONE, 3, [{0}, {1}, {2}]), EXACT),
    "Dropout": lambda: (ONE @ [[0.4, 0], [0.6, 1]], WITHIN),  # a model of one unit
    "Allocation": lambda: (in_rounds(ONE, 4, PAIRS), WITHIN),
    "AllocationPrefix": lambda: (in_rounds(ONE, 3, [chosen - {3} for chosen in PAIRS]), WITHIN),
    "CappedPoisson": lambda: (
        in_rounds(ONE, 3, [kept - {3} for kept, _ in CAPPED], [chance for _, chance in CAPPED]),
        WITHIN,
    ),
    "Group": lambda: (ONE, EXACT),  # one bit, whoever turns it
    "WithoutReplacement": lambda: (finite((0.75, 0.55), (0.25, 0.45)), EXACT),  # 0.6 * 0.75 + 0.4 * 0.25
}


def delta_of(pair, epsilon):
    inside, outside = pair.T
    scale = math.exp(epsilon)
    return max(np.maximum(inside - scale * outside, 0).sum(), np.maximum(outside - scale * inside, 0).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_bracket_a_real_mechanism(kind):
    pair, is_worst = ORACLES[kind]()
    mechanism = example(kind)
    for epsilon in (0.0, 0.2, 0.9):
        exact, bounds = delta_of(pair, epsilon), mechanism.delta(epsilon)
        assert bounds.upper >= exact * (1 - 1e-5) - 1e-9  # 1e-5: sums over a grid with a kink
        assert bounds.lower <= exact * (1 + 1e-5) + 1e-9
        if is_worst and kind != "Group":  # whose generic rule does not know that it is one bit
            assert bounds.width <= 2e-2 * bounds.upper
    if kind in PRIVATE:
        assert delta_of(pair, mechanism.epsilon(DELTA).upper + 1e-9) <= DELTA * (1 + 1e-3)  # the kink, again
        for order in (2, 5):
            logs = [
                order * np.log(a) + (1 - order) * np.log(b) for a, b in (pair.T, pair.T[::-1]) if a.all() and b.all()
            ]
            exact = max((float(np.logaddexp.reduce(each)) / (order - 1) for each in logs), default=0.0)
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
def test_epsilon_and_delta_are_inverse_and_never_above_what_nothing_hidden_costs(kind):
    mechanism = example(kind)
    cost = mechanism.epsilon(DELTA)
    assert 0 <= cost.lower <= cost.upper < math.inf
    back = mechanism.delta(cost.upper)
    assert back.lower <= DELTA * (1 + 1e-6)
    if not cost.method.startswith("sampled"):  # which is asked for epsilon alone
        assert back.upper <= DELTA * (1 + 1e-3)
    assert mechanism.delta(cost.lower).upper >= DELTA * (1 - 1e-6) or cost.lower == 0
    assert cost.lower <= mechanism.unamplified().epsilon(DELTA).upper * 1.001
    assert mechanism.unamplified().relation == mechanism.relation
    assert mechanism.epsilon(DELTA / 10).upper >= cost.upper


MONOTONE = {  # which way the cost goes with a field, and another value of it
    "noise_multiplier": (-1, 2.0),
    "scale": (-1, 2.0),
    "width": (-1, 4.0),
    "probability": (1, 0.9),
    "shift": (1, 1.2),
    "rate": (1, 0.5),
    "count": (-1, 5),
    "k": (1, 3),
    "at_most": (1, 3),
    "rounds": (-1, 8),
    "released": (1, 4),
    "times": (1, 6),
    "batch": (1, 3),
    "size": (1, 3),
    "linf_coordinates": (-1, 4),
}


@pytest.mark.parametrize("kind", PRIVATE)
def test_cost_is_monotone_in_every_field(kind):
    mechanism, names = example(kind), {field.name for field in dataclasses.fields(Mechanism.kinds[kind])}
    for name, (sign, value) in MONOTONE.items():
        if name in names:
            other = example(kind, **{name: value})
            assert sign * (other.epsilon(DELTA).upper - mechanism.epsilon(DELTA).upper) >= -1e-3, name
            assert np.all(sign * (other.rdp([2, 6]) - mechanism.rdp([2, 6])) >= -1e-4), name
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
    if mechanism.contains((Mechanism.kinds["Group"], WithoutReplacement)):
        return  # which cannot be hidden: they are of the whole run
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
        words = "a stranger"

    for ask in (lambda m: m.epsilon(DELTA), lambda m: m.rdp([2])):
        with pytest.raises(TypeError, match="no evaluator knows mechanisms of kind Stranger"):
            ask(Stranger())


def test_no_noise_costs_everything():
    assert NotPrivate().epsilon(DELTA).lower == math.inf
    assert Compose([Gaussian(1.0), NotPrivate()]).delta(5.0).upper == 1
