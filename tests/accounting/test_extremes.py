"""Settings beyond reason get an answer, in bounded time and without warnings from the arithmetic."""

import itertools
import math
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from fedamp.accounting import (
    Allocation,
    Approximate,
    Compose,
    Dropout,
    FiniteOutcomes,
    Gaussian,
    GaussianMixture,
    Group,
    GroupPoissonGaussian,
    Laplace,
    MixedCoordinate,
    ModelMix,
    NotPrivate,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Submodels,
    WithoutReplacement,
    calibrate,
    epsilon_over_rounds,
    group,
)

LITTLE_NOISE = [
    (Submodels(Laplace(1e-4), 3), 1e4),
    (Allocation(MixedCoordinate(0.3, 0.3, 1e4), 2, 4), 1e6),
    (Allocation(Submodels(Gaussian(0.01), 3), 2, 4), 1e4),
]


@pytest.mark.parametrize(("run", "loss"), LITTLE_NOISE, ids=str)
def test_a_loss_whose_exponential_has_no_room_in_floating_point_is_charged(run, loss):
    """A person who took part loses about so much, or far more, with a probability of a quarter at least."""
    upper = run.epsilon(1e-5).upper
    assert upper >= 0.99 * loss
    spent = epsilon_over_rounds(run, 1e-5)
    assert spent[0] >= 0.49 * loss
    assert spent[-1] == upper


EXTREMES = [  # the last ones take longer, by the same paths as others
    Repeat(Poisson(Gaussian(0.3), 0.9), 10**6),
    Repeat(Gaussian(1e4), 3),
    Allocation(Gaussian(0.05), 7, 20),
    Allocation(Gaussian(0.05), 7, 20).after(5),
    Allocation(Allocation(Gaussian(0.3), 1, 4), 2, 5),
    Submodels(Gaussian(0.02), 10**6),
    Poisson(GroupPoissonGaussian(0.05, 0.1, 3), 1e-6),
    Repeat(Poisson(Compose([Gaussian(0.2), Submodels(Gaussian(0.2), 2)]), 0.1), 50),
    Repeat(RandomSelection([Gaussian(30.0), RandomisedResponse(1 - 1e-15)], [1 - 1e-4, 1e-4]), 8),
    Repeat(RandomisedResponse(0.500001), 10**5),
    Repeat(Poisson(RandomisedResponse(0.6), 0.005), 47_963),
    ModelMix(1.0, 1e6),
    ModelMix(1e-50, 1.0),
    Gaussian(1e-50),
    Submodels(Gaussian(1e-10), 7),
    group(WithoutReplacement(Gaussian(0.05), 10, 1000), 3),
    Submodels(MixedCoordinate(0.3, 0.3, 1e4), 10**7),
    Dropout(Compose([MixedCoordinate(0.2, 1e-4, 1.0), MixedCoordinate(0.8, 1e4, 1e50)]), 0.1),
    pytest.param(Allocation(Gaussian(100.0), 30, 100).after(50), marks=pytest.mark.slow),
    pytest.param(Submodels(Laplace(0.05), 10**4), marks=pytest.mark.slow),
    pytest.param(ModelMix(0.01, 5.0), marks=pytest.mark.slow),
    pytest.param(Repeat(Poisson(Gaussian(0.05), 0.9), 10**6), marks=pytest.mark.slow),
    pytest.param(Allocation(ModelMix(0.2, 2.0), 10**3, 10**6), marks=pytest.mark.slow),
]


@pytest.mark.few(2, 5, 8, 12, 15, 17)
@pytest.mark.parametrize("mechanism", EXTREMES, ids=str)
def test_answers_are_sound_numbers_without_warnings(mechanism):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* took", UserWarning)  # which says how busy the machine is
        spent, lost = mechanism.epsilon(1e-5), mechanism.delta(1.0)
        divergences = mechanism.rdp([1.5, 2, 64])
        curve = epsilon_over_rounds(mechanism, 1e-5, [1, 2]) if mechanism.span > 1 else np.zeros(1)
    assert 0 <= spent.lower <= spent.upper
    assert not math.isnan(spent.upper)
    assert 0 <= lost.lower <= lost.upper <= 1
    assert np.all(divergences >= 0)
    assert np.all(curve <= spent.upper)
    assert np.all(curve >= 0)


