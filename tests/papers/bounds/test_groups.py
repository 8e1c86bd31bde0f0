"""The bounds of Schuchardt et al. 2024 against quadrature, enumeration of real mechanisms and the paper's orderings."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import laplace as laplace_law

from benchmarks.papers.bounds import base
from benchmarks.papers.bounds.groups import (
    group_poisson_by_enumeration,
    group_poisson_gaussian,
    group_poisson_randomized_response,
    group_property,
    group_property_simple,
    group_weights,
)
from benchmarks.papers.bounds.mixtures import renyi_of_mixtures
from benchmarks.papers.bounds.subsampling import (
    group_substitution_without_replacement,
    insertion_removal_without_replacement,
    poisson_baseline,
    substitution_baseline,
    substitution_by_enumeration,
    substitution_gaussian,
    substitution_randomized_response,
)

ORDERS = np.array([1.2, 2.0, 3.7, 8.0, 24.0])


# Oracles -----------------------------------------------------------------------------------------------------------


def mixture_renyi(order: float, first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
    """Rényi divergence of two mixtures of unit Gaussians, given as (probability, mean), by mpmath's quadrature."""
    with mpmath.workdps(20):

        def density(mixture: list[tuple[float, float]], z: mpmath.mpf) -> mpmath.mpf:
            return sum(p * mpmath.npdf(z, m, 1) for p, m in mixture)

        means = [m for _, m in first + second]
        span = (max(means) - min(means)) * order
        points = mpmath.linspace(min(means) - span - 14, max(means) + span + 14, 2 * int(span + 14))

        def integrand(z: mpmath.mpf) -> mpmath.mpf:
            return density(first, z) ** order * density(second, z) ** (1 - order)

        moment = mpmath.quad(integrand, points, method="gauss-legendre", maxdegree=4)
        return float(mpmath.log(moment) / (order - 1))


def plane_renyi(order: float, fraction: float, old: complex, new: complex) -> float:
    """D((1-w) N(0) + w N(old) || (1-w) N(0) + w N(new)) in the plane, unit noise, on a grid of step 0.25 (spectral)."""
    reach = order * max(abs(old), abs(new)) + 9
    axis = np.arange(-reach, reach, 0.25)
    x, y = np.meshgrid(axis, axis)

    def log_ratio(mean: complex) -> np.ndarray:
        return np.logaddexp(np.log1p(-fraction), np.log(fraction) + mean.real * x + mean.imag * y - abs(mean) ** 2 / 2)

    log_terms = (
        order * log_ratio(old) + (1 - order) * log_ratio(new) - (x**2 + y**2) / 2 + np.log(0.25**2 / (2 * np.pi))
    )
    peak = log_terms.max()
    return float((peak + np.log(np.exp(log_terms - peak).sum())) / (order - 1))


def finite_renyi(order: float, first: np.ndarray, second: np.ndarray) -> float:
    return math.log(sum(p**order * q ** (1 - order) for p, q in zip(first, second, strict=True))) / (order - 1)


def without_replacement(dataset: tuple[int, ...], batch_size: int, law) -> np.ndarray:
    """The output law of a real mechanism that draws every subset of one size with equal probability."""
    return np.mean([law[frozenset(batch)] for batch in itertools.combinations(dataset, batch_size)], axis=0)


def poisson(dataset: tuple[int, ...], rate: float, law) -> np.ndarray:
    """The output law of a real mechanism that takes every record with probability ``rate``."""
    return sum(
        rate**size * (1 - rate) ** (len(dataset) - size) * law[frozenset(batch)]
        for size in range(len(dataset) + 1)
        for batch in itertools.combinations(dataset, size)
    )


