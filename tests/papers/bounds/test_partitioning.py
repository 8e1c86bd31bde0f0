"""Dong, Chen, Özgür 2025 against enumeration, quadrature, mpmath, dp-accounting and the paper's Table 1."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from benchmarks.papers.bounds import partitioning

ORDERS = np.arange(2, 101)


def enumerated_rdp(noise_multiplier, blocks, chosen, order):
    """The sum over all tuples of Eq. (2), as it stands."""
    vectors = list(itertools.combinations(range(blocks), chosen))
    total = 0.0
    for rows in itertools.product(vectors, repeat=order):
        column_sums = Counter(itertools.chain.from_iterable(rows)).values()
        total += math.exp(sum(n * (n - 1) for n in column_sums) / (2 * noise_multiplier**2))
    return math.log(total / len(vectors) ** order) / (order - 1)


def two_block_moment(noise_multiplier, power):
    """``E[((X_1 + X_2) / 2)^power]`` by the trapezoidal rule in the plane, to 1e-12."""
    z = np.arange(-25, 25, 0.05)
    single = np.exp(z / noise_multiplier - 1 / (2 * noise_multiplier**2))
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * 0.05
    mean = (single[:, None] + single) / 2
    return float(weight @ mean**power @ weight)


def table_noise(per_step):
    """The noise multiplier that Table 1's setting needs: 1000 steps, (8, 1e-5), orders 2..100, loose conversion."""

    def excess(noise_multiplier):
        return partitioning.epsilon_from_rdp(1000 * per_step(noise_multiplier), ORDERS, 1e-5) - 8

    return brentq(excess, 1, 6, xtol=1e-4)


@pytest.mark.parametrize(
    ("noise_multiplier", "blocks", "chosen", "order"),
    [
        (1, 3, 1, 4),
        (1, 4, 2, 2),
        (1, 4, 2, 3),
        (0.7, 5, 3, 3),
        (2, 4, 1, 4),
        (1, 4, 2, 4),
        (0.5, 3, 3, 3),
        (3, 5, 2, 3),
    ],
)
def test_forward_divergence_is_the_enumerated_sum(noise_multiplier, blocks, chosen, order):
    exact = enumerated_rdp(noise_multiplier, blocks, chosen, order)
    # Double precision of a sum of at most 10^4 positive terms.
    assert partitioning.forward_rdp(noise_multiplier, blocks, order, chosen)[0] == pytest.approx(exact, rel=1e-11)


def test_forward_divergence_of_two_blocks_matches_quadrature_and_the_known_figures():
    exact = [math.log(two_block_moment(1, a)) / (a - 1) for a in (2, 5)]
    np.testing.assert_allclose(partitioning.forward_rdp(1, 2, [2, 5]), exact, rtol=1e-11)
    np.testing.assert_allclose(exact, [0.62011, 1.83437], atol=1e-5)


def test_counting_agrees_with_the_gaussian_when_every_block_is_chosen():
    np.testing.assert_allclose(
        partitioning.forward_rdp(1.5, 3, [2, 4, 6], 3), np.array([2, 4, 6]) * 3 / 4.5, rtol=1e-12
    )


@settings(max_examples=40, deadline=None)
@given(st.floats(0.4, 5), st.integers(1, 12), st.integers(1, 3), st.integers(2, 6))
def test_exact_lies_below_both_the_cheap_bound_and_poisson(noise_multiplier, blocks, chosen, order):
    chosen = min(chosen, blocks)
    exact = partitioning.forward_rdp(noise_multiplier, blocks, order, chosen)[0]
    cheap = partitioning.forward_rdp_upper(noise_multiplier, blocks, order, chosen)[0]
    poisson = blocks * partitioning.poisson_rdp(noise_multiplier, chosen / blocks, order)[0]
    assert 0 < exact <= cheap * (1 + 1e-11)
    assert exact <= poisson * (1 + 1e-11)  # remark after Theorem 3.11
    if order == 2:
        assert exact == pytest.approx(cheap, rel=1e-10)


@pytest.mark.parametrize(("order", "exact", "printed"), [(2, 0.56904, 0.55017), (5, 1.36912, 1.34154)])
def test_reverse_divergence_exceeds_the_printed_bound(order, exact, printed):
    reverse = math.log(two_block_moment(1, 1 - order)) / (order - 1)
    claimed = partitioning.reverse_divergence_as_printed(1, 2, order)[0]
    assert reverse == pytest.approx(exact, abs=1e-5)
    assert claimed == pytest.approx(printed, abs=1e-5)
    assert claimed < reverse
    assert partitioning.reverse_divergence_as_printed(1, 2, order, misprint=True)[0] < claimed
    assert reverse < partitioning.forward_rdp(1, 2, order)[0]
    assert reverse <= partitioning.reverse_rdp_upper(1, 2, order)[0]


@pytest.mark.parametrize("noise_multiplier", [0.5, 1, 3])
def test_sound_reverse_bound_holds_and_is_exact_without_partition(noise_multiplier):
    orders = np.array([2, 3, 6])
    exact = [math.log(two_block_moment(noise_multiplier, 1 - a)) / (a - 1) for a in orders]
    assert np.all(exact <= partitioning.reverse_rdp_upper(noise_multiplier, 2, orders))
    np.testing.assert_allclose(
        partitioning.reverse_rdp_upper(noise_multiplier, 4, orders, 4), orders * 4 / (2 * noise_multiplier**2)
    )


def test_poisson_matches_dp_accounting():
    rdp = pytest.importorskip("dp_accounting.rdp")
    dp_accounting = pytest.importorskip("dp_accounting")
    orders = [2, 3, 8, 40]
    accountant = rdp.RdpAccountant(orders)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.3)))
    # dp-accounting keeps the order-a divergence to about 1e-12.
    np.testing.assert_allclose(partitioning.poisson_rdp(1.3, 0.01, orders), accountant._rdp, rtol=1e-9)


def test_submodels_are_one_of_so_many_blocks():
    np.testing.assert_array_equal(partitioning.submodel_rdp(1.2, 3, ORDERS), partitioning.forward_rdp(1.2, 3, ORDERS))
    np.testing.assert_allclose(partitioning.submodel_rdp(1.2, 1, [2, 50]), np.array([2, 50]) / 2.88, rtol=1e-12)
    # More submodels, more privacy; and dropout with keep probability 1/2 (two submodels) beats none.
    curves = [partitioning.submodel_rdp(1.2, count, ORDERS) for count in (1, 2, 3, 8)]
    assert np.all(np.diff(curves, axis=0) < 0)


@pytest.mark.parametrize(("count", "right", "wrong"), [(1, 3.31, 3.21), (3, 2.72, 2.66), (8, 2.49, 2.46)])
def test_table_1_is_reproduced_only_by_sampling_last(count, right, wrong):
    composed_first = table_noise(lambda s: partitioning.partial_split_rdp(s, count, 0.1, ORDERS))
    added = table_noise(lambda s: partitioning.partial_split_rdp_added_separately(s, count, 0.1, ORDERS))
    # Figures with two decimals; those of the wrong way are rounded up, as noise has to be (2.6547 to 2.66).
    assert composed_first == pytest.approx(right, abs=0.005)
    assert added == pytest.approx(wrong, abs=0.006)
