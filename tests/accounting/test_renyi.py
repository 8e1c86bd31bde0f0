"""Rényi moments against enumeration, quadrature and dp-accounting, none of which share code with them."""

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedamp.accounting import (
    Allocation,
    Compose,
    Gaussian,
    Poisson,
    RandomisedResponse,
    Repeat,
    Submodels,
    epsilon_from_rdp,
)
from fedamp.accounting.mechanism import moments_of
from fedamp.accounting.renyi import MomentTransform, negative_moments


def moment_of_mean(base_moment, copies: int, order: int) -> float:
    """E[mean^order] summed over all assignments of the factors to copies: the definition, with nothing clever."""
    total = 0.0
    for choice in itertools.product(range(copies), repeat=order):
        total += math.prod(base_moment(choice.count(i)) for i in range(copies))
    return total / copies**order


def gauss_hermite(function, dimensions: int, nodes: int = 120) -> float:
    """E[function(z_1, ..., z_d)] of standard normals."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / np.sqrt(2 * np.pi)
    grids = np.meshgrid(*[x] * dimensions, indexing="ij")
    weights = math.prod(np.meshgrid(*[w] * dimensions, indexing="ij"))
    return float(np.sum(weights * function(*grids)))


def ratio(noise_multiplier: float, z):
    return np.exp(z / noise_multiplier - 0.5 / noise_multiplier**2)


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("copies", [2, 3, 4])
def test_moments_of_means_equal_the_sum_over_all_assignments(noise, copies):
    moments = moments_of(Submodels(Gaussian(noise), copies)).raw_moments(256)
    for order in range(2, 7):
        expected = moment_of_mean(lambda a: math.exp(a * (a - 1) / (2 * noise**2)), copies, order)
        assert moments[order] == pytest.approx(math.log(expected), rel=1e-10)  # both are sums of positive terms


def test_means_over_products_equal_the_sum_over_all_assignments():
    """A round with a shared part, inside an allocation: products of means within means."""

    def inside(a: int) -> float:
        return math.exp(a * (a - 1) / (2 * 2.0**2)) * moment_of_mean(lambda b: math.exp(b * (b - 1) / 2), 2, a)

    moments = moments_of(Allocation(Compose([Gaussian(2.0), Submodels(Gaussian(1.0), 2)]), 1, 3)).raw_moments(256)
    for order in (2, 3, 5):
        assert moments[order] == pytest.approx(math.log(moment_of_mean(inside, 3, order)), rel=1e-10)


def test_a_million_copies_keep_their_relative_accuracy():
    copies, noise = 10**6, 1.0
    divergences = Submodels(Gaussian(noise), copies).rdp([2, 3])
    second = math.expm1(1 / noise**2) / copies
    third = math.expm1(1 / noise**2) ** 2 * (math.exp(1 / noise**2) + 2) / copies**2
    assert_allclose(divergences, [math.log1p(second), math.log1p(3 * second + third) / 2], rtol=1e-9)


@pytest.mark.parametrize(("order", "exact", "lemma"), [(2, 0.56904, 0.55017), (5, 1.36912, 1.34154)])
def test_add_direction_of_a_mean_where_the_published_lemma_is_too_small(order, exact, lemma):
    """Dong, Chen, Özgür 2025, Lemma 3.18 gives less than the divergence; ours is it."""
    ours = moments_of(Submodels(Gaussian(1.0), 2)).negative_moments(256)[order - 1] / (order - 1)
    quadrature = gauss_hermite(lambda x, y: ((ratio(1.0, x) + ratio(1.0, y)) / 2) ** (1 - order), 2)
    assert ours == pytest.approx(math.log(quadrature) / (order - 1), rel=1e-8)
    assert ours == pytest.approx(exact, abs=1e-5)
    assert ours > lemma + 0.01


@pytest.mark.parametrize("power", [1, 2, 4, 9])
def test_add_direction_through_a_shared_part_is_an_upper_bound_and_close(power):
    ours = moments_of(Submodels(Compose([Gaussian(1.5), Submodels(Gaussian(2.0), 2)]), 1)).negative_moments(256)[power]
    product = gauss_hermite(
        lambda x, y, z: (ratio(1.5, x) * (ratio(2.0, y) + ratio(2.0, z)) / 2) ** -float(power), 3, nodes=60
    )
    assert ours == pytest.approx(math.log(product), rel=1e-8)
    thinned = moments_of(Poisson(Compose([Gaussian(1.5), Submodels(Gaussian(2.0), 2)]), 0.3)).negative_moments(256)[
        power
    ]
    exact = math.log(
        gauss_hermite(
            lambda x, y, z: (0.7 + 0.3 * ratio(1.5, x) * (ratio(2.0, y) + ratio(2.0, z)) / 2) ** -float(power),
            3,
            nodes=60,
        )
    )
    assert exact * (1 - 1e-9) <= thinned <= exact * (1 + 2e-4)  # tables are interpolated upwards, to about 1e-4


@pytest.mark.parametrize("power", [20, 40, 160])
def test_add_direction_at_high_orders_is_an_upper_bound(power):
    """Two Gaussian ratios, by a trapezoid sum in logarithms around where both are tiny (z near -power / 2)."""
    z = np.arange(-power - 12.0, 12.0, 0.2)
    log_ratio, log_mass = z - 0.5, -z * z / 2 + math.log(0.2 / math.sqrt(2 * math.pi))
    log_mean = np.logaddexp(log_ratio[:, None], log_ratio) - math.log(2)
    exact = float(np.logaddexp.reduce((log_mass[:, None] + log_mass - power * log_mean).ravel()))
    ours = moments_of(Submodels(Gaussian(1.0), 2)).negative_moments(256)[power]
    assert exact * (1 - 1e-9) <= ours <= 1.02 * exact  # beyond the nodes by Chernoff's bound


def test_the_integral_of_negative_moments_is_a_bound_at_any_phase_of_its_grid():
    """X = c, whose moments are c^-b: at high powers a trapezoid sum of this step is off by up to 1e-5."""
    for c in np.exp(-0.5 - 0.01 * np.arange(4)):
        ours = negative_moments(lambda u, c=c: MomentTransform(-u * c, u - u * c), 1024)
        exact = -np.arange(1024) * math.log(c)
        assert np.all(ours >= exact - 1e-10)  # rounding of logs of up to 1000
        assert np.all(ours[:256] <= exact[:256] + 0.2)  # tables are interpolated between powers


def enumerate_products(probabilities):
    """All values and masses of a product of randomised responses' ratios."""
    values, masses = np.ones(1), np.ones(1)
    for p in probabilities:
        values = np.outer(values, [(1 - p) / p, p / (1 - p)]).ravel()
        masses = np.outer(masses, [p, 1 - p]).ravel()
    return values, masses


