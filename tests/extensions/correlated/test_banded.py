"""Banded noise: its releases are a function of the charged Gaussian mechanism, and it is what the plan says."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedamp.extensions.correlated.mechanisms import (
    BITS,
    BandedGaussian,
    BufferedGaussian,
    best_buffers,
    best_coefficients,
    buffers_of,
    matched,
    of_buffers,
)
from fedamp.federation.model_noise import path_noise
from fedamp.noise import IndependentGaussian, grid_of, norm_of

UNIT = 2.0**-31  # of the sums, for clipping norms in [1/2, 1)
COEFFICIENTS = (0.75, 0.5, 0.25)


BUFFERS = ((308 / 1024, 1000 / 1024), (410 / 1024, 512 / 1024))


def releases(coefficients, sums, deviation=1.0, seed=1, kind=BandedGaussian):
    noise, state, found = kind(coefficients), None, []
    state = noise.init({"w": sums[0]})
    for round_, total in enumerate(sums, 1):
        released = {"w": total.copy()}
        state = noise.update(released, {"w": deviation}, {}, state, seed, round_)
        found.append(released["w"])
    return found


@given(
    st.lists(st.lists(st.integers(-(2**34), 2**34), min_size=3, max_size=3), min_size=1, max_size=7),
    st.sampled_from([(0.5,), COEFFICIENTS, (2.0, 1.5), (1023 / 1024, 513 / 1024)]),
    st.integers(0, 10),
)
@settings(max_examples=60, deadline=None)
def test_a_release_is_a_function_of_the_charged_mechanism(rounds, coefficients, seed):
    """Independent noise on (C x)_t, less a function of earlier releases: the same to the bit, in exact arithmetic."""
    sums = [np.array(row) * UNIT for row in rounds]
    found, deviation = releases(coefficients, sums, seed=seed), norm_of(coefficients)
    grid = Fraction(grid_of(deviation))
    for t, released in enumerate(found):
        earlier = list(zip(coefficients, reversed(range(t)), strict=False))
        for place in range(3):
            mixed = Fraction(sums[t][place]) + sum(Fraction(c) * Fraction(sums[s][place]) for c, s in earlier)
            public = sum((Fraction(c) * Fraction(found[s][place]) for c, s in earlier), Fraction(0))
            whole = round((mixed - public) / grid) * grid
            rest = np.zeros(3)
            rest[place] = float(mixed - public - whole)
            assert Fraction(rest[place]) == mixed - public - whole  # nothing was rounded here
            alone = {"w": rest}
            IndependentGaussian().update(alone, {"w": deviation}, {}, {}, seed, t + 1)
            assert Fraction(released[place]) == Fraction(alone["w"][place]) + whole


def test_the_noise_of_all_rounds_has_the_covariance_of_the_factorisation():
    """C n is white, of the deviation of independent noise times the norm; 60,000 numbers, five standard errors."""
    size, rounds = 20_000, 6
    noise = np.array(releases(COEFFICIENTS, [np.zeros(size)] * rounds, deviation=0.7, seed=3))
    factor = sum(np.diag(np.full(rounds - k, c), -k) for k, c in enumerate((1.0, *COEFFICIENTS)))
    white = factor @ noise / (0.7 * norm_of(COEFFICIENTS))
    assert np.abs(np.cov(white) - np.eye(rounds)).max() < 5 * np.sqrt(2 / size)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("bands", [1, 2, 5])
def test_the_noise_of_the_path_is_that_of_dense_matrices(bands, momentum):
    rounds = 24
    steps = np.cumsum(momentum ** np.arange(rounds))
    coefficients = best_coefficients(bands, steps)
    assert [coefficient * 2**BITS % 1 for coefficient in coefficients] == [0.0] * (bands - 1)
    factor = np.eye(rounds) + sum(np.diag(np.full(rounds - k, c), -k) for k, c in enumerate(coefficients, 1))
    path = sum(np.diag(np.full(rounds - k, each), -k) for k, each in enumerate(steps))
    expected = np.linalg.norm(factor[:bands, 0]) * np.linalg.norm(path @ np.linalg.inv(factor)) / np.sqrt(rounds)
    assert path_noise(coefficients, steps) == pytest.approx(expected, rel=1e-9)
    # No other coefficients near by are better, but for their rounding.
    for k in range(bands - 1):
        for change in (-0.05, 0.05):
            other = [c + change * (i == k) for i, c in enumerate(coefficients)]
            assert path_noise(other, steps) > 0.9999 * path_noise(coefficients, steps)


def test_more_bands_need_less_noise_for_the_same_path():
    steps = np.ones(100)
    found = [path_noise(best_coefficients(bands, steps), steps) for bands in (1, 2, 5, 10)]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(np.sqrt(50.5))  # sums of independent noise


def test_the_audits_adversary_collects_what_is_left_in_later_rows():
    """Against least squares of dense matrices: the likelihood ratio of one contribution, for each of its rounds."""
    rounds, rng = 7, np.random.default_rng(5)
    products = rng.normal(size=(rounds, 2))
    filtered, share = matched(products, COEFFICIENTS)
    factor = sum(np.diag(np.full(rounds - k, c), -k) for k, c in enumerate((1.0, *COEFFICIENTS)))
    precision = factor.T @ factor / norm_of(COEFFICIENTS) ** 2  # inverse covariance of the releases' noise
    assert np.allclose(filtered, precision @ products)
    assert np.allclose(share, np.diag(precision))
    untouched, whole = matched(products, ())
    assert (untouched == products).all()
    assert (whole == 1).all()


def test_earlier_noise_that_float64_may_not_hold_exactly_is_refused():
    noise = BandedGaussian((0.5,))
    state = {"1": {"w": np.full(3, 1e3)}}
    with pytest.raises(ValueError, match="cannot be exact"):
        noise.update({"w": np.zeros(3)}, {"w": 1.0}, {}, state, 1, 2)
    with pytest.raises(ValueError, match="2\\*\\*32"):
        BandedGaussian((0.5,)).update({"w": np.full(3, 2.0**60)}, {"w": 1.0}, {}, noise.init({"w": np.zeros(3)}), 1, 1)


@given(st.lists(st.lists(st.integers(-(2**34), 2**34), min_size=2, max_size=2), min_size=5, max_size=30))
@settings(max_examples=20, deadline=None)
def test_buffers_keep_all_earlier_noise_as_exact_arithmetic_does(rounds):
    coefficients = of_buffers(BUFFERS, 30)
    assert sorted(buffers_of(coefficients)) == sorted(BUFFERS)
    for j, each in enumerate(coefficients):  # rounded up, to a multiple of 2**-30
        exact = sum(Fraction(a) * Fraction(decay) ** j for a, decay in BUFFERS)
        assert exact <= Fraction(each) <= exact + Fraction(2, 2**30)
    sums = [np.array(row) * UNIT for row in rounds]
    found, deviation = releases(coefficients, sums, seed=4, kind=BufferedGaussian), norm_of(coefficients)
    grid, buffers = Fraction(grid_of(deviation)), [[Fraction(0)] * 2 for _ in BUFFERS]
    for t, released in enumerate(found, 1):
        for place in range(2):
            left = sum(Fraction(a) * kept[place] for (a, _), kept in zip(BUFFERS, buffers, strict=True))
            mixed = Fraction(sums[t - 1][place]) - left
            whole, rest = round(mixed / grid) * grid, np.zeros(2)
            rest[place] = float(mixed - whole)
            alone = {"w": rest}
            IndependentGaussian().update(alone, {"w": deviation}, {}, {}, 4, t)
            assert Fraction(released[place]) == Fraction(alone["w"][place]) + whole
            newest = Fraction(released[place]) - Fraction(sums[t - 1][place])
            for (_, decay), kept in zip(BUFFERS, buffers, strict=True):
                kept[place] = Fraction(decay) * kept[place] + newest


def test_the_best_buffers_need_less_noise_than_independent_noise_for_known_rounds():
    steps = np.ones(60)
    found = [best_buffers(d, [steps], 3, 20) for d in (1, 2)]
    column = [np.append(1.0, each) for each in found]
    assert all((np.diff(each) <= 0).all() for each in column)
    known = [np.linalg.norm(sum(np.append(np.zeros(s), each[: 60 - s]) for s in (0, 20, 40))) for each in column]
    costs = [path_noise(each, steps) * one / norm_of(each) / np.sqrt(3) for each, one in zip(found, known, strict=True)]
    assert costs[1] <= costs[0] < 0.7 * path_noise((), steps)
    with pytest.raises(ValueError, match="up to three buffers"):
        BufferedGaussian((0.5, 0.4, 0.39, 0.1, 0.1, 0.05, 0.05))
