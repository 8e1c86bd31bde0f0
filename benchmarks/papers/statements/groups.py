"""Schuchardt et al. 2024, statement by statement: small spaces in full, and Gaussians in the plane by quadrature.

The integral that the paper calls Psi is written out from its definition. A base mechanism on a finite space is a random
law for each batch, so that nothing but the distance of batches restricts it.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.stats import binom, norm

ORDERS = (1.3, 2.0, 4.5)
ROUNDING = 1 + 1e-10  # sums of some hundred positive terms, and linear programmes solved to 1e-10
Batch = frozenset


def psi(order, first, second):
    return float(np.sum(first**order * second ** (1 - order), axis=-1))


def psis(order, first, second):
    return np.sum(first**order * second ** (1 - order), axis=-1)


def subsets(universe, sizes=None):
    sizes = range(len(universe) + 1) if sizes is None else sizes
    return [Batch(batch) for size in sizes for batch in itertools.combinations(universe, size)]


def base_laws(seed, batches, outputs=3):
    """A law for each batch; some are nearly concentrated, so that divergences are large."""
    generator = np.random.default_rng(seed)
    laws = generator.dirichlet(np.full(outputs, generator.choice([0.3, 1.0, 4.0])), size=len(batches)) + 1e-3
    return laws / laws.sum(axis=1, keepdims=True)


def poisson(batches, dataset, rate):
    """The chance of each batch."""
    return np.array([rate ** len(y) * (1 - rate) ** (len(dataset) - len(y)) if y <= dataset else 0.0 for y in batches])


def without_replacement(batches, dataset, size):
    chances = np.array([float(y <= dataset and len(y) == size) for y in batches])
    return chances / chances.sum()


def induced_distances(batches, are_neighbours):
    """Definition 2.9, by walking: the length of the shortest path of neighbours."""
    near = np.array([[are_neighbours(one, other) for other in batches] for one in batches])
    distances = np.where(np.eye(len(batches), dtype=bool), 0.0, np.inf)
    reached = np.eye(len(batches), dtype=bool)
    for length in range(1, len(batches)):
        reached = reached | (reached @ near)
        distances[reached & np.isinf(distances)] = length
    return distances


def inserted(one, other):
    return len(one ^ other) == 1


def substituted(one, other):
    return len(one) == len(other) and len(one ^ other) == 2


def couple(marginals, costs):
    """The coupling of least cost, by linear programming; ``costs`` has one axis for each marginal."""
    shape = costs.shape
    rows = []
    for axis, length in enumerate(shape):
        for point in range(length):
            row = np.zeros(shape)
            row[(slice(None),) * axis + (point,)] = 1.0
            rows.append(row.ravel())
    solved = linprog(costs.ravel(), A_eq=np.array(rows), b_eq=np.concatenate(marginals), method="highs")
    assert solved.status == 0
    return solved.x.reshape(shape)


def conditional(chances, event):
    inside = np.where(event, chances, 0.0)
    return inside.sum(), inside / inside.sum()


# --- any coupling -----------------------------------------------------------------------------------------------------


@pytest.mark.statement("groups", "Lemma 3.1")
@pytest.mark.parametrize("seed", range(20))
def test_psi_is_jointly_convex(seed):
    """Of functions, not only of densities. Below order 1 it is concave instead, so the inequality is not empty."""
    generator = np.random.default_rng(seed)
    f1, f2, f3, f4 = generator.gamma(0.5, size=(4, 6)) + 1e-3
    w = generator.random()
    for order in (*ORDERS, 0.5):
        mixed = psi(order, w * f1 + (1 - w) * f3, w * f2 + (1 - w) * f4)
        apart = w * psi(order, f1, f2) + (1 - w) * psi(order, f3, f4)
        assert mixed <= apart * ROUNDING if order > 1 else mixed * ROUNDING >= apart


FIVE = subsets(range(5), (2,))
OLD, NEW = Batch({0, 1, 2, 3}), Batch({1, 2, 3, 4})


@pytest.mark.statement("groups", "Theorem 3.3")
@pytest.mark.parametrize("seed", range(6))
def test_any_coupling_of_two_batches_bounds_the_mixture(seed):
    """Two of four records, one of them substituted; the best coupling, random ones and the independent one."""
    laws, generator = base_laws(seed, FIVE), np.random.default_rng(seed + 100)
    old, new = without_replacement(FIVE, OLD, 2), without_replacement(FIVE, NEW, 2)
    for order in ORDERS:
        costs = psis(order, laws[:, None], laws[None])
        exact = psi(order, old @ laws, new @ laws)
        best = float((couple([old, new], costs) * costs).sum())
        others = [couple([old, new], generator.random(costs.shape)) for _ in range(3)]
        bounds = [float((coupling * costs).sum()) for coupling in (*others, np.outer(old, new))]
        assert exact <= best * ROUNDING
        assert best <= min(bounds) * ROUNDING
        assert exact < 0.999 * best  # the paper: loose without conditions, whatever the coupling


@pytest.mark.statement("groups", "Theorem 3.4")
@pytest.mark.parametrize("seed", range(6))
def test_any_coupling_of_conditional_laws_bounds_the_mixture(seed):
    """Conditioned on whether the substituted record is drawn: four laws, three batches each."""
    laws, generator = base_laws(seed, FIVE), np.random.default_rng(seed + 100)
    old, new = without_replacement(FIVE, OLD, 2), without_replacement(FIVE, NEW, 2)
    drawn = np.array([bool(y & {0, 4}) for y in FIVE])
    parts = [conditional(chances, event) for chances in (old, new) for event in (~drawn, drawn)]
    supports = [np.flatnonzero(law) for _, law in parts]
    marginals = [law[support] for (_, law), support in zip(parts, supports, strict=True)]
    tables = [weight * laws[support] for (weight, _), support in zip(parts, supports, strict=True)]
    first = tables[0][:, None, None, None] + tables[1][None, :, None, None]
    second = tables[2][None, None, :, None] + tables[3][None, None, None, :]
    for order in ORDERS:
        exact, costs = psi(order, old @ laws, new @ laws), psis(order, first, second)
        for chosen in (costs, *(generator.random(costs.shape) for _ in range(3))):
            assert exact <= float((couple(marginals, chosen) * costs).sum()) * ROUNDING


# --- distance-compatible couplings ------------------------------------------------------------------------------------

ALL = subsets(range(3))
LARGE, SMALL = Batch({0, 1, 2}), Batch({0, 1})
NEAR = induced_distances(ALL, inserted).astype(int)


def removed_costs(order, laws, rate):
    """Costs of all triples (without the record, with it, without it), and their worst at no larger distances."""
    first = (1 - rate) * laws[:, None, None] + rate * laws[None, :, None]
    costs = psis(order, first, np.broadcast_to(laws[None, None], (*first.shape[:1], len(laws), *laws.shape)))
    apart = NEAR[:, :, None], NEAR[:, None, :], NEAR[None, :, :]
    worst = np.zeros_like(costs)
    for limits in itertools.product(range(4), repeat=3):
        feasible = np.all([np.broadcast_to(d, costs.shape) <= most for d, most in zip(apart, limits, strict=True)], 0)
        at = np.all([np.broadcast_to(d, costs.shape) == most for d, most in zip(apart, limits, strict=True)], 0)
        worst[at] = costs[feasible].max()
    return costs, worst


@pytest.mark.statement("groups", "Proposition 3.5")
@pytest.mark.parametrize("seed", range(3))
def test_the_worst_batches_at_no_larger_distances_cost_at_least_as_much(seed):
    laws = base_laws(seed, ALL)
    for order in ORDERS:
        costs, worst = removed_costs(order, laws, 0.3)
        assert np.all(costs <= worst)
        assert np.any(costs == worst)  # the worst is attained, so the bound is no larger than it must be
        assert np.any(costs < worst)


@pytest.mark.statement("groups", "Lemma D.5")
def test_distances_to_supports():
    for seed in range(20):
        generator = np.random.default_rng(seed)
        one, other = (np.flatnonzero(generator.random(len(ALL)) < 0.4) for _ in range(2))
        if not len(one) or not len(other):
            continue
        between = min(NEAR[y1, y2] for y1 in one for y2 in other)
        for y1, y2 in itertools.product(one, other):
            assert NEAR[y1, y2] >= min(NEAR[y1, y] for y in other) >= between


@pytest.mark.statement("groups", "Theorem D.6", "Corollary D.7")
@pytest.mark.parametrize("seed", range(4))
def test_a_distance_compatible_coupling_is_optimal(seed):
    """Poisson sampling, record 2 removed: insert it in a batch without it. A linear programme finds nothing better."""
    rate, laws, generator = 0.3, base_laws(seed, ALL), np.random.default_rng(seed + 50)
    holds = np.array([2 in y for y in ALL])
    large, small = poisson(ALL, LARGE, rate), poisson(ALL, SMALL, rate)
    without, with_ = conditional(large, ~holds)[1], conditional(large, holds)[1]
    supports = [np.flatnonzero(law) for law in (without, with_, small)]
    marginals = [law[support] for law, support in zip((without, with_, small), supports, strict=True)]

    compatible = np.zeros([len(ALL)] * 3)
    for y in np.flatnonzero(without):
        compatible[y, ALL.index(ALL[y] | {2}), y] = without[y]
    for axis, law in enumerate((without, with_, small)):
        others = tuple({0, 1, 2} - {axis})
        np.testing.assert_allclose(compatible.sum(axis=others), law, atol=1e-15)
    to_support = [[min(NEAR[y, other] for other in support) for y in range(len(ALL))] for support in supports]
    between = min(NEAR[y, other] for y in supports[1] for other in supports[2])
    for y1, y2, y3 in np.argwhere(compatible > 0):  # Definition D.4
        assert (NEAR[y1, y2], NEAR[y1, y3]) == (to_support[1][y1], to_support[2][y1])
        assert NEAR[y2, y3] == between

    for order in ORDERS:
        costs, worst = removed_costs(order, laws, rate)
        value, kept = float((compatible * worst).sum()), np.ix_(*supports)
        least = float((couple(marginals, worst[kept]) * worst[kept]).sum())
        assert value == pytest.approx(least, rel=1e-9)
        for _ in range(3):
            other = couple(marginals, generator.random(worst[kept].shape))
            assert float((other * worst[kept]).sum()) >= value / ROUNDING
        near = [
            (NEAR[:, :, None] <= to_support[1][y]) & (NEAR[:, None, :] <= to_support[2][y]) & (NEAR[None] <= between)
            for y in range(len(ALL))
        ]
        canonical = sum(without[y] * costs[near[y]].max() for y in supports[0])
        assert value == pytest.approx(canonical, rel=1e-12)
        assert psi(order, large @ laws, small @ laws) <= value * ROUNDING


# --- worst cases of real subsampled mechanisms ------------------------------------------------------------------------


def worst_substitution(order, laws, distances, most, share):
    """Theorems 3.6 and F.2: the maximum over three batches that are pairwise no farther apart than ``most``."""
    near = distances <= most
    feasible = near[:, :, None] & near[:, None, :] & near[None]
    first = (1 - share) * laws[:, None] + share * laws[None]
    costs = psis(order, first[:, :, None], first[:, None, :])
    return float(costs[feasible].max())


@pytest.mark.statement("groups", "Theorem 3.6", "Proposition E.2")
@pytest.mark.parametrize("seed", range(8))
def test_one_record_substituted_in_a_batch_without_replacement(seed):
    laws, distances = base_laws(seed, FIVE), induced_distances(FIVE, substituted)
    old, new = without_replacement(FIVE, OLD, 2), without_replacement(FIVE, NEW, 2)
    pairs = [psis(power, laws[:, None], laws[None])[distances <= 1].max() for power in range(7)]
    for order in (1.3, 2, 3, 6):
        worst = worst_substitution(order, laws, distances, 1, 0.5)
        assert psi(order, old @ laws, new @ laws) <= worst * ROUNDING
        if order == int(order):
            series = 1 + 2 * sum(math.comb(order, i) * 0.5**i * pairs[i] for i in range(2, order + 1))
            assert worst <= series * ROUNDING


@pytest.mark.statement("groups", "Theorem F.2")
@pytest.mark.parametrize("seed", range(6))
def test_substitution_for_a_mechanism_known_by_insertion(seed):
    """The distance must be walked through batches of every size.

    Definition 2.7 has batches of one size only. No two of them are neighbours by insertion, and the bound as printed
    would be 1.
    """
    batches = subsets(range(5))
    laws, distances = base_laws(seed, batches), induced_distances(batches, inserted)
    old, new = without_replacement(batches, OLD, 2), without_replacement(batches, NEW, 2)
    inside = induced_distances(FIVE, inserted)
    of_five = laws[[batches.index(y) for y in FIVE]]
    for order in ORDERS:
        exact = psi(order, old @ laws, new @ laws)
        assert worst_substitution(order, of_five, inside, 2, 0.5) == pytest.approx(1.0)
        assert exact > 1.001
        assert exact <= worst_substitution(order, laws, distances, 2, 0.5) * ROUNDING


@pytest.mark.statement("groups", "Theorem 4.1")
@pytest.mark.parametrize("seed", range(8))
def test_a_group_under_poisson_sampling(seed):
    """Two of three records removed or inserted: the worst chain of batches, each one insertion from the one before."""
    rate, laws = 0.3, base_laws(seed, ALL)
    large, small = poisson(ALL, LARGE, rate), poisson(ALL, Batch({0}), rate)
    weights = binom.pmf(range(3), 2, rate)
    feasible = (NEAR <= 1)[:, :, None] & (NEAR <= 2)[:, None, :] & (NEAR <= 1)[None]
    mixed = weights[0] * laws[:, None, None] + weights[1] * laws[None, :, None] + weights[2] * laws[None, None]
    nobody = np.broadcast_to(laws[:, None, None], mixed.shape)
    for order in ORDERS:
        bound = max(psis(order, *pair)[feasible].max() for pair in ((mixed, nobody), (nobody, mixed)))
        for pair in ((large, small), (small, large)):
            assert psi(order, *(chances @ laws for chances in pair)) <= bound * ROUNDING


@pytest.mark.statement("groups", "Proposition E.4")
@pytest.mark.parametrize("seed", range(8))
def test_one_record_under_poisson_sampling(seed):
    rate, laws = (0.3, 0.8)[seed % 2], base_laws(seed, ALL)
    large, small = poisson(ALL, LARGE, rate), poisson(ALL, SMALL, rate)
    pairs = [psis(power, laws[:, None], laws[None])[NEAR == 1].max() for power in range(7)]
    for order in (2, 3, 6):
        terms = (math.comb(order, i) * rate**i * (1 - rate) ** (order - i) * pairs[i] for i in range(order + 1))
        bound = 2 * sum(terms)
        for pair in ((large, small), (small, large)):
            assert psi(order, *(chances @ laws for chances in pair)) <= bound * ROUNDING


@pytest.mark.statement("groups", "Lemma E.1")
def test_the_binomial_expansion_around_the_second_law():
    """In fractions, so exactly."""
    p, q = [Fraction(1, 7), Fraction(2, 7), Fraction(4, 7)], [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    for order in range(2, 8):
        whole = sum(a**order / b ** (order - 1) for a, b in zip(p, q, strict=True))
        expanded = 1 + sum(
            math.comb(order, i) * sum((a - b) ** i / b ** (i - 1) for a, b in zip(p, q, strict=True))
            for i in range(2, order + 1)
        )
        assert whole == expanded


def decomposed(order, p, laws, weights):
    mean = np.asarray(weights) @ laws
    return sum(w * psi(order, q + p - mean, q) for w, q in zip(weights, laws, strict=True))


@pytest.mark.statement("groups", "Lemma E.3")
def test_lemma_e3_needs_an_even_order():
    """The first argument may be negative, where x^3 is concave: at order 3 the bound is negative. Even orders hold."""
    p, laws, weights = np.array([0.1, 0.9]), np.array([[0.9, 0.1], [0.01, 0.99]]), (0.8, 0.2)
    exact = psi(3, p, np.asarray(weights) @ laws)
    assert exact == pytest.approx(9.43, abs=0.01)
    assert decomposed(3, p, laws, weights) < -400
    generator = np.random.default_rng(3)
    for _ in range(300):
        p, *laws = generator.dirichlet(np.full(3, 0.5), size=4) + 1e-3
        laws, weights = np.array(laws), generator.dirichlet(np.ones(3))
        for order in (2, 4, 6):
            assert psi(order, p, weights @ laws) <= decomposed(order, p, laws, weights) * ROUNDING


@pytest.mark.statement("groups", "Theorem F.3")
@pytest.mark.parametrize("seed", range(6))
def test_insertion_into_a_batch_without_replacement(seed):
    """Two of five records, one of them removed or inserted; N = 4 records without it, the fewest that Q = 3 allows."""
    laws, distances = base_laws(seed, FIVE), induced_distances(FIVE, substituted)
    large, small = without_replacement(FIVE, Batch(range(5)), 2), without_replacement(FIVE, Batch(range(4)), 2)
    assert conditional(large, np.array([4 in y for y in FIVE]))[0] == pytest.approx(2 / 5)  # printed: q / N = 2 / 4
    pairs = [psis(power, laws[:, None], laws[None])[distances <= 1].max() for power in range(7)]

    def bound(order, share):
        terms = (math.comb(order, i) * share**i * (1 - share) ** (order - i) * pairs[i] for i in range(order + 1))
        return 2 * sum(terms)

    for order in (2, 3, 6):
        for pair in ((large, small), (small, large)):
            assert psi(order, *(chances @ laws for chances in pair)) <= bound(order, 2 / 4) * ROUNDING
        assert np.all(np.diff([bound(order, 2 / people) for people in (4, 5, 10, 1000)]) < 0)  # the fewest are worst


@pytest.mark.statement("groups", "Theorem F.3")
def test_theorem_f3_as_printed_does_not_hold_for_poisson_sampling():
    """It names Poisson sampling at a rate r, and r is not in the bound: one record in 100, batches of 2."""
    rate, truth, order, share = 0.9, 0.95, 6, 2 / 100
    first, second = rate * (1 - truth) + (1 - rate) * truth, truth  # whether the record is in turns the bit
    exact = psi(order, np.array([first, 1 - first]), np.array([second, 1 - second]))
    moment = [truth**i * (1 - truth) ** (1 - i) + (1 - truth) ** i * truth ** (1 - i) for i in range(order + 1)]
    terms = (math.comb(order, i) * share**i * (1 - share) ** (order - i) * moment[i] for i in range(order + 1))
    assert exact > 100 * 2 * sum(terms)


# --- Gaussians with means in the plane (Appendix H) -------------------------------------------------------------------

AXIS = np.arange(-17.0, 17.0, 0.25)  # step 0.25 of unit noise: the rule's error is below 1e-12
PLANE = AXIS[:, None] + 1j * AXIS[None, :]
CELL = np.exp(-(np.abs(PLANE) ** 2) / 2) / (2 * math.pi) * 0.25**2
LINE_CELL = norm.pdf(AXIS) * 0.25
ALPHA = 2.5
NOBODY = np.array([1.0]), np.zeros(1, complex)


def ratio(points, weights, means):
    """The mixture's density over the unit Gaussian's."""
    return sum(w * np.exp((points * m.conjugate()).real - abs(m) ** 2 / 2) for w, m in zip(weights, means, strict=True))


def plane_psi(first, second):
    """Psi of two mixtures of unit Gaussians in the plane, each (weights, means as complex numbers)."""
    return float(np.sum(CELL * ratio(PLANE, *first) ** ALPHA * ratio(PLANE, *second) ** (1 - ALPHA)))


def line_psi(first, second):
    points = AXIS.astype(complex)
    return float(np.sum(LINE_CELL * ratio(points, *first) ** ALPHA * ratio(points, *second) ** (1 - ALPHA)))


def steps(generator, number):
    """Means from zero, each at most 1 from the one before, so that all constraints |mu_i - mu_j| <= |i - j| hold."""
    moves = generator.uniform(0, 1, number) * np.exp(2j * np.pi * generator.uniform(size=number))
    return np.concatenate([[0j], np.cumsum(moves)])


def reflected(means, normal, where):
    """Means in the open half-plane (``where`` = 1: upper) are mirrored; the others stay."""
    heights = (means * normal.conjugate()).real
    return np.where(where * heights > 0, means - 2 * heights * normal, means)


WEIGHTS = np.array([0.3, 0.45, 0.25])


@pytest.mark.statement("groups", "Lemma H.2", "Lemma H.3", "Theorem H.1")
@pytest.mark.parametrize("seed", range(6))
def test_mirroring_means_to_one_side_costs_more(seed):
    """One Gaussian against a mixture; pointwise in pairs of mirrored points, in the whole, and up to a half-line."""
    generator = np.random.default_rng(seed)
    means = np.array([0, *(generator.uniform(0.4, 2, 2) * np.exp(2j * np.pi * generator.uniform(size=2)))])
    normal = np.exp(2j * np.pi * generator.uniform())
    while (heights := (means * normal.conjugate()).real).max() <= 0.05 or heights.min() >= -0.05:
        normal = np.exp(2j * np.pi * generator.uniform())
    moved = reflected(means, normal, -1)
    upper = PLANE[(PLANE * normal.conjugate()).real > 1e-9]
    mirror = reflected(upper, normal, 1)

    def integrand(points, chosen):
        return ratio(points, WEIGHTS, chosen) ** (1 - ALPHA)

    gain = integrand(mirror, moved) - integrand(mirror, means) + integrand(upper, moved) - integrand(upper, means)
    close = np.abs(upper) < 4  # far out both sides agree to all digits
    assert np.all(gain[close] > 0)
    assert np.all(gain > -1e-9 * integrand(mirror, moved))
    before, after = plane_psi(NOBODY, (WEIGHTS, means)), plane_psi(NOBODY, (WEIGHTS, moved))
    line = plane_psi(NOBODY, (WEIGHTS, np.abs(means) * np.exp(1j * seed)))
    assert before < after <= line * ROUNDING


@pytest.mark.statement("groups", "Lemma H.10", "Lemma H.11", "Theorem H.9")
@pytest.mark.parametrize("seed", range(6))
def test_mirroring_two_mixtures_to_opposite_sides_costs_more(seed):
    """The sign of the mirror of the second set is misprinted: as printed its means would move away, not across."""
    generator = np.random.default_rng(seed + 20)
    m, n = (
        np.array([0, *(generator.uniform(0.4, 1.5, 2) * np.exp(2j * np.pi * generator.uniform(size=2)))])
        for _ in range(2)
    )
    normal = np.exp(2j * np.pi * generator.uniform())
    while (heights := (n * normal.conjugate()).real).max() <= 0.05 or heights.min() >= -0.05:
        normal = np.exp(2j * np.pi * generator.uniform())
    m_moved, n_moved = reflected(m, normal, -1), reflected(n, normal, 1)
    printed = np.where(heights > 0, n + 2 * heights * normal, n)
    assert (printed * normal.conjugate()).real.max() > 0.05  # not in the lower half-plane, as the lemma says
    assert np.abs(printed).max() > np.abs(n).max() or not np.allclose(np.abs(printed), np.abs(n))
    np.testing.assert_allclose(np.abs(n_moved), np.abs(n), rtol=1e-12)
    assert (n_moved * normal.conjugate()).real.max() <= 1e-12

    upper = PLANE[(PLANE * normal.conjugate()).real > 1e-9]
    mirror = reflected(upper, normal, 1)

    def integrand(points, ours, theirs):
        return ratio(points, WEIGHTS, theirs) ** ALPHA * ratio(points, WEIGHTS, ours) ** (1 - ALPHA)

    after = integrand(mirror, m_moved, n_moved) + integrand(upper, m_moved, n_moved)
    before = integrand(mirror, m, n) + integrand(upper, m, n)
    assert np.all((after > before)[np.abs(upper) < 4])
    assert np.all(after >= before * (1 - 1e-9))
    whole = plane_psi((WEIGHTS, n), (WEIGHTS, m)), plane_psi((WEIGHTS, n_moved), (WEIGHTS, m_moved))
    turn = np.exp(1j * seed)
    line = plane_psi((WEIGHTS, -np.abs(n) * turn), (WEIGHTS, np.abs(m) * turn))
    assert whole[0] < whole[1] <= line * ROUNDING


@pytest.mark.statement("groups", "Lemma H.10")
def test_two_mixtures_on_one_side_are_moved_apart():
    """The lemma's third case: all means above the line, those of the second mixture are mirrored below it."""
    m, n = np.array([0, 1 + 0.2j, 0.5 + 1j]), np.array([0, 0.8 - 0.4j, 1.2 + 0.1j])
    assert min(m.real.min(), n.real.min()) >= 0
    moved = reflected(n, 1 + 0j, 1)
    assert plane_psi((WEIGHTS, moved), (WEIGHTS, m)) > 1.1 * plane_psi((WEIGHTS, n), (WEIGHTS, m))


