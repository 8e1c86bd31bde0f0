"""From the data section of a scenario to a data set, or just to the number of clients or records in it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp import rng, scenario
from fedamp.data import partition
from fedamp.data.dataset import Dataset
from fedamp.data.dealt import NOT_ALL_RECORDS, Records, deal
from fedamp.data.digits import DigitsTable
from fedamp.data.folder import Tables, open_folder
from fedamp.data.huggingface import open_huggingface
from fedamp.data.synthetic import synthetic
from fedamp.data.table import Table, check_inputs, checked_column, checked_labels
from fedamp.errors import DataError

_TableData = scenario.DigitsData | scenario.FolderData | scenario.HuggingFaceData


def load(config: scenario.Data, seed: int, folder: Path) -> Dataset:
    """The data set that a scenario describes.

    Args:
        config: the ``data`` section.
        seed: decides the test set and the partition (and the records themselves where they are synthetic).
        folder: where relative paths start.

    Returns:
        The data set. Where neither ``clients`` nor a natural partition says how to deal the records, every record is
        a client of its own.

    Raises:
        DataError: what is wrong, where, and what is accepted, in one line.
    """
    if isinstance(config, scenario.SyntheticData):
        return synthetic(config, seed)
    tables = _open(config, folder)
    training, testing = _split(config, seed, tables)
    owners, num_clients = _owners(config, seed, tables, training)
    hosted = None if tables.federation is None else np.array(sorted(tables.federation.hosted), dtype=np.int64)
    return deal(training, owners, num_clients, testing, _num_classes(tables, training, testing), hosted)


def count_clients(config: scenario.Data, folder: Path) -> int:
    """The number of clients that :func:`load` would give, without reading more than a natural partition needs.

    Raises:
        DataError: as :func:`load`, as far as it can be seen without reading the records.
    """
    if isinstance(config, scenario.SyntheticData):
        return config.clients
    tables = _open(config, folder)
    if tables.federation is not None:
        return tables.federation.clients
    if isinstance(config.partition, scenario.NaturalPartition):
        return len(np.unique(checked_column(tables.train, config.partition.column)))
    records = _training_records(config, tables)
    if config.clients is None:
        return records
    if isinstance(config.partition, scenario.IidPartition):
        partition.check_enough_records(records, config.clients)
    if isinstance(config.partition, scenario.ShardsPartition):
        partition.check_enough_shards(records, config.clients, config.partition.shards_per_client)
    return config.clients


def count_records(config: scenario.Data, folder: Path) -> int:
    """The number of training records that :func:`load` would give, from file headers.

    Raises:
        DataError: as :func:`load`, as far as it can be seen without reading the records.
    """
    if isinstance(config, scenario.SyntheticData):
        return config.clients * config.records_per_client
    return _training_records(config, _open(config, folder))


def _open(config: _TableData, folder: Path) -> Tables:
    if isinstance(config, scenario.DigitsData):
        return Tables(DigitsTable(config.shape))
    if isinstance(config, scenario.FolderData):
        return open_folder(config, folder)
    return Tables(*open_huggingface(config, folder))


def _training_records(config: _TableData, tables: Tables) -> int:
    if tables.federation is not None:
        raise DataError(f"{tables.train.source}: {NOT_ALL_RECORDS}")
    return len(tables.train) - (_hold_out_size(config, tables.train) if tables.test is None else 0)


def _split(config: _TableData, seed: int, tables: Tables) -> tuple[Records, Records]:
    """Training and test records: from two tables, or from one of which a part is kept out."""
    training = _all_records(tables.train)
    if tables.test is not None:
        testing = _all_records(tables.test)
        if tables.test.input_shape != tables.train.input_shape:
            raise DataError(
                f"{tables.test.source}: inputs have shape {list(tables.test.input_shape)}, "
                f"those of {tables.train.source} {list(tables.train.input_shape)}; they must agree"
            )
        return training, testing
    if tables.federation is not None:
        return training, training.take(np.zeros(0, dtype=np.int64))
    _hold_out_size(config, tables.train)
    kept_out = partition.hold_out(rng.stream(seed, "test-set"), training.labels, config.test_fraction)
    return training.take(~kept_out), training.take(kept_out)


def _all_records(table: Table) -> Records:
    labels = checked_labels(table)
    check_inputs(table)
    return Records(table, np.arange(len(labels)), labels)


def _hold_out_size(config: _TableData, train: Table) -> int:
    if len(train) < 2:
        raise DataError(f"{train.source}: {len(train)} records; at least 2 are needed to keep a test set out")
    return partition.hold_out_size(len(train), config.test_fraction)


def _num_classes(tables: Tables, training: Records, testing: Records) -> int:
    labels = np.concatenate([training.labels, testing.labels])
    if tables.federation is not None:
        classes = tables.federation.classes
        if labels.size and labels.max() >= classes:
            raise DataError(
                f"{tables.train.source}: label {labels.max()}; federation.json says there are {classes} classes"
            )
        return classes
    if labels.min() > 0:
        raise DataError(f"{tables.train.source}: the smallest label is {labels.min()}; labels must count from 0")
    return int(labels.max()) + 1


def _owners(config: _TableData, seed: int, tables: Tables, training: Records) -> tuple[NDArray[np.int64], int]:
    """The client of every training record, and the number of clients."""
    scheme, records = config.partition, len(training.labels)
    if isinstance(scheme, scenario.NaturalPartition):
        column = checked_column(tables.train, scheme.column)
        if tables.federation is not None:
            return partition.hosted(column, tables.federation.hosted, tables.train.source), tables.federation.clients
        names, owners = np.unique(column, return_inverse=True)
        return owners[training.numbers], len(names)
    generator = rng.stream(seed, "partition")
    if config.clients is None:
        return np.arange(records), records
    if isinstance(scheme, scenario.IidPartition):
        return partition.iid(generator, records, config.clients), config.clients
    if isinstance(scheme, scenario.ShardsPartition):
        return partition.shards(generator, training.labels, config.clients, scheme.shards_per_client), config.clients
    return partition.dirichlet(generator, training.labels, config.clients, scheme.alpha), config.clients
