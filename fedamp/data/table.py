"""A table: the records of one split as they are stored, before they are dealt to clients."""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.errors import DataError

CHECKED_AT_ONCE = 256 * 2**20  # bytes; inputs up to this size are checked when loaded, larger ones as they are read


class Table(ABC):
    """Labelled records that can be read by number. Opening one is cheap; what is read decides the cost.

    Args:
        source: what errors call it, for example the file.
        stored_shape: shape of one input as it is stored.
        stored_type: type of the inputs as they are stored.
        shape: shape of one input as it is handed out; None: as stored (a single number: [1]).
        scale: inputs are divided by it.

    Raises:
        DataError: inputs without numbers, or another number of them than ``shape`` has.
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
        """Inputs of the records as they are stored, in the order asked, shape [records, *stored_shape]."""

    def stored_column(self, name: str) -> NDArray[Any]:
        """A column that says whose each record is, shape [records].

        Raises:
            DataError: no such column.
        """
        raise DataError(f"{self.source}: no column {name!r}; partition these data by iid, dirichlet or shards")

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        """Inputs of the records, in the order asked, shape [records, *input_shape].

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
        """Reads a table that is not large once, as :meth:`read` does, if it can hold inputs that are not finite."""
        bytes_per_record = math.prod(self.stored_shape) * self.stored_type.itemsize
        if self.stored_type.kind == "f" and len(self) * bytes_per_record <= CHECKED_AT_ONCE:
            step = max(1, 2**22 // bytes_per_record)
            for start in range(0, len(self), step):
                self.read(np.arange(start, min(start + step, len(self))))

    def column(self, name: str) -> NDArray[Any]:
        """Whose each record is, as stored: integers, strings or whatever else can be compared, shape [records].

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


def image_scale(asked: float | None, stored_type: np.dtype[Any]) -> float:
    """What images are divided by: what the scenario says or, left out, the largest value of bytes (or 16 bits), so that
    they are in [0, 1]. Other numbers stay as they are.
    """
    return asked or (float(np.iinfo(stored_type).max) if stored_type.kind == "u" else 1.0)


def require(name: str, present: list[str], key: str, source: str, what: str = "column") -> None:
    """Raises DataError if a column (or array) that a key of the scenario names is not there."""
    if name not in present:
        raise DataError(f"{source}: no {what} {name!r}; {key} must be one of {', '.join(present)}")


def first_line(error: Exception) -> str:
    """What a library complained about, for a message of one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
