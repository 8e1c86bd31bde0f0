"""A table: the records of one split as they are stored, before they are dealt to clients."""

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedamp.errors import DataError

CHECKED_AT_ONCE = 256 * 2**20  # bytes; inputs up to this size are checked when loaded, larger ones as they are read


class Table(Protocol):
    """Labelled records that can be read by number. Opening one is cheap; what is read decides the cost."""

    source: str  # what errors call it, for example the file

    def __len__(self) -> int:
        """Number of records."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, as it is handed out."""

    @property
    def stored(self) -> np.dtype[Any]:
        """Type of the inputs as they are stored."""

    def labels(self) -> NDArray[Any]:
        """The labels as they are stored, shape [records]."""

    def column(self, name: str) -> NDArray[Any]:
        """A column that says whose each record is, shape [records].

        Raises:
            DataError: no such column.
        """

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        """Inputs of the records, in the order asked, shape [records, *input_shape].

        Raises:
            DataError: a number that is not finite.
        """


def as_inputs(
    raw: NDArray[Any], records: NDArray[np.int64], shape: tuple[int, ...], scale: float, source: str
) -> NDArray[np.float32]:
    """Stored numbers as inputs: float32, divided by ``scale``, of the given shape.

    Raises:
        DataError: a number that is not finite, or too large for float32; names the source and the record.
    """
    with np.errstate(over="ignore"):
        inputs = raw.astype(np.float32, copy=False).reshape(len(records), *shape)
        if scale != 1:
            inputs = inputs / np.float32(scale)
    if not np.isfinite(inputs).all():
        first = np.argmin(np.isfinite(inputs).reshape(len(records), -1).all(axis=1))
        raise DataError(f"{source}: the inputs of record {records[first]} hold NaN or infinity; all must be finite")
    return inputs


def check_inputs(table: Table) -> None:
    """Reads a table once to find inputs that are not finite, if they can be and it is not large."""
    bytes_per_record = math.prod(table.input_shape) * table.stored.itemsize
    if table.stored.kind == "f" and len(table) * bytes_per_record <= CHECKED_AT_ONCE:
        step = max(1, 2**22 // bytes_per_record)
        for start in range(0, len(table), step):
            table.read(np.arange(start, min(start + step, len(table))))


def checked_labels(table: Table) -> NDArray[np.int64]:
    """The labels of a table, as class numbers.

    Raises:
        DataError: labels that are not non-negative integers, one for each record.
    """
    labels = table.labels()
    accepted = "labels must be integers 0, 1, 2, ..."
    if labels.shape != (len(table),):
        raise DataError(
            f"{table.source}: labels have shape {list(labels.shape)}, inputs {len(table)} records; give one label each"
        )
    if labels.dtype.kind not in "iu":
        raise DataError(f"{table.source}: labels are of type {labels.dtype}; {accepted}")
    if labels.size and labels.min() < 0:
        raise DataError(f"{table.source}: label {labels.min()} at record {np.argmin(labels)}; {accepted}")
    return labels.astype(np.int64)


def checked_column(table: Table, name: str) -> NDArray[Any]:
    """Whose each record is, as stored: integers, strings or whatever else can be compared.

    Raises:
        DataError: no such column, or not one plain value for each record.
    """
    values = table.column(name)
    plain = values.dtype != object or all(isinstance(value, str | bytes) for value in values)
    if values.shape != (len(table),) or not plain or (values.dtype.kind == "f" and not np.isfinite(values).all()):
        raise DataError(
            f"{table.source}: column {name!r} must name a client (a number or a string) for each of the "
            f"{len(table)} records; it is of type {values.dtype} and shape {list(values.shape)}"
        )
    return values


def checked_shape(stored: tuple[int, ...], wanted: tuple[int, ...] | None, source: str) -> tuple[int, ...]:
    """The shape of one input: as stored (a single number: [1]), or the one that ``data.shape`` asks for.

    Raises:
        DataError: inputs without numbers, or another number of them than the asked shape has.
    """
    if math.prod(stored) == 0:
        raise DataError(f"{source}: one input has shape {list(stored)}; it must hold at least one number")
    if wanted is not None and math.prod(wanted) != math.prod(stored):
        raise DataError(
            f"{source}: one input has {math.prod(stored)} numbers (stored as {list(stored)}), "
            f"data.shape {list(wanted)} needs {math.prod(wanted)}"
        )
    return (stored or (1,)) if wanted is None else tuple(wanted)


def first_line(error: Exception) -> str:
    """What a library complained about, for a message of one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
