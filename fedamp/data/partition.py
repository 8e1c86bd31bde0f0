"""Who gets which record.

A partition is an array ``owners`` of shape [records] that holds, for every record, the client it belongs to: every
record is dealt exactly once by construction. Each comes from the data seed and the labels alone.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.data.sections import DirichletPartition, IidPartition, Partition, ShardsPartition
from fedamp.errors import DataError

Indices = NDArray[np.int64]


def deal(scheme: Partition, generator: np.random.Generator, labels: Indices, clients: int) -> Indices:
    """The client of every record, as a scenario's scheme deals them.

    Raises:
        DataError: too few records, as :func:`check_enough`.
    """
    match scheme:
        case IidPartition():
            return iid(generator, len(labels), clients)
        case DirichletPartition(alpha=alpha):
            return dirichlet(generator, labels, clients, alpha)
        case ShardsPartition(shards_per_client=each):
            return shards(generator, labels, clients, each)
    raise ValueError(f"scheme {scheme.scheme}: its column says whose each record is")


def check_enough(scheme: Partition, records: int, clients: int) -> None:
    """Raises DataError, before anything is read, if there are too few records for a scheme to deal."""
    match scheme:
        case IidPartition():
            _check_enough_records(records, clients)
        case ShardsPartition(shards_per_client=each):
            _check_enough_shards(records, clients, each)


def natural_column(scheme: Partition) -> str | None:
    """The column that says whose each record is; None where the scheme deals them."""
    return getattr(scheme, "column", None)


def iid(generator: np.random.Generator, records: int, clients: int) -> Indices:
    """Records dealt at random, as evenly as integers allow: sizes differ by one at most.

    Raises:
        DataError: more clients than records.
    """
    _check_enough_records(records, clients)
    return generator.permutation(np.arange(records, dtype=np.int64) % clients)


def dirichlet(generator: np.random.Generator, labels: Indices, clients: int, alpha: float) -> Indices:
    """Of every label, client c gets a share drawn from a symmetric Dirichlet law (Yurochkin et al. 2019).

    Sizes vary, and a client may stay empty. Given its size, a client's label proportions follow the Dirichlet law of
    the same ``alpha``, up to the normalisation over clients. Shares are rounded to within one record.
    """
    order, starts = _shuffled_by_label(generator, labels)
    owners = np.empty(len(labels), dtype=np.int64)
    for start, stop in itertools.pairwise(starts):
        limits = np.cumsum(_dirichlet_shares(generator, clients, alpha))
        middles = (np.arange(stop - start) + 0.5) / max(stop - start, 1)
        # The last limit is one only up to rounding, which must not create a client.
        owners[order[start:stop]] = np.searchsorted(limits[:-1], middles, side="right")
    return owners


def shards(generator: np.random.Generator, labels: Indices, clients: int, shards_per_client: int) -> Indices:
    """Records sorted by label and cut into equal shards, ``shards_per_client`` of them to each (McMahan et al. 2017).

    Raises:
        DataError: more shards than records.
    """
    _check_enough_shards(len(labels), clients, shards_per_client)
    count = clients * shards_per_client
    order, _ = _shuffled_by_label(generator, labels)
    shard_owners = generator.permutation(np.repeat(np.arange(clients, dtype=np.int64), shards_per_client))
    owners = np.empty(len(labels), dtype=np.int64)
    owners[order] = shard_owners[np.arange(len(labels), dtype=np.int64) * count // len(labels)]
    return owners


def hosted(column: NDArray[Any], ids: Sequence[int], source: str) -> Indices:
    """The clients that a machine holds, from a column that gives their ids in the whole federation.

    Raises:
        DataError: a value that is not one of the ids.
    """
    strangers = column[~np.isin(column, ids)]
    if strangers.size:
        raise DataError(f"{source}: client {strangers[0]!s} is not among the hosted clients of federation.json")
    return column.astype(np.int64)


def hold_out(generator: np.random.Generator, labels: Indices, fraction: float) -> NDArray[np.bool_]:
    """Which records are kept out for testing: the same share of every label, as nearly as integers allow.

    Returns:
        Array of shape [records], true for ``hold_out_size`` of them.
    """
    target = hold_out_size(len(labels), fraction)
    order, starts = _shuffled_by_label(generator, labels)
    counts = np.diff(starts)
    quotas = counts * (target / len(labels))
    take = np.floor(quotas).astype(np.int64)
    largest_remainders = np.argsort(take - quotas, kind="stable")[: target - take.sum()]
    take[largest_remainders] += 1
    kept_out = np.zeros(len(labels), dtype=bool)
    rank_in_label = np.arange(len(labels)) - np.repeat(starts[:-1], counts)
    kept_out[order[rank_in_label < np.repeat(take, counts)]] = True
    return kept_out


def hold_out_size(records: int, fraction: float) -> int:
    """Number of test records: the fraction rounded up, but never all the records."""
    return min(math.ceil(records * fraction), records - 1)


def _check_enough_records(records: int, clients: int) -> None:
    """Raises DataError if there are fewer records than clients to deal one to each."""
    if clients > records:
        raise DataError(f"data.clients: {clients} clients for {records} training records; give at most {records}")


def _check_enough_shards(records: int, clients: int, shards_per_client: int) -> None:
    """Raises DataError if there are fewer records than shards."""
    if clients * shards_per_client > records:
        raise DataError(
            f"data.clients: {clients} clients with {shards_per_client} shards each need as many training records, "
            f"there are {records}; give at most {records // shards_per_client} clients, or fewer shards_per_client"
        )


def _shuffled_by_label(generator: np.random.Generator, labels: Indices) -> tuple[Indices, Indices]:
    """Record numbers sorted by label, in random order within a label; and where each label starts, and the end."""
    shuffled = generator.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(labels))]).astype(np.int64)
    return order, starts


def _dirichlet_shares(generator: np.random.Generator, count: int, alpha: float) -> NDArray[np.float64]:
    # Gamma(alpha) = Gamma(alpha + 1) * U ** (1 / alpha), in logarithms: a small alpha would underflow to 0 / 0.
    logs = np.log(generator.standard_gamma(alpha + 1, count)) + np.log1p(-generator.random(count)) / alpha
    weights = np.exp(logs - logs.max())
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares
