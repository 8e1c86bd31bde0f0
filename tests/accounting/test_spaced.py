"""Spaced hidden rounds, and balls in bins, under correlated noise, against oracles that enumerate the schedules."""

import itertools
import math

import numpy as np
import pytest

from fedamp.accounting import Allocation, BallsInBins, Gaussian, Group, Spaced, Submodels, from_json
from fedamp.accounting.answers import sampled_profile
from fedamp.accounting.hidden_rounds import SpacedRun

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


@pytest.mark.parametrize(("k", "rounds", "released", "noise"), [(3, 12, 12, 1.5), (2, 10, 7, 0.9)])
@pytest.mark.parametrize("coefficients", [COEFFICIENTS, tuple(0.4 * 0.6**i for i in range(9))])
@pytest.mark.parametrize("listed", [400, 0])
def test_plain_draws_over_all_schedules_agree(k, rounds, released, noise, coefficients, listed, monkeypatch):
    monkeypatch.setattr("fedamp.accounting.hidden_rounds._MOST_SETS", listed)  # one by one, or by the recursion
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
        SpacedRun((), Spaced(Gaussian(0.9), 3, 14, 3, coefficients), 0.9),
    )
    columns = signals(1, 14, 3, coefficients, 0.9, 14)
    apart = np.abs(np.subtract.outer(np.arange(14), np.arange(14)))
    far, sets = np.where(apart >= 3, columns @ columns.T, 0.0), np.array(schedules(3, 14, 3))
    between = far[sets[:, None, :, None], sets[None, :, None, :]].sum(axis=(2, 3))
    inside = np.diagonal(between) / 2
    for (middle, half), true in zip(run.far, (inside, between), strict=True):
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


def test_without_bands_and_gap_it_is_the_allocation():
    exact, found = Allocation(Gaussian(1.0), 2, 10).epsilon(1e-5), Spaced(Gaussian(1.0), 2, 10, 1, ()).epsilon(1e-5)
    assert found.lower <= exact.upper
    assert exact.lower <= found.upper <= 1.02 * exact.upper


def test_the_chances_of_rounds_and_the_moments_are_those_of_the_enumeration():
    means = signals(2, 8, 3, COEFFICIENTS, 0.9, 8)
    profile = sampled_profile(Spaced(Gaussian(0.9), 2, 8, 3, COEFFICIENTS))
    shares = np.bincount(np.ravel(schedules(2, 8, 3)), minlength=8) / len(means)
    assert profile.upper.shares == pytest.approx(shares)
    overlaps = means @ means.T
    for order in (2, 3):
        logs = np.zeros((len(means),) * order)
        for i, j in itertools.combinations(range(order), 2):
            places = [1] * order
            places[i] = places[j] = len(means)
            logs = logs + overlaps.reshape(places)
        assert profile.remove(profile.upper, order).log_moment == pytest.approx(math.log(np.exp(logs).mean()))
    # E[G] under the mean's Gaussian: exp of half its squared length, less half the mean squared length of the columns.
    mean = means.mean(0)
    drifted = profile.remove(profile.upper, 2, 1.5)._drifted_moment
    pairs = overlaps + 1.5 * (means @ mean)[:, None] + 1.5 * (means @ mean)[None, :]
    lengths = 1.5**2 * mean @ mean / 2 - 1.5 * (means**2).sum(1).mean() / 2
    assert drifted == pytest.approx(math.log(np.exp(pairs).mean()) + lengths)


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
