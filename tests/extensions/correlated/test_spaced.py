"""Spaced hidden rounds, and balls in bins, under correlated noise, against oracles that enumerate the schedules."""

import itertools
import math

import numpy as np
import pytest

from fedamp.accounting import (
    Allocation,
    BallsInBins,
    Compose,
    Gaussian,
    Group,
    Repeat,
    Spaced,
    Submodels,
    epsilon_over_rounds,
    from_json,
)
from fedamp.accounting.sampling import Block, RemoveProposal, SampledRun, certify_deltas
from fedamp.extensions.correlated.spaced import SpacedRounds

COEFFICIENTS = (0.6, 0.3)


def schedules(k, rounds, gap):
    every = itertools.combinations(range(rounds), k)
    return [chosen for chosen in every if all(b - a >= gap for a, b in itertools.pairwise(chosen))]


def signals(k, rounds, gap, coefficients, noise, released):
    """The mean of each schedule's outputs over the deviation of the noise, shape (schedules, released); k 0: bins."""
    column = np.array([1.0, *coefficients])
    column /= np.linalg.norm(column) * noise
    means = np.zeros((0, rounds + len(column)))
    for chosen in schedules(k, rounds, gap) if k else [range(first, rounds, gap) for first in range(gap)]:
        mean = np.zeros(rounds + len(column))
        for s in chosen:
            mean[s : s + len(column)] += column
        means = np.vstack([means, mean])
    return means[:, :released]


def ratio(z, means):
    return np.exp(z @ means.T - (means**2).sum(1) / 2).mean(1)


BANDS, WHOLE = (0.6,), (0.6, 0.4, 0.3, 0.2)  # the latter has no bands


@pytest.mark.few(1, 2, 4, 6)
@pytest.mark.parametrize(
    ("k", "rounds", "released", "coefficients"),
    [
        (1, 3, 3, BANDS),
        (2, 3, 3, BANDS),
        (2, 5, 3, BANDS),
        (1, 3, 3, WHOLE[:2]),
        (2, 5, 3, WHOLE),
        (0, 4, 4, BANDS),
        (0, 5, 3, WHOLE),
    ],
)
def test_brackets_hold_the_integral_and_the_add_direction_is_the_smaller_one(k, rounds, released, coefficients):
    means = signals(k, rounds, 2, coefficients, 1.1, released)
    step = 0.16 if released < 4 else 0.4  # smooth but for a kink, over four rows
    nodes = np.arange(-8, 8.01, step)
    grid = np.stack(np.meshgrid(*[nodes] * released), axis=-1).reshape(-1, released)
    weight = np.exp(-(grid**2).sum(1) / 2)
    weight, x = weight / weight.sum(), ratio(grid, means)
    one = Gaussian(1.1)
    run = Spaced(one, k, rounds, 2, coefficients) if k else BallsInBins(one, rounds, 2, coefficients)
    event = run.after(released)
    for epsilon in (0.3, 1.5):
        remove = weight @ np.maximum(x - math.exp(epsilon), 0)
        assert weight @ np.maximum(1 - math.exp(epsilon) * x, 0) <= remove * 1.002
        bounds = event.delta(epsilon, precision=0.05)
        # The trapezoid rule with kinks is off by less than one part in 500.
        assert bounds.lower <= remove * 1.002
        assert bounds.upper >= remove * 0.998
        assert bounds.width <= 0.08 * bounds.upper


@pytest.mark.few(1, 2, 4, 7)
@pytest.mark.parametrize(("k", "rounds", "released", "noise"), [(3, 12, 12, 1.5), (2, 10, 7, 0.9)])
@pytest.mark.parametrize("coefficients", [COEFFICIENTS, tuple(0.4 * 0.6**i for i in range(9))])
@pytest.mark.parametrize("listed", [400, 0])
def test_plain_draws_over_all_schedules_agree(k, rounds, released, noise, coefficients, listed, monkeypatch):
    monkeypatch.setattr("fedamp.extensions.correlated.spaced._MOST_SETS", listed)  # one by one, or by the recursion
    means = signals(k, rounds, 3, coefficients, noise, released)
    rng = np.random.default_rng(3)
    z = rng.standard_normal((60_000, released)) + means[rng.integers(len(means), size=60_000)]
    values = np.maximum(1 - math.e / ratio(z, means), 0)
    margin = 5 * values.std() / math.sqrt(len(values))
    bounds = Spaced(Gaussian(noise), k, rounds, 3, coefficients).after(released).delta(1.0, precision=0.05)
    assert bounds.lower <= values.mean() + margin
    assert bounds.upper >= values.mean() - margin


