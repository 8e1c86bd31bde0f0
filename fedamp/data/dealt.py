"""Stored records, dealt to clients."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedamp.data.dataset import Cohort, LabelCounts, check_clients
from fedamp.data.table import Table
from fedamp.errors import DataError

NOT_ALL_RECORDS = (
    "the folder holds a part of the federation, and privacy.unit sample needs all records in one place; use client"
)


@dataclass(frozen=True)
class Records:
    """Some records of a table.

    Attributes:
        table: where the inputs are read from.
        numbers: int64 [records], which records of the table.
        labels: int64 [records], of these.
    """

    table: Table
    numbers: NDArray[np.int64]
    labels: NDArray[np.int64]

    def take(self, positions: NDArray[np.int64] | NDArray[np.bool_]) -> "Records":
        """Some of these records."""
        return Records(self.table, self.numbers[positions], self.labels[positions])


@dataclass(frozen=True)
class DealtDataset:
    """Client c has the training records offsets[c] ... offsets[c + 1] - 1."""

    training: Records  # sorted by client
    offsets: NDArray[np.int64]  # [num_clients + 1]
    testing: Records
    num_classes: int
    hosted: NDArray[np.int64] | None = None

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.training.table.input_shape

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        check_clients(clients, self.num_clients)
        if self.hosted is not None and not np.isin(clients, self.hosted).all():
            missing = clients[~np.isin(clients, self.hosted)][0]
            raise DataError(f"{self.training.table.source}: client {missing} is not hosted here")
        return self.offsets[clients + 1] - self.offsets[clients]

    def gather(self, clients: NDArray[np.int64]) -> Cohort:
        sizes = self.sizes(clients)
        longest = int(sizes.max(initial=0))
        real = np.arange(longest) < sizes[:, None]
        positions = (self.offsets[clients][:, None] + np.arange(longest))[real]
        inputs = np.zeros((*real.shape, *self.input_shape), dtype=np.float32)
        labels = np.zeros(real.shape, dtype=np.int64)
        inputs[real] = self.training.table.read(self.training.numbers[positions])
        labels[real] = self.training.labels[positions]
        return Cohort(inputs, labels, sizes)

    def test(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return self.testing.table.read(self.testing.numbers), self.testing.labels.copy()

    def label_counts(self, limit: int) -> LabelCounts:
        here = np.arange(self.num_clients) if self.hosted is None else self.hosted
        sizes = self.sizes(here)
        counts = [
            np.bincount(
                self.training.labels[self.offsets[client] : self.offsets[client + 1]], minlength=self.num_classes
            )
            for client in here[:limit]
        ]
        return LabelCounts(
            clients=here[:limit],
            counts=np.array(counts, dtype=np.int64).reshape(-1, self.num_classes),
            num_clients=len(here),
            num_records=int(sizes.sum()),
            smallest=int(sizes.min()) if sizes.size else 0,
            median=float(np.median(sizes)) if sizes.size else 0.0,
            largest=int(sizes.max(initial=0)),
            empty=int((sizes == 0).sum()),
            test_records=len(self.testing.labels),
        )

    def by_record(self) -> "DealtDataset":
        if self.hosted is not None:
            raise DataError(f"{self.training.table.source}: {NOT_ALL_RECORDS}")
        stored_order = np.argsort(self.training.numbers)
        one_each = np.arange(len(stored_order) + 1, dtype=np.int64)
        return replace(self, training=self.training.take(stored_order), offsets=one_each)


def deal(
    training: Records,
    owners: NDArray[np.int64],
    num_clients: int,
    testing: Records,
    num_classes: int,
    hosted: NDArray[np.int64] | None = None,
) -> DealtDataset:
    """Gives every training record to its owner; records of a client keep their stored order.

    Args:
        owners: int64 [records], the client of each training record.
    """
    by_client = np.argsort(owners, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=num_clients))]).astype(np.int64)
    return DealtDataset(training.take(by_client), offsets, testing, num_classes, hosted)
