"""Apply the steps of ``data.transform`` to a table: features are computed when they are read, or kept on disk.

:mod:`fedamp.data.transforms` has the core's steps; extensions offer further ones (``Extension.choices``).
"""

import hashlib
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Union, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.base.reading import regular
from fedamp.data.places import kept
from fedamp.data.table import Table
from fedamp.data.transforms import BLOCK, TRANSFORMS, Function, Shape, SingleFloats, Transform
from fedamp.errors import DataError
from fedamp.extension import ExtensionError, offered


def _transform_kinds() -> tuple[type[Transform], ...]:
    """List the core's transforms, then those of extensions.

    One that extends a transform of the same name takes its place.
    """
    kinds: dict[str, type[Transform]] = {}
    for kind in (*TRANSFORMS, *offered("choices", "data.transform")):
        (name,) = get_args(kind.model_fields["name"].annotation)
        if not issubclass(kind, kinds.get(name, Transform)):
            raise ExtensionError(f"data.transform {name}: offered twice; expected: names that differ")
        kinds[name] = kind
    return tuple(kinds.values())


if TYPE_CHECKING:
    AnyTransform = Transform
else:
    AnyTransform = Annotated[Union[(*_transform_kinds(),)], Field(discriminator="name")]


Transforms = Annotated[
    tuple[AnyTransform, ...],
    Field(description="steps for every input, in order; a result depends on its record and on public numbers alone"),
]


def transformed(table: Table, steps: tuple[AnyTransform, ...]) -> Table:
    """Return the table with its inputs transformed; they are computed when they are read.

    Raises:
        DataError: inputs of a shape that a step cannot take.
    """
    shape = table.input_shape
    for number, step in enumerate(steps):
        try:
            shape = step.output_shape(shape)
        except ValueError as error:
            raise DataError(f"data.transform.{number}: {error}; inputs have shape {list(shape)}") from None
    if not steps:
        return table
    columns = {name: partial(table.column, name, complete=False) for name in table.columns}
    features = _Features(table, steps, shape)
    return Table(table.source, features, table.labels, columns, place=table.place, label=table.label, before=table)


class _Features:
    """Inputs of a table after the steps, computed when they are read, or mapped from the cache if a step is slow.

    Attributes:
        shape: [records, ...].
        dtype: float32.
    """

    def __init__(self, table: Table, steps: tuple[AnyTransform, ...], shape: Shape) -> None:
        self._table, self._steps = table, steps
        self.shape, self.dtype = (len(table), *shape), np.dtype(np.float32)

    def __getitem__(self, records: NDArray[np.int64]) -> SingleFloats:
        """Return the features of these record numbers, float32 [records, ...]."""
        return np.asarray(self._kept[records]) if any(step.slow for step in self._steps) else self._computed(records)

    def _computed(self, records: NDArray[np.int64]) -> SingleFloats:
        """Compute the features of these record numbers."""
        return _composed_steps(self._steps, self._identities, self._table.input_shape)(self._table.read(records))

    @cached_property
    def _identities(self) -> tuple[str, ...]:
        """Texts of all that the steps' results follow from."""
        return tuple(step.identity() for step in self._steps)

    @cached_property
    def _kept(self) -> SingleFloats:
        """Features in the cache, mapped into memory; computed first if another process has not done so."""

        def write(file: Path) -> None:
            features = np.lib.format.open_memmap(file, "w+", np.float32, self.shape)  # type: ignore[no-untyped-call]
            for start in range(0, len(self._table), BLOCK):
                records = np.arange(start, min(start + BLOCK, len(self._table)))
                features[records] = self._computed(records)
            features.flush()

        return np.asanyarray(np.load(regular(kept("features", f"{self._digest()}.npy", write)), mmap_mode="r"))

    def _digest(self) -> str:
        """Compute the digest of all inputs and all steps, which names the features in the cache."""
        digest = hashlib.sha256(f"2 {list(self._identities)} {self._table.input_shape}".encode())
        for start in range(0, len(self._table), 64 * BLOCK):
            records = np.arange(start, min(start + 64 * BLOCK, len(self._table)))
            digest.update(self._table.read(records).tobytes())
        return digest.hexdigest()


@cache
def _composed_steps(steps: tuple[AnyTransform, ...], identities: tuple[str, ...], input_shape: Shape) -> Function:
    """Return the steps, one after another.

    It is cached, since training and test records share what a step learns or reads.

    Args:
        steps: in order.
        identities: of the steps; a changed encoder makes another function.
        input_shape: of one input of the first step.
    """
    if not steps:
        return lambda inputs: inputs
    before = _composed_steps(steps[:-1], identities[:-1], input_shape)
    last = steps[-1].prepared(before, input_shape)
    return lambda inputs: last(before(inputs))
