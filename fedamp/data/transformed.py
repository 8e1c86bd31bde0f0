"""Tables whose inputs go through ``data.transform``. Slow features are computed once and kept in a cache on disk."""

import hashlib
import json
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.data.scattering import Scattering
from fedamp.data.table import Table, kept
from fedamp.data.transform import Floats, Function, GroupNorm, Shape, Standardise
from fedamp.data.whitening import Whiten
from fedamp.errors import DataError

AnyTransform = Annotated[Standardise | Scattering | GroupNorm | Whiten, Field(discriminator="name")]
Transforms = Annotated[
    tuple[AnyTransform, ...], Field(description="steps for every input, in order; a result depends on its record alone")
]

_BLOCK = 256  # records transformed at once: the temporaries of a scattering stay in the tens of megabytes


def transformed(table: Table, steps: tuple[AnyTransform, ...]) -> Table:
    """The table with its inputs transformed. Raises DataError for inputs of a shape that a step cannot take."""
    shape = table.input_shape
    for number, step in enumerate(steps):
        try:
            shape = step.output_shape(shape)
        except ValueError as error:
            raise DataError(f"data.transform.{number}: {error}; inputs have shape {list(shape)}") from None
    column = partial(table.column, complete=False)
    return (
        Table(table.source, _Features(table, steps, shape), table.labels, column, place=table.place) if steps else table
    )


class _Features:
    """Inputs of a table after the steps, computed when they are read."""

    def __init__(self, table: Table, steps: tuple[AnyTransform, ...], shape: Shape) -> None:
        self._table, self._steps = table, steps
        self.shape, self.dtype = (len(table), *shape), np.dtype(np.float32)

    def __getitem__(self, records: NDArray[np.int64]) -> Floats:
        return np.asarray(self._kept[records]) if any(step.slow for step in self._steps) else self._computed(records)

    def _computed(self, records: NDArray[np.int64]) -> Floats:
        return _composed(self._steps, self._table.input_shape)(self._table.read(records))

    @cached_property
    def _kept(self) -> Floats:
        """The features in the cache, mapped into memory; computed first if another process has not done so."""

        def write(file: Path) -> None:
            features = np.lib.format.open_memmap(file, "w+", np.float32, self.shape)  # type: ignore[no-untyped-call]
            for start in range(0, len(self._table), _BLOCK):
                records = np.arange(start, min(start + _BLOCK, len(self._table)))
                features[records] = self._computed(records)
            features.flush()

        return np.asanyarray(np.load(kept("features", f"{self._digest()}.npy", write), mmap_mode="r"))

    def _digest(self) -> str:
        """Of all inputs and all steps."""
        steps = json.dumps([step.model_dump() for step in self._steps])
        digest = hashlib.sha256(f"1 {steps} {self._table.input_shape}".encode())
        for start in range(0, len(self._table), 64 * _BLOCK):
            records = np.arange(start, min(start + 64 * _BLOCK, len(self._table)))
            digest.update(self._table.read(records).tobytes())
        return digest.hexdigest()


@cache
def _composed(steps: tuple[AnyTransform, ...], input_shape: Shape) -> Function:
    """The steps, one after another; cached, since training and test records share what a step learns."""
    if not steps:
        return lambda inputs: inputs
    before = _composed(steps[:-1], input_shape)
    last = steps[-1].prepared(before, input_shape)
    return lambda inputs: last(before(inputs))