def random_laws(batches, seed: int, spread: float = 1.0) -> dict[frozenset, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {batch: rng.dirichlet(np.full(3, spread)) for batch in batches}


def subsets(universe: tuple[int, ...], sizes) -> list[frozenset]:
    return [frozenset(batch) for size in sizes for batch in itertools.combinations(universe, size)]


def distances(batches: list[frozenset], divisor: int = 1) -> np.ndarray:
    return np.array([[len(one ^ two) / divisor for two in batches] for one in batches])


# Mixtures of Gaussians and Theorem 4.2 ------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "rate", "size"), [(1.0, 0.2, 2), (3.0, 0.5, 3)])
def test_gaussian_group_is_the_larger_of_both_divergences(noise, rate, size):
    mixture = [(math.comb(size, i) * rate**i * (1 - rate) ** (size - i), i / noise) for i in range(size + 1)]
    for order in (1.5, 3.0):
        both = mixture_renyi(order, mixture, [(1.0, 0.0)]), mixture_renyi(order, [(1.0, 0.0)], mixture)
        assert group_poisson_gaussian(noise, rate, size, order)[0] == pytest.approx(max(both), rel=1e-9)


def test_a_group_of_one_is_the_sampled_gaussian_of_dp_accounting():
    orders = [2.0, 5.0, 17.0, 64.0]
    accountant = RdpAccountant(orders).compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.3)))
    assert group_poisson_gaussian(1.3, 0.05, 1, orders) == pytest.approx(accountant._rdp, rel=1e-9)


def test_no_arrangement_of_the_means_is_worse_than_the_line():
    """Theorem 4.2 against random feasible arrangements of a pair's means in the plane, by two-dimensional sums."""
    rng = np.random.default_rng(5)
    noise, rate, order = 1.0, 0.3, 3.0
    worst = group_poisson_gaussian(noise, rate, 2, order)[0]
    axis = np.arange(-16, 16, 0.2)
    x, y = np.meshgrid(axis, axis)
    cell = np.exp(-(x**2 + y**2) / 2) / (2 * np.pi) * 0.04
    for _ in range(30):
        one = rng.uniform(0, 1) * np.exp(2j * np.pi * rng.uniform())
        two = one + rng.uniform(0, 1) * np.exp(2j * np.pi * rng.uniform())
        ratio = sum(
            w * np.exp((m.real * x + m.imag * y) / noise - abs(m) ** 2 / (2 * noise**2))
            for w, m in zip(group_weights(rate, 2), (0j, one, two), strict=True)
        )
        for power in (order, 1 - order):
            assert math.log(float(np.sum(cell * ratio**power))) / (order - 1) <= worst + 1e-9


def test_tight_group_bound_is_below_the_generic_group_property():
    orders = np.array([2.0, 4.0, 9.0, 16.0])

    def individual(a):
        return group_poisson_gaussian(1.0, 0.2, 1, a)

    for size in (2, 4, 8):
        tight = group_poisson_gaussian(1.0, 0.2, size, orders)
        generic = group_property(individual, size, orders)
        assert np.all(tight < generic)
        assert np.all(generic < group_property_simple(individual, size, orders))
    assert group_property(individual, 1, orders) == pytest.approx(individual(orders))


def test_the_group_advantage_vanishes_at_small_rates_and_grows_with_the_group():
    """Section 6: the generic property is a good bound at rate 0.001, and poor at 0.2 for a group of eight."""

    def ratio(rate: float, size: int) -> float:
        tight = group_poisson_randomized_response(0.75, rate, size, [4.0])
        return float(
            group_property(lambda a: group_poisson_randomized_response(0.75, rate, 1, a), size, [4.0])[0] / tight[0]
        )

    assert ratio(0.2, 8) > ratio(0.001, 8)
    assert ratio(0.2, 8) > ratio(0.2, 2)


# Randomised response and finite base mechanisms ---------------------------------------------------------------------


@pytest.mark.parametrize("theta", [0.3, 0.75, 0.95])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_randomized_response_group_is_the_maximum_over_all_answers(theta, size):
    """Theorem G.1 as a search over every assignment of answers to the size + 1 batches."""
    rate, order = 0.2, 3.5
    weights = [math.comb(size, i) * rate**i * (1 - rate) ** (size - i) for i in range(size + 1)]
    worst = 0.0
    for answers in itertools.product((theta, 1 - theta), repeat=size + 1):
        mixed = sum(w * t for w, t in zip(weights, answers, strict=True))
        pair = np.array([mixed, 1 - mixed]), np.array([answers[0], 1 - answers[0]])
        worst = max(worst, finite_renyi(order, *pair), finite_renyi(order, *pair[::-1]))
    assert group_poisson_randomized_response(theta, rate, size, order)[0] == pytest.approx(worst, rel=1e-12)