def test_a_rare_release_of_everything_is_not_lost_on_a_lattice():
    """An atom far from the rest of the law: 8 draws, each telling all with probability 1e-4."""
    rare = Repeat(RandomSelection([Gaussian(30.0), RandomisedResponse(1 - 1e-15)], [1 - 1e-4, 1e-4]), 8)
    lost, exact = rare.delta(5.0), -math.expm1(8 * math.log1p(-1e-4))
    assert lost.lower <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= lost.upper <= exact * (1 + 1e-6)


def test_small_epsilons_at_small_deltas_take_high_orders():
    """350,000 rounds of rare sampling: nearly a Poisson number of participations, 0.0281 by a fine lattice."""
    rare = Repeat(Poisson(RandomisedResponse(0.6), 1.948e-5), 351_189).epsilon(1e-12)
    assert 0.0279 < rare.lower <= 0.0282
    assert 0.0281 <= rare.upper <= 1.15 * 0.0281


def test_many_rare_rounds_at_a_delta_of_1e_30_by_inversion():
    """delta by the inverse Laplace transform of the moments, along the line through their saddle. Beyond 14 deviations
    the mass is 1e-44."""
    z, step = np.linspace(-14, 14, 4001, retstep=True)
    loss = np.log1p(3.3e-4 * np.expm1(z / 4 - 1 / 32))

    def log_moment(t):
        return 10_000 * np.log(np.sum(np.exp(-z * z / 2 + t * loss)) * step / math.sqrt(2 * math.pi))

    line = 1257 + 1j * np.linspace(0, 1200, 400)  # by the saddle; the width of the integrand is 1 / 0.008
    for epsilon, side in ((0.09203, 1), (0.09207, -1)):
        values = np.array([np.exp(log_moment(t) - epsilon * (t - 1)) / (t * (t - 1)) for t in line]).real
        delta = np.trapezoid(values, line.imag) / math.pi
        assert side * math.log(delta / 1e-30) > 0
    bounds = Repeat(Poisson(Gaussian(4.0), 3.3e-4), 10_000).epsilon(1e-30)
    assert 0.0920 <= bounds.lower <= 0.09207
    assert 0.09203 <= bounds.upper <= 0.0921


@pytest.mark.parametrize("build", [Gaussian, Laplace, lambda s: ModelMix(s, 1.0)])
def test_noise_that_no_number_can_hold_is_refused(build):
    for noise in (1e-200, 1e200):
        with pytest.raises(ValueError, match="must be between 1e-50 and 1e50, got"):
            build(noise)


def test_a_slow_answer_says_which_bound_it_comes_from(monkeypatch):
    monkeypatch.setattr("fedamp.accounting.mechanism._PATIENCE", 0.0)
    with pytest.warns(UserWarning, match=r"^epsilon took .* answered by: numerical law"):
        Submodels(Gaussian(1.7), 3).epsilon(1e-5)


OUT_OF_RANGE = [  # sums of what is within the range of floating point, and are not
    (Repeat(Gaussian(1e-50), 100), 5e101),
    (Compose([Gaussian(1e-50), Poisson(RandomisedResponse(0.6), 0.5)]), 5e99),
    (Allocation(Gaussian(1e50), 2, 10**6), 0.0),
    (GroupPoissonGaussian(1e-50, 0.1, 3), 1e99),
    (Allocation(RandomisedResponse(0.75), 2, 2**33), 0.0),
]


@pytest.mark.few(0, 1, 2, 3)
@pytest.mark.parametrize(("run", "least"), OUT_OF_RANGE, ids=str)
def test_what_leaves_the_range_of_floating_point_is_answered_too(run, least):
    assert least <= run.epsilon(1e-5).upper
    assert 0 <= run.delta(1.0).upper <= 1
    assert np.all(run.rdp([2, 50]) >= least / 1e3)


