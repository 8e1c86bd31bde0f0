"""The certified law against oracles that share no code with it: closed forms, enumeration, quadrature, sampling."""

import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from fedamp.accounting import Gaussian, Poisson, RandomisedResponse, Repeat
from fedamp.accounting.arithmetic import normal_mass
from fedamp.accounting.law import Law, Placed, choose_lattice, convolve_order
from fedamp.accounting.mechanism import numerical_law
from tests.accounting.oracles import gaussian_delta

POINTS = 400
"""Coarse, so that the suite is quick: a certified bracket has to hold at any number of points."""


def assert_brackets(bounds, exact, relative_width=None):
    # 1e-12: rounding of the oracle itself.
    assert bounds.lower <= exact * (1 + 1e-12) + 1e-300
    assert bounds.upper >= exact * (1 - 1e-12)
    if relative_width is not None:
        assert bounds.width <= relative_width * bounds.upper


# -- closed forms


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 4.0, 50.0])
def test_gaussian_brackets_the_closed_form_in_both_directions(noise_multiplier):
    law = Law.gaussian(noise_multiplier, points=POINTS)
    for quantile in (0.0, 1.0, 3.0, 6.0):
        epsilon = 0.5 / noise_multiplier**2 + quantile / noise_multiplier
        exact = gaussian_delta(epsilon, noise_multiplier)
        assert_brackets(law.remove.delta(epsilon), exact, 2e-2)
        assert_brackets(law.add.delta(epsilon), exact, 2e-2)
        bounds = law.epsilon(exact)
        assert bounds.lower <= epsilon <= bounds.upper
        assert bounds.width <= 3e-3 * epsilon


@pytest.mark.parametrize(("noise_multiplier", "rate"), [(0.2, 1.0), (1.0, 1.0), (20.0, 1.0), (1.0, 0.1)])
def test_far_tails_and_deltas_near_one_against_forty_digits(noise_multiplier, rate):
    """Where mass outside the grid decides, and where hardly anything does; the person removed."""
    mpmath.mp.dps = 40
    s, run = mpmath.mpf(noise_multiplier), Poisson(Gaussian(noise_multiplier), rate)

    def exact(epsilon):
        above = mpmath.exp(epsilon) - 1 + rate  # over rate: what the Gaussian ratio must exceed
        cut = s * mpmath.log(above / rate) + 1 / (2 * s)
        return rate * mpmath.ncdf(1 / s - cut) - above * mpmath.ncdf(-cut)

    for delta in (1e-18, 1e-22, 3e-24, 1e-100, 1e-300):
        bounds = run.epsilon(delta)
        assert exact(mpmath.mpf(bounds.upper)) <= delta
        assert bounds.upper < np.inf
        assert bounds.lower == 0 or exact(mpmath.mpf(bounds.lower)) >= delta
    for share in (0.999, 1.001):  # of delta at epsilon 0, up to 0.99 and more
        bounds = run.epsilon(min(float(exact(mpmath.mpf(0))) * share, 1 - 1e-12))
        assert bounds.upper == 0 if share > 1 else bounds.upper > 0


@pytest.mark.parametrize("times", [2, 4, 100, 50_000])
@pytest.mark.parametrize("delta", [1e-2, 1e-10])
def test_product_of_gaussians_is_a_gaussian(times, delta):
    noise_multiplier = 1.3
    bounds = Law.product([(Law.gaussian(noise_multiplier * np.sqrt(times), points=POINTS), times)]).epsilon(delta)
    assert gaussian_delta(bounds.lower, noise_multiplier) >= delta >= gaussian_delta(bounds.upper, noise_multiplier)
    assert bounds.width <= 2e-3 * bounds.upper  # at 400 points; the default of 1000 is 6 times finer


def test_unlike_factors_compose_like_gaussians():
    factors = [(Law.gaussian(s, points=POINTS), k) for s, k in ((2.0, 1), (5.0, 7), (20.0, 150), (3.0, 2))]
    together = sum(k / s**2 for s, k in ((2.0, 1), (5.0, 7), (20.0, 150), (3.0, 2))) ** -0.5
    for epsilon in (0.1, 2.0, 6.0):
        assert_brackets(Law.product(factors).delta(epsilon), gaussian_delta(epsilon, together), 0.05)
        assert_brackets(Law.product(factors[::-1]).delta(epsilon), gaussian_delta(epsilon, together), 0.05)