def test_what_columns_far_apart_share_is_between_the_ends_of_all_sets():
    coefficients = tuple(0.4 * 0.8**i for i in range(13))
    means, run = (
        signals(3, 14, 3, coefficients, 0.9, 14),
        SpacedRounds(Spaced(Gaussian(0.9), 3, 14, 3, coefficients), 0.9),
    )
    columns = signals(1, 14, 3, coefficients, 0.9, 14)
    apart = np.abs(np.subtract.outer(np.arange(14), np.arange(14)))
    far, sets = np.where(apart >= 3, columns @ columns.T, 0.0), np.array(schedules(3, 14, 3))
    between = far[sets[:, None, :, None], sets[None, :, None, :]].sum(axis=(2, 3))
    inside = np.diagonal(between) / 2
    for (middle, half), true in zip(run.far_overlaps, (inside, between), strict=True):
        assert middle - half <= true.min()
        assert middle + half >= true.max()
        assert half <= true.max()  # no worse than to know nothing
    assert (means**2).sum(1).max() * 0.9**2 == pytest.approx(run.event.known_signal)


def test_noise_without_bands_costs_as_known_rounds_where_nothing_hides():
    coefficients = tuple(0.4 * 0.8**i for i in range(11))
    in_one_bin = signals(0, 12, 4, coefficients, 1.3, 12)[0]
    known = Gaussian(1 / np.linalg.norm(in_one_bin))
    event = BallsInBins(Gaussian(1.3), 12, 4, coefficients)
    assert event.unamplified().noise_multiplier == pytest.approx(known.noise_multiplier, rel=1e-6)
    assert event.unamplified().noise_multiplier < known.noise_multiplier  # the buffers are charged
    split = BallsInBins(Submodels(Gaussian(1.3), 3), 12, 4, coefficients)
    assert split.epsilon(1e-5).upper == pytest.approx(known.epsilon(1e-5).upper, rel=1e-3)
    assert event.epsilon(1e-5).upper < 0.85 * split.epsilon(1e-5).upper


def test_the_first_round_alone_is_exact():
    """The mean over all sets, by a sum over noise of one row."""
    event, z = Spaced(Gaussian(0.9), 2, 9, 3, COEFFICIENTS).after(1), np.arange(-12, 12, 1e-3)
    exact_ratio, masses = ratio(z[:, None], signals(2, 9, 3, COEFFICIENTS, 0.9, 1)), np.exp(-(z**2) / 2)
    for epsilon in (0.1, 0.5, 2.0):
        exact = np.maximum(exact_ratio - np.exp(epsilon), 0.0) @ masses / masses.sum()
        found = event.delta(epsilon)
        assert found.lower * (1 - 1e-5) <= exact <= found.upper * (1 + 1e-5)  # of a sum with a kink
        assert found.upper < 1.01 * found.lower


def test_without_bands_and_gap_it_is_the_allocation():
    exact, found = Allocation(Gaussian(1.0), 2, 10).epsilon(1e-5), Spaced(Gaussian(1.0), 2, 10, 1, ()).epsilon(1e-5)
    assert found.lower <= exact.upper
    assert exact.lower <= found.upper <= 1.02 * exact.upper


def test_the_chances_of_rounds_and_the_moments_are_those_of_the_enumeration():
    means = signals(2, 8, 3, COEFFICIENTS, 0.9, 8)
    profile = Spaced(Gaussian(0.9), 2, 8, 3, COEFFICIENTS).sampled_profile()
    (rounds,) = profile.upper.factors
    shares = np.bincount(np.ravel(schedules(2, 8, 3)), minlength=8) / len(means)
    assert rounds.round_shares == pytest.approx(shares)
    overlaps = means @ means.T
    for order in (2, 3, 4):
        logs = np.zeros((len(means),) * order)
        for i, j in itertools.combinations(range(order), 2):
            places = [1] * order
            places[i] = places[j] = len(means)
            logs = logs + overlaps.reshape(places)
        assert RemoveProposal(profile.upper, order).log_moment == pytest.approx(math.log(np.exp(logs).mean()))
    # E[G] under the mean's Gaussian: exp of half its squared length, less half the mean squared length of the columns.
    mean = means.mean(0)
    drifted = rounds.tilted_factor(2, 1.5).drifted_moment
    pairs = overlaps + 1.5 * (means @ mean)[:, None] + 1.5 * (means @ mean)[None, :]
    lengths = 1.5**2 * mean @ mean / 2 - 1.5 * (means**2).sum(1).mean() / 2
    assert drifted == pytest.approx(math.log(np.exp(pairs).mean()) + lengths)