def test_tails_of_a_mixed_coordinate_are_not_its_rounding():
    """delta at epsilon 8 is 8.694156e-18 (mpmath, 400 digits), below the rounding of sums that come to 1; at 15, beyond
    the grid, 5.038e-52.
    """
    for points in (50, 1200):
        lost = MixedCoordinate(1.0, 138.0, 1.0).delta(8.0, points=points)
        assert lost.lower <= 8.694157e-18
        assert 8.694156e-18 <= lost.upper <= 1e-15
        assert MixedCoordinate(1.0, 138.0, 1.0).delta(15.0, points=points).upper >= 5.038e-52


def test_arithmetic_that_fails_leaves_the_answer_to_another_evaluator():
    wide = Dropout(Compose([MixedCoordinate(0.2, 1e-4, 1.0), MixedCoordinate(0.8, 1e4, 1e50)]), 0.1)
    assert wide.epsilon(1e-5).method.endswith("(the noise is too narrow for so few points)")
    nothing = GaussianMixture((0.0, 1e200), (0.5, 0.5)).epsilon(1e-5)
    assert nothing.upper == math.inf
    assert nothing.method.startswith("none (out of the range of floating point")


@pytest.mark.parametrize("known_delta", [0.0, 1e-6])
def test_a_black_box_of_a_large_epsilon_costs_that_epsilon(known_delta):
    """Above 690 it stood for a release of everything, also for the lower end."""
    box = Approximate(700.0, known_delta)
    for delta in (1e-5, 0.5):
        exact = 700 + math.log1p(-(delta - known_delta) / (1 - known_delta))
        found = box.epsilon(delta)
        assert 0.98 * exact < found.lower <= exact * (1 + 1e-12)
        assert found.upper == pytest.approx(exact, rel=1e-12)
    assert box.delta(701.0).upper <= known_delta * (1 + 1e-12)
    both = Compose([box, Approximate(1.0)]).epsilon(1e-5)
    assert both.lower <= 701.0
    assert known_delta or 700.9 < both.upper <= 701.0


@pytest.mark.parametrize(
    ("event", "chance"),
    [
        (Gaussian(1.0), 0.0),
        (Repeat(Poisson(Gaussian(1.0), 0.1), 3), 0.0),
        (Allocation(Gaussian(1.0), 2, 4), 0.0),
        (Group(Allocation(Gaussian(1.0), 2, 4), 2), 0.0),
        (WithoutReplacement(Gaussian(1.0), 2, 4), 0.0),
        (Laplace(1.0), 0.0),
        (Approximate(5.0, 1e-3), 1e-3),
        (Poisson(NotPrivate(), 0.25), 0.25),
        (NotPrivate(), 1.0),
    ],
    ids=str,
)
def test_delta_at_infinity_is_the_chance_that_the_release_tells(event, chance):
    found = event.delta(math.inf)
    assert found.lower <= chance * (1 + 1e-12)
    assert chance * (1 - 1e-12) <= found.upper <= chance * (1 + 1e-9) + 1e-15  # tails of the grid


# What others have proved adds up as the decimals that were written.

WRITTEN = [
    [(0.1, 0.0), (0.9, 0.0)],
    [(0.1, 0.0), (0.2, 0.0)],
    pytest.param([(0.1, 0.0)] * 10, marks=pytest.mark.slow),
    [(0.7, 0.0), (0.1, 0.0), (1.1, 0.0), (0.1, 0.0)],
    [(0.1, 1e-6), (0.9, 0.0)],
    [(0.1, 1e-6), (0.9, 2e-6)],
    [(0.3, 1e-7), (0.3, 1e-7), (0.3, 1e-7)],
    [(1e-9, 0.0), (3.0, 0.1)],
]


def decimals(numbers) -> Fraction:
    return sum((Fraction(repr(number)) for number in numbers), Fraction(0))