@pytest.mark.parametrize("times", [5, 64, 1000, 20_000])
def test_randomised_response_composes_to_a_binomial(times):
    """Exact binomial tails: the transform must keep its *relative* accuracy down to 1e-12, and stay a bound beyond."""
    epsilon_each = 2.0 / np.sqrt(times)
    keep = 1 / (1 + np.exp(-epsilon_each))
    law = Law.from_points([np.exp(epsilon_each), np.exp(-epsilon_each)], [1 - keep, keep], points=POINTS)
    composed = Law.product([(law, times)])
    heads = np.arange(times + 1)
    log_ratio = (2 * heads - times) * epsilon_each
    mass_in = binom.pmf(heads, times, keep)
    for epsilon in (0.0, 2.0, 8.0, 14.0, 22.0, 26.0, 30.0):  # the last: 1e-24 to 1e-45
        above = log_ratio > epsilon
        exact = mass_in[above] @ -np.expm1(epsilon - log_ratio[above])
        # Few points far apart are the worst case of a lattice; smooth laws are far better.
        assert_brackets(composed.remove.delta(epsilon), exact, 0.2 if exact > 1e-13 else None)
        assert_brackets(composed.add.delta(epsilon), exact, 0.2 if exact > 1e-13 else None)


def test_rounding_is_outside_the_bracket_not_inside():
    """A bit, and three, are laws of few atoms, without a grid: only rounding is left, and none of the oracle's."""
    mpmath.mp.dps = 40
    for probability, n in itertools.product(np.linspace(0.51, 0.97, 12).tolist(), (1, 3)):
        p, law = mpmath.mpf(probability), numerical_law(Repeat(RandomisedResponse(probability), n))
        each = mpmath.log(p / (1 - p))
        atoms = [(mpmath.binomial(n, i) * p**i * (1 - p) ** (n - i), (2 * i - n) * each) for i in range(n + 1)]

        def exact(epsilon, atoms=atoms):
            return sum(mass * (1 - mpmath.exp(epsilon - log)) for mass, log in atoms if log > epsilon)

        for share in (0.03, 0.11, 0.27, 0.55, 0.83):
            epsilon = share * float(atoms[n][1])
            bounds, truth = law.delta(epsilon), exact(mpmath.mpf(epsilon))
            assert bounds.lower <= truth <= bounds.upper <= truth * (1 + 1e-9)
            inverse = law.epsilon(float(truth))
            assert exact(mpmath.mpf(inverse.upper)) <= float(truth) <= exact(mpmath.mpf(inverse.lower))
            assert inverse.width <= 1e-9


# -- enumeration of small finite laws


@st.composite
def finite_laws(draw):
    """Up to four points, some at X = 0 or infinity: (ratios, Q-masses, P-mass at infinity)."""
    size = draw(st.integers(1, 4))
    mass_out = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)))
    ratio = np.array(draw(st.lists(st.floats(0.02, 50.0), min_size=size, max_size=size)))
    if draw(st.booleans()):
        ratio[0] = 0.0
    infinite = draw(st.sampled_from([0.0, 0.001, 0.2])) if ratio.any() else 1.0
    mass_out = mass_out / mass_out.sum()
    if ratio.any():
        ratio = ratio * (1 - infinite) / (ratio @ mass_out)
    return ratio, mass_out, infinite


def enumerate_pairs(first, second, weights):
    """The weighted mean (or, for ``weights`` None, the product) of two finite laws, by listing all pairs."""
    (x, p, at_infinity), (y, q, also_at_infinity) = first, second
    if weights is None:
        ratio, infinite = np.multiply.outer(x, y), 1 - (1 - at_infinity) * (1 - also_at_infinity)
    else:
        ratio = np.add.outer(weights[0] * x, weights[1] * y)
        infinite = weights[0] * at_infinity + weights[1] * also_at_infinity
    return ratio.ravel(), np.multiply.outer(p, q).ravel(), infinite


def finite_deltas(law, epsilon):
    ratio, mass_out, infinite = law
    remove = np.maximum(ratio - np.exp(epsilon), 0.0) @ mass_out + infinite
    return remove, np.maximum(1 - np.exp(epsilon) * ratio, 0.0) @ mass_out


def assert_brackets_finite(law, exact, slack=1e-9):
    # Atoms are where a grid does worst; 1e-9 covers rounding in masses that were normalised here.
    for epsilon in (0.0, 0.2, 1.0, 3.0):
        remove, add = finite_deltas(exact, epsilon)
        for bounds, value in ((law.remove.delta(epsilon), remove), (law.add.delta(epsilon), add)):
            assert bounds.lower - slack <= value <= bounds.upper + slack
            assert bounds.width <= 0.02


@settings(max_examples=40, deadline=None)
@given(finite_laws(), st.integers(1, 5))
def test_mean_of_a_finite_law(exact, copies):
    law = Law.from_points(*exact[:2], infinite=exact[2], points=300).mean(copies)
    total = exact
    for n in range(1, copies):
        total = enumerate_pairs(total, exact, (n / (n + 1), 1 / (n + 1)))
    assert_brackets_finite(law, total)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(finite_laws(), st.integers(1, 2)), min_size=1, max_size=3))
