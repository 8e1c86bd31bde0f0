"""Partition records among clients: an array ``owners`` of shape [records] has the client of every record.

It follows from the data seed and the labels alone. The partitioners of flwr-datasets draw differently and loop over
clients; these keep models with a known seed the same to the bit, and serve millions of clients.

A partition rehearses a federation on data that are all in one place. Real people's records come with their owner
(``natural``). :mod:`fedamp.data.stored` calls these; a further one is a class here.
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
        """Draw the client of every record.

        Args:
            generator: public, from the data seed.
            labels: class of every record, int64 [records]; zeros where labels are no classes.
            clients: their number.

        Returns:
            int64 [records], in 0 ... clients - 1.
        """

    def check_enough(self, records: int, clients: int) -> None:
        """Refuse too few records for so many clients. By default no number is too small.

        Raises:
            DataError: the number of clients is too large, with the largest that fits.
        """


class IidPartition(DrawnPartition):
    """Records at random, as evenly as integers allow: sizes differ by at most one."""

    scheme: Literal["iid"] = "iid"

    def owners(self, generator: np.random.Generator, labels: Indices, clients: int) -> Indices:
        """Deal the records to the clients in turn, in random order."""
        return generator.permutation(np.arange(len(labels), dtype=np.int64) % clients)

    def check_enough(self, records: int, clients: int) -> None:
        """Refuse more clients than records: each gets one at least."""
        if clients > records:
            raise DataError(f"data.clients: {clients} clients for {records} training records; give at most {records}")


class DirichletPartition(DrawnPartition):
    """Each client gets a share of every label, drawn from a symmetric Dirichlet law; small alpha: different clients.

    Sizes vary, and a client may get nothing (Yurochkin et al. 2019). Given its size, a client's label proportions
    follow the law of the same ``alpha``, up to the normalisation over clients. Shares are rounded to within one record.
    """

    by_label = True
    scheme: Literal["dirichlet"]
    alpha: Positive = Field(0.5, description="the smaller, the more the clients' labels differ")

    def owners(self, generator: np.random.Generator, labels: Indices, clients: int) -> Indices:
        """Cut each label's records, in random order, by shares from the Dirichlet law."""
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
        """Deal the shards in random order; a shard has records of one label, or of neighbouring ones."""
        order, _ = _shuffled_by_label(generator, labels)
        shard_owners = generator.permutation(np.repeat(np.arange(clients, dtype=np.int64), self.shards_per_client))
        owners = np.empty(len(labels), dtype=np.int64)
        owners[order] = shard_owners[np.arange(len(labels), dtype=np.int64) * len(shard_owners) // len(labels)]
        return owners

    def check_enough(self, records: int, clients: int) -> None:
        """Refuse more shards than records."""
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
    """Choose the records held out for testing: the same share of every label, as nearly as integers allow.

    Args:
        generator: public, from the data seed.
        labels: class of every record, int64 [records].
        fraction: of the records, in (0, 1).

    Returns:
        bool [records].
    """
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
    """Return the number of test records: the fraction rounded up, but never all the records.

    >>> hold_out_size(10, 0.25), hold_out_size(1, 0.25)
    (3, 0)
    """
    return min(math.ceil(records * fraction), records - 1)


def _shuffled_by_label(generator: np.random.Generator, labels: Indices) -> tuple[Indices, Indices]:
    """Sort record numbers by label, in random order within a label.

    Returns:
        Record numbers, int64 [records]; and the start of each label among them, with the end.
    """
    shuffled = generator.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return order, np.concatenate([[0], np.cumsum(np.bincount(labels))]).astype(np.int64)
