"""Rényi bounds of several hidden rounds, against sums over all tuples of hidden choices."""

import itertools
import math

import numpy as np
import pytest

from fedamp.accounting import Allocation, Compose, Gaussian, Laplace, Poisson, Submodels
from fedamp.accounting.mechanism import negative, raw
from fedamp.accounting.overlaps import shift_of
from benchmarks.papers.bounds import partitioning

CHOICES = {
    "plain": (Gaussian(1.3), lambda rounds: [{(t, 0) for t in rounds}]),
    "submodels": (
        Submodels(Gaussian(1.3), 2),
        lambda rounds: [set(zip(rounds, parts, strict=True)) for parts in itertools.product(range(2), repeat=2)],
    ),
    "shared and split": (
        Compose([Gaussian(1.3), Submodels(Gaussian(1.3), 2)]),
        lambda rounds: [
            {(t, "shared") for t in rounds} | set(zip(rounds, parts, strict=True))
            for parts in itertools.product(range(2), repeat=2)
        ],
    ),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("order", [2, 3])
def test_two_of_three_rounds_by_listing_all_choices(name, order):
    """E[X^a] is the mean of exp(sum of pairwise overlaps / s^2) over a independent choices."""
    one, inside = CHOICES[name]
    run = Allocation(one, 2, 3)
    choices = [cells for rounds in itertools.combinations(range(3), 2) for cells in inside(rounds)]
    overlap = [
        sum(len(first & second) for first, second in itertools.combinations(drawn, 2))
        for drawn in itertools.product(choices, repeat=order)
    ]
    exact = math.log(np.mean(np.exp(np.array(overlap) / 1.3**2)))
    split = raw(run._expansion(), 256)[order]
    assert exact * (1 - 1e-9) <= raw(run, 256)[order] < split
    if order == 2:  # one pair: the bound is the definition
        assert raw(run, 256)[order] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("k", "rounds", "noise"), [(4, 10, 2.0), (2, 10, 1.0), (10, 100, 1.0)])
def test_never_looser_than_the_papers_and_always_above_the_exact_divergence(k, rounds, noise):
    orders = np.arange(2, 65)
    remove, add = (
        raw(Allocation(Gaussian(noise), k, rounds), 256),
        negative(Allocation(Gaussian(noise), k, rounds), 256),
    )
    assert np.all(remove[2:65] / (orders - 1) <= partitioning.forward_rdp_upper(noise, rounds, orders, k) * (1 + 1e-9))
    assert np.all(add[1:64] / (orders - 1) <= partitioning.reverse_rdp_upper(noise, rounds, orders, k) * (1 + 1e-9))
    few = np.arange(2, 5)
    assert np.all(remove[2:5] / (few - 1) >= partitioning.forward_rdp(noise, rounds, few, k) * (1 - 1e-9))


def test_sampling_thins_the_overlap_and_other_noise_has_none():
    poisson = shift_of(Poisson(Gaussian(2.0), 0.25), 8)
    assert poisson.square == 0.25 / 4
    assert poisson.mean_square == 0.25**2 / 4
    assert np.allclose(np.exp(poisson.log_overlap[4]), 1 - 1 / 16 + math.exp(4 / 2 / 4) / 16)
    assert shift_of(Compose([Gaussian(1.0), Laplace(1.0)]), 8) is None
