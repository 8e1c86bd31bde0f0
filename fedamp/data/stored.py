"""Split tables of stored records into training and test, and partition them among clients.

Records in a folder have training files, test files if any, and say which part of the federation is there:

train.npz test.npz, or train_x.npy train_y.npy ..., or train*.parquet test*.parquet, or train*.csv test*.csv
federation.json on a machine that holds some clients only (see docs/data.md)

:class:`StoredData` is the base of all sections of stored records. Its subclasses open tables
(:mod:`fedamp.data.table`), and :meth:`StoredData.load` makes a :class:`StoredDataset` of them. Nothing that models or
accounting see (classes, shapes, counts of clients) may follow from one person's record; where it would, data are
refused.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError, model_validator

from fedamp import rng
from fedamp.base.reading import read_regular
from fedamp.base.section import Count, LessThanOne, Outputs, Positive, Section, UnitCount
from fedamp.base.text import canonical
from fedamp.data import partition
from fedamp.data.dataset import DataSection, Dataset, PaddedRecords
from fedamp.data.features import Transforms, transformed
from fedamp.data.form import CLASSES, CLASSIFICATION, Form, Labels, Numbers
from fedamp.data.partition import AnyPartition, IidPartition, NaturalPartition
from fedamp.data.table import MOST, Table, distinct, names_nobody
from fedamp.errors import DataError, one_line

RecordShape = tuple[Count, ...] | None
PixelScale = Annotated[
    Positive | None, Field(description="inputs are divided by this; default: images of bytes by 255, others by 1")
]


def all_differ(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse words that are equal after they are written in one way (:func:`fedamp.base.text.canonical`)."""
    if len(set(map(canonical, words))) != len(words):
        raise ValueError("the words must differ")
    return words


