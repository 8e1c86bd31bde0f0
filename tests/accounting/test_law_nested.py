"""Nested laws against sampling and dp-accounting, and the algebra that any nesting has to obey."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import norm

from fedamp.accounting.law import Law

POINTS = 400
"""Coarse, so that the suite is quick: a certified bracket has to hold at any number of points."""


# -- sampling: an expression is drawn under P or Q, and its law built, from the same tree


def gaussian(noise_multiplier):
    def sample(rng, size, inside):
        z = rng.standard_normal(size) + inside / noise_multiplier
        return np.exp(z / noise_multiplier - 0.5 / noise_multiplier**2)

    return Law.gaussian(noise_multiplier, points=POINTS), sample


def mean(node, copies):
    law, draw = node

    def sample(rng, size, inside):
        # Under P the person is in one of the copies, each as likely as the next.
        chosen = np.where(inside, rng.integers(0, copies, size), -1)
        return sum(draw(rng, size, chosen == i) for i in range(copies)) / copies

    return law.mean(copies), sample


def product(*factors):
    def sample(rng, size, inside):
        return np.prod([draw(rng, size, inside) for (_, draw), times in factors for _ in range(times)], axis=0)

    return Law.product([(law, times) for (law, _), times in factors]), sample


def thin(node, rate):
    law, draw = node

    def sample(rng, size, inside):
        return 1 - rate + rate * draw(rng, size, inside & (rng.random(size) < rate))

    return law.thin(rate), sample


EXPRESSIONS = {
    "one hidden round of 50": lambda: mean(gaussian(1.0), 50),
    "heavy tail": lambda: mean(gaussian(0.4), 8),
    "prefix of a hidden round": lambda: thin(mean(gaussian(0.8), 5), 5 / 12),
    "k hidden rounds, uneven split": lambda: product((mean(gaussian(1.5), 4), 3), (mean(gaussian(1.5), 5), 2)),
    "submodels inside check-in": lambda: product((mean(gaussian(1.0), 12), 6)),
    "partly split model": lambda: product(
        (mean(product((gaussian(2.0), 1), (mean(gaussian(1.0), 3), 1)), 4), 5),
    ),
    "submodel kept for all rounds": lambda: mean(product((mean(gaussian(1.2), 3), 5)), 3),
    "sampled partly split model": lambda: product(
        (thin(product((gaussian(3.0), 1), (mean(gaussian(1.5), 2), 1)), 0.2), 12)
    ),
}


@pytest.mark.few(0, 1, 2, 3, 7)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_nested_laws_against_sampling(name):
    law, draw = EXPRESSIONS[name]()
    rng = np.random.default_rng(len(name))
    size = 100_000
    inside = draw(
        rng, size, np.ones(size, bool)
    )  # drawn from P, so that the rare events of the remove direction are seen
    outside = draw(rng, size, np.zeros(size, bool))
    for target in (0.3, 1e-2, 1e-3):
        epsilon = law.epsilon(target).upper
        for bounds, values in (
            (law.remove.delta(epsilon), np.maximum(1 - np.exp(epsilon) / inside, 0)),
            (law.add.delta(epsilon), np.maximum(1 - np.exp(epsilon) * outside, 0)),
        ):
            error = 5 * values.std() / np.sqrt(size) + 10 / size  # 5 standard errors, and events too rare to be drawn
            assert bounds.lower - error <= values.mean() <= bounds.upper + error


# -- inversion of the moments


def poisson_delta(rate, noise_multiplier, times, epsilon):
    """delta of the remove direction from complex moments, E[X^t] on a line right of 1 (Bromwich integral)."""
    z = np.linspace(-11.0, 11.0 + 14.0 / noise_multiplier, 3001)
    log_ratio = np.log1p(rate * np.expm1(z / noise_multiplier - 0.5 / noise_multiplier**2))
    log_weight = norm.logpdf(z) + np.log(z[1] - z[0])

    def exponent(order):
        return times * logsumexp(log_weight + order * log_ratio) - (order - 1) * epsilon

    order = minimize_scalar(exponent, bounds=(1.0 + 1e-6, 60.0), method="bounded").x
    weight = np.exp(log_weight + order * log_ratio - logsumexp(log_weight + order * log_ratio))
    mean = weight @ log_ratio
    deviation = np.sqrt(times * (weight @ (log_ratio - mean) ** 2))
    y = np.linspace(0.0, 12.0 / deviation, 601)
    moments = (np.exp(1j * np.multiply.outer(y, log_ratio)) @ weight) ** times
    assert abs(moments[-1]) < 1e-12  # the line is long enough
    line = order + 1j * y
    values = (moments * np.exp(-1j * y * epsilon) / (line * (line - 1))).real
    return np.exp(exponent(order)) * np.trapezoid(values, y) / np.pi


@pytest.mark.parametrize(
    ("rate", "noise_multiplier", "times", "relative_width"),
    [
        (0.01, 0.6, 10_000, 1e-4),
        (0.1, 3.0, 1000, 1e-4),
        pytest.param(0.002, 1.0, 200_000, 4e-4, marks=pytest.mark.slow),
    ],
)
def test_long_runs_with_rare_sampling_far_in_the_tail(rate, noise_multiplier, times, relative_width):
    """An untilted transform is off at 1e-10: in the first case dp-accounting's upper end has true delta 1.0036e-10."""
    law = Law.product([(Law.gaussian(noise_multiplier).thin(rate), times)])
    for delta in (1e-5, 1e-10):
        bounds = law.remove.epsilon(delta)
        below = poisson_delta(rate, noise_multiplier, times, bounds.lower)
        above = poisson_delta(rate, noise_multiplier, times, bounds.upper)
        assert below * (1 + 1e-6) >= delta >= above * (1 - 1e-6)
        assert bounds.width <= relative_width * bounds.upper


