"""Mechanisms of few outcomes, against enumeration in exact fractions, and closed forms of large losses."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import mpmath
import pytest

from fedamp.accounting import (
    Allocation,
    Approximate,
    CappedPoisson,
    Compose,
    FiniteOutcomes,
    Gaussian,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Submodels,
)
from tests.accounting.oracles import beginning, capped, uniform_sets

HALVES = (0.5, 0.25, 0.125, 0.125)


def laws(event):
    """Pairs (chance with the person in, chance out) of all outcomes, in fractions; no two outcomes are put together."""
    match event:
        case RandomisedResponse(probability):
            p = Fraction(probability)
            return [(p, 1 - p), (1 - p, p)]
        case FiniteOutcomes(present, absent):
            return [(Fraction(a), Fraction(b)) for a, b in zip(present, absent, strict=True)]
        case Repeat(inner, times):
            return product([laws(inner)] * times)
        case Compose(parts):
            return product([laws(part) for part in parts])
        case Poisson(inner, rate):
            q = Fraction(rate)
            return [((1 - q) * b + q * a, b) for a, b in laws(inner)]
        case RandomSelection(parts, weights):
            chosen = zip(parts, map(Fraction, weights), strict=True)
            return [(w * a, w * b) for part, w in chosen for a, b in laws(part)]
        case Submodels(inner, count):
            return hidden(laws(inner), [((i,), Fraction(1, count)) for i in range(count)], count)
        case CappedPoisson(inner, rate, most, rounds):
            return hidden(laws(inner), [(s, Fraction(c)) for s, c in capped(rounds, rate, most)], rounds)
    sets = uniform_sets(event.rounds, event.k)
    chosen = [(each, Fraction(1, len(sets))) for each, _ in beginning(sets, event.span)]
    return hidden(laws(event.mechanism), chosen, event.span)


def product(parts):
    return [(math.prod(a for a, _ in row), math.prod(b for _, b in row)) for row in itertools.product(*parts)]


def hidden(one, choices, rounds):
    found = []
    sets = Counter()
    for each, chance in choices:
        sets[each] += chance
    for row in itertools.product(one, repeat=rounds):
        inside = sum(c * math.prod(row[i][0] if i in s else row[i][1] for i in range(rounds)) for s, c in sets.items())
        found.append((inside, math.prod(b for _, b in row)))
    return found


def delta_of(pairs, epsilon):
    scale = Fraction(math.exp(epsilon))  # off by one unit
    return max(sum(max(a - scale * b, 0) for a, b in pairs), sum(max(b - scale * a, 0) for a, b in pairs))


def size(event):
    """How many outcomes are listed."""
    inner = [size(part) for part in event.parts]
    match event:
        case RandomisedResponse():
            return 2
        case FiniteOutcomes():
            return 4
        case RandomSelection():
            return sum(inner)
    return math.prod(inner) ** getattr(event, "count", getattr(event, "rounds", getattr(event, "most_released", 1)))


def release(rng):
    both = (0.5, 0.25, 0.25, 0.0), (0.25, 0.5, 0.0, 0.25)
    bit = RandomisedResponse(rng.choice([0.5, 0.55, 0.75, 0.9]))
    return rng.choice([bit, bit, FiniteOutcomes(HALVES, rng.sample(HALVES, 4)), FiniteOutcomes(*both)])


def one_round(rng):
    inner = release(rng)
    changed = Poisson(inner, rng.choice([0.25, 0.5])), Submodels(inner, rng.choice([2, 3]))
    return rng.choice([inner, *changed, RandomSelection((inner, release(rng)), (0.25, 0.75))])


def run(rng):
    inner, k = one_round(rng), rng.choice([1, 2])
    hidden_rounds = Allocation(inner, k, 3), Allocation(inner, k, 3).after(2), CappedPoisson(inner, 0.25, k, 3)
    return rng.choice([*hidden_rounds, Repeat(inner, 2), Repeat(inner, 3), Compose([inner, release(rng)]), inner])


EVENTS = [event for event in map(run, map(random.Random, range(150))) if size(event) <= 300]


@pytest.mark.few(*range(12))
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_every_outcome_is_counted(event):
    pairs = laws(event)
    for epsilon in (0.0, 0.1, 0.7, 2.0):
        exact, bounds = delta_of(pairs, epsilon), event.delta(epsilon)
        assert bounds.lower <= exact + Fraction(1e-15)  # one unit of the scale
        assert bounds.upper >= exact - Fraction(1e-15)
        assert bounds.width <= 1e-10
        certain = sum(a for a, b in pairs if not b)  # lost for sure: at this delta epsilon jumps
        if certain < exact < 1:
            found = event.epsilon(float(exact))
            assert delta_of(pairs, found.upper) <= exact * Fraction(1 + 1e-12)
            assert found.lower <= epsilon * (1 + 1e-9) + 1e-9


BOX, DELTA = Approximate(700.0), 1e-5


@pytest.mark.parametrize(
    ("event", "exact"),
    [
        # The largest ratio has nearly all of P: 1 - delta = ratio e^-epsilon. All else is below e^-600.
        (BOX, lambda: 700 + mpmath.log(1 - DELTA)),
        (Repeat(BOX, 2), lambda: 1400 + mpmath.log(1 - DELTA)),
        # Hidden choices do not help where the person is added: without the person each of them has its least ratio.
        (Submodels(BOX, 3), lambda: 700 + mpmath.log(1 - DELTA)),
        (Allocation(BOX, 2, 3), lambda: 1400 + mpmath.log(1 - DELTA)),
        # Only the participating part is lost: 0.5 (1 - e^epsilon / ratio') = delta, ratio' = e^700 / 2.
        (Poisson(BOX, 0.5), lambda: 700 - mpmath.log(2) + mpmath.log(1 - DELTA / 0.5)),
    ],
)
def test_large_losses_are_exact(event, exact):
    bounds, true = event.epsilon(DELTA), float(exact())
    assert bounds.lower <= true * (1 + 1e-7)
    assert bounds.upper >= true * (1 - 1e-7)
    assert bounds.width <= 1e-6 * bounds.upper


def test_bits_in_nearly_all_rounds():
    """13 numbers of true bits decide: x^j y^(12 - j) summed over which round is left out."""
    p, k, rounds = Fraction(0.55), 11, 12
    pairs = []
    for ones in range(rounds + 1):
        zeros, ways = rounds - ones, math.comb(rounds, ones)
        out = (1 - p) ** ones * p**zeros
        left_out = [(ones, p ** (ones - 1) * (1 - p) ** zeros * (1 - p))] if ones else []
        left_out += [(zeros, p**ones * (1 - p) ** (zeros - 1) * p)] if zeros else []
        pairs.append((ways * sum(Fraction(n, rounds) * chance for n, chance in left_out), ways * out))
    assert sum(a for a, _ in pairs) == 1
    found = Allocation(RandomisedResponse(0.55), k, rounds).epsilon(0.1)
    assert delta_of(pairs, found.upper) <= Fraction(0.1)
    assert delta_of(pairs, found.lower - 1e-9) > Fraction(0.1)
    assert found.width < 1e-9


@pytest.mark.parametrize(
    ("event", "chance"),
    [
        (Poisson(Gaussian(0.001), 0.5), 0.5),
        (Poisson(Gaussian(2.0), 0.3), 0.3),
        (Poisson(Poisson(Gaussian(0.1), 0.5), 0.25), 0.125),
        (Allocation(Gaussian(0.01), 1, 8).after(2), 0.25),
        (RandomSelection([Poisson(Gaussian(0.1), 0.5), Gaussian(1e30)], (0.5, 0.5)), 0.75),
        (CappedPoisson(Gaussian(0.1), 0.0625, 2, 4), 0.25),
        (Compose([Poisson(Gaussian(0.1), 0.25), Poisson(Gaussian(0.1), 0.5)]), 0.75),
    ],
)
def test_who_hardly_takes_part_loses_nothing_beyond_that_chance(event, chance):
    assert event.epsilon(chance).upper == 0
    assert event.delta(0.0).upper <= chance * (1 + 1e-15)
