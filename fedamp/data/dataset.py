"""Define a federated data set, and the section of a scenario that loads one.

:class:`Dataset` is what nodes train on, and :class:`DataSection` what every ``data`` section extends. The other modules
of this package implement them; :mod:`fedamp.client` and :mod:`fedamp.server` call them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.base.section import Section, UnitCount
from fedamp.data.form import CLASSIFICATION, Form
from fedamp.errors import DataError

MOST_NAMED = 10**7  # clients: the names of so many take a gigabyte
TO_TEST = "data.test_is_public: true, where everybody may know the test records (docs/data.md)"


WRONG_RECORDS = "a record is not finite, no token, an image that cannot be read, or has a label out of range"


@dataclass(frozen=True)
class PaddedRecords:
    """The records of some clients, padded with zeros to the longest of them.

    Attributes:
        inputs: float32 (tokens: int64) of shape [clients, longest, *input_shape].
        labels: [clients, longest, ...], of a kind of :mod:`fedamp.data.form`.
        sizes: int64 [clients], number of real records; zero for a client without records.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class LabelCounts:
    """The distribution of the records over clients and labels. It is computed from private records without noise.

    Attributes:
        clients: int64 [rows], ids of the clients shown.
        counts: int64 [rows, num_classes], records of every label; [rows, 0] where labels are no classes.
        sizes: int64, number of training records of every hosted client.
        test_records: number of public records, held out of training.
    """

    clients: NDArray[np.int64]
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    test_records: int


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """Training records partitioned among clients, and a test set of public records, which may be empty.

    A client with a wrong record has no records at all, so that no other client notices. Everything follows from the
    files, the section and the data seed, so all processes of a run see the same clients.

    Attributes:
        num_clients: ids are 0, 1, ..., num_clients - 1.
        input_shape: of one input.
        num_classes: outputs of a model: labels are 0, 1, ..., num_classes - 1, or lists of that length.
        form: kind of labels, and whether inputs are tokens.
        hosted: ids of the clients whose records are here, int64, ascending; None: all of them.
    """

    num_clients: int
    input_shape: tuple[int, ...]
    num_classes: int
    form: Form = CLASSIFICATION
    hosted: NDArray[np.int64] | None = None

    @abstractmethod
    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the records with which each of the clients trains, int64 [clients]; zero for one that cannot train.

        Raises:
            IndexError: an unknown id.
            DataError: a client is not hosted here.
        """

    def cannot_train(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of the clients have a record that cannot be trained on, bool [clients]: their sizes are zero."""
        return np.zeros(len(clients), dtype=bool)

    def lost(self, clients: NDArray[np.int64], read: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of the clients cannot train, also because a record proved wrong when it was read.

        Args:
            clients: ids, int64 [clients].
            read: sizes of the clients' records as :meth:`gather` has found them, shape [clients].

        Returns:
            bool [clients].
        """
        return np.asarray(self.cannot_train(clients) | ((read == 0) & (self.sizes(clients) > 0)))

    def why(self, client: int) -> str:
        """Describe what is wrong with the first wrong record of a client that cannot train, and where.

        The text never leaves those who may see the record: it goes to the log of the node, and not to a server.
        """
        return WRONG_RECORDS

    def why_all(self, clients: NDArray[np.int64], most: int = 3) -> str:
        """Describe the same for the first few of these clients, in one line.

        Args:
            clients: ids of clients that cannot train.
            most: number of clients that are described.
        """
        more = f"; and {len(clients) - most:,} more" if len(clients) > most else ""
        return "; ".join(self.why(client) for client in clients[:most].tolist()) + more

    @abstractmethod
    def labels_of(self, client: int) -> NDArray[Any]:
        """Return the labels of one client's records, [records, ...]."""

    @abstractmethod
    def gather(self, clients: NDArray[np.int64]) -> PaddedRecords:
        """Read the records of clients, in the given order. A client's records do not depend on the other clients.

        A client with inputs that prove wrong when they are read gets size zero.

        Args:
            clients: ids, int64 [clients].

        Raises:
            IndexError: an unknown id.
            DataError: a client is not hosted here.
        """

    @abstractmethod
    def test(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return a copy of the test set: inputs [records, *input_shape] and labels [records, ...].

        It has no records unless the scenario declares them public: models are evaluated on them without noise.
        """

    @property
    def test_clients(self) -> NDArray[np.int64] | None:
        """Id of the client of each test record, int64 [records]; None where they belong to nobody."""
        return None

    @abstractmethod
    def by_record(self) -> Self:
        """Return the same training records, each as a client of its own, in an order that no partition changes.

        It serves runs whose unit is a sample.

        Raises:
            DataError: only a part of the federation's records is here.
        """

    def held_out(self, share: float, seed: int) -> tuple[Self, Self]:
        """Divide the records of each client, by itself, into those that train and those that are held out.

        Of n records share * n are held out, rounded up, but never all.

        Args:
            share: of each client's records, in (0, 1).
            seed: decides which ones.

        Returns:
            Two data sets with the same clients.

        Raises:
            DataError: these data cannot be divided.
        """
        raise DataError("these data cannot be divided into records that train and records that are held out")

    def groups(self, column: str, names: Sequence[str], key: str) -> NDArray[np.int64]:
        """Return the group that each client names in its first record.

        Args:
            column: with the names.
            names: of the groups.
            key: of the scenario that asks for it, for the error.

        Returns:
            int64 [num_clients], the place of the group in ``names``, or ``len(names)`` for another name.

        Raises:
            DataError: there is no such column.
        """
        raise DataError(f"{key}: these data have no column {column!r}; expected: ids of clients by group")

    def column_values(self, column: str, key: str) -> NDArray[Any]:
        """Return a column of all records that are here, as the files spell it, in the order of the clients.

        Args:
            column: its name.
            key: of the scenario that asks for it, for the error.

        Returns:
            [records]; :meth:`record_places` says which are whose.

        Raises:
            DataError: there is no such column.
        """
        raise DataError(f"{key}: these data have no column {column!r}; expected: csv, parquet or npz files")

    def record_places(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of clients' records in a column, one client after the other, and the number of each client.

        A record that cannot be trained on is among them. Of a client at most ``form.most`` are.

        Args:
            clients: ids, int64 [clients].

        Raises:
            IndexError: an unknown id.
            DataError: a client is not hosted here, or these data have no columns.
        """
        raise DataError("these data have no columns; expected: csv, parquet or npz files")

    def whose(self) -> Iterator[bytes]:
        """Yield private facts that change where a record gets another client; none where no file says whose they are.

        A node keeps a keyed digest of them, so that owners cannot change in a run.
        """
        return iter(())

    def label_counts(self, limit: int) -> LabelCounts:
        """Count the labels of the first ``limit`` hosted clients, and the records of all."""
        here = np.arange(self.num_clients) if self.hosted is None else self.hosted
        shown, classes = here[:limit], self.num_classes if self.form.labels.are_classes else 0
        counts = [np.bincount(self.labels_of(client), minlength=classes) for client in shown if classes]
        table = np.array(counts, dtype=np.int64).reshape(len(shown), classes)
        return LabelCounts(shown, table, self.sizes(here), len(self.test()[1]))

    def check_ids(self, clients: NDArray[np.int64]) -> None:
        """Refuse ids outside 0 ... num_clients - 1, because NumPy counts negative ones from the end.

        Raises:
            IndexError: there is one.
        """
        if clients.size and not (clients.min() >= 0 and clients.max() < self.num_clients):
            found = f"{clients.min()} to {clients.max()}"
            raise IndexError(f"clients must be ids from 0 to {self.num_clients - 1}, got {found}")


class DataSection(Section, ABC):
    """Base of the ``data`` sections; relative paths start at ``folder``.

    Every method raises DataError, one line, for data that are missing, damaged or of another kind.
    """

    name: str

    @abstractmethod
    def load(self, seed: int, folder: Path, form: Form = CLASSIFICATION) -> Dataset:
        """Load the data set. Without ``clients`` and a natural partition every record is a client.

        Args:
            seed: decides the test set, the partition, and synthetic records.
            folder: where relative paths start.
            form: what the task expects records to be (:func:`fedamp.federation.losses.form_of`).

        Raises:
            DataError: as every method of a section.
        """

    @abstractmethod
    def count_clients(self, folder: Path) -> int:
        """Count the clients of :meth:`load`. This reads no more than a natural partition needs."""

    def unit_names(self, folder: Path) -> list[str]:
        """Name each client of :meth:`load`, in their order: by default by its number.

        Raises:
            DataError: there are more than ten million of them; or as every method.
        """
        if (clients := self.count_clients(folder)) > MOST_NAMED:
            raise DataError(f"data.clients: got {clients}; expected: at most {MOST_NAMED}, where each has a name")
        return [str(client) for client in range(clients)]

    @abstractmethod
    def count_records(self, folder: Path) -> int:
        """Count the training records of :meth:`load`."""


class ExternalData(DataSection):
    """Records that a custom Flower app reads on its nodes; fedamp knows the number of clients."""

    name: Literal["external"]
    clients: UnitCount = Field(description="number of clients, with ids 0, 1, ...: the nodes' partition-id or hosts")

    def count_clients(self, folder: Path) -> int:
        """Return the number that the section gives."""
        return self.clients

    def count_records(self, folder: Path) -> NoReturn:
        """Refuse: only the custom app reads the records."""
        raise DataError(
            "data: external is read by a custom Flower app, with fedamp.server.custom_app.AppStrategy "
            "(docs/flower-app); expected here: data of another name"
        )

    def load(self, seed: int, folder: Path, form: Form = CLASSIFICATION) -> NoReturn:
        """Refuse: only the custom app reads the records."""
        self.count_records(folder)