@pytest.mark.statement("groups", "Theorem H.4", "Lemma H.5", "Theorem H.12", "Lemma H.13")
@pytest.mark.parametrize("seed", range(8))
def test_a_line_of_the_same_radii_costs_more_and_equal_steps_cost_most(seed):
    generator = np.random.default_rng(seed + 40)
    m, n = steps(generator, 2), steps(generator, 2)
    index = np.arange(3)
    for means in (m, n):
        radii = np.abs(means)
        assert np.all(np.abs(radii[:, None] - radii) <= np.abs(index[:, None] - index) + 1e-12)  # still feasible
    of_one = [plane_psi(NOBODY, (WEIGHTS, means)) for means in (m, np.abs(m), index.astype(complex))]
    assert of_one[0] < of_one[1] < of_one[2]
    of_both = [
        plane_psi((WEIGHTS, first), (WEIGHTS, second))
        for first, second in ((n, m), (-np.abs(n) + 0j, np.abs(m) + 0j), (-index + 0j, index + 0j))
    ]
    assert of_both[0] < of_both[1] < of_both[2]


def within_steps(radii):
    """Whether |r_i - r_j| <= |i - j|: the margins of all pairs."""
    return [j - i - abs(radii[j] - radii[i]) for i, j in itertools.combinations(range(len(radii)), 2)]