@pytest.mark.parametrize(
    ("event", "exists"),
    [
        (Spaced(Gaussian(1.5), 3, 40, 3, COEFFICIENTS), True),
        (Spaced(Gaussian(1.5), 2, 9, 3, COEFFICIENTS), True),
        (BallsInBins(Gaussian(1.5), 12, 4, COEFFICIENTS), True),
        (Spaced(Gaussian(1.5), 3, 40, 3, COEFFICIENTS).after(30), False),
        (Spaced(Gaussian(1.5), 2, 9, 2, WHOLE), True),
        (Spaced(Gaussian(1.5), 2, 9, 3, WHOLE).after(5), False),
    ],
)
def test_log_x_is_linear_along_the_common_direction(event, exists):
    """Over its length squared, the direction moves log X by as much as it is moved, wherever it starts."""
    (factor,) = event.sampled_profile().upper.factors
    rows = np.random.default_rng(2).standard_normal((20, event.span))
    before = factor.log_ratios(rows)[0]
    assert (factor.common_spread > 0) == exists
    for amount in (-3.0, 0.5, 4.0) if exists else ():
        after = factor.log_ratios(rows + amount * factor.common_direction / factor.common_spread**2)[0]
        assert after - before == pytest.approx(amount, abs=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("drift", [0.0, 1.5])
def test_proposals_of_products_reproduce_their_moment(drift):
    """E_R[dQ/dR] = E_R[X dQ/dR] = 1 for two spaced runs, one of them a beginning, and hidden rounds beside them."""
    events = Spaced(Gaussian(2.0), 2, 9, 3, COEFFICIENTS), Spaced(Gaussian(3.0), 3, 12, 3, COEFFICIENTS).after(7)
    whole = Compose([Repeat(events[0], 2), events[1], Allocation(Gaussian(3.0), 2, 6), Gaussian(4.0)])
    run, draws = whole.sampled_profile().upper, 200_000
    assert sum(each.copies for each in run.factors) == 5
    log_a, log_b = RemoveProposal(run, 3, 0, drift).draw(np.random.default_rng(2), draws)
    for values in (np.exp(log_a), np.exp(log_b)):
        assert values.mean() == pytest.approx(1.0, abs=5 * values.std() / math.sqrt(draws))


@pytest.mark.few(0, 2)
@pytest.mark.parametrize("beside", [Gaussian(4.0), Allocation(Gaussian(2.0), 1, 3), None])
def test_it_composes_with_other_releases_and_with_itself(beside):
    """Plain draws over all schedules of a run, and what is beside it: an evaluation, hidden rounds, itself."""
    event, rng, draws = Spaced(Gaussian(1.7), 2, 8, 3, COEFFICIENTS), np.random.default_rng(5), 100_000
    whole = Compose([event, beside]) if beside else Repeat(event, 2)
    parts = [signals(2, 8, 3, COEFFICIENTS, 1.7, 8)]
    parts += (
        [parts[0]] if beside is None else [np.eye(3) / 2 if isinstance(beside, Allocation) else np.full((1, 1), 0.25)]
    )
    ratios = np.ones(draws)
    for means in parts:
        ratios *= ratio(
            rng.standard_normal((draws, means.shape[1])) + means[rng.integers(len(means), size=draws)], means
        )
    for epsilon in (0.7, 1.5):
        values = np.maximum(1 - math.exp(epsilon) / ratios, 0)
        margin = 5 * values.std() / math.sqrt(draws)
        bounds = whole.delta(epsilon, precision=0.05)
        assert bounds.lower <= values.mean() + margin
        assert bounds.upper >= values.mean() - margin
        assert bounds.width <= 0.08 * bounds.upper


def test_each_round_of_a_run_is_certified_from_shared_draws():
    """Each beginning's delta, certified from draws of the whole run, holds what plain draws of that beginning say."""
    event, epsilon, draws = Spaced(Gaussian(1.5), 3, 12, 3, COEFFICIENTS), 0.5, 60_000
    rounds = [4, 6, 7, 9, 11]
    parts = [SpacedRounds(event.after(number), 1.5) for number in rounds]
    block = Block(RemoveProposal(SampledRun((parts[-1],)), 3), parts)
    at = np.full((len(rounds), 1), epsilon)
    upper, lower = certify_deltas(block, at, at, draws, 1e-6)
    rng = np.random.default_rng(4)
    for number, above, below in zip(rounds, upper[:, 0], lower[:, 0], strict=True):
        means = signals(3, 12, 3, COEFFICIENTS, 1.5, number)
        z = rng.standard_normal((draws, number)) + means[rng.integers(len(means), size=draws)]
        values = np.maximum(1 - math.exp(epsilon) / ratio(z, means), 0)
        margin = 5 * values.std() / math.sqrt(draws)
        assert below - margin <= values.mean() <= above + margin
        assert above - below <= 0.15 * above


@pytest.mark.slow
def test_the_curve_over_rounds_is_no_staircase():
    """Every round is within three per cent of its own answer: one of each, and one for the steps between them."""
    event = Spaced(Gaussian(1.6), 3, 24, 4, COEFFICIENTS)
    curve = epsilon_over_rounds(event, 1e-5)
    assert len(set(curve.tolist())) > 20
    for number in (5, 13, 21):
        alone = event.after(number).epsilon(1e-5)
        assert alone.lower <= curve[number - 1] <= 1.03 * alone.upper


def test_what_it_costs_lies_between_no_bands_and_known_rounds():
    event = Spaced(Gaussian(1.2), 3, 30, 3, COEFFICIENTS)
    bounds = event.epsilon(1e-5, precision=0.05)
    assert Allocation(Gaussian(1.2), 3, 30).epsilon(1e-5, points=300).lower < bounds.lower
    assert bounds.upper < event.unamplified().epsilon(1e-5).upper
    assert from_json(event.to_json()) == event


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Spaced(Gaussian(1.0), 2, 9, 2, (0.5, 0.6)), "at least the bands"),
        (lambda: BallsInBins(Gaussian(1.0), 3, 2, (0.5, 0.4, 0.3)), "or the rounds with coefficients that never rise"),
        (lambda: Spaced(Gaussian(1.0), 3, 4, 2, ()), "do not fit"),
        (lambda: Spaced(Gaussian(1.0), 2, 9, 2, (-0.5,)), "coefficients must be"),
        (lambda: Group(Spaced(Gaussian(1.0), 2, 9, 2, (0.5,)), 2), "expected: size 1"),
    ],
)
def test_what_is_not_covered_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(("released", "order"), [(1, 2), (3, 2), (6, 3), (9, 2)])
def test_moments_of_a_beginning_are_those_of_all_tuples_of_sets(released, order):
    """3 of 9 rounds, two apart, two bands: E[X^t] is the mean of exp(sum of <C 1_S, C 1_S'>) over all t-tuples."""
    event = Spaced(Gaussian(0.8), 3, 9, 2, (0.5,)).after(released)
    (factor,) = event.sampled_profile().upper.factors
    column = np.array([1.0, 0.5]) / math.hypot(1.0, 0.5) / 0.8
    signals = []
    for each in itertools.combinations(range(9), 3):
        if min(np.diff(each)) >= 2:
            signals.append(np.convolve(np.isin(np.arange(9), each), column)[:released])
    total = 0.0
    for some in itertools.product(np.array(signals), repeat=order):
        total += math.exp(sum(float(a @ b) for a, b in itertools.combinations(some, 2)))
    found = factor.tilted_factor(order).log_moment
    assert found == pytest.approx(math.log(total / len(signals) ** order), rel=1e-12, abs=1e-13)