def test_product_of_finite_laws(factors):
    laws = [(Law.from_points(*law[:2], infinite=law[2], points=300), times) for law, times in factors]
    total = np.ones(1), np.ones(1), 0.0
    for law in itertools.chain.from_iterable([law] * times for law, times in factors):
        total = enumerate_pairs(total, law, None)
    assert_brackets_finite(Law.product(laws), total)


@settings(max_examples=40, deadline=None)
@given(finite_laws(), finite_laws(), st.floats(0.0, 1.0), st.floats(0.01, 0.99))
def test_thinning_mixing_and_nesting_finite_laws(first, second, rate, weight):
    thinned = (1 - rate) + rate * first[0], first[1], rate * first[2]
    mixed = (
        np.concatenate((thinned[0], second[0])),
        np.concatenate((weight * thinned[1], (1 - weight) * second[1])),
        weight * thinned[2] + (1 - weight) * second[2],
    )
    laws = [Law.from_points(*law[:2], infinite=law[2], points=300) for law in (first, second)]
    law = Law.mixture([laws[0].thin(rate), laws[1]], [weight, 1 - weight])
    assert_brackets_finite(law, mixed)
    nested = enumerate_pairs(*2 * (enumerate_pairs(mixed, second, None),), (0.5, 0.5))
    assert_brackets_finite(Law.product([(law, 1), (laws[1], 1)]).mean(2), nested)


# -- quadrature


def mean_deltas(noise_multiplier, copies, epsilon):
    """Both deltas of a mean of 2 or 3 Gaussian ratios: the last copy in closed form, the others on a fine trapezoid."""
    s = noise_multiplier
    z = np.linspace(-9, 9 + 1 / s, 6001 if copies == 2 else 801)
    x, weight = np.exp(z / s - 1 / (2 * s * s)), norm.pdf(z) * (z[1] - z[0])
    if copies == 3:
        x, weight = np.add.outer(x, x).ravel(), np.multiply.outer(weight, weight).ravel()
    result = []
    for target in (copies * np.exp(epsilon), copies * np.exp(-epsilon)):
        rest = target - x  # the last copy has to exceed this for the remove direction
        positive = np.maximum(rest, 1e-300)
        cut = s * np.log(positive) + 1 / (2 * s)
        call = norm.sf(cut - 1 / s) - rest * norm.sf(cut)
        put = rest * norm.cdf(cut) - norm.cdf(cut - 1 / s)
        call, put = np.where(rest > 0, call, 1 - rest), np.where(rest > 0, put, 0.0)
        result.append((weight @ call / copies, weight @ put / copies))
    return result[0][0], result[1][1] * np.exp(epsilon)


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("copies", [2, 3])
def test_mean_of_few_against_quadrature(noise_multiplier, copies):
    law = Law.gaussian(noise_multiplier, points=1000).mean(copies)
    for epsilon in (0.0, 0.1, 0.5, 1.5) if copies == 2 else (0.1, 1.5):
        remove, add = mean_deltas(noise_multiplier, copies, epsilon)
        # 1e-9: the trapezoid has a kink to cross where the other copies alone exceed the target.
        assert law.remove.delta(epsilon).lower - 1e-9 <= remove <= law.remove.delta(epsilon).upper + 1e-9
        assert law.add.delta(epsilon).lower - 1e-9 <= add <= law.add.delta(epsilon).upper + 1e-9
        assert law.remove.delta(epsilon).width <= 1e-3 * remove + 1e-12


@pytest.mark.parametrize(("rate", "times"), [(1.0, 20), (0.01, 800)])
def test_transform_error_is_within_its_bound(rate, times):
    """The convolution against the same one with 80-bit numbers, whose own error is 2000 times smaller."""
    law = Law.gaussian(4.0, points=POINTS).thin(rate).upper
    lattice = choose_lattice([(law, times)], POINTS)
    placed = Placed.on_lattice(law, lattice, above=True)
    for order in lattice.orders:
        result, error = convolve_order([(placed, times)], order.value, lattice.size)
        weights = placed.points.mass_out.astype(np.longdouble) * np.exp(order.value * placed.points.log_ratio)
        masses = np.zeros(lattice.size, np.longdouble)
        np.add.at(masses, placed.index % lattice.size, weights / weights.sum())
        exact = np.fft.irfft(np.fft.rfft(masses) ** times, lattice.size)
        # Rounding of the weights, some 1e-15 each and common to both ends, is counted apart from the transform's.
        assert np.max(np.abs(result - exact) - times * 2e-15 * exact) <= error
        assert error < 1e-12


def test_normal_mass_keeps_relative_accuracy_in_the_tails():
    for low, high in ((-30.0, -29.95), (8.0, 8.1), (12.0, np.inf), (-0.05, 0.05), (-np.inf, -11.0), (-1.0, 3.0)):
        exact = mpmath.ncdf(high) - mpmath.ncdf(low) if low < 0 else mpmath.ncdf(-low) - mpmath.ncdf(-high)
        assert float(normal_mass(low, high)) == pytest.approx(float(exact), rel=1e-12)
