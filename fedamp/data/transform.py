"""Public transforms of inputs, record by record: what one record becomes depends on no other, so they cost nothing.

Features that take long are computed once and kept in a cache on disk, which the workers of a machine share.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedamp.data import whitening
from fedamp.data.scattering import output_shape, scattering
from fedamp.data.sections import Transform, Whiten
from fedamp.data.table import Table
from fedamp.errors import DataError

_BLOCK = 256  # records transformed at once: what a scattering needs besides stays in the tens of megabytes
_SMALLEST_DEVIATION = 1e-5  # of a group of features that are all alike, as in torch's GroupNorm


class TransformedTable(Table):
    """A table whose inputs go through some steps when they are read.

    Args:
        table: what is transformed.
        steps: the section ``data.transform``, in order.

    Raises:
        DataError: inputs of a shape that a step cannot take.
    """

    def __init__(self, table: Table, steps: Sequence[Transform]) -> None:
        self._table, self._steps = table, tuple(steps)
        shape = table.input_shape
        for number, step in enumerate(steps):
            try:
                shape = _output_shape(step, shape)
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

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        if any(step.name in ("scattering", "whiten") for step in self._steps):
            cached: NDArray[np.float32] = self._cached[records]
            return cached
        return self._transformed(records)

    def _transformed(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        return _apply(self._steps, self._table.read(records))

    @cached_property
    def _cached(self) -> NDArray[np.float32]:
        folder = Path(os.environ.get("FEDAMP_CACHE", Path.home() / ".cache" / "fedamp")) / "features"
        file = folder / f"{self._digest()}.npy"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(file.with_suffix(".lock"), mode=0o600):
                if not file.exists():
                    self._write(file)
            features: NDArray[np.float32] = np.load(file, mmap_mode="r")
        except OSError as error:
            raise DataError(
                f"{file}: features cannot be kept there ({error.strerror}); FEDAMP_CACHE names another folder"
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
        """Of all inputs and what is done to them."""
        steps = json.dumps([step.model_dump() for step in self._steps])
        digest = hashlib.sha256(f"1 {steps} {self._table.input_shape}".encode())
        for start in range(0, len(self), 64 * _BLOCK):
            digest.update(self._table.read(np.arange(start, min(start + 64 * _BLOCK, len(self)))).tobytes())
        return digest.hexdigest()


def _output_shape(step: Transform, shape: tuple[int, ...]) -> tuple[int, ...]:
    if step.name in ("scattering", "whiten") and len(shape) != 3:
        raise ValueError(f"{step.name} takes images of shape [channels, height, width]")
    if step.name == "scattering":
        return output_shape((shape[0], shape[1], shape[2]), step.scales, step.angles)
    if step.name == "whiten":
        if step.components > min(math.prod(shape), whitening.IMAGES):
            most = min(math.prod(shape), whitening.IMAGES)
            raise ValueError(f"{step.components} components of {math.prod(shape)} features; expected: at most {most}")
        return (step.components,)
    if step.name == "group_norm" and shape[0] % step.groups:
        raise ValueError(f"{step.groups} groups do not divide {shape[0]} channels")
    return shape


def _apply(steps: tuple[Transform, ...], images: NDArray[np.float32]) -> NDArray[np.float32]:
    """The steps, one after another, on images of shape [records, ...]."""
    values = images
    for number, step in enumerate(steps):
        if step.name == "scattering":
            values = scattering(values, step.scales, step.angles)
        elif step.name == "standardise":
            values = (values - np.float32(step.mean)) / np.float32(step.deviation)
        elif step.name == "group_norm":
            values = _group_norm(values, step.groups)
        else:
            values = _whitening(steps[:number], step, images.shape[1:]).apply(values)
    return values


@cache
def _whitening(before: tuple[Transform, ...], step: Whiten, image_shape: tuple[int, ...]) -> whitening.Whitening:
    """What whitens images after other steps; learned once for training and test records."""
    return whitening.Whitening.learned(partial(_apply, before), image_shape, step.components, step.damping)


def _group_norm(inputs: NDArray[np.float32], groups: int) -> NDArray[np.float32]:
    grouped = inputs.reshape(len(inputs), groups, math.prod(inputs.shape[1:]) // groups)
    centred = grouped - grouped.mean(axis=2, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=2, keepdims=True) + np.float32(_SMALLEST_DEVIATION))
    normal: NDArray[np.float32] = (centred / deviation).reshape(inputs.shape)
    return normal