def test_theorem_g1_as_printed_charges_for_nothing():
    """Its second term, with alpha - 1 in the numerator, leaves log(2) / (alpha - 1) at rate 0; corrected it is 0."""
    theta, order = 0.8, 4.0
    printed = math.log(sum(p ** (order - 1) / p ** (order - 1) for p in (theta, 1 - theta))) / (order - 1)
    assert printed == pytest.approx(math.log(2) / 3)
    assert group_poisson_randomized_response(theta, 0.0, 2, order)[0] == pytest.approx(0, abs=1e-14)


def test_randomized_response_group_is_attained_by_a_real_mechanism():
    """All 256 functions of the batches of three records, two of which form the group: Theorem G.1 is tight."""
    rate, theta, order = 0.3, 0.8, 4.0
    batches = subsets((0, 1, 2), range(4))
    worst = 0.0
    for truth in itertools.product((0, 1), repeat=len(batches)):
        answer = {b: np.array([theta, 1 - theta][:: 1 if bit else -1]) for b, bit in zip(batches, truth, strict=True)}
        pair = poisson((0, 1, 2), rate, answer), poisson((0,), rate, answer)
        worst = max(worst, finite_renyi(order, *pair), finite_renyi(order, *pair[::-1]))
    assert group_poisson_randomized_response(theta, rate, 2, order)[0] == pytest.approx(worst, rel=1e-12)


def test_group_bound_by_enumeration_contains_real_mechanisms():
    """Theorem 4.1 against the exact law of 40 random mechanisms, every one with its own law for every batch."""
    batches, rate = subsets((0, 1, 2), range(4)), 0.35
    for seed in range(40):
        law = random_laws(batches, seed)
        bound = group_poisson_by_enumeration([law[b] for b in batches], distances(batches), rate, 2, [2.5])[0]
        for rest, group in (((0,), (1, 2)), ((1,), (0, 2)), ((2,), (0, 1))):
            pair = poisson(rest + group, rate, law), poisson(rest, rate, law)
            assert max(finite_renyi(2.5, *pair), finite_renyi(2.5, *pair[::-1])) <= bound * (1 + 1e-12)


def test_group_bound_by_enumeration_of_randomized_response_is_theorem_g1():
    laws = [[0.7, 0.3], [0.3, 0.7]]
    enumerated = group_poisson_by_enumeration(laws, [[0, 1], [1, 0]], 0.1, 3, ORDERS)
    assert enumerated == pytest.approx(group_poisson_randomized_response(0.7, 0.1, 3, ORDERS), rel=1e-12)


@given(seed=st.integers(0, 10**6), order=st.floats(1.05, 20))
def test_corrected_group_property_holds_for_any_three_laws(seed, order):
    """B.1 with the factor the paper has too much: the chain p, r, q is a group of two."""
    p, r, q = np.random.default_rng(seed).dirichlet(np.full(4, 2.0), size=3)

    def curve(a):
        neighbours = [(p, r), (r, p), (r, q), (q, r)]
        return np.array([max(finite_renyi(x, *pair) for pair in neighbours) for x in a])

    assert finite_renyi(order, p, q) <= group_property(curve, 2, [order])[0] * (1 + 1e-9)


# Sampling without replacement ---------------------------------------------------------------------------------------


def test_substitution_bound_by_enumeration_contains_real_mechanisms():
    """Theorems 3.6 and F.2 against the exact law of 40 random mechanisms on 2 of 4 records."""
    batches = subsets((0, 1, 2, 3, 4), (2,))
    for seed in range(40):
        law = random_laws(batches, seed)
        laws, apart = [law[b] for b in batches], distances(batches)
        bound = substitution_by_enumeration(laws, apart / 2, 0.5, [3.0], reach=1)[0]
        assert substitution_by_enumeration(laws, apart, 0.5, [3.0], reach=2)[0] == bound
        for left_out in itertools.permutations(range(5), 2):
            pair = [without_replacement(tuple(set(range(5)) - {gone}), 2, law) for gone in left_out]
            assert finite_renyi(3.0, *pair) <= bound * (1 + 1e-12)


def test_substitution_bound_by_enumeration_keeps_all_three_distances():
    """Batches on a line: the two substituted ones must be near each other too, not only near the third."""
    laws, fraction, order = np.array([[0.8, 0.2], [0.5, 0.5], [0.1, 0.9]]), 0.6, 2.0
    allowed = [t for t in itertools.product(range(3), repeat=3) if max(t) - min(t) <= 1]
    worst = max(
        finite_renyi(order, *((1 - fraction) * laws[rest] + fraction * laws[other] for other in (old, new)))
        for rest, old, new in allowed
    )
    line = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    assert substitution_by_enumeration(laws, line, fraction, [order])[0] == pytest.approx(worst, rel=1e-12)
    assert substitution_by_enumeration(laws, line, fraction, [order], reach=2)[0] > 1.2 * worst