def true_delta(parts, epsilon) -> mpmath.mpf:
    """Kairouz, Oh, Viswanath 2015: each part tells all with a chance of its delta, else it is a randomised response."""
    parts = [(mpmath.mpf(repr(each)), mpmath.mpf(repr(chance))) for each, chance in parts]
    left = mpmath.fprod(1 - chance for _, chance in parts)
    found = 1 - left
    for signs in itertools.product((1, -1), repeat=len(parts)):
        present = mpmath.fprod(1 / (1 + mpmath.exp(-s * each)) for s, (each, _) in zip(signs, parts, strict=True))
        absent = mpmath.fprod(1 / (1 + mpmath.exp(s * each)) for s, (each, _) in zip(signs, parts, strict=True))
        found += left * max(mpmath.mpf(0), present - mpmath.exp(epsilon) * absent)
    return found


@pytest.mark.parametrize("parts", WRITTEN, ids=str)
def test_budgets_that_add_up_exactly_are_kept(parts):
    """An upper end of the decimals' sum as a decimal, for every delta from the sum of the deltas on; hence the budget
    that somebody writes down is enough. No answer is below the true epsilon, at 60 digits.
    """
    run = Compose([Approximate(*each) for each in parts])
    budget, delta = (float(decimals(each)) for each in zip(*parts, strict=True))
    for at in (delta, 2 * delta, 0.3) if delta else (5e-324, 1e-300, 1e-17, 1e-5):
        found = run.epsilon(at)
        assert found.upper <= budget
        with mpmath.workdps(60):
            assert true_delta(parts, mpmath.mpf(repr(found.upper))) <= mpmath.mpf(repr(at)) + 1e-50  # of 60 digits
            assert found.lower == 0 or true_delta(parts, mpmath.mpf(found.lower)) >= mpmath.mpf(at) * (1 - 1e-9)
    assert run.delta(budget).upper <= delta
    assert Fraction(repr(run.epsilon(delta or 5e-324).upper)) >= decimals(each for each, _ in parts) * (delta == 0)


@pytest.mark.parametrize("parts", [WRITTEN[0], WRITTEN[4]], ids=str)
def test_a_budget_that_is_a_hair_too_small_is_not_kept(parts):
    delta = float(decimals(chance for _, chance in parts)) or 5e-324
    run = Compose([Approximate(*each) for each in [*parts, (1e-16, 0.0)]])
    assert run.epsilon(delta).upper > float(decimals(each for each, _ in parts))


@pytest.mark.parametrize(
    "event",
    [
        Poisson(FiniteOutcomes((1.0, 0.0), (0.0, 1.0)), 0.5),
        Repeat(Submodels(Approximate(1.0, 1e-3), 2), 3),
        Gaussian(1e-50),
    ],
    ids=str,
)
def test_a_renyi_divergence_without_a_bound_is_infinite(event):
    found = event.rdp([1.5, 2.0, 300.0])
    assert found.shape == (3,)
    assert np.all(found > 0)
    assert event.contains(Gaussian) or np.all(np.isinf(found))


@pytest.mark.few(1, 8, 11, 15, 23)
@pytest.mark.parametrize("delta", [1e-100, 1e-299, 1e-300])
@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("rounds", [1, 10])
def test_the_least_noise_at_a_tiny_delta_is_the_least(epsilon, delta, rounds):
    """Tails of 1e-300 were lost in an allowance of as much, and noise of 1e12 was asked for in place of 367."""
    noise = calibrate(lambda noise: Repeat(Gaussian(noise), rounds), epsilon, delta)
    with mpmath.workdps(340):

        def excess(one):
            shift = mpmath.sqrt(rounds) / one
            a, b = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
            return mpmath.ncdf(a) - mpmath.exp(epsilon) * mpmath.ncdf(b) - mpmath.mpf(delta)

        assert excess(mpmath.mpf(noise)) <= 0
        assert excess(mpmath.mpf(noise) * (1 - 3e-4)) > 0  # the tolerance is 1e-4; the rest is rounding of tails


def test_a_delta_whose_tails_leave_floating_point_is_refused():
    with pytest.raises(ValueError, match="delta must be at least 1e-300, got 1e-301"):
        calibrate(Gaussian, 1.0, 1e-301)
