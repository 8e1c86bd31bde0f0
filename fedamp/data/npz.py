"""Arrays on disk: an npz archive, which is read whole, or npy files, which are mapped into memory.

train.npz                                    with arrays x, y and perhaps client
train_x.npy  train_y.npy  train_client.npy   the same; may be larger than the memory, and workers share it
"""

import zipfile
import zlib
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedamp import scenario
from fedamp.data.folder import open_folder
from fedamp.data.source import Source, sources
from fedamp.data.table import as_inputs, checked_shape, first_line
from fedamp.errors import DataError

# What numpy, zipfile and zlib raise on files that are damaged, encrypted or of another kind.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


@sources.register("npz")
def npz(config: scenario.FolderData, folder: Path) -> Source:
    return open_folder(config, folder, _open_split)


def _open_split(config: scenario.FolderData, folder: Path, split: str) -> "ArrayTable | None":
    if not isinstance(config.features, str) and len(config.features) != 1:
        raise DataError(f"data.features: npz takes the name of one array, got {len(config.features)}")
    archive, files = folder / f"{split}.npz", sorted(folder.glob(f"{split}_*.npy"))
    if archive.exists():
        return ArrayTable(Archive(archive), config)
    return ArrayTable(ArrayFiles(folder / split, files), config) if files else None


class Arrays(ABC):
    """Named arrays on disk.

    Attributes:
        source: what errors call them.
        headers: shape and type of every array; nothing else is read before it is asked for.
    """

    source: str
    headers: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self._read(name)
        except _UNREADABLE as error:
            raise DataError(f"{self.source}: array {name!r} cannot be read: {first_line(error)}") from None

    @abstractmethod
    def _read(self, name: str) -> NDArray[Any]: ...


class Archive(Arrays):
    """The arrays of an npz file; each is read whole."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        try:
            with zipfile.ZipFile(path) as archive:
                members = [name for name in archive.namelist() if name.endswith(".npy")]
                self.headers = {member.removesuffix(".npy"): _header(archive, member) for member in members}
        except _UNREADABLE as error:
            raise DataError(
                f"{path}: not a readable npz archive ({first_line(error)}); write it with numpy.savez"
            ) from None

    def _read(self, name: str) -> NDArray[Any]:
        with np.load(self.source) as archive:
            return np.asarray(archive[name])


class ArrayFiles(Arrays):
    """Arrays in npy files of their own, mapped into memory."""

    def __init__(self, stem: Path, files: list[Path]) -> None:
        self.source = f"{stem}_*.npy"
        self._files = {file.stem.removeprefix(f"{stem.name}_"): file for file in files}
        self.headers = {}
        for name, file in self._files.items():
            try:
                mapped = np.load(file, mmap_mode="r")
            except _UNREADABLE as error:
                raise DataError(
                    f"{file}: not a readable npy file ({first_line(error)}); write it with numpy.save"
                ) from None
            self.headers[name] = mapped.shape, mapped.dtype

    def _read(self, name: str) -> NDArray[Any]:
        return np.asarray(np.load(self._files[name], mmap_mode="r"))


class ArrayTable:
    """Inputs [records, ...], labels [records], and columns [records] from arrays of a folder.

    Raises:
        DataError: an array missing, or of the wrong type or shape.
    """

    def __init__(self, arrays: Arrays, config: scenario.FolderData) -> None:
        self.source = arrays.source
        self._arrays, self._label, self._scale = arrays, config.label, config.scale
        self._inputs = config.features if isinstance(config.features, str) else config.features[0]
        self._require(self._inputs, "data.features")
        self._require(self._label, "data.label")
        shape, self.stored = arrays.headers[self._inputs]
        if self.stored.kind not in "fiub" or not shape:
            raise DataError(
                f"{self.source}: array {self._inputs!r} is of type {self.stored} and shape {list(shape)}; "
                "inputs must be numbers of shape [records, ...]"
            )
        if shape[0] == 0:
            raise DataError(f"{self.source}: no records; at least one is needed")
        self._records = shape[0]
        self.input_shape = checked_shape(shape[1:], config.shape, self.source)

    def __len__(self) -> int:
        return self._records

    def labels(self) -> NDArray[Any]:
        return self._arrays[self._label]

    def column(self, name: str) -> NDArray[Any]:
        self._require(name, "data.partition.column")
        return self._arrays[name]

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        return as_inputs(self._stored_inputs[records], records, self.input_shape, self._scale, self.source)

    @cached_property
    def _stored_inputs(self) -> NDArray[Any]:
        return self._arrays[self._inputs]

    def _require(self, name: str, key: str) -> None:
        if name not in self._arrays.headers:
            raise DataError(f"{self.source}: no array {name!r}; {key} must be one of {', '.join(self._arrays.headers)}")


def _header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with archive.open(member) as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype
