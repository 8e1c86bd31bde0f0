"""The bounds of Yin, Zaheer, Li 2026 against explicit sums, quadrature, exact Gaussian algebra and Monte Carlo."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.papers.bounds.merging import (
    Step,
    joint_release_delta,
    joint_release_rdp,
    not_a_bound_algorithm_3,
    not_a_bound_algorithm_4,
    step_delta,
    step_rdp,
)
from benchmarks.papers.bounds.selection import (
    largest_weight_by_delta,
    largest_weight_by_rdp,
    random_selection_delta,
    random_selection_epsilon,
    random_selection_rdp,
)

ORDERS = np.arange(2.0, 60.0)


# Oracles -----------------------------------------------------------------------------------------------------------


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Hockey-stick divergence of N(shift, 1) and N(0, 1) (Balle, Wang 2018)."""
    return float(norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift))


def explicit_step(step: Step) -> list[tuple[float, float]]:
    """(probability, mean in noise standard deviations) of every subset, written out as the paper defines them."""
    models = len(step.weights)
    rates, norms = step.learning_rates or [1] * models, step.clipping_norms or [1] * models
    noise = math.sqrt(
        sum((w * e * s * c) ** 2 for w, e, s, c in zip(step.weights, rates, step.noise_multipliers, norms, strict=True))
    )
    mixture = []
    for drawn in itertools.product((False, True), repeat=models):
        chance = math.prod(q if z else 1 - q for q, z in zip(step.sampling_rates, drawn, strict=True))
        moved = sum(w * e * c for w, e, c, z in zip(step.weights, rates, norms, drawn, strict=True) if z)
        mixture.append((chance, moved / noise))
    return mixture


def equation_9(order: int, mixture: list[tuple[float, float]]) -> float:
    """Theorem 6.2's sum over all ways to distribute the order over the subsets, term by term."""
    total = 0.0
    for counts in itertools.product(range(order + 1), repeat=len(mixture)):
        if sum(counts) == order:
            ways = math.factorial(order) / math.prod(math.factorial(c) for c in counts)
            first = sum(c * m for c, (_, m) in zip(counts, mixture, strict=True))
            second = sum(c * m * m for c, (_, m) in zip(counts, mixture, strict=True))
            chance = math.prod(p**c for c, (p, _) in zip(counts, mixture, strict=True))
            total += ways * chance * math.exp((first**2 - second) / 2)
    return math.log(total) / (order - 1)


def likelihood_ratio(mixture: list[tuple[float, float]], z: np.ndarray) -> np.ndarray:
    return sum(p * np.exp(m * z - m * m / 2) for p, m in mixture)


def hockey_sticks(mixture: list[tuple[float, float]], epsilon: float) -> tuple[float, float]:
    """Both hockey-stick divergences by adaptive quadrature, split at the kink."""
    bound = math.exp(epsilon)

    def above(z: float) -> float:
        return max(float(likelihood_ratio(mixture, z)) - bound, 0) * norm.pdf(z)

    def below(z: float) -> float:
        return max(1 - bound * float(likelihood_ratio(mixture, z)), 0) * norm.pdf(z)

    pieces = [(a, a + 0.5) for a in np.arange(-10, 16, 0.5)]
    return tuple(sum(quad(f, *piece, epsabs=1e-12)[0] for piece in pieces) for f in (above, below))


# Random selection ----------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), order=st.floats(1.05, 15))
def test_random_selection_bounds_any_mixture_of_finite_laws(seed, order):
    """Theorem 5.1, in the worst case of models that the attacker cannot tell apart, and exact when he can."""
    rng = np.random.default_rng(seed)
    first, second = rng.dirichlet(np.ones(4), size=(2, 3)) * 0.98 + 0.005
    weights = rng.dirichlet(np.ones(3))

    def renyi(p: np.ndarray, q: np.ndarray) -> float:
        return math.log(np.sum(p**order * q ** (1 - order))) / (order - 1)

    curves = [[renyi(p, q)] for p, q in zip(first, second, strict=True)]
    bound = random_selection_rdp(curves, weights, [order])[0]
    assert renyi(weights @ first, weights @ second) <= bound * (1 + 1e-9) + 1e-12
    labelled = [(weights[:, None] * law).ravel() for law in (first, second)]
    assert renyi(*labelled) == pytest.approx(bound, rel=1e-9, abs=1e-12)


