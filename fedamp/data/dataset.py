"""A federated data set, and the section of a scenario that loads one."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedamp.base.section import Section
from fedamp.data.form import CLASSIFICATION, Form


@dataclass(frozen=True)
class Cohort:
    """The records of some clients, padded to the longest of them.

    Attributes:
        inputs: float32 (tokens: int64) of shape [clients, longest, *input_shape]; zeros after a client's last record.
        labels: of shape [clients, longest, ...], of a kind of :mod:`fedamp.data.form`; zeros after the last record.
        sizes: int64 of shape [clients]; number of real records. Zero for a client without records.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class LabelCounts:
    """How the records are distributed.

    Attributes:
        clients: int64 of shape [rows], the ids of the clients shown.
        counts: int64 of shape [rows, num_classes], records of every label; [rows, 0] where labels are no classes.
        sizes: int64, number of training records of every hosted client.
        test_records: records held out of training.
    """

    clients: NDArray[np.int64]
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    test_records: int


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """Training records partitioned among clients, and a public test set that belongs to no client.

    Attributes:
        num_clients: number of clients; their ids are 0, 1, ..., num_clients - 1.
        input_shape: shape of one input.
        num_classes: number of outputs of a model: labels are 0, 1, ..., num_classes - 1, or lists of that length.
        form: kind of labels, and whether inputs are tokens.
        hosted: ids of the clients whose records are here, ascending; None: all of them.
    """

    num_clients: int
    input_shape: tuple[int, ...]
    num_classes: int
    form: Form = CLASSIFICATION
    hosted: NDArray[np.int64] | None = None

    @abstractmethod
    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of records of each of the clients, shape [clients]."""

    @abstractmethod
    def labels_of(self, client: int) -> NDArray[Any]:
        """The labels of one client's records."""

    @abstractmethod
    def gather(self, clients: NDArray[np.int64]) -> Cohort:
        """The records of the clients, in the given order. A client's records do not depend on the other clients.

        Raises:
            IndexError: an id outside 0 ... num_clients - 1.
            DataError: a client that is not hosted here, or inputs that are not finite.
        """

    @abstractmethod
    def test(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """A copy of the public test set: inputs [records, *input_shape] and labels [records, ...]."""

    @abstractmethod
    def by_record(self) -> Self:
        """The same training records, each as a client of its own, in an order that no partition changes."""

    def label_counts(self, limit: int) -> LabelCounts:
        """Label counts of the first ``limit`` hosted clients, and the sizes of all."""
        here = np.arange(self.num_clients) if self.hosted is None else self.hosted
        shown, classes = here[:limit], self.num_classes if self.form.labels.are_classes else 0
        counts = [np.bincount(self.labels_of(client), minlength=classes) for client in shown if classes]
        table = np.array(counts, dtype=np.int64).reshape(len(shown), classes)
        return LabelCounts(shown, table, self.sizes(here), len(self.test()[1]))

    def check_ids(self, clients: NDArray[np.int64]) -> None:
        """Raises IndexError for ids outside 0 ... num_clients - 1: numpy counts negative ones from the end."""
        if clients.size and not (clients.min() >= 0 and clients.max() < self.num_clients):
            raise IndexError(
                f"clients must be ids from 0 to {self.num_clients - 1}, got {clients.min()} to {clients.max()}"
            )


class DataSection(Section, ABC):
    """Base of the ``data`` sections; relative paths start at ``folder``.

    Every method raises DataError, one line, for data that are missing, damaged or of another kind.
    """

    name: str

    @abstractmethod
    def load(self, seed: int, folder: Path, form: Form = CLASSIFICATION) -> Dataset:
        """The data set. Without ``clients`` and a natural partition every record is a client.

        Args:
            seed: decides the test set, the partition, and synthetic records.
            form: what the task expects records to be (:func:`fedamp.federation.losses.form_of`).
        """

    @abstractmethod
    def count_clients(self, folder: Path) -> int:
        """Number of clients of :meth:`load`. Reads no more than a natural partition needs."""

    @abstractmethod
    def count_records(self, folder: Path) -> int:
        """Number of training records of :meth:`load`."""
