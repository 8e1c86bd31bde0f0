"""Stored records: read from tables, split into training and test, and dealt to clients."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedamp import rng
from fedamp.base.section import Count, Section
from fedamp.data import partition
from fedamp.data.dataset import Cohort, Dataset, check_clients
from fedamp.data.form import Form, Labels, Numbers
from fedamp.data.sections import Partition, Transform
from fedamp.data.table import Table
from fedamp.errors import DataError


class FederationFile(Section):
    """``federation.json``: what a folder that holds a part of the federation says about the whole."""

    clients: Count  # of the whole federation
    hosted: tuple[Annotated[int, Field(ge=0, strict=True)], ...]  # ids of those whose records are here
    classes: Annotated[int, Field(ge=2, strict=True)] | None = None  # number of labels in the whole federation

    @model_validator(mode="after")
    def _hosted_are_clients(self) -> "FederationFile":
        if len(set(self.hosted)) != len(self.hosted) or max(self.hosted, default=0) >= self.clients:
            raise ValueError(f"hosted must be different ids from 0 to {self.clients - 1}")
        return self


@dataclass(frozen=True)
class Records:
    """Some records of a table.

    Attributes:
        table: where the inputs are read from.
        numbers: int64 [records], which records of the table.
        labels: [records, ...], of these.
    """

    table: Table
    numbers: NDArray[np.int64]
    labels: NDArray[Any]

    @classmethod
    def all_of(cls, table: Table, labels_as: Labels) -> "Records":
        """All records of a table.

        Raises:
            DataError: labels of another kind, or inputs that are not finite.
        """
        labels = labels_as.checked(table.stored_labels(), len(table), table.source)
        table.check_inputs()
        return cls(table, np.arange(len(labels)), labels)

    def take(self, positions: NDArray[np.int64] | NDArray[np.bool_] | slice) -> "Records":
        """Some of these records."""
        return Records(self.table, self.numbers[positions], self.labels[positions])


@dataclass(frozen=True, kw_only=True)
class StoredDataset(Dataset):
    """Client c has the training records offsets[c] ... offsets[c + 1] - 1."""

    training: Records  # sorted by client
    offsets: NDArray[np.int64]  # [num_clients + 1]
    testing: Records

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        check_clients(clients, self.num_clients)
        if self.hosted is not None and not np.isin(clients, self.hosted).all():
            missing = clients[~np.isin(clients, self.hosted)][0]
            raise DataError(f"{self.training.table.source}: client {missing} is not hosted here")
        sizes: NDArray[np.int64] = self.offsets[clients + 1] - self.offsets[clients]
        return sizes

    def labels_of(self, client: int) -> NDArray[Any]:
        return self.training.labels[self.offsets[client] : self.offsets[client + 1]]

    def gather(self, clients: NDArray[np.int64]) -> Cohort:
        sizes = self.sizes(clients)
        longest = int(sizes.max(initial=0))
        real = np.arange(longest) < sizes[:, None]
        positions = (self.offsets[clients][:, None] + np.arange(longest))[real]
        rows, labels_here = self._inputs(self.training.take(positions)), self.training.labels[positions]
        if real.all():
            shape = real.shape
            labels = labels_here.reshape(*shape, *labels_here.shape[1:])
            return Cohort(rows.reshape(*shape, *self.input_shape), labels, sizes)
        inputs = np.zeros((*real.shape, *self.input_shape), dtype=rows.dtype)
        labels = np.zeros((*real.shape, *labels_here.shape[1:]), dtype=labels_here.dtype)
        inputs[real], labels[real] = rows, labels_here
        return Cohort(inputs, labels, sizes)

    def test(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._inputs(self.testing), self.testing.labels.copy()

    def _inputs(self, records: Records) -> NDArray[Any]:
        inputs = records.table.read(records.numbers)
        return inputs if self.form.vocabulary is None else self.form.tokens(inputs, records.table.source)

    def by_record(self) -> "StoredDataset":
        if self.hosted is not None:
            raise DataError(f"{self.training.table.source}: {_NOT_ALL_RECORDS}")
        records = len(self.training.numbers)
        training = self.training.take(np.argsort(self.training.numbers))
        return replace(self, num_clients=records, training=training, offsets=np.arange(records + 1, dtype=np.int64))


class StoredSection(Protocol):
    """The keys that data sections of stored records have in common."""

    @property
    def clients(self) -> int | None: ...

    @property
    def partition(self) -> Partition: ...

    @property
    def test_fraction(self) -> float: ...

    @property
    def transform(self) -> tuple[Transform, ...]: ...


class StoredSource:
    """Tables of records, as a source of data.

    Args:
        config: the data section.
        train: training table; None on a machine that hosts no client, for example the server's.
        test: test table; None: a part of the training table is to be kept out.
        federation: which part of a federation this is; None: all of it.
    """

    def __init__(
        self,
        config: StoredSection,
        train: Table | None,
        test: Table | None = None,
        federation: FederationFile | None = None,
    ) -> None:
        opened = train or test
        assert opened is not None, "one of them is there"
        if federation is not None and any(step.name == "whiten" for step in config.transform):
            raise DataError(f"{opened.source}: {_WHITENED_APART}")
        if config.transform:
            from fedamp.data.transform import TransformedTable  # only here: most commands transform nothing

            train, test = (table and TransformedTable(table, config.transform) for table in (train, test))
        self._config, self._train, self._test, self._federation = config, train, test, federation
        self._source = opened.source
        self._column = partition.natural_column(config.partition)

    def count_clients(self) -> int:
        if self._federation is not None:
            return self._federation.clients
        if self._column is not None and self._train is not None:
            return len(np.unique(self._train.column(self._column)))
        records = self.count_records()
        if self._config.clients is None:
            return records
        partition.check_enough(self._config.partition, records, self._config.clients)
        return self._config.clients

    def count_records(self) -> int:
        if self._federation is not None or self._train is None:
            raise DataError(f"{self._source}: {_NOT_ALL_RECORDS}")
        return len(self._train) - (self._hold_out_size() if self._test is None else 0)

    def load(self, seed: int, form: Form) -> StoredDataset:
        self._check_dealt_by_label(form.labels)
        training, testing = self._split(seed, form.labels)
        owners, num_clients = self._owners(seed, training, form.labels)
        by_client = np.argsort(owners, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=num_clients))]).astype(np.int64)
        hosted = None if self._federation is None else np.array(sorted(self._federation.hosted), dtype=np.int64)
        return StoredDataset(
            num_clients=num_clients,
            input_shape=training.table.input_shape,
            num_classes=self._outputs(training, testing, form.labels),
            form=form,
            hosted=hosted,
            training=training.take(by_client),
            offsets=offsets,
            testing=testing,
        )

    def _split(self, seed: int, labels: Labels) -> tuple[Records, Records]:
        """Training and test records: from two tables, or from one of which a part is kept out."""
        training = None if self._train is None else Records.all_of(self._train, labels)
        testing = None if self._test is None else Records.all_of(self._test, labels)
        if training is None:
            assert testing is not None
            return testing.take(slice(0)), testing
        if testing is not None:
            if testing.table.input_shape != training.table.input_shape:
                raise DataError(
                    f"{testing.table.source}: inputs have shape {list(testing.table.input_shape)}, "
                    f"those of {self._source} {list(training.table.input_shape)}; they must agree"
                )
            return training, testing
        if self._federation is not None:
            return training, training.take(slice(0))
        self._hold_out_size()
        generator = rng.public_stream(seed, "test-set")
        kept_out = partition.hold_out(generator, _strata(training, labels), self._config.test_fraction)
        return training.take(~kept_out), training.take(kept_out)

    def _hold_out_size(self) -> int:
        assert self._train is not None
        if len(self._train) < 2:
            raise DataError(f"{self._source}: {len(self._train)} records; at least 2 are needed to keep a test set out")
        return partition.hold_out_size(len(self._train), self._config.test_fraction)

    def _owners(self, seed: int, training: Records, labels: Labels) -> tuple[NDArray[np.int64], int]:
        """The client of every training record, and the number of clients."""
        if self._train is None:
            assert self._federation is not None
            return training.numbers, self._federation.clients
        if self._column is not None:
            column = self._train.column(self._column)
            if self._federation is not None:
                return partition.hosted(column, self._federation.hosted, self._source), self._federation.clients
            names, owners = np.unique(column, return_inverse=True)
            return owners[training.numbers], len(names)
        clients = self._config.clients
        if clients is None:
            return np.arange(len(training.labels)), len(training.labels)
        generator = rng.public_stream(seed, "partition")
        return partition.deal(self._config.partition, generator, _strata(training, labels), clients), clients

    def _check_dealt_by_label(self, labels: Labels) -> None:
        scheme = self._config.partition.scheme
        if scheme in ("dirichlet", "shards") and not labels.are_classes:
            raise DataError(
                f"data.partition: {scheme} deals by class, and client.loss takes labels that are {labels.expected}; "
                "expected: iid, natural"
            )

    def _outputs(self, training: Records, testing: Records, kind: Labels) -> int:
        """How many numbers a model answers with."""
        if training.labels.shape[1:] != testing.labels.shape[1:]:
            raise DataError(
                f"{self._source}: a label has shape {list(training.labels.shape[1:])}, one for testing "
                f"{list(testing.labels.shape[1:])}; they must agree"
            )
        labels = np.concatenate([training.labels, testing.labels])
        found = kind.outputs(labels)
        if isinstance(kind, Numbers):
            return found
        if self._federation is not None:
            classes = self._federation.classes
            if classes is None:
                raise DataError(f"{self._source}: federation.json must say how many classes there are")
            if found > classes:
                raise DataError(
                    f"{self._source}: label {labels.max()}; federation.json says there are {classes} classes"
                )
            return classes
        if kind.are_classes and labels.min() > 0:
            raise DataError(f"{self._source}: the smallest label is {labels.min()}; labels must count from 0")
        return found


def _strata(records: Records, kind: Labels) -> NDArray[np.int64]:
    """What records are dealt and kept out by: their class, if they have one."""
    return records.labels if kind.are_classes else np.zeros(len(records.labels), dtype=np.int64)


_WHITENED_APART = (
    "data.transform whiten in a folder that holds a part of the federation: another machine may find other components; "
    "expected: the other transforms"
)
_NOT_ALL_RECORDS = (
    "the folder holds a part of the federation, and privacy.unit sample needs all records in one place; use client"
)