def test_random_selection_delta_of_gaussians_is_exact_for_labelled_models():
    """Theorem 5.2 by Monte Carlo: release (label, output) of two Gaussian models; the bound is then attained."""
    noises, weights, epsilon, draws = (0.8, 2.0), (0.3, 0.7), 0.6, 400_000
    rng = np.random.default_rng(11)
    noise = np.array(noises)[rng.choice(2, size=draws, p=weights)]
    gains = np.maximum(1 - np.exp(epsilon - (rng.standard_normal(draws) / noise + 1 / (2 * noise**2))), 0)
    deltas = [gaussian_delta(epsilon, 1 / s) for s in noises]
    bound = float(random_selection_delta(deltas, deltas, weights))
    # Five standard errors: a false alarm once in 3.5 million seeds, and the seed is fixed.
    assert abs(gains.mean() - bound) < 5 * gains.std() / math.sqrt(draws)


def test_random_selection_takes_the_maximum_after_mixing():
    """A model hard to remove mixed with one hard to add: the maximum of sums is below the sum of maxima."""
    assert random_selection_delta([0.3, 0.1], [0.1, 0.3], [0.5, 0.5]) == pytest.approx(0.2)
    grid = random_selection_delta([0.3, 0.1], [0.1, 0.3], [[1, 0], [0, 1], [0.5, 0.5]])
    assert grid == pytest.approx([0.3, 0.3, 0.2])


def test_boundary_by_renyi_is_where_epsilon_meets_the_target():
    curves, delta = np.stack([ORDERS / 32, ORDERS / 2]), 1e-5

    def epsilon(weight: float) -> float:
        return float(random_selection_epsilon(curves, [1 - weight, weight], ORDERS, delta))

    for target in (1.5, 3.0, 5.0):
        boundary = largest_weight_by_rdp(*curves, ORDERS, target, delta)
        searched = brentq(lambda weight: epsilon(weight) - target, 0, 1, xtol=1e-15)  # noqa: B023
        assert boundary == pytest.approx(searched, rel=1e-6)
    assert largest_weight_by_rdp(*curves, ORDERS, epsilon(1.0) + 1e-9, delta) == 1
    assert largest_weight_by_rdp(*curves, ORDERS, epsilon(0.0) - 1e-3, delta) is None


def test_boundary_by_renyi_with_a_model_without_privacy():
    private, public = ORDERS / 32, np.full_like(ORDERS, np.inf)
    assert largest_weight_by_rdp(private, public, ORDERS, 3.0, 1e-5) == 0


def test_boundary_by_delta():
    """Two constraints, each linear in the weight."""
    removal, addition = [1e-6, 3e-5], [2e-6, 5e-5]
    boundary = largest_weight_by_delta(removal, addition, 1e-5)
    assert boundary == pytest.approx((1e-5 - 2e-6) / (5e-5 - 2e-6))
    assert random_selection_delta(removal, addition, [1 - boundary, boundary]) == pytest.approx(1e-5)
    assert largest_weight_by_delta(removal, addition, 1e-4) == 1
    assert largest_weight_by_delta(removal, addition, 1e-7) is None
    assert largest_weight_by_delta([0.4, 0.3], [0.0, 0.0], 0.1) is None
    assert largest_weight_by_delta([0.0, 0.4], [0.4, 0.0], 0.1) is None  # each alone is feasible, never both
    assert largest_weight_by_delta([0.0, 0.4], [0.4, 0.0], 0.3) == pytest.approx(0.75)


def test_privacy_loss_allows_more_than_renyi():
    """Figure 1: the feasible weight by privacy loss is larger than by Rényi divergence."""
    target, delta = 3.0, 1e-5
    by_renyi = largest_weight_by_rdp(ORDERS / 32, ORDERS / 2, ORDERS, target, delta)
    deltas = [gaussian_delta(target, 0.25), gaussian_delta(target, 1.0)]
    assert largest_weight_by_delta(deltas, deltas, delta) > by_renyi


# Linear combination --------------------------------------------------------------------------------------------------