@pytest.mark.parametrize(("mechanism", "pure"), [(base.laplace(4.0), 0.25), (base.laplace(1.0), 1.0)])
def test_tightened_baseline_is_theorem_9_of_wang_et_al(mechanism, pure):
    order, fraction = 6, 0.2
    curve = {j: float(mechanism(np.array([float(j)]), 1)[0]) for j in range(2, order + 1)}
    second = min(4 * math.expm1(curve[2]), math.exp(curve[2]) * min(2, math.expm1(pure) ** 2))
    total = 1 + fraction**2 * math.comb(order, 2) * second
    for j in range(3, order + 1):
        total += fraction**j * math.comb(order, j) * math.exp((j - 1) * curve[j]) * min(2, math.expm1(pure) ** j)
    bound = substitution_baseline(mechanism, fraction, [order], tightened=True)[0]
    assert bound == pytest.approx(math.log(total) / (order - 1), rel=1e-12)


def test_substitution_randomized_response_is_attained_by_a_real_mechanism():
    """Theorem 3.7 is the maximum over all 1024 functions of the batches of 2 of 4 records (Theorem F.1)."""
    theta, order = 0.75, 3.0
    batches = subsets((0, 1, 2, 3, 4), (2,))
    worst = 0.0
    for truth in itertools.product((0, 1), repeat=len(batches)):
        answer = {b: np.array([theta, 1 - theta][:: 1 if bit else -1]) for b, bit in zip(batches, truth, strict=True)}
        pair = without_replacement((0, 1, 2, 3), 2, answer), without_replacement((4, 1, 2, 3), 2, answer)
        worst = max(worst, finite_renyi(order, *pair))
    assert substitution_randomized_response(theta, 0.5, order)[0] == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("theta", [0.6, 0.75, 0.9])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5])
def test_tight_substitution_is_below_the_baseline(theta, fraction):
    """Figure 3: Theorem 3.7 against the full Theorem 9 of Wang et al., and that against Proposition E.2."""
    orders = np.array([2.0, 5.0, 30.0, 200.0])
    tight = substitution_randomized_response(theta, fraction, orders)
    full = substitution_baseline(base.randomized_response(theta), fraction, orders, tightened=True)
    loose = substitution_baseline(base.randomized_response(theta), fraction, orders)
    assert np.all(tight <= full)
    assert np.all(full <= loose)


@pytest.mark.parametrize(("noise", "fraction", "order"), [(0.7, 0.01, 2), (1.0, 0.1, 4), (2.0, 0.5, 3)])
def test_substitution_gaussian_contains_every_triangle_of_means(noise, fraction, order):
    bound = substitution_gaussian(noise, fraction, [order])[0]
    grid = np.linspace(0, 1, 4)
    worst = 0.0
    for old, new in itertools.product(grid, grid):
        # Closest to opposite that leaves the two substituted batches at most one step apart.
        cosine = -1.0 if old * new == 0 else max(-1.0, (old**2 + new**2 - 1) / (2 * old * new))
        direction = complex(cosine, math.sqrt(1 - cosine**2))
        worst = max(worst, plane_renyi(order, fraction, complex(old / noise), new / noise * direction))
    assert worst <= bound
    assert worst <= substitution_baseline(base.gaussian(noise), fraction, [order])[0]


def test_the_worst_substitution_of_a_gaussian_need_not_lie_on_a_line():
    triangle = plane_renyi(2.0, 0.01, 1 / 0.7, complex(0.5, math.sqrt(0.75)) / 0.7)
    line = max(plane_renyi(2.0, 0.01, a / 0.7, -b / 0.7) for a, b in ((1, 0), (0, 1), (0.5, 0.5), (0.8, 0.2)))
    assert triangle > 1.1 * line


def test_substitution_gaussian_in_two_steps_is_half_the_noise():
    assert substitution_gaussian(2.0, 0.2, ORDERS, reach=2) == pytest.approx(substitution_gaussian(1.0, 0.2, ORDERS))


