"""From the data section of a scenario to a data set, or just to the number of clients or records in it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp import rng, scenario
from fedamp.data import partition
from fedamp.data.dataset import Dataset
from fedamp.data.dealt import Records, deal
from fedamp.data.digits import DigitsTable
from fedamp.data.synthetic import synthetic
from fedamp.data.table import Table, check_inputs, checked_labels
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
    train, test = _open(config, folder)
    training, testing = _split(config, seed, train, test)
    num_classes = 1 + max(training.labels.max(), testing.labels.max())
    owners, num_clients = _owners(config, seed, training)
    return deal(training, owners, num_clients, testing, int(num_classes))


def count_clients(config: scenario.Data, folder: Path) -> int:
    """The number of clients that :func:`load` would give, without reading more than a natural partition needs.

    Raises:
        DataError: as :func:`load`, as far as it can be seen without reading the records.
    """
    if isinstance(config, scenario.SyntheticData):
        return config.clients
    if isinstance(config.partition, scenario.NaturalPartition):
        return len(np.unique(_open(config, folder)[0].column(config.partition.column)))
    records = count_records(config, folder)
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
    train, test = _open(config, folder)
    return len(train) if test is not None else len(train) - _hold_out_size(config, train)


def _open(config: _TableData, folder: Path) -> tuple[Table, Table | None]:
    """The training table, and the test table if the data have one."""
    if isinstance(config, scenario.DigitsData):
        return DigitsTable(), None
    raise NotImplementedError


def _split(config: _TableData, seed: int, train: Table, test: Table | None) -> tuple[Records, Records]:
    """Training and test records: from two tables, or from one of which a part is kept out."""
    training = _all_records(train)
    if test is None:
        _hold_out_size(config, train)
        kept_out = partition.hold_out(rng.stream(seed, "test-set"), training.labels, config.test_fraction)
        return training.take(~kept_out), training.take(kept_out)
    if test.input_shape != train.input_shape:
        raise DataError(
            f"{test.source}: inputs have shape {list(test.input_shape)}, "
            f"those of {train.source} {list(train.input_shape)}; they must agree"
        )
    return training, _all_records(test)


def _all_records(table: Table) -> Records:
    check_inputs(table)
    labels = checked_labels(table)
    return Records(table, np.arange(len(labels)), labels)


def _hold_out_size(config: _TableData, train: Table) -> int:
    if len(train) < 2:
        raise DataError(f"{train.source}: {len(train)} records; at least 2 are needed to keep a test set out")
    return partition.hold_out_size(len(train), config.test_fraction)


def _owners(config: _TableData, seed: int, training: Records) -> tuple[NDArray[np.int64], int]:
    """The client of every training record, and the number of clients."""
    scheme, records = config.partition, len(training.labels)
    generator = rng.stream(seed, "partition")
    if isinstance(scheme, scenario.NaturalPartition):
        names, owners = np.unique(training.table.column(scheme.column), return_inverse=True)
        return owners[training.numbers], len(names)
    if config.clients is None:
        return np.arange(records), records
    if isinstance(scheme, scenario.IidPartition):
        return partition.iid(generator, records, config.clients), config.clients
    if isinstance(scheme, scenario.ShardsPartition):
        return partition.shards(generator, training.labels, config.clients, scheme.shards_per_client), config.clients
    return partition.dirichlet(generator, training.labels, config.clients, scheme.alpha), config.clients
