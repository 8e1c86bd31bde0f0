"""Feldman, Shenfeld 2025, statement by statement: a randomiser with three answers, all views of a few steps in full."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

PRESENT, ABSENT = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
STEPS = 4
VIEWS = list(itertools.product(range(3), repeat=STEPS))
ROUNDING = 1e-12  # sums of 81 terms
EPSILONS = (0.0, 0.1, 0.4, 0.9)


def law(chosen):
    """Of the views, where the person takes part in these steps."""
    return np.array([
        math.prod((PRESENT if step in chosen else ABSENT)[y] for step, y in enumerate(view)) for view in VIEWS
    ])  # fmt: skip


def allocation(k):
    subsets = list(itertools.combinations(range(STEPS), k))
    return sum(law(chosen) for chosen in subsets) / len(subsets)


def poisson(rate):
    return sum(binom.pmf(k, STEPS, rate) * allocation(k) for k in range(STEPS + 1))


def excess(first, second, epsilon):
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def both(first, second, epsilon):
    return excess(first, second, epsilon), excess(second, first, epsilon)


def posterior(view):
    """That the next step is the chosen one of STEPS, given the answers so far, by Bayes' rule."""
    seen = len(view)
    ratios = [PRESENT[y] / ABSENT[y] for y in view]
    return 1 / (sum(ratios) + STEPS - seen)


def by_posterior(limit=1.0):
    """The law of the views where each answer is drawn by the posterior, or by the limit."""
    found = []
    for view in VIEWS:
        chance = 1.0
        for step, y in enumerate(view):
            rate = min(posterior(view[:step]), limit)
            chance *= rate * PRESENT[y] + (1 - rate) * ABSENT[y]
        found.append(chance)
    return np.array(found)


NOBODY, ONE = law(()), allocation(1)


@pytest.mark.statement("allocation", "Lemma B.2", "Claim B.5", "Claim B.9")
def test_drawing_by_the_posterior_is_allocation():
    assert by_posterior() == pytest.approx(ONE, rel=ROUNDING)
    for seen in range(STEPS):
        for view in itertools.product(range(3), repeat=seen):
            starts = [i for i, each in enumerate(VIEWS) if each[:seen] == view]
            ratio = ONE[starts].sum() / NOBODY[starts].sum()
            printed = (STEPS - seen + sum(PRESENT[y] / ABSENT[y] for y in view)) / STEPS
            assert ratio == pytest.approx(printed, rel=ROUNDING)  # B.9
            assert posterior(view) == pytest.approx(1 / (STEPS * ratio), rel=ROUNDING)  # B.5


@pytest.mark.statement("allocation", "Lemma B.4", "Lemma B.6", "Lemma 4.3")
@pytest.mark.parametrize("limit", [0.25, 0.3, 0.4, 0.6])
def test_the_truncated_scheme_stands_between_allocation_and_poisson(limit):
    truncated, at_rate = by_posterior(limit), poisson(limit)
    exceeds = np.array([any(posterior(view[:step]) > limit for step in range(STEPS)) for view in VIEWS])
    tails = ONE[exceeds].sum(), NOBODY[exceeds].sum()
    assert exceeds.any()
    for epsilon in EPSILONS:
        for exact, middle, upper, tail in zip(
            both(ONE, NOBODY, epsilon), both(truncated, NOBODY, epsilon), both(at_rate, NOBODY, epsilon), tails,
            strict=True,
        ):  # fmt: skip
            assert exact <= middle + tail + ROUNDING
            assert middle <= upper + ROUNDING
            assert exact <= upper + tail + ROUNDING


@pytest.mark.statement("allocation", "Lemma D.1", "Lemma D.2", "Lemma 3.2")
def test_more_steps_cost_more_and_two_of_four_less_than_one_of_two_twice():
    for epsilon in EPSILONS:
        costs = [both(allocation(k), NOBODY, epsilon) for k in range(1, STEPS + 1)]
        assert all(np.all(np.array(less) <= np.array(more) + ROUNDING) for less, more in itertools.pairwise(costs))
        halves = sum(law({a, b}) for a in (0, 1) for b in (2, 3)) / 4  # one of the first two, one of the last two
        assert np.all(np.array(costs[1]) <= np.array(both(halves, NOBODY, epsilon)) + ROUNDING)
    coins = sum(
        math.prod(0.3 if step in chosen else 0.7 for step in range(STEPS)) * law(set(chosen))
        for k in range(STEPS + 1) for chosen in itertools.combinations(range(STEPS), k)
    )  # fmt: skip
    assert coins == pytest.approx(poisson(0.3), rel=1e-10)


@pytest.mark.statement("allocation", "Claim D.3", "Lemma D.4", "Theorem 4.6")
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_sampling_that_picks_somebody(rate):
    picked = 1 - (1 - rate) ** STEPS
    somebody = (poisson(rate) - (1 - picked) * NOBODY) / picked
    for epsilon in EPSILONS:
        smaller = math.log1p(picked * math.expm1(epsilon))
        exact = excess(somebody, NOBODY, epsilon)
        assert exact == pytest.approx(excess(poisson(rate), NOBODY, smaller) / picked, abs=ROUNDING)
        assert excess(ONE, NOBODY, epsilon) <= exact + ROUNDING  # Theorem 4.6, remove


def partitions(order, most):
    return {tuple(sorted(p for p in parts if p)) for parts in itertools.product(range(order + 1), repeat=most)
            if sum(parts) == order}  # fmt: skip


@pytest.mark.statement("allocation", "Theorem 4.8", "Lemma E.1", "Claim E.2")
@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_moment_of_one_step_by_partitions(order):
    def moment(p):
        return float((PRESENT**p * ABSENT ** (1.0 - p)).sum())

    exact, printed, corrected = float((ONE**order * NOBODY ** (1.0 - order)).sum()), 0.0, 0.0
    for parts in partitions(order, STEPS):
        zeros = STEPS - len(parts)
        lists = math.factorial(STEPS) // math.prod(math.factorial(n) for n in [*Counter(parts).values(), zeros])
        padded = sorted((*parts, *[0] * zeros))
        assert lists == len(set(itertools.permutations(padded)))  # Claim E.2
        ways = lists * math.factorial(order) / math.prod(math.factorial(p) for p in parts)
        corrected += ways * math.prod(moment(p) for p in parts)
        printed += ways * math.prod(moment(p) ** ((order - 1) / (p - 1)) for p in parts if p > 1)
    assert corrected / STEPS**order == pytest.approx(exact, rel=1e-10)
    assert order == 2 or printed / STEPS**order > 1.01 * exact


@pytest.mark.statement("allocation", "Theorem 4.9", "Lemma E.3")
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.5])
def test_the_geometric_mean_bounds_the_add_direction_with_the_other_sign(epsilon):
    blended = PRESENT ** (1 / STEPS) * ABSENT ** (1 - 1 / STEPS)
    total = blended.sum()
    many = np.array([math.prod(blended[y] / total for y in view) for view in VIEWS])
    exact = excess(NOBODY, ONE, epsilon)
    assert exact <= excess(NOBODY, many, epsilon + STEPS * math.log(total)) + ROUNDING
    assert excess(NOBODY, many, epsilon - STEPS * math.log(total)) < exact  # as printed
