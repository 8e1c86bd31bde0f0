"""Tables whose inputs go through ``data.transform``. Slow features are computed once and kept in a cache on disk."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from pydantic import Field

from fedamp.data.scattering import Scattering
from fedamp.data.table import Table, cache_folder
from fedamp.data.transform import Floats, GroupNorm, Shape, Standardise
from fedamp.data.whitening import Whiten
from fedamp.errors import DataError

AnyTransform = Annotated[Standardise | Scattering | GroupNorm | Whiten, Field(discriminator="name")]
Transforms = Annotated[
    tuple[AnyTransform, ...], Field(description="steps for every input, in order; a result depends on its record alone")
]

_BLOCK = 256  # records transformed at once: the temporaries of a scattering stay in the tens of megabytes


class TransformedTable(Table):
    """A table whose inputs go through the steps when they are read.

    Raises:
        DataError: inputs of a shape that a step cannot take.
    """

    def __init__(self, table: Table, steps: tuple[AnyTransform, ...]) -> None:
        self._table, self._steps = table, steps
        shape = table.input_shape
        for number, step in enumerate(steps):
            try:
                shape = step.output_shape(shape)
            except ValueError as error:
                raise DataError(f"data.transform.{number}: {error}; inputs have shape {list(shape)}") from None
        super().__init__(table.source, shape, np.dtype(np.float32))

    def __len__(self) -> int:
        return len(self._table)

    def stored_labels(self) -> NDArray[Any]:
        return self._table.stored_labels()

    def stored_column(self, name: str) -> NDArray[Any]:
        return self._table.stored_column(name)

    def check_inputs(self) -> None:
        self._table.check_inputs()

    def stored_inputs(self, records: NDArray[np.int64]) -> Floats:
        if any(step.slow for step in self._steps):
            cached: Floats = self._cached[records]
            return cached
        return self._transformed(records)

    def _transformed(self, records: NDArray[np.int64]) -> Floats:
        return _composed(self._steps, self._table.input_shape)(self._table.read(records))

    @cached_property
    def _cached(self) -> Floats:
        try:
            file = cache_folder("features") / f"{self._digest()}.npy"
            with FileLock(file.with_suffix(".lock"), mode=0o600):
                if not file.exists():
                    self._write(file)
            features: Floats = np.load(file, mmap_mode="r")
        except OSError as error:
            raise DataError(
                f"{error.filename}: features cannot be kept there ({error.strerror}); FEDAMP_CACHE names another folder"
            ) from None
        return features

    def _write(self, file: Path) -> None:
        unfinished = file.with_suffix(".unfinished")
        unfinished.touch(mode=0o600)  # features of private records are as private as these
        shape = (len(self), *self.input_shape)
        features = np.lib.format.open_memmap(unfinished, "w+", np.float32, shape)  # type: ignore[no-untyped-call]
        for start in range(0, len(self), _BLOCK):
            records = np.arange(start, min(start + _BLOCK, len(self)))
            features[records] = self._transformed(records)
        features.flush()
        os.replace(unfinished, file)

    def _digest(self) -> str:
        """Of all inputs and all steps."""
        steps = json.dumps([step.model_dump() for step in self._steps])
        digest = hashlib.sha256(f"1 {steps} {self._table.input_shape}".encode())
        for start in range(0, len(self), 64 * _BLOCK):
            digest.update(self._table.read(np.arange(start, min(start + 64 * _BLOCK, len(self)))).tobytes())
        return digest.hexdigest()


@cache
def _composed(steps: tuple[AnyTransform, ...], input_shape: Shape) -> Callable[[Floats], Floats]:
    """The steps, one after another; cached, since training and test records share what a step learns."""
    if not steps:
        return lambda inputs: inputs
    before = _composed(steps[:-1], input_shape)
    last = steps[-1].prepared(before, input_shape)
    return lambda inputs: last(before(inputs))