@pytest.mark.statement("groups", "Lemma H.6", "Lemma H.14")
@pytest.mark.parametrize("both", [False, True])
def test_a_search_in_the_plane_ends_at_the_best_line(both):
    """Constrained maximisation from random means ends at equal steps in one direction, of either turn."""
    index = np.arange(3)
    best = line_psi((WEIGHTS, -index + 0j) if both else NOBODY, (WEIGHTS, index + 0j))
    generator = np.random.default_rng(8)

    def sets(values):
        means = values[::2] + 1j * values[1::2]
        parts = means.reshape(-1, 2)
        return [np.concatenate([[0j], part]) for part in parts]

    def loss(values):
        chosen = sets(values)
        return -math.log(plane_psi((WEIGHTS, chosen[1]) if both else NOBODY, (WEIGHTS, chosen[0])))

    def margins(values):
        pairs = itertools.combinations(range(3), 2)
        pairs = [(i, j, each) for i, j in pairs for each in sets(values)]
        return np.array([(j - i) ** 2 - abs(each[j] - each[i]) ** 2 for i, j, each in pairs])

    start = generator.uniform(-0.4, 0.4, 8 if both else 4)
    found = minimize(loss, start, constraints={"type": "ineq", "fun": margins}, method="SLSQP", options={"ftol": 1e-12})
    assert math.exp(-found.fun) == pytest.approx(best, rel=1e-4)  # the search's own tolerance
    ours, *theirs = sets(found.x)
    turn = ours[2] / abs(ours[2])
    np.testing.assert_allclose(ours, index * turn, atol=0.02)
    if both:
        np.testing.assert_allclose(theirs[0], -index * turn, atol=0.02)


