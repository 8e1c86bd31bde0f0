"""Arrays on disk: an npz archive, whose arrays are read whole, or npy files, which are mapped into memory.

train.npz                                    with arrays x, y and perhaps client
train_x.npy  train_y.npy  train_client.npy   the same; may be larger than the memory, and workers share it
"""

import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp import scenario
from fedamp.data.folder import open_folder
from fedamp.data.source import Source, sources
from fedamp.data.table import as_inputs, checked_shape, first_line
from fedamp.errors import DataError

# What numpy, zipfile and zlib raise on files that are damaged, encrypted or of another kind.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, zlib.error)


@sources.register("npz")
def npz(config: scenario.FolderData, folder: Path) -> Source:
    return open_folder(config, folder, _open_split)


def _open_split(config: scenario.FolderData, folder: Path, split: str) -> "ArrayTable | None":
    if not isinstance(config.features, str) and len(config.features) != 1:
        raise DataError(f"data.features: npz takes the name of one array, got {len(config.features)}")
    archive, files = folder / f"{split}.npz", sorted(folder.glob(f"{split}_*.npy"))
    if archive.exists():
        return ArrayTable(str(archive), _open_archive(archive), config)
    mapped = {file.stem.removeprefix(f"{split}_"): _open_mapped(file) for file in files}
    return ArrayTable(str(folder / f"{split}_*.npy"), mapped, config) if mapped else None


class _Archive(Mapping[str, NDArray[Any]]):
    """The arrays of an archive, each read when it is asked for; the file is not kept open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with zipfile.ZipFile(path), np.load(path) as content:  # numpy takes more files for an archive than it can read
            self._names = tuple(content.files)

    def __getitem__(self, name: str) -> NDArray[Any]:
        with np.load(self._path) as content:
            return content[name]  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _open_archive(path: Path) -> Mapping[str, NDArray[Any]]:
    try:
        return _Archive(path)
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: not a readable npz archive ({first_line(error)}); write it with numpy.savez"
        ) from None


def _open_mapped(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r"))
    except _UNREADABLE as error:
        raise DataError(f"{path}: not a readable npy file ({first_line(error)}); write it with numpy.save") from None


class ArrayTable:
    """Inputs [records, ...], labels [records], and columns [records] from named arrays.

    Raises:
        DataError: an array missing, damaged, or of the wrong type or shape.
    """

    def __init__(self, source: str, arrays: Mapping[str, NDArray[Any]], config: scenario.FolderData) -> None:
        self.source, self._arrays = source, arrays
        self._name = config.features if isinstance(config.features, str) else config.features[0]
        self._label, self._scale = config.label, config.scale
        self._require(self._name, "data.features")
        self._require(self._label, "data.label")
        self.stored = self._inputs.dtype
        if self.stored.kind not in "fiub" or not self._inputs.shape:
            raise DataError(
                f"{source}: array {self._name!r} is of type {self.stored} and shape {list(self._inputs.shape)}; "
                "inputs must be numbers of shape [records, ...]"
            )
        if len(self) == 0:
            raise DataError(f"{source}: no records; at least one is needed")
        self.input_shape = checked_shape(self._inputs.shape[1:], config.shape, source)

    def __len__(self) -> int:
        return len(self._inputs)

    def labels(self) -> NDArray[Any]:
        return self._read(self._label)

    def column(self, name: str) -> NDArray[Any]:
        self._require(name, "data.partition.column")
        return self._read(name)

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        return as_inputs(self._inputs[records], records, self.input_shape, self._scale, self.source)

    @cached_property
    def _inputs(self) -> NDArray[Any]:
        return self._read(self._name)

    def _read(self, name: str) -> NDArray[Any]:
        try:
            return self._arrays[name]
        except _UNREADABLE as error:
            raise DataError(f"{self.source}: array {name!r} cannot be read: {first_line(error)}") from None

    def _require(self, name: str, key: str) -> None:
        if name not in self._arrays:
            raise DataError(f"{self.source}: no array {name!r}; {key} must be one of {', '.join(self._arrays)}")
