"""Yin, Zaheer, Li 2026, statement by statement: finite laws, and densities on grids."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

STEP = 0.05
LINE = np.arange(-14, 14, STEP)  # the densities below fall to 1e-16 of their height within it


def excess(first, second, epsilon):
    """The hockey-stick divergence of two laws on the same points."""
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def in_the_plane(mean, noise):
    along = (norm.pdf(LINE, each, noise) for each in mean)
    return np.multiply.outer(*along) * STEP**2


@pytest.mark.statement("merging", "Proposition 3.1")
@pytest.mark.parametrize("other", [0.0, 0.02])
def test_a_merger_may_depend_on_the_less_private_model_up_to_the_threshold(other):
    """Outputs x, a, b: the second model with this chance, else the first, which is constant."""
    low, high, delta = 0.5, 2.0, 0.01
    known, unknown = np.array([1.0, 0.0]), np.array([math.exp(-high) * (1 - delta), 0.0])
    unknown[1] = 1 - unknown[0]
    assert excess(known, unknown, high) <= delta + 1e-15  # the second model is (high, delta)-private
    assert excess(unknown, known, high) <= 1  # its other direction shows b; the proposition looks at one
    threshold = (1 - math.exp(-low) * (1 - other)) / unknown[1]

    def merged(share, law):
        return np.concatenate([[1 - share], share * law])

    def without_b(share):  # the set that holds everything but b
        return merged(share, known)[:2].sum() - math.exp(low) * merged(share, unknown)[:2].sum()

    assert without_b(threshold) == pytest.approx(other, abs=1e-12)
    assert without_b(1.01 * threshold) > other


@pytest.mark.statement("merging", "Lemma 4.1")
@pytest.mark.parametrize(("share", "order"), [(0.3, 2), (0.7, 3), (1.0, 2)])
def test_a_selection_of_means_costs_more_than_a_gaussian_of_its_variance(share, order):
    narrow, wide, shift = 1.0, 1.6, 0.05
    line = np.arange(-14, 14, 0.001)

    def mixture(mean):
        return share * norm.pdf(line, mean, narrow) + (1 - share) * norm.pdf(line, mean, wide)

    moment = (mixture(shift) ** order * mixture(0) ** (1 - order)).sum() * 0.001
    variance = share * narrow**2 + (1 - share) * wide**2
    gaussian = order * shift**2 / (2 * variance)
    cost = math.log(moment) / (order - 1)
    if share == 1:
        assert cost == pytest.approx(gaussian, rel=1e-6)
    else:
        assert cost > 1.005 * gaussian


@pytest.mark.statement("merging", "Lemma 6.3", "Theorem 6.4")
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
def test_collinear_shifts_of_full_length_dominate_a_merged_step(epsilon):
    """Two models whose gradients of the record are orthogonal, and the surrogate's, which are parallel."""
    noise, rates, lengths = 1.0, (0.3, 0.6), (0.8, 1.1)
    real, surrogate = 0.0, 0.0
    for drawn in itertools.product((0, 1), repeat=2):
        chance = math.prod(q if hit else 1 - q for q, hit in zip(rates, drawn, strict=True))
        shifts = [hit * length for hit, length in zip(drawn, lengths, strict=True)]
        real = real + chance * in_the_plane(shifts, noise)
        surrogate = surrogate + chance * in_the_plane((sum(shifts), 0.0), noise)
    without = in_the_plane((0.0, 0.0), noise)
    for direction in (1, -1):
        merged, bound = (excess(*(with_it, without)[::direction], epsilon) for with_it in (real, surrogate))
        assert merged < bound or merged == bound == 0  # without the record, a large excess never happens


@pytest.mark.statement("merging", "Lemma C.1")
def test_hoelders_inequality_for_mixtures():
    generator = np.random.default_rng(5)
    for order in (1.1, 2, 7.5):
        weights, first, second = generator.dirichlet(np.ones(4)), *generator.exponential(size=(2, 4))
        left = (weights @ first) ** order * (weights @ second) ** (1 - order)
        assert left <= weights @ (first**order * second ** (1 - order)) * (1 + 1e-12)


@pytest.mark.statement("merging", "Lemma F.1")
def test_the_mean_excess_is_supermodular_and_grows():
    generator = np.random.default_rng(6)
    chances, lengths = np.array([0.2, 0.3, 0.5]), np.array([0.0, 0.7, 1.9])

    def excess_at(points):
        return max(chances @ np.exp(lengths * points - lengths**2 / 2) - math.exp(0.3), 0.0)

    for first, second in generator.normal(size=(200, 2, 3)):
        above, below = excess_at(np.maximum(first, second)), excess_at(np.minimum(first, second))
        assert above + below >= excess_at(first) + excess_at(second) - 1e-12
        assert below <= min(excess_at(first), excess_at(second))


@pytest.mark.statement("merging", "Theorem 5.1")
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
    moments = np.log(weights @ np.exp((order - 1) * np.array(curves)))
    bound = float(moments[0]) / (order - 1)
    assert renyi(weights @ first, weights @ second) <= bound * (1 + 1e-9) + 1e-12
    labelled = [(weights[:, None] * law).ravel() for law in (first, second)]
    assert renyi(*labelled) == pytest.approx(bound, rel=1e-9, abs=1e-12)
