"""Parquet files: a row group is read when one of its records is asked for, and kept while there is room."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.data.folder import open_folder
from fedamp.data.sections import FolderData
from fedamp.data.source import Source, sources
from fedamp.data.table import Table, first_line, require
from fedamp.errors import DataError

KEPT = 256 * 2**20  # bytes of decoded row groups that a table keeps, beyond the one just read


@sources.register("parquet")
def parquet(config: FolderData, folder: Path) -> Source:
    return open_folder(config, folder, _open_split)


def _open_split(config: FolderData, folder: Path, split: str) -> "ParquetTable | None":
    paths = sorted(folder.glob(f"{split}*.parquet"))
    return ParquetTable(paths, config) if paths else None


class ParquetTable(Table):
    """One or several parquet files with the same columns: inputs, label, and whose each record is.

    Args:
        paths: the files, in the order of their records. Their metadata and one record are read at once.
        config: names one column of numbers or (nested) lists of numbers, or several columns of numbers.

    Raises:
        DataError: not a parquet file, a column missing or not of numbers, or no records.
    """

    def __init__(self, paths: Sequence[Path], config: FolderData) -> None:
        import pyarrow.dataset

        self.source = str(paths[0]) if len(paths) == 1 else f"{paths[0]} ... {paths[-1].name}"
        self._inputs = [config.features] if isinstance(config.features, str) else config.features
        self._labels = [config.label] if isinstance(config.label, str) else config.label
        with self._readable():
            self._files = pyarrow.dataset.dataset([str(path) for path in paths], format="parquet")
            for name in self._inputs:
                require(name, self._files.schema.names, "data.features", self.source)
            for name in self._labels:
                require(name, self._files.schema.names, "data.label", self.source)
            groups = [group for file in self._files.get_fragments() for group in file.split_by_row_group()]
            self._groups = [group for group in groups if group.row_groups[0].num_rows]
            sizes = [group.row_groups[0].num_rows for group in self._groups]
            self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            if not self._groups:
                raise DataError(f"{self.source}: no records; at least one is needed")
            example = self._dense(self._groups[0].head(1, columns=self._inputs), self._groups[0].path)
        self._kept: dict[int, NDArray[Any]] = {}
        super().__init__(self.source, example.shape[1:], example.dtype, config.shape, config.scale)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def stored_labels(self) -> NDArray[Any]:
        if len(self._labels) == 1 and not self._holds_lists(self._labels[0]):
            return self.stored_column(self._labels[0])
        with self._readable():
            return self._dense(self._files.to_table(columns=self._labels), self.source)

    def stored_column(self, name: str) -> NDArray[Any]:
        """One value a record, of any type."""
        import pyarrow as pa

        require(name, self._files.schema.names, "data.partition.column", self.source)
        with self._readable():
            column = self._files.to_table(columns=[name]).column(name)
            _refuse_empty_cells(column, f"{self.source}: column {name!r}")
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            return np.asarray(column.to_numpy())

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[Any]:
        groups = np.searchsorted(self._starts, records, side="right") - 1
        inputs = np.empty((len(records), *self.stored_shape), dtype=self.stored_type)
        for group in np.unique(groups):
            here = groups == group
            inputs[here] = self._read_group(int(group))[records[here] - self._starts[group]]
        return inputs

    def _read_group(self, number: int) -> NDArray[Any]:
        if number not in self._kept:
            group = self._groups[number]
            with self._readable():
                rows = self._dense(group.to_table(columns=self._inputs), group.path)
            if rows.shape[1:] != self.stored_shape or rows.dtype != self.stored_type:
                raise DataError(
                    f"{group.path}: inputs of type {rows.dtype} and shape {list(rows.shape[1:])}, those of the first "
                    f"record are {self.stored_type} and {list(self.stored_shape)}; all must be alike"
                )
            self._kept[number] = rows
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > KEPT:
                del self._kept[next(iter(self._kept))]
        return self._kept[number]

    def _dense(self, rows: Any, where: str) -> NDArray[Any]:
        """All columns of some rows as one array [rows, ...]."""
        columns = [_stacked(rows.column(name), f"{where}: column {name!r}") for name in rows.column_names]
        if len(columns) == 1:
            return columns[0]
        if any(column.ndim > 1 for column in columns):
            names = ", ".join(rows.column_names)
            raise DataError(f"{where}: of several columns ({names}) each must hold one number a record")
        return np.stack(columns, axis=1)

    def _holds_lists(self, name: str) -> bool:
        import pyarrow as pa

        return bool(pa.types.is_nested(self._files.schema.field(name).type))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.source}: cannot be read as parquet ({first_line(error)})") from None


def _stacked(column: Any, where: str) -> NDArray[Any]:
    """Numbers, or (nested) lists of numbers that are equally long in every record, as an array [rows, ...]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column.combine_chunks()
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
        raise DataError(f"{where} is of type {values.type}; expected: numbers or lists of numbers")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)


def _refuse_empty_cells(values: Any, where: str) -> None:
    if values.null_count:
        raise DataError(f"{where} has {values.null_count} empty cells; every record needs its values")
