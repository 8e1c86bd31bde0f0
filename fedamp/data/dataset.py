"""A federated data set, and the section of a scenario that loads one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.base.section import Section, UnitCount
from fedamp.data.form import CLASSIFICATION, Form
from fedamp.errors import DataError

if TYPE_CHECKING:
    from fedamp.data.transforms import Standardise

MOST_NAMED = 10**7  # clients: the names of so many take a gigabyte
TO_TEST = "data.test_is_public: true, where everybody may know the test records (docs/data.md)"


WRONG_RECORDS = "a record is not finite, no token, an image that cannot be read, or has a label out of range"


@dataclass(frozen=True)
class PaddedRecords:
    """The records of some clients, padded with zeros to the longest of them."""

    inputs: NDArray[Any]  # float32 (tokens: int64) of shape [clients, longest, *input_shape]
    labels: NDArray[Any]  # [clients, longest, ...], of a kind of fedamp.data.form
    sizes: NDArray[np.int64]  # [clients], number of real records; zero for a client without records


@dataclass(frozen=True)
class LabelCounts:
    """How the records are distributed."""

    clients: NDArray[np.int64]  # [rows], the ids of the clients shown
    counts: NDArray[np.int64]  # [rows, num_classes], records of every label; [rows, 0] where labels are no classes
    sizes: NDArray[np.int64]  # number of training records of every hosted client
    test_records: int  # public, held out of training


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """Training records partitioned among clients, and a test set of public records, which may be empty."""

    num_clients: int  # ids are 0, 1, ..., num_clients - 1
    input_shape: tuple[int, ...]  # of one input
    num_classes: int  # outputs of a model: labels are 0, 1, ..., num_classes - 1, or lists of that length
    form: Form = CLASSIFICATION  # kind of labels, and whether inputs are tokens
    hosted: NDArray[np.int64] | None = None  # ids of the clients whose records are here, ascending; None: all of them

    @abstractmethod
    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of records of each of the clients, shape [clients]."""

    def cannot_train(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the clients have a record that cannot be trained on, shape [clients]: their sizes are zero."""
        return np.zeros(len(clients), dtype=bool)

    def lost(self, clients: NDArray[np.int64], read: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the clients cannot train, also because a record proved wrong when it was read, shape [clients].

        Args:
            read: sizes of the clients' records as :meth:`gather` has found them, shape [clients].
        """
        return np.asarray(self.cannot_train(clients) | ((read == 0) & (self.sizes(clients) > 0)))

    def why(self, client: int) -> str:
        """What is wrong with the first wrong record of a client that cannot train, and where: it never leaves those who
        may see the record.
        """
        return WRONG_RECORDS

    def why_all(self, clients: NDArray[np.int64], most: int = 3) -> str:
        """The same of the first few of these clients."""
        more = f"; and {len(clients) - most:,} more" if len(clients) > most else ""
        return "; ".join(self.why(client) for client in clients[:most].tolist()) + more

    @abstractmethod
    def labels_of(self, client: int) -> NDArray[Any]:
        """The labels of one client's records."""

    @abstractmethod
    def gather(self, clients: NDArray[np.int64]) -> PaddedRecords:
        """The records of the clients, in the given order. A client's records do not depend on the other clients.

        A client with inputs that prove wrong when they are read gets size zero.
        Raises IndexError for an unknown id, DataError for a client not hosted here.
        """

    @abstractmethod
    def test(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """A copy of the test set: inputs [records, *input_shape] and labels [records, ...].

        It has no records unless the scenario declares them public: models are evaluated on them without noise.
        """

    @property
    def test_clients(self) -> NDArray[np.int64] | None:
        """The client of each test record, shape [records]; None where they belong to nobody."""
        return None

    @abstractmethod
    def by_record(self) -> Self:
        """The same training records, each as a client of its own, in an order that no partition changes."""

    def held_out(self, share: float, seed: int) -> tuple[Self, Self]:
        """The records that train, and those that are held out, of each client: drawn for each by itself.

        Of n records share * n are held out, rounded up, but never all. DataError: these data cannot be divided.
        """
        raise DataError("these data cannot be divided into records that train and records that are held out")

    def groups(self, column: str, names: Sequence[str]) -> NDArray[np.int64]:
        """The group that each client names in its first record, [num_clients]: its place in ``names``, or their number.

        DataError: there is no such column.
        """
        raise DataError(f"evaluation.by: these data have no column {column!r}; expected: ids of clients by group")

    def whose(self) -> Iterator[bytes]:
        """Private facts that change where a record gets another client; none where no file says whose they are."""
        return iter(())

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
            found = f"{clients.min()} to {clients.max()}"
            raise IndexError(f"clients must be ids from 0 to {self.num_clients - 1}, got {found}")


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

    def unit_names(self, folder: Path) -> list[str]:
        """The name of each client of :meth:`load`, in their order: by default its number."""
        if (clients := self.count_clients(folder)) > MOST_NAMED:
            raise DataError(f"data.clients: got {clients}; expected: at most {MOST_NAMED}, where each has a name")
        return [str(client) for client in range(clients)]

    @abstractmethod
    def count_records(self, folder: Path) -> int:
        """Number of training records of :meth:`load`."""

    @property
    def statistics(self) -> "Standardise | None":
        """The transform whose numbers are to be released before the first round."""
        return None

    def with_statistics(self, released: "Standardise | None") -> Self:
        """The section with the released numbers; None: without this transform and all that come after it."""
        return self


class ExternalData(DataSection):
    """Records that a custom Flower app reads on its nodes; fedamp knows the number of clients."""

    name: Literal["external"]
    clients: UnitCount = Field(description="number of clients, with ids 0, 1, ...: the nodes' partition-id or hosts")

    def count_clients(self, folder: Path) -> int:
        return self.clients

    def count_records(self, folder: Path) -> NoReturn:
        raise DataError(
            "data: external is read by a custom Flower app, with fedamp.server.custom_app.AppStrategy "
            "(docs/flower-app); expected here: data of another name"
        )

    def load(self, seed: int, folder: Path, form: Form = CLASSIFICATION) -> NoReturn:
        self.count_records(folder)
