"""Batches of a fixed size against real sums: all batches of small federations, and adversaries who see all releases."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from fedamp.accounting import Gaussian, Poisson, RandomisedResponse, Repeat, TruncatedPoisson, WithoutReplacement
from fedamp.accounting.law import Law
from fedamp.accounting.mechanism import numerical_law
from fedamp.extensions.batches.game import BatchGame
from tests.accounting.oracles import delta_of

EPSILONS = (0.0, 0.3, 1.0, 3.0, 8.0)


def release(records, batch, noise, z):
    """Density of the noisy sum of a uniform batch of the records, shape (n, d), on a grid z, shape (points, d)."""
    sums = [np.sum(each, axis=0) for each in itertools.combinations(records, batch)]
    return np.mean([np.prod(norm.pdf(z, each, noise), axis=1) for each in sums], axis=0)


@pytest.mark.parametrize(("batch", "population", "noise"), [(1, 3, 0.4), (2, 4, 1.0), (3, 4, 3.0), (4, 5, 0.8)])
def test_no_records_cost_more_than_opposite_ones_among_equal_ones(batch, population, noise):
    random, mechanism = np.random.default_rng(population), WithoutReplacement(Gaussian(noise), batch, population)
    z = np.arange(-batch - 8 * noise, batch + 8 * noise, 0.02 * noise)[:, None]

    def costs(others, one, other):
        pair = [release([[record], *others], batch, noise, z) * 0.02 * noise for record in (one, other)]
        return np.array([delta_of(*pair, epsilon) for epsilon in EPSILONS])

    charged = [mechanism.delta(epsilon) for epsilon in EPSILONS]
    worst = costs([[1.0]] * (population - 1), -1.0, 1.0)
    # A sum over a grid with a kink in it errs by 5e-4 at most.
    assert worst == pytest.approx([bounds.upper for bounds in charged], rel=5e-4, abs=1e-12)
    assert worst == pytest.approx([bounds.lower for bounds in charged], rel=2e-3, abs=1e-12)  # points of the law
    for _ in range(40):
        *others, one, other = random.choice(
            [random.uniform(-1, 1, population + 1), np.sign(random.normal(size=population + 1))]
        )
        assert (costs([[each] for each in others], one, other) <= worst * (1 + 5e-4) + 1e-9).all()


def test_records_that_are_vectors_cost_no_more():
    random, noise, step = np.random.default_rng(5), 0.8, 0.15
    axis = np.arange(-6.0, 6.0, step)
    z = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    charged = np.array([WithoutReplacement(Gaussian(noise), 2, 4).delta(epsilon).upper for epsilon in EPSILONS])
    for _ in range(12):
        records = random.normal(size=(5, 2))
        *others, one, other = records / np.linalg.norm(records, axis=1, keepdims=True)
        pair = [release([record, *others], 2, noise, z) * step**2 for record in (one, other)]
        assert ([delta_of(*pair, epsilon) for epsilon in EPSILONS] <= charged * (1 + 1e-3) + 1e-9).all()


def cut_sample(records, rate, largest, noise, z):
    """Density of the noisy sum of a Poisson sample, of which a uniform set of at most ``largest`` stays, on a grid."""
    density = np.zeros_like(z)
    for coins in itertools.product((False, True), repeat=len(records)):
        drawn = [record for record, coin in zip(records, coins, strict=True) if coin]
        kept = list(itertools.combinations(drawn, min(largest, len(drawn))))
        chance = rate ** len(drawn) * (1 - rate) ** (len(records) - len(drawn)) / len(kept)
        density += chance * sum(norm.pdf(z, sum(each), noise) for each in kept)
    return density


@pytest.mark.parametrize(("rate", "largest", "noise"), [(0.3, 2, 1.0), (0.6, 1, 0.5), (0.9, 3, 2.0), (0.2, 4, 0.7)])
def test_a_cut_sample_costs_at_least_what_any_others_reveal(rate, largest, noise):
    random, population = np.random.default_rng(largest), 5
    charged = TruncatedPoisson(Gaussian(noise), rate, largest, population)
    bounds = [charged.delta(epsilon) for epsilon in EPSILONS]
    z = np.arange(-largest - 9 * noise, largest + 9 * noise, 0.02 * noise)

    def costs(others, own):
        pair = [cut_sample([each, *others], rate, largest, noise, z) * 0.02 * noise for each in (own, 0.0)]
        return np.array([delta_of(*pair, epsilon) for epsilon in EPSILONS])

    # A sum over a grid errs by 1e-4 at most; delta_of takes the larger of both directions.
    silent = costs([0.0] * (population - 1), 1.0)
    assert silent == pytest.approx([each.lower for each in bounds], rel=3e-3, abs=1e-9)
    extremes = [costs([other] * (population - 1), 1.0) for other in (-1.0, 1.0)]
    drawn = [costs(random.uniform(-1, 1, population - 1), random.choice([-1.0, 1.0])) for _ in range(10)]
    for found in (silent, *extremes, *drawn):
        assert (found <= np.array([each.upper for each in bounds]) * (1 + 1e-4) + 1e-9).all()


def test_a_cut_sample_is_charged_for_zero_out_alone():
    with pytest.raises(ValueError, match="TruncatedPoisson is charged for zero-out, got a mechanism for add/remove"):
        TruncatedPoisson(Gaussian(1.0, relation="add/remove"), 0.1, 2, 9)
    never_cut = TruncatedPoisson(Gaussian(1.0), 0.1, 9, 9).epsilon(1e-5).upper
    # Mixing with laws of weight 0 rounds the points of the law once more.
    assert never_cut == pytest.approx(Poisson(Gaussian(1.0), 0.1).epsilon(1e-5).upper, rel=1e-3)


def losses(rate, noise, others, step, up):
    """Chances, with the person at -1, of losses against the person at 1, in steps, rounded up or down: ``others`` is
    what each of the others sends.
    """
    z = np.linspace(-1 - 9 * noise, 1 + 9 * noise, 20_001)
    # Where all others send the same, a batch's sum tells as much as one of one person.
    inside, outside = ((1 - rate) * norm.pdf(z, others, noise) + rate * norm.pdf(z, at, noise) for at in (-1, 1))
    index = (np.ceil if up else np.floor)(np.log(inside / outside) / step).astype(int)
    first = int(index.min())
    return first, np.bincount(index - first, inside * (z[1] - z[0]))


def losses_in_plane(rate, noise, angles, step):
    """Like ``losses``, rounded down, where the person, the substitute and the others are on the circle at angles."""
    axis = np.arange(-1 - 6 * noise, 1 + 6 * noise, noise / 8)
    z = np.stack(np.meshgrid(axis, axis), axis=-1)
    one, other, rest = (
        np.exp(-((z - [np.cos(at), np.sin(at)]) ** 2).sum(-1) / (2 * noise**2)) for at in np.deg2rad(angles)
    )
    inside, outside = (1 - rate) * rest + rate * one, (1 - rate) * rest + rate * other
    index = np.floor(np.log(inside / outside) / step).astype(int).ravel()
    first = int(index.min())
    return first, np.bincount(index - first, inside.ravel() / inside.sum())


# Angles of the person, the substitute and the others: in a line, in right and in acute triangles, and in between.
TRIPLES = ((180, 0, 0), (180, 0, 180), (180, 0, 20), (180, 0, 90), (180, 0, 130), (120, 0, 240), (150, 0, 255))


def epsilon_of_adversary(rate, noise, rounds, delta, choices, step=0.02, up=False, triples=()):
    """What an adversary reaches who chooses the records of the others each round, given the loss so far (by dynamic
    programming), all losses rounded down (or up). Sums of positive numbers keep a small delta as accurate as a large
    one.
    """
    laws = [losses(rate, noise, others, step, up) for others in choices]
    laws += [losses_in_plane(rate, noise, angles, step) for angles in triples]
    reach = max(abs(first) + len(chances) for first, chances in laws)
    index = np.arange(-6 * reach, 6 * reach + 1)

    def reached(epsilon):
        value = np.maximum(-np.expm1(np.minimum(epsilon - index * step, 0.0)), 0.0)
        for _ in range(rounds):
            wide = np.concatenate([np.zeros(reach), value, np.ones(reach)])  # beyond the grid: nothing, and all
            value = np.max(
                [np.correlate(wide, chances)[reach + first :][: len(index)] for first, chances in laws], axis=0
            )
        return value[6 * reach]

    low, high = 0.0, 40.0
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) > delta else (low, middle)
    return high if up else low


@pytest.mark.few(1, 2)
@pytest.mark.parametrize(
    ("batch", "population", "noise", "rounds", "delta"),
    [(1, 10, 2.0, 8, 1e-5), (3, 10, 2.5, 5, 1e-12), (9, 10, 4.0, 4, 1e-3), (1, 100, 1.5, 10, 1e-9)],
)
def test_an_adversary_who_looks_at_releases_stays_below(batch, population, noise, rounds, delta):
    charged = Repeat(WithoutReplacement(Gaussian(noise), batch, population), rounds).epsilon(delta)
    rate = batch / population
    adaptive = epsilon_of_adversary(rate, noise, rounds, delta, (1.0, 0.3, -0.3, -1.0), triples=TRIPLES)
    above = epsilon_of_adversary(rate, noise, rounds, delta, (1.0, -1.0), up=True)
    assert adaptive <= charged.upper <= adaptive + rounds * 0.02  # each round is rounded by a step
    assert adaptive - rounds * 0.02 <= charged.lower <= above


@pytest.mark.slow
def test_the_game_of_batches_is_near_what_an_adversary_reaches():
    """The product of both orders costs 2.5 % more. Half a step of rounding on each side cancels in the middle."""
    batches, step = Repeat(WithoutReplacement(Gaussian(2.0), 1, 20), 12), 0.008
    charged, product = batches.epsilon(1e-4), batches.epsilon(1e-4, points=1200)
    reached, above = (epsilon_of_adversary(0.05, 2.0, 12, 1e-4, (1.0, -1.0), step, up) for up in (False, True))
    middle = (reached + above) / 2
    assert reached <= charged.upper <= 1.01 * middle < product.upper / 1.01
    assert product.lower < charged.lower <= above
    assert charged.lower == pytest.approx(middle, rel=5e-3)


def test_some_group_of_cells_covers_the_bound_of_any_triangle_at_every_ratio():
    random = np.random.default_rng(6)
    game = BatchGame(numerical_law(Poisson(Gaussian(0.5), 0.1)), 1.0, 0.1, 10, 10.0, half=128)
    losses = game.step * np.arange(1 - game.half, game.half + 1)
    shares = np.maximum(-np.expm1(losses[30:-30:4] - losses[:, None]), 0.0)  # of chances, in the profile at each ratio
    charged = game.cells[:, :-1] @ shares + game.cells[:, -1:]
    for _ in range(200):
        acute = np.pi / 2 * (1 - np.array([each := random.uniform(), random.uniform(0, 1 - each)]))
        person, substitute, change = 2 * np.sin(random.permutation([*acute, np.pi - acute.sum()]))
        kernel = game.kernel(game.one_order(person, change), game.one_order(substitute, change))
        assert (charged >= kernel[:-1] @ shares + kernel[-1] - 1e-13).all(axis=1).any()


def test_adaptive_questions_of_one_bit_cost_no_more():
    """A batch of 1 of 3, of which a bit is told, true with chance 0.8, as the adversary asks: the bit of each batch, in
    the second round by the first answer. All pairs of questions, by enumeration.
    """
    true, questions = 0.8, []
    for others in (0, 1, 2):  # how many of the two others have a bit of 1
        for one, other in itertools.product((0, 1), repeat=2):
            shares = [(others + bit) / 3 for bit in (one, other)]
            questions.append(
                [np.array([(1 - s) * true + s * (1 - true), s * true + (1 - s) * (1 - true)]) for s in shares]
            )
    charged = Repeat(WithoutReplacement(RandomisedResponse(true), 1, 3), 2)
    for epsilon in (0.0, 0.2, 0.5):
        exact = 0.0
        for first, after_0, after_1 in itertools.product(questions, repeat=3):
            laws = [np.concatenate([first[i][0] * after_0[i], first[i][1] * after_1[i]]) for i in (0, 1)]
            exact = max(exact, delta_of(*laws, epsilon))
        bounds = charged.delta(epsilon)
        assert bounds.lower * (1 - 1e-9) <= exact <= bounds.upper * (1 + 1e-9)
        assert bounds.upper <= 1.25 * exact + 1e-9  # one pair serves both orders, and no question has both profiles


@pytest.mark.parametrize("noise", [0.3, 2.0])
def test_several_people_of_a_batch_are_between_real_sums_and_the_charge(noise):
    mechanism, step = WithoutReplacement(Gaussian(noise), 3, 5, size=2), 0.02 * noise
    z = np.arange(-3 - 8 * noise, 3 + 8 * noise, step)[:, None]
    pair = [release([[at], [at], [1.0], [1.0], [1.0]], 3, noise, z) * step for at in (-1.0, 1.0)]
    for epsilon in EPSILONS:
        bounds, real = mechanism.delta(epsilon), delta_of(*pair, epsilon)
        assert real * (1 - 2e-3) - 1e-12 <= bounds.lower <= real * (1 + 5e-4) + 1e-12
        assert real <= bounds.upper * (1 + 5e-4) + 1e-12


def test_a_law_in_either_order_has_the_larger_profile_in_both():
    law = Law.from_points([0.5, 0.8, 1.2, 4.0], [0.2, 0.4, 0.37, 0.03], infinite=0.016)
    both = law.in_either_order()
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        expected = law.remove.delta(epsilon)
        for direction in (both.remove, both.add):
            found = direction.delta(epsilon)
            assert found.lower <= expected.upper
            assert found.upper == pytest.approx(expected.upper, rel=1e-12)
    sampled = Law.from_points([1 / 3, 3.0], [0.75, 0.25])
    assert sampled.in_either_order().epsilon(1e-3).upper == pytest.approx(sampled.epsilon(1e-3).upper, rel=1e-12)


@pytest.mark.slow
def test_one_batch_costs_what_the_sampled_change_costs_and_many_hardly_more():
    one, changed = WithoutReplacement(Gaussian(2.0), 5, 100), Poisson(Gaussian(1.0), 0.05)
    assert one.epsilon(1e-6).upper == pytest.approx(changed.epsilon(1e-6).upper, rel=1e-3)
    many, attained = Repeat(one, 50).epsilon(1e-6), Repeat(changed, 50).epsilon(1e-6)
    assert attained.lower <= many.lower * (1 + 1e-9)
    assert attained.upper <= many.upper <= 1.1 * attained.upper
    game = Repeat(WithoutReplacement(Gaussian(1.0), 10, 100), 100).epsilon(1e-5)
    assert 31.5 < game.lower <= game.upper < game.lower / 0.99
