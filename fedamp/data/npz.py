"""Arrays on disk: an npz archive is read into memory, npy files are mapped into memory.

train.npz                                    with arrays x, y and perhaps client
train_x.npy  train_y.npy  train_client.npy   the same; may exceed the memory, and workers share it
"""

import pickle
import zipfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedamp.data.folder import FolderData
from fedamp.data.table import ArrayTable, first_line, require
from fedamp.errors import DataError

# Raised by numpy, zipfile and zlib on files that are damaged, encrypted or of another kind.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, zlib.error)


class NpzData(FolderData):
    """Arrays in ``train.npz`` and ``test.npz``, or in npy files: x, y, and perhaps a client column."""

    name: Literal["npz"]

    def split(self, folder: Path, split: str) -> ArrayTable | None:
        features, label = self._array("features"), self._array("label")
        archive, files = folder / f"{split}.npz", sorted(folder.glob(f"{split}_*.npy"))
        if archive.exists():
            source, arrays = str(archive), _open_archive(archive)
        elif files:
            source = str(folder / f"{split}_*.npy")
            arrays = {file.stem.removeprefix(f"{split}_"): _open_mapped(file) for file in files}
        else:
            return None
        require(features, arrays, "data.features", source, "array")
        require(label, arrays, "data.label", source, "array")
        inputs = arrays[features]
        if inputs.dtype.kind not in "fiub" or not inputs.shape:
            raise DataError(
                f"{source}: array {features!r} is of type {inputs.dtype} and shape {list(inputs.shape)}; "
                "inputs must be numbers of shape [records, ...]"
            )
        return ArrayTable(source, inputs, arrays[label], arrays, self.shape, self.scale or 1.0)

    def _array(self, key: str) -> str:
        names = getattr(self, key)
        if isinstance(names, str):
            return names
        if len(names) != 1:
            raise DataError(f"data.{key}: npz takes the name of one array, got {len(names)}")
        return str(names[0])


class _Member:
    """An array of an archive. Its header is read at once, all of its numbers on first use."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, name: str) -> None:
        self._path, self._name = path, name
        with archive.open(f"{name}.npy") as file:
            version = npy.read_magic(file)  # type: ignore[no-untyped-call]
            read_header: Any = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, _, self.dtype = read_header(file)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    @cached_property
    def _values(self) -> NDArray[Any]:
        try:
            with np.load(self._path) as archive:
                values: NDArray[Any] = archive[self._name]
                return values
        except _UNREADABLE as error:
            raise DataError(f"{self._path}: array {self._name!r} cannot be read: {first_line(error)}") from None


def _open_archive(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            return {name: _Member(path, archive, name) for name in names}
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: not a readable npz archive ({first_line(error)}); write it with numpy.savez"
        ) from None


def _open_mapped(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r"))
    except _UNREADABLE as error:
        raise DataError(f"{path}: not a readable npy file ({first_line(error)}); write it with numpy.save") from None
