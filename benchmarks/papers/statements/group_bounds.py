"""The bounds of Schuchardt et al. 2024 against enumeration of real mechanisms, and dp-accounting."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.bounds.groups import (
    group_property,
    group_transport_rdp,
    response_rdp,
    substituted_response_rdp,
    substitution_baseline,
)
from benchmarks.papers.bounds.mixtures import binomial, renyi_of_mixtures, sampled_gaussian_rdp
from benchmarks.papers.statements.groups import subsets


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


@pytest.mark.statement("groups", "Theorem G.1")
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
    assert response_rdp(theta, rate, size, np.array([order]))[0] == pytest.approx(worst, rel=1e-12)


@pytest.mark.statement("groups", "Theorem G.1")
def test_theorem_g1_as_printed_charges_for_nothing():
    """Its second term, with alpha - 1 in the numerator, leaves log(2) / (alpha - 1) at rate 0; corrected it is 0."""
    theta, order = 0.8, 4.0
    printed = math.log(sum(p ** (order - 1) / p ** (order - 1) for p in (theta, 1 - theta))) / (order - 1)
    assert printed == pytest.approx(math.log(2) / 3)
    assert response_rdp(theta, 0.0, 2, np.array([order]))[0] == pytest.approx(0, abs=1e-14)


@pytest.mark.statement("groups", "Theorem G.1", "Theorem G.2")
def test_randomized_response_group_is_attained_by_a_real_mechanism():
    """All 256 functions of the batches of three records, two of which form the group: Theorem G.1 is tight."""
    rate, theta, order = 0.3, 0.8, 4.0
    batches = subsets((0, 1, 2), range(4))
    worst = 0.0
    for truth in itertools.product((0, 1), repeat=len(batches)):
        answer = {b: np.array([theta, 1 - theta][:: 1 if bit else -1]) for b, bit in zip(batches, truth, strict=True)}
        pair = poisson((0, 1, 2), rate, answer), poisson((0,), rate, answer)
        worst = max(worst, finite_renyi(order, *pair), finite_renyi(order, *pair[::-1]))
    assert response_rdp(theta, rate, 2, np.array([order]))[0] == pytest.approx(worst, rel=1e-12)


@given(seed=st.integers(0, 10**6), order=st.floats(1.05, 20))
def test_corrected_group_property_holds_for_any_three_laws(seed, order):
    """B.1 with the factor the paper has too much: the chain p, r, q is a group of two."""
    p, r, q = np.random.default_rng(seed).dirichlet(np.full(4, 2.0), size=3)

    def curve(a):
        neighbours = [(p, r), (r, p), (r, q), (q, r)]
        return np.array([max(finite_renyi(x, *pair) for pair in neighbours) for x in a])

    assert finite_renyi(order, p, q) <= group_property(curve, 2, np.array([order]))[0] * (1 + 1e-9)


@pytest.mark.statement("groups", "Theorem 3.7", "Theorem F.1")
def test_substitution_randomized_response_is_attained_by_a_real_mechanism():
    """Theorem 3.7 is the maximum over all 1024 functions of the batches of 2 of 4 records (Theorem F.1)."""
    theta, order = 0.75, 3.0
    batches = subsets((0, 1, 2, 3, 4), (2,))
    worst = 0.0
    for truth in itertools.product((0, 1), repeat=len(batches)):
        answer = {b: np.array([theta, 1 - theta][:: 1 if bit else -1]) for b, bit in zip(batches, truth, strict=True)}
        pair = without_replacement((0, 1, 2, 3), 2, answer), without_replacement((4, 1, 2, 3), 2, answer)
        worst = max(worst, finite_renyi(order, *pair))
    assert substituted_response_rdp(theta, 0.5, np.array([order]))[0] == pytest.approx(worst, rel=1e-12)


@pytest.mark.statement("groups", "Proposition E.5")
def test_group_substitution_contains_real_sums():
    """Proposition E.5 against noisy sums of 2 of 5 records with values in {0, 1}, two of them substituted."""
    noise, order = 1.2, 2.5
    bound = group_transport_rdp(noise, 2, 5, 2, np.array([order]))[0]
    z = np.arange(-14, 14, 0.05)

    def density(values) -> np.ndarray:
        sums = [sum(pair) / noise for pair in itertools.combinations(values, 2)]
        return np.mean([np.exp(-((z - s) ** 2) / 2) / math.sqrt(2 * math.pi) for s in sums], axis=0)

    for rest in itertools.combinations_with_replacement((0, 1), 3):
        for old, new in itertools.product(itertools.combinations_with_replacement((0, 1), 2), repeat=2):
            assert finite_renyi(order, density(rest + old) * 0.05, density(rest + new) * 0.05) <= bound


@pytest.mark.statement("groups", "Proposition E.5")
def test_proposition_e5_as_printed_is_not_a_bound():
    """With Psi_k for Psi_alpha one substituted record would cost nothing (Psi_1 = 1); a noisy sum shows it does."""
    noise, order = 1.0, 3.0
    printed = 0.5 * 1 + 0.5 * 1  # k = 0 and k = 1, whatever the mechanism
    cost = renyi_of_mixtures(order, np.array([0.5, 0.5]), np.array([0.0, 1 / noise]), np.ones(1), np.zeros(1))[0]
    assert cost > math.log(printed) / (order - 1) + 0.1
    assert cost <= group_transport_rdp(noise, 2, 4, 1, np.array([order]))[0]


def test_the_baseline_is_the_group_property_written_out():
    """A group of four: the chain p, r, q twice; the printed factor makes it larger."""
    one = partial(response_rdp, 0.75, 0.1, 1)
    a = 3.0

    def pair(order: float, factor: float) -> float:
        low, high = one(np.array([2 * order - 1, 2 * order]))
        return (order - 0.5) / (order - 1) * high + factor * low

    expected = (a - 0.5) / (a - 1) * pair(2 * a, 1.0) + pair(2 * a - 1, 1.0)
    assert group_property(one, 4, np.array([a]))[0] == pytest.approx(expected, rel=1e-12)
    printed = (a - 0.5) / (a - 1) * pair(2 * a, 2 * a / (2 * a - 1))
    printed += a / (a - 1) * pair(2 * a - 1, (2 * a - 1) / (2 * a - 2))
    assert group_property(one, 4, np.array([a]), printed=True)[0] == pytest.approx(printed, rel=1e-12)
    assert printed > expected


@pytest.mark.parametrize("pure", [0.25, 1.0, math.inf])
def test_the_baseline_is_theorem_9_of_wang_et_al(pure):
    order, fraction, noise = 6, 0.2, 1.5
    curve = {j: j / (2 * noise**2) for j in range(2, order + 1)}
    second = min(4 * math.expm1(curve[2]), math.exp(curve[2]) * min(2, math.expm1(pure) ** 2))
    total = 1 + fraction**2 * math.comb(order, 2) * second
    for j in range(3, order + 1):
        total += fraction**j * math.comb(order, j) * math.exp((j - 1) * curve[j]) * min(2, math.expm1(pure) ** j)
    bound = substitution_baseline(lambda a: a / (2 * noise**2), pure, fraction, np.array([6.0]))[0]
    assert bound == pytest.approx(math.log(total) / (order - 1), rel=1e-12)


def test_a_group_of_one_is_the_sampled_gaussian_of_dp_accounting():
    orders = [2.0, 5.0, 17.0, 64.0]
    accountant = RdpAccountant(orders).compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.3)))
    assert sampled_gaussian_rdp(1.3, 0.05, orders) == pytest.approx(accountant._rdp, rel=1e-9)


@pytest.mark.statement("groups", "Theorem 4.2", "Theorem H.4", "Theorem H.12")
def test_no_arrangement_of_the_means_is_worse_than_the_line():
    """Theorem 4.2 against random feasible arrangements of a pair's means in the plane, by two-dimensional sums."""
    rng = np.random.default_rng(5)
    noise, rate, order = 1.0, 0.3, 3.0
    worst = sampled_gaussian_rdp(noise, rate, order, 2)[0]
    axis = np.arange(-16, 16, 0.2)
    x, y = np.meshgrid(axis, axis)
    cell = np.exp(-(x**2 + y**2) / 2) / (2 * np.pi) * 0.04
    for _ in range(30):
        one = rng.uniform(0, 1) * np.exp(2j * np.pi * rng.uniform())
        two = one + rng.uniform(0, 1) * np.exp(2j * np.pi * rng.uniform())
        ratio = sum(
            w * np.exp((m.real * x + m.imag * y) / noise - abs(m) ** 2 / (2 * noise**2))
            for w, m in zip(binomial(2, rate), (0j, one, two), strict=True)
        )
        for power in (order, 1 - order):
            assert math.log(float(np.sum(cell * ratio**power))) / (order - 1) <= worst + 1e-9


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


def test_the_worst_substitution_of_a_gaussian_need_not_lie_on_a_line():
    """Theorem 3.6, whose maximum over three means the paper leaves open."""
    triangle = plane_renyi(2.0, 0.01, 1 / 0.7, complex(0.5, math.sqrt(0.75)) / 0.7)
    line = max(plane_renyi(2.0, 0.01, a / 0.7, -b / 0.7) for a, b in ((1, 0), (0, 1), (0.5, 0.5), (0.8, 0.2)))
    assert triangle > 1.1 * line
