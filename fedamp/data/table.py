"""A table: the records of one split as they are stored, before they are partitioned."""

import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.data.form import Form
from fedamp.errors import DataError

CHECKED_AT_ONCE = 256 * 2**20  # bytes; inputs up to this size are checked when loaded, larger ones as they are read


@dataclass(eq=False)
class Table:
    """Labelled records that can be read by number. Raises DataError for inputs without numbers, or of another shape."""

    source: str  # its name in errors, for example the file
    inputs: Any  # [records, ...]; an array, or an object with shape, dtype and inputs[record numbers]
    labels: NDArray[Any]  # [records] or [records, ...]
    read_column: Callable[[str], NDArray[Any]] | None = None  # [records]; None: no column names the clients
    shape: tuple[int, ...] | None = None  # of one input as read() gives it; None: as stored (a single number: [1])
    scale: float = 1.0  # inputs are divided by it

    def __post_init__(self) -> None:
        stored = tuple(self.inputs.shape[1:])
        numbers, shape = math.prod(stored), self.shape
        if numbers == 0:
            raise DataError(f"{self.source}: one input has shape {list(stored)}; it must hold at least one number")
        if shape is not None and math.prod(shape) != numbers:
            found = f"one input has {numbers} numbers (stored as {list(stored)})"
            raise DataError(f"{self.source}: {found}, data.shape {list(shape)} needs {math.prod(shape)}")
        self.input_shape: tuple[int, ...] = (stored or (1,)) if shape is None else tuple(shape)

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        """Inputs of the records, in the given order, shape [records, *input_shape].

        What is too large for float32 is infinite. A record that cannot be read is NaN: it must not take others away.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            inputs = np.asarray(self.inputs[records]).astype(np.float32, copy=False)
            inputs = inputs.reshape(len(records), *self.input_shape)
            if self.scale != 1:
                inputs = inputs / np.float32(self.scale)
        return inputs

    def wrong(self, form: Form) -> NDArray[np.bool_]:
        """Which records cannot be trained on, by their inputs, shape [records]; read in blocks.

        Above 256 MB, or where inputs are computed as they are read, no record is wrong yet: :meth:`read` finds it.
        """
        wrong, bytes_per_record = np.zeros(len(self), bool), math.prod(self.input_shape) * self.inputs.dtype.itemsize
        could_be = self.inputs.dtype.kind == "f" or form.vocabulary is not None
        if could_be and len(self) * bytes_per_record <= CHECKED_AT_ONCE:
            step = max(1, 2**22 // bytes_per_record)
            for start in range(0, len(self), step):
                block = np.arange(start, min(start + step, len(self)))
                wrong[block] = form.wrong(self.read(block))
        return wrong

    def column(self, name: str, complete: bool = True) -> NDArray[Any]:
        """The client of each record as stored: integers, strings or anything else that is ordered, shape [records].

        Raises DataError for no such column, not a value for each record, or (``complete``) values that name nobody.
        """
        if self.read_column is None:
            raise DataError(f"{self.source}: no column {name!r}; partition these data by iid, dirichlet or shards")
        values = self.read_column(name)
        plain = values.dtype != object or all(isinstance(value, str | bytes) for value in values)
        named = plain and not (values.dtype.kind == "f" and not np.isfinite(values).all())
        if values.shape != (len(self),) or (complete and not named):
            raise DataError(
                f"{self.source}: column {name!r} must name a client (a number or a string) for each of the "
                f"{len(self)} records; it is of type {values.dtype} and shape {list(values.shape)}"
            )
        return values


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
