"""Partitions: every record has one client, sizes and labels as promised, the same from the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedamp.data import partition
from fedamp.errors import DataError

SEEDS = st.integers(0, 2**32)
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=300).map(lambda labels: np.array(labels, dtype=np.int64))

IID = partition.IidPartition()


def dirichlet(alpha):
    return partition.DirichletPartition(scheme="dirichlet", alpha=alpha)


def shards(per_client):
    return partition.ShardsPartition(scheme="shards", shards_per_client=per_client)


def generator(seed):
    return np.random.Generator(np.random.Philox(seed))


@given(SEEDS, LABELS, st.integers(1, 40), st.floats(1e-4, 1e4), st.integers(1, 3))
def test_every_record_gets_one_client_and_the_same_one_again(seed, labels, clients, alpha, per_client):
    schemes = [lambda: dirichlet(alpha).owners(generator(seed), labels, clients)]
    if clients <= len(labels):
        schemes.append(lambda: IID.owners(generator(seed), labels, clients))
    if clients * per_client <= len(labels):
        schemes.append(lambda: shards(per_client).owners(generator(seed), labels, clients))
    for scheme in schemes:
        owners = scheme()
        assert owners.shape == labels.shape
        assert owners.min() >= 0
        assert owners.max() < clients
        assert np.array_equal(owners, scheme())


def test_iid_puts_every_record_with_every_client_equally_often():
    counts = np.zeros((6, 3))
    for seed in range(3000):
        counts[np.arange(6), IID.owners(generator(seed), np.zeros(6), 3)] += 1
    # Each cell is binomial(3000, 1/3) with standard deviation 26: five of them, for 18 cells, fail once in 10^5.
    assert np.abs(counts - 1000).max() < 130


@given(SEEDS, st.integers(1, 20), st.integers(1, 4), st.integers(1, 8))
def test_shards_are_equal_and_of_few_labels(seed, clients, per_client, shard_size):
    labels = generator(seed + 1).permutation(np.arange(clients * per_client * shard_size) // shard_size)
    owners = shards(per_client).owners(generator(seed), labels, clients)
    assert (np.bincount(owners, minlength=clients) == per_client * shard_size).all()
    # Every label fills exactly one shard here, so a client holds as many labels as shards.
    assert all(len(np.unique(labels[owners == client])) == per_client for client in range(clients))


@given(SEEDS, LABELS, st.data())
def test_sizes_differ_by_one_at_most_for_each_shard(seed, labels, data):
    clients = data.draw(st.integers(1, len(labels)))
    for scheme, most in ((IID, 1), (shards(1), 1), (shards(2), 2)) if 2 * clients <= len(labels) else ((IID, 1),):
        sizes = np.bincount(scheme.owners(generator(seed), labels, clients), minlength=clients)
        assert sizes.max() - sizes.min() <= most


@given(SEEDS)
def test_large_alpha_gives_everybody_the_same_share_of_every_label(seed):
    labels = np.repeat(np.arange(4), 500)
    owners = dirichlet(1e9).owners(generator(seed), labels, 10)
    table = np.array([np.bincount(labels[owners == client], minlength=4) for client in range(10)])
    # Shares are 0.1 to within 1e-4, so counts are 50, rounded to within one record at both ends.
    assert np.abs(table - 50).max() <= 1


def test_small_alpha_gives_every_label_to_one_client_and_leaves_others_empty():
    labels = np.repeat(np.arange(4), 500)
    owners = dirichlet(1e-6).owners(generator(3), labels, 10)
    assert all(len(np.unique(owners[labels == label])) == 1 for label in range(4))
    assert len(np.unique(owners)) <= 4


def test_dirichlet_shares_have_the_moments_of_the_law():
    clients, alpha, runs = 5, 0.5, 2000
    labels = np.zeros(10_000, dtype=np.int64)
    shares = [
        np.bincount(dirichlet(alpha).owners(generator(seed), labels, clients), minlength=clients) / len(labels)
        for seed in range(runs)
    ]
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * alpha + 1)
    # Standard errors over 2,000 runs: 0.005 for the mean, under 5 % for the variance; five of each are allowed.
    assert np.abs(np.mean(shares, axis=0) - mean).max() < 5 * np.sqrt(variance / runs)
    assert np.abs(np.var(shares, axis=0) / variance - 1).max() < 0.25


@given(SEEDS, st.lists(st.integers(0, 6), min_size=2, max_size=300), st.floats(0.001, 0.999))
def test_the_test_set_is_stratified(seed, labels, fraction):
    labels = np.array(labels, dtype=np.int64)
    kept_out = partition.hold_out(generator(seed), labels, fraction)
    size = partition.hold_out_size(len(labels), fraction)
    assert kept_out.sum() == size
    assert 1 <= size < len(labels)
    expected = np.bincount(labels) * size / len(labels)
    # A label's share is rounded up or down; 1e-9 absorbs the rounding of the product.
    assert np.abs(np.bincount(labels[kept_out], minlength=len(expected)) - expected).max() < 1 + 1e-9


@settings(max_examples=20)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 3))
def test_too_few_records_are_refused(records, more, per_client):
    with pytest.raises(DataError, match=f"give at most {records}$"):
        IID.check_enough(records, records + more)
    with pytest.raises(DataError, match=f"give at most {records // per_client}$"):
        shards(per_client).check_enough(records, records // per_client + more)
