"""Random nested mechanisms on randomised response, against every output and hidden choice listed in exact fractions.

The oracle knows no theorem: it builds the two laws of what is released from the definition of each mechanism.
"""

import itertools
import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedamp.accounting import (
    Allocation,
    Compose,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Submodels,
)

MOST_OUTPUTS = 20_000
ORDERS = [1.5, 2.0, 3.0, 7.0, 12.5]
EPSILONS = [0.0, 0.05, 0.3, 1.0, 2.5]


class Pair:
    """Probabilities of every output with the person in and out; outputs of one likelihood ratio are joined."""

    def __init__(self, outputs):
        joined = defaultdict(lambda: [Fraction(0), Fraction(0)])
        for inside, outside in outputs:
            mass = joined[inside / outside]
            mass[0] += inside
            mass[1] += outside
        self.outputs = [tuple(mass) for mass in joined.values()]

    def delta(self, epsilon):
        scale = math.exp(epsilon)
        inside, outside = np.array([[float(p), float(q)] for p, q in self.outputs]).T
        return max(np.maximum(inside - scale * outside, 0).sum(), np.maximum(outside - scale * inside, 0).sum())

    def renyi(self, order):
        inside, outside = np.log([[float(p), float(q)] for p, q in self.outputs]).T
        both = (order * inside + (1 - order) * outside, order * outside + (1 - order) * inside)
        return max(logs.max() + math.log(np.exp(logs - logs.max()).sum()) for logs in both) / (order - 1)


def rounds(pair, count, choices):
    """``count`` releases of which the person is in those of a hidden choice, each choice equally likely."""
    assume(len(pair.outputs) ** count <= MOST_OUTPUTS)
    listed = []
    for outputs in itertools.product(pair.outputs, repeat=count):
        outside = math.prod(q for _, q in outputs)
        inside = sum(math.prod(outputs[i][i not in chosen] for i in range(count)) for chosen in choices)
        listed.append((inside / len(choices), outside))
    return Pair(listed)


def responses():
    probability = st.sampled_from([Fraction(9, 16), Fraction(5, 8), Fraction(3, 4), Fraction(15, 16)])
    return probability.map(lambda p: (RandomisedResponse(float(p)), Pair([(p, 1 - p), (1 - p, p)])))


@st.composite
def nested(draw, inner):
    part, pair = draw(inner)
    match draw(st.sampled_from(["sample", "split", "repeat", "compose", "select", "allocate"])):
        case "sample":
            rate = draw(st.sampled_from([Fraction(1, 64), Fraction(1, 4), Fraction(7, 8)]))
            return Poisson(part, float(rate)), Pair([(rate * p + (1 - rate) * q, q) for p, q in pair.outputs])
        case "split":
            count = draw(st.integers(2, 4))
            return Submodels(part, count), rounds(pair, count, [{i} for i in range(count)])
        case "repeat":
            times = draw(st.integers(2, 4))
            return Repeat(part, times), rounds(pair, times, [set(range(times))])
        case "compose":
            other, also = draw(inner)
            both = [(p * r, q * s) for p, q in pair.outputs for r, s in also.outputs]
            return Compose([part, other]), Pair(both)
        case "select":
            other, also = draw(inner)
            weight = draw(st.sampled_from([Fraction(1, 8), Fraction(1, 2)]))
            drawn = [(weight * p, weight * q) for p, q in pair.outputs]
            drawn += [((1 - weight) * p, (1 - weight) * q) for p, q in also.outputs]
            return RandomSelection([part, other], [float(weight), float(1 - weight)]), Pair(drawn)
    whole = draw(st.integers(2, 5))
    k, released = draw(st.integers(1, whole)), draw(st.integers(1, whole))
    # A choice of k of all rounds, seen on those that are released; subsets appear as often as they are likely.
    choices = [{i for i in chosen if i < released} for chosen in itertools.combinations(range(whole), k)]
    assume(part.span == 1)
    return Allocation(part, k, whole).after(released), rounds(pair, released, choices)


MECHANISMS = st.recursive(responses(), nested, max_leaves=4)


@settings(max_examples=100, deadline=None)
@given(nested(MECHANISMS))
def test_every_answer_brackets_the_enumerated_truth(both):
    mechanism, truth = both
    slack = 1e-9  # sums of doubles
    for epsilon in EPSILONS:
        exact, bounds = truth.delta(epsilon), mechanism.delta(epsilon, points=200)
        assert bounds.lower <= exact * (1 + slack) + 1e-14
        assert bounds.upper >= exact * (1 - slack) - 1e-14
    for delta in (0.1, 1e-4):
        bounds = mechanism.epsilon(delta, points=200)
        assert truth.delta(bounds.upper + slack) <= delta * (1 + slack)
        assert bounds.lower == 0 or truth.delta(bounds.lower - slack) >= delta * (1 - slack)
    exact = np.array([truth.renyi(order) for order in ORDERS])
    assert np.all(mechanism.rdp(ORDERS) >= exact * (1 - 1e-7) - 1e-12)


@settings(max_examples=60, deadline=None)
@given(MECHANISMS)
def test_what_is_exact_is_close(both):
    """Without check-in to several rounds every law is exact, so that the bracket is narrow as well."""
    mechanism, truth = both
    assume("hidden rounds" not in str(mechanism))
    for epsilon in EPSILONS:
        bounds = mechanism.delta(epsilon, points=400)
        assert bounds.width <= 2e-3  # atoms between the points of a grid
        assert abs(bounds.upper - truth.delta(epsilon)) <= 2e-3
