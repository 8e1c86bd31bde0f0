"""Parquet files: a row group is read when one of its records is asked for, and kept while there is room."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp import scenario
from fedamp.data.folder import open_folder
from fedamp.data.source import Source, sources
from fedamp.data.table import as_inputs, checked_shape, first_line
from fedamp.errors import DataError

KEPT = 256 * 2**20  # bytes of decoded row groups that a table keeps, beyond the one just read


@sources.register("parquet")
def parquet(config: scenario.FolderData, folder: Path) -> Source:
    return open_folder(config, folder, _open_split)


def _open_split(config: scenario.FolderData, folder: Path, split: str) -> "ParquetTable | None":
    paths = sorted(folder.glob(f"{split}*.parquet"))
    return ParquetTable(paths, config) if paths else None


class ParquetTable:
    """One or several parquet files with the same columns: inputs, label, and whose each record is."""

    def __init__(self, paths: Sequence[Path], config: scenario.FolderData) -> None:
        """Reads the files' metadata, and one record.

        Args:
            paths: the files, in the order of their records.
            config: names one column of numbers or (nested) lists of numbers, or several columns of numbers.

        Raises:
            DataError: not a parquet file, a column missing or not of numbers, or no records.
        """
        self.source = str(paths[0]) if len(paths) == 1 else f"{paths[0]} ... {paths[-1].name}"
        self._paths, self._label, self._scale = paths, config.label, config.scale
        self._inputs = [config.features] if isinstance(config.features, str) else config.features
        self._groups: list[tuple[Path, int]] = []  # file, and number of the row group in it
        sizes: list[int] = []
        for path in paths:
            self._require(path, self._inputs, "data.features")
            self._require(path, [self._label], "data.label")
            rows = _group_sizes(path)
            sizes += rows
            self._groups += [(path, group) for group in range(len(rows))]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        example = self._dense(*self._first_record())
        self._stored_shape, self.stored = example.shape[1:], example.dtype
        self.input_shape = checked_shape(self._stored_shape, config.shape, self.source)
        self._kept: dict[int, NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def labels(self) -> NDArray[Any]:
        return self.column(self._label)

    def column(self, name: str) -> NDArray[Any]:
        parts = []
        for path in self._paths:
            self._require(path, [name], "data.partition.column")
            with _opened(path) as file:
                parts.append(_flat(file.read(columns=[name]).column(name), f"{path}: column {name!r}"))
        return np.concatenate(parts)

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        groups = np.searchsorted(self._starts, records, side="right") - 1
        raw = np.empty((len(records), *self._stored_shape), dtype=self.stored)
        for group in np.unique(groups):
            here = groups == group
            raw[here] = self._group(int(group))[records[here] - self._starts[group]]
        return as_inputs(raw, records, self.input_shape, self._scale, self.source)

    def _group(self, number: int) -> NDArray[Any]:
        if number not in self._kept:
            path, group = self._groups[number]
            with _opened(path) as file:
                rows = self._dense(path, file.read_row_group(group, columns=self._inputs))
            if rows.shape[1:] != self._stored_shape or rows.dtype != self.stored:
                raise DataError(
                    f"{path}: inputs of type {rows.dtype} and shape {list(rows.shape[1:])}, those of the first record "
                    f"are {self.stored} and {list(self._stored_shape)}; all must be alike"
                )
            self._kept[number] = rows
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > KEPT:
                del self._kept[next(iter(self._kept))]
        return self._kept[number]

    def _first_record(self) -> tuple[Path, Any]:
        for path in self._paths:
            with _opened(path) as file:
                for batch in file.iter_batches(batch_size=1, columns=self._inputs):
                    return path, batch
        raise DataError(f"{self.source}: no records; at least one is needed")

    def _dense(self, path: Path, rows: Any) -> NDArray[Any]:
        """The input columns of some rows as one array [rows, ...]."""
        columns = [_stacked(rows.column(name), f"{path}: column {name!r}") for name in self._inputs]
        if len(columns) == 1:
            return columns[0]
        if any(column.ndim > 1 for column in columns):
            raise DataError(f"{path}: data.features names several columns, so each must hold one number a record")
        return np.stack(columns, axis=1)

    def _require(self, path: Path, names: Sequence[str], key: str) -> None:
        with _opened(path) as file:
            present = file.schema_arrow.names
        for name in names:
            if name not in present:
                raise DataError(f"{path}: no column {name!r}; {key} must be one of {', '.join(present)}")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as parquet ({first_line(error)})") from None


def _group_sizes(path: Path) -> list[int]:
    with _opened(path) as file:
        return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]


def _flat(column: Any, where: str) -> NDArray[Any]:
    """One value a record, of any type."""
    import pyarrow as pa

    _refuse_empty_cells(column, where)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return np.asarray(column.to_numpy())


def _stacked(column: Any, where: str) -> NDArray[Any]:
    """Numbers, or (nested) lists of numbers that are equally long in every record, as an array [rows, ...]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    shape = [len(values)]
    _refuse_empty_cells(values, where)
    while isinstance(values, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) > 1:
            raise DataError(
                f"{where} holds lists of different lengths ({lengths[0]}, {lengths[1]}, ...); all must agree"
            )
        shape.append(lengths[0] if lengths else 0)
        values = values.flatten()
        _refuse_empty_cells(values, where)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)):
        raise DataError(f"{where} is of type {values.type}; inputs must be numbers or lists of numbers")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)


def _refuse_empty_cells(values: Any, where: str) -> None:
    if values.null_count:
        raise DataError(f"{where} has {values.null_count} empty cells; every record needs its values")