ASYMMETRIC = Step((0.7, 0.3), (0.8, 2.0), (0.2, 0.05), learning_rates=(0.1, 0.4), clipping_norms=(1.0, 0.5))
THREE = Step((0.5, 0.3, 0.2), (1.0, 1.5, 0.7), (0.1, 0.3, 0.02))


@pytest.mark.parametrize(("step", "order"), [(ASYMMETRIC, 2), (ASYMMETRIC, 7), (THREE, 2), (THREE, 4)])
def test_step_renyi_is_the_sum_of_equation_9(step, order):
    assert step_rdp(step, [order])[0] == pytest.approx(equation_9(order, explicit_step(step)), rel=1e-10)


@pytest.mark.parametrize("step", [ASYMMETRIC, THREE])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.5])
def test_step_delta_agrees_with_quadrature(step, epsilon):
    # 1e-10: 52 pieces of absolute error 1e-12, most of it far less.
    assert step_delta(step, epsilon) == pytest.approx(max(hockey_sticks(explicit_step(step), epsilon)), abs=1e-10)


def test_one_model_is_the_sampled_gaussian_of_dp_accounting():
    step = Step((1.0,), (1.1,), (0.1,))
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        1.1, sampling_prob=0.1, value_discretization_interval=1e-4, use_connect_dots=True
    )
    assert step_delta(step, 0.5) == pytest.approx(pld.get_delta_for_epsilon(0.5), rel=1e-5)
    composed = pld.self_compose(20).get_delta_for_epsilon(1.0)
    # Both are upper bounds whose grids (1e-4 and 1e-3 nats) cost a relative error of second order.
    assert joint_release_delta([step.worst_case()] * 20, 1.0) == pytest.approx(composed, rel=1e-3)
    assert joint_release_delta([step.worst_case()] * 20, 1.0) >= composed * (1 - 1e-5)


def test_full_participation_is_one_gaussian():
    step = Step((0.9, 0.1), (1.0, 1.0), (1.0, 1.0))
    shift = 1 / math.sqrt(0.82)
    assert step_rdp(step, ORDERS) == pytest.approx(ORDERS * shift**2 / 2, rel=1e-11)
    assert step_delta(step, 1.0) == pytest.approx(gaussian_delta(1.0, shift), rel=1e-12)
    assert joint_release_delta([step.worst_case()], 1.0) == pytest.approx(gaussian_delta(1.0, shift), rel=1e-6)


def test_no_arrangement_of_the_gradients_is_worse_than_the_line():
    """Theorem 6.4 against random directions and lengths of two models' gradients in the plane."""
    rng = np.random.default_rng(3)
    step = Step((0.6, 0.4), (1.0, 1.0), (0.5, 0.7))
    noise = math.hypot(0.6, 0.4)
    axis = np.arange(-11, 11, 0.05)
    x, y = np.meshgrid(axis, axis)
    cell = np.exp(-(x**2 + y**2) / 2) / (2 * np.pi) * 0.05**2
    for epsilon in (0.0, 0.5):
        worst = step_delta(step, epsilon)
        for _ in range(8):
            one, two = rng.uniform(0.5, 1, 2) * np.exp(2j * np.pi * rng.uniform(size=2)) * (0.6, 0.4) / noise
            ratio = sum(
                p * np.exp(m.real * x + m.imag * y - abs(m) ** 2 / 2)
                for p, m in ((0.15, 0j), (0.15, one), (0.35, two), (0.35, one + two))
            )
            # 1e-4: the kink on a grid of step 0.05.
            assert np.sum(cell * np.maximum(ratio - math.exp(epsilon), 0)) <= worst + 1e-4
            assert np.sum(cell * np.maximum(1 - math.exp(epsilon) * ratio, 0)) <= worst + 1e-4


@settings(max_examples=30, deadline=None)
@given(
    weight=st.floats(0.05, 0.95),
    noise=st.floats(0.5, 3),
    rate=st.floats(0.01, 1),
    order=st.floats(1.2, 20),
    epsilon=st.floats(0, 2),
)
def test_step_is_monotone_and_below_the_joint_release(weight, noise, rate, order, epsilon):
    step = Step((weight, 1 - weight), (noise, 1.0), (rate, 0.3))
    less = Step((weight, 1 - weight), (1.2 * noise, 1.0), (0.9 * rate, 0.3))
    alone = [Step((1.0,), (s,), (q,)) for s, q in ((noise, rate), (1.0, 0.3))]
    curves = [step_rdp(one, [order]) for one in alone]
    slack = 1e-9
    assert step_rdp(less, [order])[0] <= step_rdp(step, [order])[0] + slack
    assert step_delta(less, epsilon) <= step_delta(step, epsilon) + slack
    assert step_rdp(step, [order])[0] <= joint_release_rdp(curves)[0] + slack
    joint = joint_release_delta([one.worst_case() for one in alone], epsilon, spacing=0.01)
    assert step_delta(step, epsilon) <= joint + slack