@pytest.mark.statement("groups", "Theorem H.7", "Theorem H.15")
@pytest.mark.parametrize("seed", range(10))
def test_the_largest_radii_on_a_line_cost_most(seed):
    generator = np.random.default_rng(seed)
    index = np.arange(3) + 0j
    r, rho = (np.concatenate([[0], np.abs(np.cumsum(generator.uniform(-0.6, 1, 2)))]) + 0j for _ in range(2))
    assert min(within_steps(r.real) + within_steps(rho.real)) >= -1e-12
    assert line_psi(NOBODY, (WEIGHTS, r)) < line_psi(NOBODY, (WEIGHTS, index))
    assert line_psi((WEIGHTS, -rho), (WEIGHTS, r)) < line_psi((WEIGHTS, -index), (WEIGHTS, index))


@pytest.mark.statement("groups", "Lemma H.8", "Lemma H.16")
@pytest.mark.parametrize("radii", [(0, 0.3, 1.2), (0, 0, 0.5), (0, 2, 1.5)])
@pytest.mark.parametrize("others", [(0, 0, 0), (0, 0.7, 0.2)])
def test_the_divergence_grows_with_every_radius(radii, others):
    """Central differences of 1e-4, whose error is of order 1e-8; the derivatives here are above 1e-4."""

    def value(values):
        r, rho = np.asarray(values[:3]) + 0j, np.asarray(values[3:]) + 0j
        return line_psi((WEIGHTS, -rho) if any(others) else NOBODY, (WEIGHTS, r))

    point = np.array([*radii, *others], dtype=float)
    for i in range(6 if any(others) else 3):
        move = 1e-4 * (np.arange(6) == i)
        assert (value(point + move) - value(point - move)) / 2e-4 > 1e-4
    assert value(np.zeros(6)) == pytest.approx(1.0)


@pytest.mark.statement("groups", "Lemma H.17")
def test_collinear_means_need_one_dimension_only():
    turn = np.exp(0.7j)
    r, rho = np.array([0, 0.8, 1.9]), np.array([0, 1.1, 0.4])
    plane = plane_psi((WEIGHTS, -rho * turn), (WEIGHTS, r * turn))
    assert plane == pytest.approx(line_psi((WEIGHTS, -rho + 0j), (WEIGHTS, r + 0j)), rel=1e-9)
    assert plane > 2
