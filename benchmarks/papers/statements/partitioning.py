"""Dong, Chen, Özgür 2025, statement by statement: densities on grids, and divergences by the trapezoidal rule."""

import itertools
import math

import numpy as np
import pytest

from benchmarks.papers.bounds.partitioning import smallest_noise

STEP = 0.06
LINE = np.arange(-14, 14, STEP)  # the densities below fall to 1e-16 of their height within it
SMOOTH = 1e-9  # the trapezoidal rule is exact to rounding for smooth densities that vanish at the ends


def normal(centres, noise):
    """The density of a uniform mixture of normal laws on a grid of as many dimensions as the centres have."""
    total = 0.0
    for centre in centres:
        density = 1.0
        for axis, mean in enumerate(centre):
            along = np.exp(-((LINE - mean) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
            density = density * along.reshape([-1 if each == axis else 1 for each in range(len(centre))])
        total = total + density / len(centres)
    return total


def divergence(first, second, order):
    """Rényi's, of two densities on the grid."""
    tiny = np.finfo(float).tiny  # below it a density has no digits; it is far out in both
    both = np.where(
        (first > tiny) & (second > tiny), order * np.log(first + tiny) - (order - 1) * np.log(second + tiny), -np.inf
    )
    moment = np.exp(both).sum() * STEP**first.ndim
    return math.log(moment) / (order - 1)


@pytest.mark.statement("partitioning", "Lemma 3.12")
@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_mixture_by_the_sum_over_tuples(order):
    centres, weights, noise = ((0.0, 1.0), (0.7, -0.4), (1.0, 1.0)), (1 / 3, 1 / 3, 1 / 3), 1.1
    total = 0.0
    for chosen in itertools.product(range(3), repeat=order):
        pairs = sum(
            np.dot(centres[a], centres[b]) for i, a in enumerate(chosen) for j, b in enumerate(chosen) if i != j
        )
        total += math.prod(weights[each] for each in chosen) * math.exp(pairs / (2 * noise**2))
    exact = divergence(normal(centres, noise), normal([(0.0, 0.0)], noise), order)
    assert exact == pytest.approx(math.log(total) / (order - 1), rel=SMOOTH)


@pytest.mark.statement("partitioning", "Lemma 3.13", "Corollary 3.14")
@pytest.mark.parametrize("order", [2, 3, 6])
def test_order_two_at_less_noise_bounds_a_symmetric_mixture(order):
    noise, centres, zero = 1.2, ((1.0, 0.0), (0.0, 1.0)), [(0.0, 0.0)]
    exact = divergence(normal(centres, noise), normal(zero, noise), order)
    lower = noise * math.sqrt(2 / order)
    bound = divergence(normal(centres, lower), normal(zero, lower), 2)
    assert bound == pytest.approx(math.log((math.exp(order / (2 * noise**2)) + 1) / 2), rel=SMOOTH)  # Corollary 3.14
    assert exact <= bound * (1 + SMOOTH)
    assert order > 2 or exact == pytest.approx(bound, rel=SMOOTH)


@pytest.mark.statement("partitioning", "Lemma 3.15", "Corollary 3.17")
@pytest.mark.parametrize("order", [1.5, 2, 5])
def test_the_reverse_divergence_splits_at_the_mean(order):
    noise, mean = 1.3, [(0.5, 0.5)]
    mixture, zero = normal(((1.0, 0.0), (0.0, 1.0)), noise), normal([(0.0, 0.0)], noise)
    shift = divergence(zero, normal(mean, noise), order)
    assert shift == pytest.approx(order / (2 * noise**2 * 2), rel=SMOOTH)
    whole = divergence(zero, mixture, order)
    assert whole == pytest.approx(shift + divergence(normal(mean, noise), mixture, order), rel=1e-7)


@pytest.mark.statement("partitioning", "Lemma 3.18")
def test_the_centred_mixture_is_farther_than_the_wider_normal_law():
    """One of two blocks at order 2: the lemma's right side, with d^2 as it prints, lies below its left side."""
    centred, zero, order = ((0.5, -0.5), (-0.5, 0.5)), [(0.0, 0.0)], 2
    left = divergence(normal(zero, 1.0), normal(centred, 1.0), order)
    right = divergence(normal(zero, 1.0), normal(zero, math.exp(1 / 8)), order)
    assert right < 0.95 * left


@pytest.mark.statement("partitioning", "Theorem 3.1", "Remark 3.2")
@pytest.mark.parametrize("order", [2, 5])
def test_of_one_of_two_blocks_only_the_first_terms_are_bounds(order):
    mixture, zero = normal(((1.0, 0.0), (0.0, 1.0)), 1.0), normal([(0.0, 0.0)], 1.0)
    forward, reverse = divergence(mixture, zero, order), divergence(zero, mixture, order)
    cheap = math.log((math.exp(order / 2) + 1) / 2)
    assert reverse < forward <= cheap * (1 + SMOOTH)
    # (2) with the exponent that Corollary 3.19 derives.
    top, bottom = order / 2, 2 * math.log(order * math.exp(1 / 4) + 1 - order)
    assert order / 4 + (top - bottom) / (2 * (order - 1)) < reverse


@pytest.mark.statement("partitioning", "Lemma A.3")
def test_a_coordinate_without_centres_does_not_matter():
    line, plane = ((0.4,), (-1.0,)), ((0.4, 0.0), (-1.0, 0.0))
    for order in (2, 3.5):
        flat = divergence(normal([(0.0,)], 1.0), normal(line, 1.0), order)
        assert divergence(normal([(0.0, 0.0)], 1.0), normal(plane, 1.0), order) == pytest.approx(flat, rel=SMOOTH)


def test_smallest_noise_is_on_the_safe_side():
    assert 1.5 <= smallest_noise(lambda s: 3 / s, 2.0) <= 1.5 * 1.0002