def test_joint_release_of_gaussians_is_exact():
    shifts = (0.5, 1.2, 0.9)
    mixtures = [(np.array([1.0]), np.array([shift])) for shift in shifts]
    exact = gaussian_delta(1.0, math.sqrt(sum(s * s for s in shifts)))
    assert joint_release_delta(mixtures, 1.0) == pytest.approx(exact, rel=1e-6)
    assert joint_release_delta(mixtures, 1.0) >= exact


def test_composition_as_printed_is_not_a_bound():
    """Corollary 6.5 and Algorithms 3 and 4 against a run of two models whose merged model is computed exactly.

    Two models, weights (0.9, 0.1), full participation, clipping norm and noise 1, two steps. In step 1 the person's
    gradient is the first coordinate, in step 2 the second one. In step 2 the gradients of many other records, each
    within its clipping norm, add up, in each model, to ``gain`` times that model's first coordinate, written to a
    coordinate of its own (the third or the fourth), and to a step that returns its second coordinate to zero. Only the
    merged model after step 2 is released. Everything is linear and Gaussian: what it reveals is one quadratic form.
    """
    weights, gain = np.array([0.9, 0.1]), 2000.0
    # The merged model's four coordinates, as linear functions of the noise (model, step, coordinate) and the person.
    response, person = np.zeros((4, 2, 2, 4)), np.zeros(4)
    for model, weight in enumerate(weights):
        for step, coordinate in itertools.product(range(2), range(4)):
            response[coordinate, model, step, coordinate] += weight
        response[1, model, 0, 1] -= weight  # the others return the second coordinate to zero
        response[2 + model, model, 0, 0] += weight * gain  # and write the first one, with its noise
        person[2 + model] += weight * gain  # and with what the person did to it in step 1
        person[:2] += weight
    response = response.reshape(4, -1)
    revealed = float(person @ np.linalg.solve(response @ response.T, person))

    steps = [Step(tuple(weights), (1.0, 1.0), (1.0, 1.0))] * 2
    claimed = not_a_bound_algorithm_3(steps, ORDERS)
    assert claimed == pytest.approx(2 * ORDERS / (2 * 0.82), rel=1e-10)  # 1.22 times the order
    truth = ORDERS * revealed / 2
    assert np.all(truth > 1.3 * claimed)
    assert revealed / 2 == pytest.approx(1 + 0.5 / 0.82, rel=1e-3)  # 1.61, up to the finite gain

    delta_claimed = not_a_bound_algorithm_4(steps, 1.0)
    delta_truth = gaussian_delta(1.0, math.sqrt(revealed))
    assert delta_truth > 1.2 * delta_claimed

    # What does hold: the joint release of both models, each the sum of its two steps.
    joint = joint_release_rdp([2 * ORDERS / 2, 2 * ORDERS / 2])
    assert np.all(truth <= joint)
    assert delta_truth <= joint_release_delta([Step((1.0,), (1.0,), (1.0,)).worst_case()] * 4, 1.0)


def test_composition_as_printed_is_right_when_gradients_ignore_the_models():
    """Mean estimation: without the others' writing the merged model reveals exactly what the per-step bounds add to."""
    steps = [Step((0.9, 0.1), (1.0, 1.0), (1.0, 1.0))] * 2
    separate = np.array([1.0, 1.0]) / math.sqrt(0.82)
    assert not_a_bound_algorithm_3(steps, [4.0])[0] == pytest.approx(4 * float(separate @ separate) / 2, rel=1e-11)
    exact = gaussian_delta(1.0, float(np.linalg.norm(separate)))
    assert not_a_bound_algorithm_4(steps, 1.0) == pytest.approx(exact, rel=1e-6)