@pytest.mark.parametrize("records", [4, 5, 6])
def test_insertion_removal_without_replacement_contains_real_sums(records):
    """Theorem F.3 (Q = 3, q = 2) against noisy sums of 2 of N and of N + 1 records, values in {-1, 0, 1}."""
    noise, order = 1.5, 3
    bound = insertion_removal_without_replacement(base.gaussian(noise), 2, 3, [order])[0]
    z = np.arange(-14, 14, 0.05)

    def density(values) -> np.ndarray:
        sums = [sum(pair) / noise for pair in itertools.combinations(values, 2)]
        return np.mean([np.exp(-((z - s) ** 2) / 2) / math.sqrt(2 * math.pi) for s in sums], axis=0)

    for values in itertools.combinations_with_replacement((-1, 0, 1), records):
        for extra in (-1, 0, 1):
            pair = density(values) * 0.05, density((*values, extra)) * 0.05
            assert max(finite_renyi(order, *pair), finite_renyi(order, *pair[::-1])) <= bound


def test_insertion_removal_with_substitution_base_is_tighter():
    steps = [insertion_removal_without_replacement(base.gaussian(2.0), 5, 50, [4], distance=d) for d in (1, 2)]
    assert steps[0] < steps[1]


def test_group_substitution_contains_real_sums():
    """Proposition E.5 against noisy sums of 2 of 5 records with values in {0, 1}, two of them substituted."""
    noise, order = 1.2, 2.5
    bound = group_substitution_without_replacement(base.gaussian(noise), 2, 5, 2, [order])[0]
    z = np.arange(-14, 14, 0.05)

    def density(values) -> np.ndarray:
        sums = [sum(pair) / noise for pair in itertools.combinations(values, 2)]
        return np.mean([np.exp(-((z - s) ** 2) / 2) / math.sqrt(2 * math.pi) for s in sums], axis=0)

    for rest in itertools.combinations_with_replacement((0, 1), 3):
        for old, new in itertools.product(itertools.combinations_with_replacement((0, 1), 2), repeat=2):
            assert finite_renyi(order, density(rest + old) * 0.05, density(rest + new) * 0.05) <= bound


def test_proposition_e5_as_printed_is_not_a_bound():
    """With Psi_k for Psi_alpha one substituted record would cost nothing (Psi_1 = 1); a noisy sum shows it does."""
    noise, order = 1.0, 3.0
    printed = 0.5 * 1 + 0.5 * 1  # k = 0 and k = 1, whatever the mechanism
    cost = renyi_of_mixtures(order, np.array([0.5, 0.5]), np.array([0.0, 1 / noise]), np.ones(1), np.zeros(1))[0]
    assert cost > math.log(printed) / (order - 1) + 0.1
    assert cost <= group_substitution_without_replacement(base.gaussian(noise), 2, 4, 1, order)[0]


# Poisson sampling of one record (Proposition E.4) and the base mechanisms -------------------------------------------


def test_poisson_baseline_of_the_gaussian_is_exact_without_the_factor():
    orders = np.array([2.0, 7.0, 40.0])
    exact = group_poisson_gaussian(1.1, 0.07, 1, orders)
    assert poisson_baseline(base.gaussian(1.1), 0.07, orders, symmetric=True) == pytest.approx(exact, rel=1e-10)
    assert np.all(poisson_baseline(base.gaussian(1.1), 0.07, orders) > exact)


@pytest.mark.parametrize(("order", "rate", "scale"), [(2, 0.1, 1.0), (5, 0.3, 0.7), (9, 0.02, 2.0)])
def test_poisson_baseline_contains_the_laplace_mechanism_both_ways(order, rate, scale):
    def moment(power: float) -> float:
        def integrand(z: float) -> float:
            rest = laplace_law.pdf(z, 0, scale)
            return rest * (1 - rate + rate * laplace_law.pdf(z, 1, scale) / rest) ** power

        return sum(quad(integrand, a, b, epsabs=1e-13)[0] for a, b in ((-60, -8), (-8, 0), (0, 1), (1, 9), (9, 60)))

    removal, addition = (math.log(moment(power)) / (order - 1) for power in (order, 1 - order))
    bound = poisson_baseline(base.laplace(scale), rate, [order], symmetric=True)[0]
    assert removal == pytest.approx(bound, rel=1e-7)  # quad's absolute error of 1e-13 a piece, on values above 1e-5
    assert addition <= bound
