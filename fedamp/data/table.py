"""A table: the records of one split as they are stored, before they are partitioned."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.errors import DataError

CHECKED_AT_ONCE = 256 * 2**20  # bytes; inputs up to this size are checked when loaded, larger ones as they are read


class Table(ABC):
    """Labelled records that can be read by number. Opening a table is cheap.

    Args:
        source: its name in errors, for example the file.
        stored_shape: shape of one input as it is stored.
        stored_type: type of the inputs as they are stored.
        shape: shape of one input as :meth:`read` gives it; None: as stored (a single number: [1]).
        scale: inputs are divided by it.

    Raises:
        DataError: inputs without numbers, or not as many of them as ``shape`` needs.
    """

    def __init__(
        self,
        source: str,
        stored_shape: tuple[int, ...],
        stored_type: np.dtype[Any],
        shape: tuple[int, ...] | None = None,
        scale: float = 1.0,
    ) -> None:
        self.source, self.stored_shape, self.stored_type, self._scale = source, stored_shape, stored_type, scale
        numbers = math.prod(stored_shape)
        if numbers == 0:
            raise DataError(f"{source}: one input has shape {list(stored_shape)}; it must hold at least one number")
        if len(self) == 0:
            raise DataError(f"{source}: no records; at least one is needed")
        if shape is not None and math.prod(shape) != numbers:
            raise DataError(
                f"{source}: one input has {numbers} numbers (stored as {list(stored_shape)}), "
                f"data.shape {list(shape)} needs {math.prod(shape)}"
            )
        self.input_shape = (stored_shape or (1,)) if shape is None else tuple(shape)

    @abstractmethod
    def __len__(self) -> int:
        """Number of records."""

    @abstractmethod
    def stored_labels(self) -> NDArray[Any]:
        """The labels as they are stored, shape [records] or [records, ...]."""

    @abstractmethod
    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[Any]:
        """Inputs of the records as they are stored, in the given order, shape [records, *stored_shape]."""

    @abstractmethod
    def stored_column(self, name: str) -> NDArray[Any]:
        """A column that names the client of each record, shape [records]. Raises DataError if there is none."""

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        """Inputs of the records, in the given order, shape [records, *input_shape].

        Raises:
            DataError: a number that is not finite, or too large for float32; names the source and the record.
        """
        with np.errstate(over="ignore"):
            inputs = self.stored_inputs(records).astype(np.float32, copy=False)
            inputs = inputs.reshape(len(records), *self.input_shape)
            if self._scale != 1:
                inputs = inputs / np.float32(self._scale)
        if not np.isfinite(inputs).all():
            first = np.argmin(np.isfinite(inputs).reshape(len(records), -1).all(axis=1))
            raise DataError(
                f"{self.source}: the inputs of record {records[first]} hold NaN or infinity; all must be finite"
            )
        return inputs

    def check_inputs(self) -> None:
        """Reads a table of at most 256 MB once, as :meth:`read` does, if its type allows NaN and infinity."""
        bytes_per_record = math.prod(self.stored_shape) * self.stored_type.itemsize
        if self.stored_type.kind == "f" and len(self) * bytes_per_record <= CHECKED_AT_ONCE:
            step = max(1, 2**22 // bytes_per_record)
            for start in range(0, len(self), step):
                self.read(np.arange(start, min(start + step, len(self))))

    def column(self, name: str) -> NDArray[Any]:
        """The client of each record as stored: integers, strings or anything else that is ordered, shape [records].

        Raises:
            DataError: no such column, or not one plain value for each record.
        """
        values = self.stored_column(name)
        plain = values.dtype != object or all(isinstance(value, str | bytes) for value in values)
        if values.shape != (len(self),) or not plain or (values.dtype.kind == "f" and not np.isfinite(values).all()):
            raise DataError(
                f"{self.source}: column {name!r} must name a client (a number or a string) for each of the "
                f"{len(self)} records; it is of type {values.dtype} and shape {list(values.shape)}"
            )
        return values


class ArrayTable(Table):
    """Inputs [records, ...], labels [records, ...], and client columns [records] in arrays.

    An array has ``shape``, ``dtype`` and numpy's indexing; it can be mapped into memory, or read on first use.
    """

    def __init__(
        self,
        source: str,
        inputs: Any,
        labels: Any,
        columns: Mapping[str, Any] | None = None,
        shape: tuple[int, ...] | None = None,
        scale: float = 1.0,
    ) -> None:
        self._inputs, self._labels, self._columns = inputs, labels, columns or {}
        super().__init__(source, inputs.shape[1:], inputs.dtype, shape, scale)

    def __len__(self) -> int:
        return int(self._inputs.shape[0])

    def stored_labels(self) -> NDArray[Any]:
        return np.asarray(self._labels[...])

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self._inputs[records])

    def stored_column(self, name: str) -> NDArray[Any]:
        if not self._columns:
            raise DataError(f"{self.source}: no column {name!r}; partition these data by iid, dirichlet or shards")
        require(name, self._columns, "data.partition.column", self.source)
        return np.asarray(self._columns[name][...])


def image_scale(asked: float | None, stored_type: np.dtype[Any]) -> float:
    """The divisor of images: ``data.scale``, else the largest value of unsigned integers; 1 for other numbers."""
    return asked or (float(np.iinfo(stored_type).max) if stored_type.kind == "u" else 1.0)


def require(name: str, present: Collection[str], key: str, source: str, what: str = "column") -> None:
    """Raises DataError if there is no column (or array) of the name that the scenario's key asks for."""
    if name not in present:
        raise DataError(f"{source}: no {what} {name!r}; {key} must be one of {', '.join(present)}")


def cache_folder(name: str) -> Path:
    """A folder of copies of private records, readable by its owner alone. Raises OSError if it cannot be made."""
    folder = Path(os.environ.get("FEDAMP_CACHE", Path.home() / ".cache" / "fedamp")) / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def first_line(error: BaseException) -> str:
    """A library's complaint, for a message of one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