@pytest.mark.slow
def test_the_first_rounds_of_a_curve_are_known_to_three_per_cent():
    """After two rounds at most one of them is a person's: X on a grid of two outputs, by counts of schedules."""
    event = Spaced(Gaussian(1.0), 4, 40, 4, (0.6, 0.4, 0.3))
    starts = math.comb(40 - 3 * 3, 4)  # and those that begin in the first round: the others from round 5 on
    first, second = math.comb(36 - 2 * 3, 3) / starts, math.comb(35 - 2 * 3, 3) / starts
    column = np.array([1.0, 0.6]) / np.linalg.norm([1.0, 0.6, 0.4, 0.3])
    z, step = np.linspace(-9, 11, 1601, retstep=True)
    mass = np.multiply.outer(*2 * (np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * step,))
    x, y = z[:, None], z[None]
    ratio = 1 - first - second + first * np.exp(column[0] * x + column[1] * y - column @ column / 2)
    ratio = ratio + second * np.exp(column[0] * y - column[0] ** 2 / 2)
    spent = epsilon_over_rounds(event, 1e-5)[1]

    def exact(epsilon):
        return float((mass * np.maximum(ratio - math.exp(epsilon), 0)).sum())

    assert exact(spent) <= 1e-5 <= exact(0.97 * spent)
