"""Partitions: an array ``owners`` of shape [records] with the client of every record.

It follows from the data seed and the labels alone. The partitioners of flwr-datasets draw differently and loop over
clients; these keep models with a known seed the same to the bit, and serve millions of clients.
"""

import itertools
import math
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.base.section import Count, Positive, Section
from fedamp.errors import DataError

Indices = NDArray[np.int64]


class DrawnPartition(Section, ABC):
    """Base of the partitions that are drawn at random. A further one is one class, and a name in ``AnyPartition``."""

    by_label: ClassVar[bool] = False  # whether each record needs one class
    scheme: str

    @abstractmethod
    def owners(self, generator: np.random.Generator, labels: Indices, clients: int) -> Indices:
        """The client of every record, shape [records]; ``labels``: their classes, of the same shape."""

    def check_enough(self, records: int, clients: int) -> None:
        """Raises DataError if there are too few records for so many clients. By default no number is too small."""


class IidPartition(DrawnPartition):
    """Records at random, as evenly as integers allow: sizes differ by at most one."""

    scheme: Literal["iid"] = "iid"

    def owners(self, generator: np.random.Generator, labels: Indices, clients: int) -> Indices:
        return generator.permutation(np.arange(len(labels), dtype=np.int64) % clients)

    def check_enough(self, records: int, clients: int) -> None:
        if clients > records:
            raise DataError(f"data.clients: {clients} clients for {records} training records; give at most {records}")


class DirichletPartition(DrawnPartition):
    """Of every label, each client gets a share drawn from a symmetric Dirichlet law; small alpha: different clients.

    Sizes vary, and a client may get nothing (Yurochkin et al. 2019). Given its size, a client's label proportions
    follow the law of the same ``alpha``, up to the normalisation over clients. Shares are rounded to within one record.
    """

    by_label = True
    scheme: Literal["dirichlet"]
    alpha: Positive = Field(0.5, description="the smaller, the more the clients' labels differ")

    def owners(self, generator: np.random.Generator, labels: Indices, clients: int) -> Indices:
        order, starts = _shuffled_by_label(generator, labels)
        owners = np.empty(len(labels), dtype=np.int64)
        for start, stop in itertools.pairwise(starts):
            # Gamma(alpha) = Gamma(alpha + 1) * U ** (1 / alpha), in logarithms: a small alpha would underflow to 0 / 0.
            logs = np.log(generator.standard_gamma(self.alpha + 1, clients))
            logs += np.log1p(-generator.random(clients)) / self.alpha
            weights = np.exp(logs - logs.max())
            limits = np.cumsum(weights / weights.sum())
            middles = (np.arange(stop - start) + 0.5) / max(stop - start, 1)
            # The last limit is one only up to rounding, which must not create a client.
            owners[order[start:stop]] = np.searchsorted(limits[:-1], middles, side="right")
        return owners


class ShardsPartition(DrawnPartition):
    """Records sorted by label and cut into equal shards, as many to every client (McMahan et al. 2017)."""

    by_label = True
    scheme: Literal["shards"]
    shards_per_client: Count = Field(2, description="number of shards of each client; the fewer, the fewer labels")

    def owners(self, generator: np.random.Generator, labels: Indices, clients: int) -> Indices:
        order, _ = _shuffled_by_label(generator, labels)
        shard_owners = generator.permutation(np.repeat(np.arange(clients, dtype=np.int64), self.shards_per_client))
        owners = np.empty(len(labels), dtype=np.int64)
        owners[order] = shard_owners[np.arange(len(labels), dtype=np.int64) * len(shard_owners) // len(labels)]
        return owners

    def check_enough(self, records: int, clients: int) -> None:
        shards = self.shards_per_client
        if clients * shards > records:
            found = f"{clients} clients with {shards} shards each for {records} training records"
            raise DataError(f"data.clients: {found}; give at most {records // shards}")


class NaturalPartition(Section):
    """A column of the data names the client of each record."""

    scheme: Literal["natural"]
    column: str = Field("client", description="column that names each record's client")


AnyPartition = Annotated[
    IidPartition | DirichletPartition | ShardsPartition | NaturalPartition, Field(discriminator="scheme")
]


def hold_out(generator: np.random.Generator, labels: Indices, fraction: float) -> NDArray[np.bool_]:
    """The records held out for testing, shape [records]: the same share of every label, as nearly as integers allow."""
    target = hold_out_size(len(labels), fraction)
    order, starts = _shuffled_by_label(generator, labels)
    counts = np.diff(starts)
    quotas = counts * (target / len(labels))
    take = np.floor(quotas).astype(np.int64)
    largest_remainders = np.argsort(take - quotas, kind="stable")[: target - take.sum()]
    take[largest_remainders] += 1
    held_out = np.zeros(len(labels), dtype=bool)
    rank_in_label = np.arange(len(labels)) - np.repeat(starts[:-1], counts)
    held_out[order[rank_in_label < np.repeat(take, counts)]] = True
    return held_out


def hold_out_size(records: int, fraction: float) -> int:
    """Number of test records: the fraction rounded up, but never all the records."""
    return min(math.ceil(records * fraction), records - 1)


def _shuffled_by_label(generator: np.random.Generator, labels: Indices) -> tuple[Indices, Indices]:
    """Record numbers sorted by label, in random order within a label; and the start of each label, and the end."""
    shuffled = generator.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return order, np.concatenate([[0], np.cumsum(np.bincount(labels))]).astype(np.int64)
