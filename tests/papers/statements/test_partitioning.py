"""Dong, Chen, Özgür 2025, statement by statement: densities on grids, and divergences by the trapezoidal rule."""

import math

import numpy as np
import pytest

from benchmarks.papers.statements.partitioning import SMOOTH, divergence, normal
from fedamp.accounting import Dropout, Gaussian, Poisson, Submodels, epsilon_from_rdp


@pytest.mark.statement("partitioning", "Proposition A.1", "Proposition A.2")
@pytest.mark.parametrize(("order", "first", "second"), [(1.7, 1.0, 1.2), (3, 0.8, 1.0), (3, 1.0, 0.9)])
def test_divergences_of_two_normal_laws(order, first, second):
    moved = divergence(normal([(0.0,)], first), normal([(1.0,)], first), order)
    assert moved == pytest.approx(order / (2 * first**2), rel=SMOOTH)
    if order == 3:  # fedamp charges whole orders
        assert Gaussian(first).rdp([order])[0] == pytest.approx(moved, rel=1e-8)
    both = order * second**2 + (1 - order) * first**2
    printed = math.log(first ** (2 * (1 - order)) * second ** (2 * order) / both) / (2 * (order - 1))
    assert divergence(normal([(0.0,)], first), normal([(0.0,)], second), order) == pytest.approx(printed, rel=SMOOTH)


@pytest.mark.statement("partitioning", "Theorem 3.5", "Remark 3.6")
@pytest.mark.parametrize("order", [2, 4])
def test_hidden_partitions_cost_less_than_one(order):
    """Gradients of norm 1 in a plane: a block is an axis, or, under the other partition, a diagonal."""
    noise, root = 1.0, math.sqrt(0.5)
    axes, diagonals = ((1.0, 0.0), (0.0, 1.0)), ((root, root), (root, -root))
    zero = normal([(0.0, 0.0)], noise)
    one = divergence(normal(axes, noise), zero, order)
    assert divergence(normal(diagonals, noise), zero, order) == pytest.approx(one, rel=SMOOTH)
    both = divergence(normal(axes + diagonals, noise), zero, order)
    assert both < 0.999 * one
    assert Submodels(Gaussian(noise), 2).rdp([order])[0] >= one * (1 - SMOOTH)


@pytest.mark.statement("partitioning", "Theorem 3.4", "Corollary 3.7", "Algorithm 1", "Algorithm 2")
@pytest.mark.parametrize("order", [2, 3, 5])
def test_dropout_of_half_costs_no_more_than_two_submodels(order):
    """A subset of the nodes and what it leaves out are two submodels; the client gets one of them by a fair coin."""
    exact = divergence(normal(((1.0, 0.0), (0.0, 1.0)), 1.0), normal([(0.0, 0.0)], 1.0), order)
    charged = Submodels(Gaussian(1.0), 2).rdp([order])[0]
    assert charged == pytest.approx(exact, rel=1e-8)
    assert Dropout(Gaussian(1.0), 0.5).rdp([order])[0] <= charged * (1 + 1e-8)


@pytest.mark.statement("partitioning", "Theorem 3.11")
@pytest.mark.parametrize(("rate", "order"), [(0.1, 2), (0.4, 5), (0.9, 3)])
def test_poisson_sampling_by_the_printed_sum(rate, order):
    noise = 1.5
    total = (1 - rate) ** (order - 1) * (order * rate - rate + 1)
    for ones in range(2, order + 1):
        weight = math.comb(order, ones) * (1 - rate) ** (order - ones) * rate**ones
        total += weight * math.exp((ones - 1) * ones / (2 * noise**2))
    assert Poisson(Gaussian(noise), rate).rdp([order])[0] == pytest.approx(math.log(total) / (order - 1), rel=1e-8)


@pytest.mark.statement("partitioning", "Proposition 2.3")
def test_the_printed_conversion_holds_and_is_not_the_sharpest():
    orders = np.linspace(1.1, 60, 2000)
    curve, delta = orders / (2 * 2.0**2), 1e-5
    printed = float(np.min(curve + math.log(1 / delta) / (orders - 1)))
    assert Gaussian(2.0).epsilon(delta).upper <= epsilon_from_rdp(orders, curve, delta) < printed