def test_rare_large_losses_keep_the_bracket_narrow():
    """Sampling so rare that single rounds decide: the lattice must hold a narrow bulk and a far tail at once."""
    law = Law.product([(Law.gaussian(0.8).thin(1e-3), 100_000)])
    for delta in (1e-5, 1e-10):
        assert law.epsilon(delta).width <= 1e-3 * law.epsilon(delta).upper


# -- the algebra


def overlap(first, second):
    return first.lower <= second.upper and second.lower <= first.upper


def small_laws():
    gaussians = st.floats(0.4, 4.0).map(lambda s: Law.gaussian(round(s, 2), points=POINTS // 2))
    return st.recursive(
        gaussians,
        lambda inner: st.one_of(
            st.tuples(inner, st.integers(1, 40)).map(lambda pair: pair[0].mean(pair[1])),
            st.tuples(inner, st.floats(0.01, 1.0)).map(lambda pair: pair[0].thin(pair[1])),
            st.tuples(inner, inner, st.integers(1, 6)).map(lambda t: Law.product([(t[0], 1), (t[1], t[2])])),
            st.tuples(inner, inner, st.floats(0.1, 0.9)).map(lambda t: Law.mixture(t[:2], [t[2], 1 - t[2]])),
        ),
        max_leaves=3,
    )


@settings(max_examples=15, deadline=None)
@given(small_laws(), st.integers(1, 9), st.integers(1, 9))
def test_powers_add(law, first, second):
    split = Law.product([(Law.product([(law, first)]), 1), (Law.product([(law, second)]), 1)])
    whole = Law.product([(law, first + second)])
    for delta in (0.1, 1e-5, 1e-9):
        assert overlap(split.remove.epsilon(delta), whole.remove.epsilon(delta))
        assert overlap(split.add.epsilon(delta), whole.add.epsilon(delta))


@settings(max_examples=10, deadline=None)
@given(small_laws(), st.integers(2, 30))
def test_trivial_operations_and_monotonicity(law, count):
    for delta in (0.05, 1e-6):
        whole = law.epsilon(delta)
        for same in (law.thin(1.0), law.mean(1), Law.product([(law, 1)]), Law.mixture([law, law], [0.4, 0.6])):
            assert overlap(same.epsilon(delta), whole)
        assert law.thin(0.0).epsilon(delta).upper == 0.0
        assert law.mean(count).epsilon(delta).lower <= whole.upper
        assert law.thin(0.5).epsilon(delta).lower <= whole.upper <= Law.product([(law, 2)]).epsilon(delta).upper
        assert 0.0 <= whole.lower <= whole.upper < np.inf


@pytest.mark.parametrize("name", ["one round of many", "rounds and submodels", "long Poisson run"])
def test_more_points_narrow_the_bracket_within_the_coarse_one(name):
    def build(points):
        base = Law.gaussian(1.0, points=points)
        return {
            "one round of many": lambda: base.mean(1000),
            "rounds and submodels": lambda: Law.product([(base.mean(60), 10)]),
            "long Poisson run": lambda: Law.product([(base.thin(0.01), 3000)]),
        }[name]()

    coarse, fine = build(200), build(1000)
    for delta in (1e-2, 1e-5, 1e-10):
        wide, narrow = coarse.epsilon(delta), fine.epsilon(delta)
        assert overlap(wide, narrow)
        assert narrow.width <= wide.width / 4
        assert narrow.width <= 2e-3 * narrow.upper


def test_upper_only_keeps_the_upper_end():
    base = Law.gaussian(1.0, points=POINTS)
    both = Law.product([(Law.product([(base.mean(20), 3)]).thin(0.3).mean(2), 7)]).epsilon(1e-5)
    single = Law.product([(Law.product([(base.upper_only().mean(20), 3)]).thin(0.3).mean(2), 7)]).epsilon(1e-5)
    assert single.upper == pytest.approx(both.upper, rel=1e-12)  # they may differ in the allowance for rounding
    assert single.lower == 0.0


def test_the_published_prototype_setting():
    """One hidden round of 1000 at noise multiplier 1 and delta 1e-5, computed twice before by other means."""
    bounds = Law.gaussian(1.0).mean(1000).epsilon(1e-5)
    assert bounds.lower <= 0.138891
    assert bounds.upper >= 0.138833


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda law: law.thin(1.5), "rate must be in"),
        (lambda law: law.thin(float("nan")), "rate must be"),
        (lambda law: law.mean(0), "copies must be >= 1"),
        (lambda law: Law.product([(law, -1)]), "times must be"),
        (lambda law: Law.mixture([law, law], [0.5, 0.6]), "weights must"),
        (lambda law: law.epsilon(0.0), "delta must be in"),
        (lambda law: law.delta(-1.0), "epsilon must be"),
        (lambda law: Law.gaussian(0.0), "noise_multiplier must be"),
        (lambda law: Law.laplace(-1.0), "scale must be"),
        (lambda law: Law.from_points([2.0, 0.5], [0.5, 0.5]), "sum to 1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(Law.gaussian(1.0, points=POINTS))