@pytest.mark.parametrize("order", [2, 3, 7])
def test_finite_laws_by_enumeration_in_both_directions(order):
    values, masses = enumerate_products([0.6, 0.7])
    means = (values[:, None] + values[None, :]).ravel() / 2
    weights = np.outer(masses, masses).ravel()
    part = Compose([RandomisedResponse(0.6), RandomisedResponse(0.7)])
    remove = math.log(weights @ means**order)
    add = math.log(weights @ means ** (1.0 - order))
    assert moments_of(Submodels(part, 2)).raw_moments(256)[order] == pytest.approx(remove, rel=1e-10)
    ours = moments_of(Submodels(part, 2)).negative_moments(256)[order - 1]
    assert add <= ours  # two factors are bounded by their second moment, so this is not tight
    assert Submodels(part, 2).rdp(order)[0] >= max(remove, add) / (order - 1) * (1 - 1e-10)
    assert Submodels(part, 2).rdp(order)[0] <= part.rdp(order)[0]


def test_shuffled_randomised_response_where_the_add_direction_is_the_larger():
    """Not every mean is worst in the remove direction; this one is not, and the divergence reported is the larger."""
    copies, p, order = 20, 0.8, 4
    m = np.arange(copies + 1)
    chance = np.array([math.comb(copies, i) * (1 - p) ** i * p ** (copies - i) for i in m])
    mean = (m * p / (1 - p) + (copies - m) * (1 - p) / p) / copies
    remove, add = math.log(chance @ mean**order) / 3, math.log(chance @ mean ** (1.0 - order)) / 3
    assert add > remove
    assert Submodels(RandomisedResponse(p), copies).rdp(order)[0] == pytest.approx(add, rel=1e-8)


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.01), (1.0, 0.1), (4.0, 0.5)])
def test_poisson_sampled_gaussian_agrees_with_dp_accounting(noise, rate):
    orders = [2, 3, 8, 32, 128]
    peer = dp.rdp.RdpAccountant(orders)
    peer.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), 10)
    assert_allclose(Repeat(Poisson(Gaussian(noise), rate), 10).rdp(orders), peer._rdp, rtol=1e-8)


def test_orders_between_whole_ones_are_upper_bounds_and_close():
    orders = np.linspace(1.05, 20, 300)
    exact = orders / (2 * 1.3**2)
    ours = Gaussian(1.3).rdp(orders)
    assert np.all(ours >= exact * (1 - 1e-12))
    assert np.all(ours[orders > 5] <= exact[orders > 5] * 1.03)  # a chord of a parabola, one order wide


def test_tight_conversion_agrees_with_dp_accounting_and_beats_the_loose_one():
    orders = np.arange(2, 65)
    divergences = Gaussian(2.0).rdp(orders)
    peer = dp.rdp.RdpAccountant(orders.tolist())
    peer.compose(dp.GaussianDpEvent(2.0))
    tight, loose = (epsilon_from_rdp(orders, divergences, 1e-6, kind) for kind in ("tight", "loose"))
    assert tight == pytest.approx(peer.get_epsilon(1e-6), rel=1e-6)
    assert tight < loose == pytest.approx(min(divergences + math.log(1e6) / (orders - 1)), rel=1e-12)


@pytest.mark.parametrize(("noise", "copies"), [(0.8, 2), (1.0, 10), (2.0, 50)])
def test_product_of_gaussians_inside_a_mean_is_one_gaussian(noise, copies):
    split = Submodels(Compose([Gaussian(noise), Repeat(Gaussian(2 * noise), 3)]), copies)
    joined = Submodels(Gaussian((1 / noise**2 + 3 / (2 * noise) ** 2) ** -0.5), copies)
    assert_allclose(split.rdp([2, 3, 10, 30]), joined.rdp([2, 3, 10, 30]), rtol=1e-9)
