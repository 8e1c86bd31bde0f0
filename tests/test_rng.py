"""Addressed randomness: the same numbers for the same address, unrelated ones for any other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedamp import rng

ADDRESS = st.tuples(st.integers(0, 2**128), st.sampled_from(["noise", "check-in"]), st.integers(0, 10**6))


@given(ADDRESS, ADDRESS)
def test_streams_are_equal_exactly_where_their_addresses_are(one, other):
    first, second = rng.stream(*one).integers(2**62, size=4), rng.stream(*other).integers(2**62, size=4)
    assert np.array_equal(first, second) == (one == other)


def test_a_stream_does_not_depend_on_what_was_drawn_before():
    expected = rng.stream(7, "noise", 3).standard_normal(5)
    rng.stream(7, "noise", 2).standard_normal(1000)
    np.random.default_rng(0)
    assert np.array_equal(rng.stream(7, "noise", 3).standard_normal(5), expected)


def test_indices_are_told_apart():
    drawn = {int(rng.stream(1, "x", *indices).integers(2**62)) for indices in [(), (1,), (1, 1), (11,), (0, 1)]}
    assert len(drawn) == 5


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20, unique=True), st.randoms())
def test_client_seeds_do_not_depend_on_who_else_is_asked(clients, random):
    shuffled = random.sample(clients, len(clients))
    seeds = dict(zip(clients, rng.client_seeds(5, "units", 9, np.array(clients)), strict=True))
    again = dict(zip(shuffled, rng.client_seeds(5, "units", 9, np.array(shuffled)), strict=True))
    assert seeds == again
    assert len(set(seeds.values())) == len(clients)
    assert all(seed < 2**63 for seed in seeds.values())


def test_uniforms_are_uniform_and_independent_between_seeds_counters_and_purposes():
    seeds = rng.client_seeds(3, "units", 1, np.arange(2000))
    drawn = rng.uniforms(seeds, "order", 50)
    assert drawn.shape == (2000, 50)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # A fixed seed makes this a deterministic check; a uniform sample fails it with probability 1e-4.
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-4
    correlation = np.corrcoef(drawn[:, :10], rowvar=False) - np.eye(10)
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)  # five standard errors of a zero correlation
    assert np.abs(np.corrcoef(drawn[:, 0], rng.uniforms(seeds, "mask", 1)[:, 0])[0, 1]) < 5 / np.sqrt(2000)


def test_a_public_seed_tells_purposes_apart_and_is_not_the_seed():
    assert len({7, rng.public_seed(7, "data"), rng.public_seed(7, "model"), rng.public_seed(8, "data")}) == 4


@pytest.mark.parametrize("bits", [128])
def test_the_system_seed_is_fresh(bits):
    assert rng.seed_from_system() != rng.seed_from_system()
    assert rng.seed_from_system() < 2**bits
