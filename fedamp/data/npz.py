"""Arrays on disk: an npz archive, whose arrays are read whole, or npy files, which are mapped into memory.

train.npz                                    with arrays x, y and perhaps client
train_x.npy  train_y.npy  train_client.npy   the same; may be larger than the memory, and workers share it
"""

import pickle
import zipfile
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedamp.data.folder import open_folder
from fedamp.data.sections import FolderData
from fedamp.data.source import Source, sources
from fedamp.data.table import Table, first_line, require
from fedamp.errors import DataError

# What numpy, zipfile and zlib raise on files that are damaged, encrypted or of another kind.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, zlib.error)


@sources.register("npz")
def npz(config: FolderData, folder: Path) -> Source:
    for key in ("features", "label"):
        names = getattr(config, key)
        if not isinstance(names, str) and len(names) != 1:
            raise DataError(f"data.{key}: npz takes the name of one array, got {len(names)}")
    return open_folder(config, folder, _open_split)


def _open_split(config: FolderData, folder: Path, split: str) -> "ArrayTable | None":
    archive, files = folder / f"{split}.npz", sorted(folder.glob(f"{split}_*.npy"))
    if archive.exists():
        return ArrayTable(str(archive), _open_archive(archive), config)
    mapped = {file.stem.removeprefix(f"{split}_"): _open_mapped(file) for file in files}
    return ArrayTable(str(folder / f"{split}_*.npy"), mapped, config) if mapped else None


class Member:
    """An array of an archive: its header is read at once, and all of its numbers when some are asked for."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, name: str) -> None:
        self._path, self._name = path, name
        with archive.open(f"{name}.npy") as file:
            version = npy.read_magic(file)  # type: ignore[no-untyped-call]
            read_header: Any = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, _, self.dtype = read_header(file)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        values: NDArray[Any] = self._values[index]
        return values

    @cached_property
    def _values(self) -> NDArray[Any]:
        with np.load(self._path) as archive:
            values: NDArray[Any] = archive[self._name]
            return values


def _open_archive(path: Path) -> dict[str, Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            return {name: Member(path, archive, name) for name in names}
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: not a readable npz archive ({first_line(error)}); write it with numpy.savez"
        ) from None


def _open_mapped(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r"))
    except _UNREADABLE as error:
        raise DataError(f"{path}: not a readable npy file ({first_line(error)}); write it with numpy.save") from None


class ArrayTable(Table):
    """Inputs [records, ...], labels [records], and columns [records] from named arrays.

    Raises:
        DataError: an array missing, damaged, or of the wrong type or shape.
    """

    def __init__(self, source: str, arrays: Mapping[str, Any], config: FolderData) -> None:
        self.source, self._arrays = source, arrays
        self._label = config.label if isinstance(config.label, str) else config.label[0]
        self._features = config.features if isinstance(config.features, str) else config.features[0]
        self._require(self._features, "data.features")
        self._require(self._label, "data.label")
        shape, stored = arrays[self._features].shape, arrays[self._features].dtype
        if stored.kind not in "fiub" or not shape:
            raise DataError(
                f"{source}: array {self._features!r} is of type {stored} and shape {list(shape)}; "
                "inputs must be numbers of shape [records, ...]"
            )
        if shape[0] == 0:
            raise DataError(f"{source}: no records; at least one is needed")
        super().__init__(source, shape[1:], stored, config.shape, config.scale)

    def __len__(self) -> int:
        return int(self._arrays[self._features].shape[0])

    def stored_labels(self) -> NDArray[Any]:
        return self._read(self._label, ...)

    def stored_column(self, name: str) -> NDArray[Any]:
        self._require(name, "data.partition.column")
        return self._read(name, ...)

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[Any]:
        return self._read(self._features, records)

    def _read(self, name: str, index: Any) -> NDArray[Any]:
        try:
            return np.asarray(self._arrays[name][index])
        except _UNREADABLE as error:
            raise DataError(f"{self.source}: array {name!r} cannot be read: {first_line(error)}") from None

    def _require(self, name: str, key: str) -> None:
        require(name, list(self._arrays), key, self.source, "array")