class FederationFile(Section):
    """The content of ``federation.json``: describes the whole federation in a folder that holds a part of it.

    Attributes:
        clients: of the whole federation.
        hosted: ids of the clients with records here, all different; empty in the server's folder.
        classes: number of labels in the whole federation, at least 2; None: the scenario says it.
    """

    clients: UnitCount
    hosted: tuple[Annotated[int, Field(ge=0, strict=True)], ...]
    classes: Annotated[Outputs, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _hosted_are_clients(self) -> "FederationFile":
        """Refuse ids that are duplicates, or of no client."""
        if len(set(self.hosted)) != len(self.hosted) or max(self.hosted, default=0) >= self.clients:
            raise ValueError(f"hosted must be different ids from 0 to {self.clients - 1}")
        return self


@dataclass(frozen=True)
class Tables:
    """The opened tables of a data set.

    Attributes:
        train: of the training records; the test table itself in the server's folder, which hosts no client.
        test: of public test records; None: there are no test files that may be used.
        federation: the part of the federation that is here; None: all of it.
    """

    train: Table
    test: Table | None = None
    federation: FederationFile | None = None


@dataclass(frozen=True)
class Records:
    """Some records of a table, which holds their inputs.

    Attributes:
        table: that has them.
        numbers: int64 [records], their numbers in the table.
        labels: [records, ...]; zeros in place of wrong ones.
        wrong: bool [records], which cannot be trained on. Wrong inputs of a large table show only when they are read.
    """

    table: Table
    numbers: NDArray[np.int64]
    labels: NDArray[Any]
    wrong: NDArray[np.bool_]

    @classmethod
    def all_of(cls, table: Table, form: Form, outputs: int) -> "Records":
        """Return all records of a table.

        Args:
            table: as opened.
            form: what the task expects.
            outputs: of the model.

        Raises:
            DataError: the labels have another type or shape: no record changes that.
        """
        labels = form.labels.converted(table.labels, len(table), table.source)
        if isinstance(form.labels, Numbers) and labels.shape[1:] != (outputs,):
            found = f"a label has shape {list(labels.shape[1:])}, others have {[outputs]}"
            raise DataError(f"{table.source}: {found}; they must agree")
        wrong = form.labels.wrong(labels, outputs)
        labels = np.where(wrong.reshape(-1, *[1] * (labels.ndim - 1)), labels.dtype.type(0), labels)
        return cls(table, np.arange(len(labels)), labels, wrong | table.wrong(form))

    def take(self, positions: NDArray[np.int64] | NDArray[np.bool_] | slice) -> "Records":
        """Return some of these records, by their positions among these."""
        return Records(self.table, self.numbers[positions], self.labels[positions], self.wrong[positions])

    def public(self, form: Form, outputs: float = math.inf) -> "Records":
        """Return these records, which are to be tested on, if none is wrong.

        Raises:
            DataError: one is wrong; the error may show its value, because everybody may know it.
        """
        if self.wrong.any():
            raise DataError(self.table.fault(int(self.numbers[np.argmax(self.wrong)]), form, outputs, public=True))
        return self


@dataclass(frozen=True, kw_only=True)
class StoredDataset(Dataset):
    """A data set in which client c has the training records offsets[c] ... offsets[c + 1] - 1.

    Attributes:
        training: sorted by client.
        offsets: int64 [num_clients + 1].
        testing: public records.
        testers: int64, id of the client of each test record; None: they belong to nobody.
        nobodys: how many records in the files are of no client that is hosted here.
    """

    training: Records
    offsets: NDArray[np.int64]
    testing: Records
    testers: NDArray[np.int64] | None = None
    nobodys: int = 0

    @property
    def test_clients(self) -> NDArray[np.int64] | None:
        """Id of the client of each test record; None: they belong to nobody."""
        return self.testers

    @cached_property
    def untrainable(self) -> NDArray[np.bool_]:
        """Clients who have a wrong record among those that are read, bool [num_clients]. They count as without records.

        Inputs that are read late may add more clients (:meth:`lost`).
        """
        wrong = np.flatnonzero(self.training.wrong)
        owners = np.searchsorted(self.offsets, wrong, side="right") - 1
        read = wrong - self.offsets[owners] < (self.form.most or math.inf)
        return np.asarray(np.bincount(owners[read], minlength=self.num_clients) > 0)

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the records with which each of the clients trains, int64 [clients], at most ``form.most``."""
        sizes = self._stored_sizes(clients)  # which refuses unknown ids
        return np.where(self.untrainable[clients], 0, sizes)

    def _stored_sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the records of each of the clients, wrong ones among them, int64 [clients], at most ``form.most``."""
        self.check_ids(clients)
        if self.hosted is not None and not np.isin(clients, self.hosted).all():
            missing = clients[~np.isin(clients, self.hosted)][0]
            raise DataError(f"{self.training.table.source}: client {missing} is not hosted here")
        sizes = self.offsets[clients + 1] - self.offsets[clients]
        return np.asarray(sizes if self.form.most is None else np.minimum(sizes, self.form.most))

    def cannot_train(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of the clients have a record that was found wrong when the data were loaded."""
        return self.untrainable[clients]

    def why(self, client: int) -> str:
        """Name the place of the client's first wrong record; its inputs are read for that."""
        own = self.training.take(slice(self.offsets[client], self.offsets[client + 1])).take(slice(self.form.most))
        wrong = own.wrong | self.form.wrong(own.table.read(own.numbers))
        return own.table.fault(int(own.numbers[np.argmax(wrong)]), self.form, self.num_classes)

    def whose(self) -> Iterator[bytes]:
        """Yield where each client's records begin, their numbers in the files, and their labels."""
        for facts in (self.offsets, self.training.numbers, self.training.labels):
            yield repr((facts.dtype.str, facts.shape)).encode()
            yield np.ascontiguousarray(facts).tobytes()

    def labels_of(self, client: int) -> NDArray[Any]:
        """Return the labels of the records with which a client trains."""
        start = self.offsets[client]
        return self.training.labels[start : start + self.sizes(np.array([client]))[0]]

    def gather(self, clients: NDArray[np.int64]) -> PaddedRecords:
        """Read the records of clients, and pad them with zeros."""
        sizes = self.sizes(clients)
        longest = int(sizes.max(initial=0))
        real = np.arange(longest) < sizes[:, None]
        positions = (self.offsets[clients][:, None] + np.arange(longest))[real]
        taken = self.training.take(positions)
        inputs, labels = taken.table.read(taken.numbers), taken.labels
        if (wrong := self.form.wrong(inputs)).any():  # the clients of wrong records lose all of theirs
            owners = np.repeat(np.arange(len(clients)), sizes)
            lost = np.isin(np.arange(len(clients)), owners[wrong])
            inputs, labels = inputs[~lost[owners]], labels[~lost[owners]]
            real[lost], sizes = False, np.where(lost, 0, sizes)

        def padded(rows: NDArray[Any]) -> NDArray[Any]:
            if real.all():
                return rows.reshape(*real.shape, *rows.shape[1:])
            values = np.zeros((*real.shape, *rows.shape[1:]), dtype=rows.dtype)
            values[real] = rows
            return values

        return PaddedRecords(padded(self.form.read(inputs)), padded(labels), sizes)

    def test(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read the test set; a wrong record is an error, because the records are public."""
        testing = self.testing
        inputs = testing.table.read(testing.numbers)
        if (wrong := self.form.wrong(inputs)).any():
            raise DataError(testing.table.fault(int(testing.numbers[np.argmax(wrong)]), self.form, public=True))
        return self.form.read(inputs), testing.labels.copy()

    def held_out(self, share: float, seed: int) -> "tuple[StoredDataset, StoredDataset]":
        """Hold out some of each client's records, by a public draw; how many follows from its own number of records."""
        sizes, apart = np.diff(self.offsets), np.zeros(len(self.training.numbers), dtype=bool)
        base = np.uint64(rng.public_seed(seed, "held out"))
        for size in np.unique(sizes[sizes > 1]).tolist():
            clients = np.flatnonzero(sizes == size)
            order = np.argsort(rng.public_uniforms(base + clients.astype(np.uint64), "held out", size), axis=1)
            chosen = order[:, : partition.hold_out_size(size, share)]
            apart[(self.offsets[clients][:, None] + chosen).ravel()] = True

        def of(kept: NDArray[np.bool_]) -> StoredDataset:
            ends = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
            return replace(self, training=self.training.take(kept), offsets=ends.astype(np.int64))

        return of(~apart), of(apart)

    def groups(self, column: str, names: Sequence[str], key: str) -> NDArray[np.int64]:
        """Return the group that each client's first record names; a client without records is in none of them."""
        table, place = self.training.table, {name: number for number, name in enumerate(names)}
        values = table.column(column, complete=False, key=key)[self.training.numbers].tolist()
        groups = np.full(self.num_clients, len(names))
        some = np.flatnonzero(np.diff(self.offsets))
        groups[some] = [place.get(_client_name(values[first]), len(names)) for first in self.offsets[some]]
        return groups

    def column_values(self, column: str, key: str) -> NDArray[Any]:
        """Return a column of all records that are here, in the order of the clients."""
        return self.training.table.column(column, complete=False, key=key)[self.training.numbers]

    def record_places(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of clients' records in a column, and the number of each client, with wrong records."""
        sizes = self._stored_sizes(clients)
        starts = self.offsets[clients] - np.concatenate([[0], np.cumsum(sizes)])[:-1]
        return np.arange(sizes.sum()) + np.repeat(starts, sizes), sizes

    def by_record(self) -> "StoredDataset":
        """Make a client of each record, in the order of the files."""
        if self.hosted is not None:
            raise DataError(f"{self.training.table.source}: {_NOT_ALL_RECORDS}")
        records = len(self.training.numbers)
        training = self.training.take(np.argsort(self.training.numbers))
        offsets = np.arange(records + 1, dtype=np.int64)
        return replace(self, num_clients=records, training=training, offsets=offsets)


class StoredData(DataSection):
    """Base of the sections of stored records: each opens its tables, which are split and partitioned here.

    The records are people's own, unless a section is of :class:`BenchmarkData`.
    """

    clients: UnitCount | None = Field(None, description="number of clients; leave out with a natural partition")
    partition: AnyPartition = IidPartition()
    shape: RecordShape = Field(None, description="shape of one input, e.g. [1, 28, 28]; default: as stored")
    transform: Transforms = ()
    test_is_public: bool = Field(
        False,
        strict=True,
        exclude_if=lambda public: not public,
        description="true: everybody may know the test records, on which models are evaluated without noise; else no "
        "record is tested on",
    )
    test_fraction: LessThanOne = Field(
        0.0, description="share of the records that is public and tested on, where there are no test files"
    )
    classes: Outputs | Annotated[tuple[str, ...], Field(min_length=2), AfterValidator(all_differ)] | None = Field(
        None,
        exclude_if=lambda count: count is None,
        description="number of classes: labels are 0, 1, ..., classes - 1; or the labels as words, [no, yes]; default: "
        "of known data their number, else as federation.json says, or as a public test set has it",
    )
    records_per_client: Count = Field(
        10,
        exclude_if=lambda count: count == 10,
        description="about how many records a client has: what federation.evaluate_every: auto, and the hours of "
        "fedamp check, count with",
    )
    max_bytes: Count = Field(
        MOST,
        exclude_if=lambda most: most == MOST,
        description="bytes to which an array, or the files of a split, may unfold; checked before they are read",
    )
    known: ClassVar[int | None] = None  # number of classes of data that everybody knows

    @property
    def words(self) -> tuple[str, ...]:
        """Words that labels are; empty where labels are numbers."""
        return self.classes if isinstance(self.classes, tuple) else ()

    @abstractmethod
    def open(self, folder: Path) -> Tables:
        """Open the tables, before ``transform``.

        Args:
            folder: where a relative path starts.

        Raises:
            DataError: the files are missing, damaged or of another kind.
        """

    def known_classes(self, folder: Path) -> int | None:
        """Return the number of classes that the scenario or the data's name says; None if neither does."""
        return len(self.words) or (None if isinstance(self.classes, tuple) else self.classes) or self.known

    def count_clients(self, folder: Path) -> int:
        """Count the clients: as federation.json says, as the column of owners has them, or as the section says."""
        tables = self.open(folder)
        if tables.federation is not None:
            return tables.federation.clients
        if isinstance(self.partition, NaturalPartition):
            return len(distinct(tables.train.column(self.partition.column))[0])
        records = self._count_training(tables)
        if self.clients is None:
            return records
        self.partition.check_enough(records, self.clients)
        return self.clients

    def unit_names(self, folder: Path) -> list[str]:
        """Name each client as its column does; without such a column, by its number."""
        tables = self.open(folder)
        if tables.federation is None and isinstance(self.partition, NaturalPartition):
            return [_client_name(each) for each in distinct(tables.train.column(self.partition.column))[0].tolist()]
        return super().unit_names(folder)

    def count_records(self, folder: Path) -> int:
        """Count the records of the training table that are not held out.

        Raises:
            DataError: only a part of the federation's records is here; or as every method.
        """
        return self._count_training(self.open(folder))

    def load(self, seed: int, folder: Path, form: Form = CLASSIFICATION) -> StoredDataset:
        """Open, check, split, transform and partition the records; see :meth:`DataSection.load`.

        Raises:
            DataError: as every method of a section; or this machine has too little memory.
        """
        try:
            return self._load(seed, folder, form)
        except MemoryError as error:
            place = getattr(self, "path", None) or getattr(self, "dataset", None) or f"data.name {self.name}"
            raise DataError(f"{place}: needs more memory than this machine has ({one_line(error)})") from None

    def _load(self, seed: int, folder: Path, form: Form) -> StoredDataset:
        """Load as :meth:`load`, without the error for a machine with too little memory."""
        kind = form.labels
        if getattr(self.partition, "by_label", False) and not kind.are_classes:
            raise DataError(
                f"data.partition: {self.partition.scheme} partitions by class, and client.loss takes labels that are "
                f"{kind.expected}; expected: iid, natural"
            )
        tables = self._numbered(self.open(folder))
        federation = tables.federation
        if federation is not None and not all(step.same_everywhere for step in self.transform):
            raise DataError(
                f"{tables.train.source}: data.transform whiten in a folder that holds a part of the federation: "
                "another machine may find other components; expected: the other transforms"
            )
        outputs = self._outputs(tables, folder, form)
        training, testing = self._divided(tables, seed, form, outputs)
        train = transformed(tables.train, self.transform)
        test = train if testing.table is tables.train else transformed(testing.table, self.transform)
        training, testing = replace(training, table=train), replace(testing, table=test)
        owners, num_clients = self._owners(training, federation, seed, kind)
        nobodys = int((owners < 0).sum())
        training, owners = training.take(owners >= 0), owners[owners >= 0]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=num_clients))]).astype(np.int64)
        return StoredDataset(
            num_clients=num_clients,
            input_shape=training.table.input_shape,
            num_classes=outputs,
            form=form,
            hosted=None if federation is None else np.array(sorted(federation.hosted), dtype=np.int64),
            training=training.take(np.argsort(owners, kind="stable")),
            offsets=offsets,
            testing=testing,
            testers=self._testers(tables, testing),
            nobodys=nobodys,
        )

    def _numbered(self, tables: Tables) -> Tables:
        """Give labels that are words the same numbers in all tables: files may have the words in different orders."""
        train, test, federation = tables.train, tables.test, tables.federation
        words = self.words or train.classes or ()
        if not self.words:
            named = [table for table in (train, test) if table is not None and table.classes is not None]
            if federation is not None and named:
                found = f"classes have an order ({', '.join(named[0].classes or ())}) that other machines may not have"
                raise DataError(f"{named[0].source}: {found}; expected: data.classes, the list of these words")
            if test is not None and (train.classes is None) != (test.classes is None):
                raise DataError(
                    f"{test.source}: classes have names in one of training and test; expected: data.classes"
                )
        if not words:
            return tables
        place = {canonical(word): number for number, word in enumerate(words)}

        def numbered(table: Table) -> Table:
            own, stored = table.classes, table.labels
            if own == words or stored.ndim != 1:
                return table
            if own is None:
                named = stored.tolist()
            else:
                named = [own[n] if 0 <= n < len(own) else None for n in CLASSES.read(stored).tolist()]
            return replace(
                table, labels=np.array([place.get(canonical(str(one)), -1) for one in named], np.int64), classes=words
            )

        changed = numbered(train)
        return Tables(changed, changed if test is train else test and numbered(test), federation)

    def _outputs(self, tables: Tables, folder: Path, form: Form) -> int:
        """Find the number of outputs that a model needs: a public number, which no training record changes."""
        kind = form.labels
        if isinstance(kind, Numbers):
            return kind.outputs(tables.train.labels)  # a fact of the columns
        federation, test = tables.federation, tables.test
        if found := self.known_classes(folder) or (federation and federation.classes):
            return found
        if federation is None and test is not None:
            labels = kind.converted(test.labels, len(test), test.source)
            Records(test, np.arange(len(test)), labels, kind.wrong(labels)).public(form)
            return len(test.classes or ()) or kind.outputs(labels)
        where = "data.classes" if federation is None else "data.classes, or classes in federation.json"
        raise DataError(
            f"{tables.train.source}: the number of classes is not declared, and people's labels must not decide it; "
            f"expected: {where}"
        )

    def _held_out(self, tables: Tables, strata: NDArray[np.int64] | None = None, seed: int = 0) -> NDArray[np.bool_]:
        """Choose the training records that are tested on instead, bool [records].

        How many they are depends neither on the strata nor on the seed.

        Raises:
            DataError: a test set is declared public, and there is none.
        """
        source, records = tables.train.source, len(tables.train)
        if tables.test is not None or tables.federation is not None or not self.test_is_public:
            return np.zeros(records, dtype=bool)
        if not self.test_fraction:
            if "test_is_public" in self.model_fields_set:
                raise DataError(
                    f"{source}: data.test_is_public, but no test files; expected: them, or data.test_fraction"
                )
            return np.zeros(records, dtype=bool)
        found = self._draw(tables.train, np.zeros(records, dtype=np.int64) if strata is None else strata, seed)
        if not found.any():
            of_a_client = " of a client" * isinstance(self.partition, NaturalPartition)
            needed = f"at least 2{of_a_client} are needed to hold out a test set"
            raise DataError(f"{source}: {records} records; {needed}")
        return found

    def _draw(self, train: Table, strata: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
        """Draw the held-out records of each client, in a number that follows from its own number of records alone."""
        owners = np.zeros(len(train), dtype=np.int64)
        if isinstance(self.partition, NaturalPartition):
            owners = distinct(train.column(self.partition.column))[1]
        held_out = np.zeros(len(train), dtype=bool)
        ends = np.cumsum(np.bincount(owners))
        for client, numbers in enumerate(np.split(np.argsort(owners, kind="stable"), ends[:-1])):
            if len(numbers) > 1:
                stream = rng.public_stream(seed, "test-set", client)
                held_out[numbers] = partition.hold_out(stream, np.zeros_like(numbers), self.test_fraction)
        return held_out

    def _count_training(self, tables: Tables) -> int:
        """Count the training records.

        Raises:
            DataError: only a part of them is here, or there are too few to hold some out.
        """
        if tables.federation is not None:
            raise DataError(f"{tables.train.source}: {_NOT_ALL_RECORDS}")
        return int((~self._held_out(tables)).sum())

    def _divided(self, tables: Tables, seed: int, form: Form, outputs: int) -> tuple[Records, Records]:
        """Return training records, and the public test records: of a table, held out, or none."""
        kind = form.labels
        if tables.test is tables.train and not len(tables.train):  # of a server that evaluates nothing
            labels = kind.none(tables.train.input_shape[0])
            if labels is None:
                raise DataError(
                    f"{tables.train.source}: no test records, and no others say how many numbers a label has"
                )
            return (nothing := Records(tables.train, np.arange(0), labels, np.zeros(0, bool))), nothing
        tested = [tables.test] if tables.test is not None and self.test_is_public else []
        for table in tested if tables.federation else [tables.train, *tested]:  # of a node all units may have none
            if len(table) == 0:
                raise DataError(f"{table.source}: no records; at least one is needed")
        training = Records.all_of(tables.train, form, outputs)
        none = training.take(slice(0))
        if tables.test is tables.train:
            return none, training.public(form, outputs)
        if tables.test is not None and self.test_is_public:
            if tables.test.input_shape != tables.train.input_shape:
                other = f"those of {tables.train.source} {list(tables.train.input_shape)}"
                found = f"inputs have shape {list(tables.test.input_shape)}, {other}"
                raise DataError(f"{tables.test.source}: {found}; they must agree")
            return training, Records.all_of(tables.test, form, outputs).public(form, outputs)
        held_out = self._held_out(tables, _strata_of(training, kind), seed)
        return training.take(~held_out), training.take(held_out).public(form, outputs)

    def _testers(self, tables: Tables, testing: Records) -> NDArray[np.int64] | None:
        """Find the clients of a test table's records, where its column names known ones."""
        natural = isinstance(self.partition, NaturalPartition) and tables.federation is None
        if not natural or tables.test is None or not tables.test.columns:
            return None
        assert isinstance(self.partition, NaturalPartition)
        try:
            column = tables.test.column(self.partition.column)[testing.numbers]
        except DataError:  # the test records are nobody's
            return None
        names = distinct(tables.train.column(self.partition.column))[0]
        if names.dtype.kind != column.dtype.kind:
            return None
        places = np.minimum(np.searchsorted(names, column), len(names) - 1)
        return places.astype(np.int64) if np.array_equal(names[places], column) else None

    def _owners(
        self, training: Records, federation: FederationFile | None, seed: int, kind: Labels
    ) -> tuple[NDArray[np.int64], int]:
        """Find the client of every training record (-1: nobody whose records are here), and the number of clients."""
        if not isinstance(self.partition, NaturalPartition):
            records = len(training.numbers)
            if self.clients is None:
                return np.arange(records), records
            self.partition.check_enough(records, self.clients)
            stream, strata = rng.public_stream(seed, "partition"), _strata_of(training, kind)
            return self.partition.owners(stream, strata, self.clients), self.clients
        if not len(training.numbers):
            assert federation is not None
            return training.numbers, federation.clients
        column = training.table.column(self.partition.column, complete=federation is None)
        if federation is None:
            names, owners = distinct(column)
            return owners[training.numbers], len(names)
        if column.dtype.kind in "iuf":
            hosted = np.isin(column, federation.hosted) & ~names_nobody(column)
            return np.where(hosted, column, -1).astype(np.int64), federation.clients
        ids = {str(client): client for client in federation.hosted}
        owners = np.array([ids.get(str(value), -1) for value in column.tolist()], dtype=np.int64)
        return owners, federation.clients


class BenchmarkData(StoredData):
    """Base of the sections of data that are published to compare methods: so is their test set."""

    test_is_public: bool = Field(True, strict=True, exclude_if=bool, description="false: no record is tested on")
    test_fraction: LessThanOne = Field(
        0.2, description="share of the records to test on, where there are no test files"
    )

    def _draw(self, train: Table, strata: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
        """Hold out the same share of every label; the records are published, so no client is protected here."""
        return partition.hold_out(rng.public_stream(seed, "test-set"), strata, self.test_fraction)


def _client_name(client: Any) -> str:
    """Return the name that a column gives a client: a whole number is written alike in every format."""
    if isinstance(client, bytes):
        return client.decode(errors="backslashreplace")
    return str(int(client) if isinstance(client, float | np.floating) and client.is_integer() else client)


def _strata_of(records: Records, kind: Labels) -> NDArray[np.int64]:
    """Return the groups in which records are partitioned and held out: their classes, if they have one each."""
    return records.labels if kind.are_classes else np.zeros(len(records.labels), dtype=np.int64)


_NOT_ALL_RECORDS = (
    "the folder holds a part of the federation, and privacy.unit sample needs all records in one place; use client"
)


Names = Annotated[list[str], Field(min_length=1)] | str


class FolderData(StoredData):
    """Base of the sections of folders with train and test files."""

    path: str = Field(description="folder; relative paths start at the scenario's folder")

    @abstractmethod
    def split(self, folder: Path, split: str) -> Table | None:
        """Open the table of a split, ``train`` or ``test``; None without files."""

    def like(self, test: Table) -> Self:
        """Copy the section; what it leaves open is as the public test set has it."""
        return self

    def place(self, folder: Path) -> Path:
        """Return the folder of the files.

        Raises:
            DataError: there is none.
        """
        return existing_folder(folder, self.path, f"train.{self.name}")

    def open(self, folder: Path) -> Tables:
        """Open the folder's tables.

        A test file in the folder of a server, which hosts no client, is public by its place; elsewhere
        ``test_is_public`` says so.
        """
        folder = self.place(folder)
        federation = self._federation_file(folder / "federation.json")
        is_servers = federation is not None and not federation.hosted
        # A test file in the server's folder is said to be public by the place where it lies.
        test = self.split(folder, "test") if self.test_is_public or is_servers else None
        train = (self if test is None else self.like(test)).split(folder, "train")
        if is_servers and train is None:
            public = test or self._nothing(folder)
            return Tables(public, public, federation)
        if train is None:
            raise DataError(f"{folder}: no train.{self.name}; the folder holds {some_files(folder)}")
        return Tables(train, test, federation)

    def input_shape(self) -> tuple[int, ...] | None:
        """Return the shape of an input, where the scenario says it; else None."""
        return self.shape

    def _nothing(self, folder: Path) -> Table:
        """Return a table without records, for a server that evaluates nothing."""
        shape = self.input_shape()
        if shape is None:
            expected = f"test.{self.name} of public records, or data.shape, the shape of an input, and no evaluation"
            raise DataError(f"{folder}: no test.{self.name}; expected: {expected}")
        return Table(str(folder), np.zeros((0, *shape), np.float32), np.zeros(0, np.int64))

    def _federation_file(self, path: Path) -> FederationFile | None:
        """Read ``federation.json``; None: there is none, so all clients are here."""
        if not path.exists():
            return None
        if not isinstance(self.partition, NaturalPartition):
            raise DataError(
                f"{path}: a folder that holds a part of the federation needs data.partition {{scheme: natural}}, "
                f"got {self.partition.scheme}"
            )
        try:
            return FederationFile.model_validate_json(read_regular(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"][:1])
            raise DataError(f"{path}: {where}{first['msg']}; keys are clients, hosted, classes") from None


class ColumnsData(FolderData):
    """Base of those whose columns are inputs and labels."""

    features: Names = Field("x", description="array (npz), or column or columns, of the inputs")
    label: Names = Field(
        "y", description="labels of the test records: classes, numbers or tokens, as client.loss takes them"
    )
    scale: PixelScale = None

    def input_shape(self) -> tuple[int, ...] | None:
        """Return the shape that the scenario says, or one number for each column of inputs."""
        are_columns = not isinstance(self.features, str) and len(self.features) > 1
        return self.shape or ((len(self.features),) if are_columns else None)


def existing_folder(start: Path, path: str, file: str) -> Path:
    """Return the folder ``data.path``.

    Args:
        start: where a relative path starts.
        path: as the scenario has it.
        file: a file that the folder needs, for the error.

    Raises:
        DataError: there is no such folder.
    """
    folder = start / Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"data.path: {folder} is not a folder; give the folder that holds {file}")
    return folder


def some_files(folder: Path) -> str:
    """Name a few files of a folder, for a message."""
    return ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
