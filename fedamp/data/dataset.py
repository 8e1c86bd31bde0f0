"""What every data set offers, whatever it is made of."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedamp.data.form import CLASSIFICATION, Form


@dataclass(frozen=True)
class Cohort:
    """The records of some clients, padded to the longest of them.

    Attributes:
        inputs: float32 (tokens: int64) of shape [clients, longest, *input_shape]; zeros after a client's last record.
        labels: of shape [clients, longest, ...], of a kind of :mod:`fedamp.data.form`; zeros after the last record.
        sizes: int64 of shape [clients]; how many of the records are real. Zero for a client without records.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class LabelCounts:
    """How the records fell: a few clients label by label, and all of them in summary.

    Attributes:
        clients: int64 of shape [rows], the ids of the clients shown.
        counts: int64 of shape [rows, num_classes], records of every label; [rows, 0] where labels are no classes.
        num_clients: clients whose records are here (all of them, unless ``Dataset.hosted`` says otherwise).
        num_records: training records of all of them.
        smallest, median, largest: records of a client, over all of them.
        test_records: records kept out of training.
    """

    clients: NDArray[np.int64]
    counts: NDArray[np.int64]
    num_clients: int
    num_records: int
    smallest: int
    median: float
    largest: int
    test_records: int


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """Training records dealt to clients, and a public test set that no client has.

    Attributes:
        num_clients: number of clients; their ids are 0, 1, ..., num_clients - 1.
        input_shape: shape of one input.
        num_classes: how many numbers a model answers with: labels are 0, 1, ..., num_classes - 1, or so many numbers.
        form: what records are.
        hosted: ids of the clients whose records are here, ascending; None: all of them.
    """

    num_clients: int
    input_shape: tuple[int, ...]
    num_classes: int
    form: Form = CLASSIFICATION
    hosted: NDArray[np.int64] | None = None

    @abstractmethod
    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Records of each of the clients, shape [clients]."""

    @abstractmethod
    def labels_of(self, client: int) -> NDArray[Any]:
        """The labels of one client's records."""

    @abstractmethod
    def gather(self, clients: NDArray[np.int64]) -> Cohort:
        """The records of the clients, in the order asked. What a client gets does not depend on the others.

        Raises:
            IndexError: an id outside 0 ... num_clients - 1.
            DataError: a client that is not hosted here, or inputs that are not finite.
        """

    @abstractmethod
    def test(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The public test set, inputs [records, *input_shape] and labels [records, ...]; made afresh by every call."""

    @abstractmethod
    def by_record(self) -> Self:
        """The same training records, every one a client of its own, in an order that no partition changes."""

    def label_counts(self, limit: int) -> LabelCounts:
        """Label counts of the first ``limit`` clients (that are here) and a summary of all."""
        here = np.arange(self.num_clients) if self.hosted is None else self.hosted
        sizes = self.sizes(here)
        shown, classes = here[:limit].tolist(), self.num_classes if self.form.labels.are_classes else 0
        counts = [np.bincount(self.labels_of(client), minlength=classes) for client in shown] if classes else []
        return LabelCounts(
            clients=here[:limit],
            counts=np.array(counts, dtype=np.int64).reshape(len(shown), classes),
            num_clients=len(here),
            num_records=int(sizes.sum()),
            smallest=int(sizes.min()) if sizes.size else 0,
            median=float(np.median(sizes)) if sizes.size else 0.0,
            largest=int(sizes.max(initial=0)),
            test_records=len(self.test()[1]),
        )


def check_clients(clients: NDArray[np.int64], num_clients: int) -> None:
    """Refuses ids that numpy would silently count from the end.

    Raises:
        IndexError: an id outside 0 ... num_clients - 1.
    """
    if clients.size and not (clients.min() >= 0 and clients.max() < num_clients):
        raise IndexError(f"clients must be ids from 0 to {num_clients - 1}, got {clients.min()} to {clients.max()}")
