"""Arrays on disk: arrays of an npz archive are read into memory, npy files are mapped into memory.

train.npz                                    with arrays x, y and perhaps client
train_x.npy  train_y.npy  train_client.npy   the same; may exceed the memory, and workers share it
"""

import pickle
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedamp.data.folder import ColumnsData
from fedamp.data.table import Table, require
from fedamp.data.unfolded import array_bytes, check_bytes
from fedamp.errors import DataError, one_line

# Raised by numpy, zipfile and zlib on files that are damaged, encrypted or of another kind.
_UNREADABLE = (
    *(OSError, ValueError, EOFError, RuntimeError, KeyError, MemoryError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error),
)


class NpzData(ColumnsData):
    """Arrays in ``train.npz`` and ``test.npz``, or in npy files: x, y, and perhaps a client column."""

    name: Literal["npz"]

    def split(self, folder: Path, split: str) -> Table | None:
        files = arrays_of(folder, split)
        if not files:
            return None
        source = str(folder / (f"{split}.npz" if (folder / f"{split}.npz").exists() else f"{split}_*.npy"))

        def read(name: str, key: str) -> NDArray[Any]:
            require(name, files, key, source, "array")
            return _read(files[name], name, self.max_bytes)

        keys = {}
        for key, names in {"features": self.features, "label": self.label}.items():
            if not isinstance(names, str) and len(names) > 1:
                raise DataError(f"data.{key}: npz takes the name of one array, got {len(names)}")
            keys[key] = names if isinstance(names, str) else names[0]
        inputs, labels = (read(name, f"data.{key}") for key, name in keys.items())
        if inputs.dtype.kind not in "fiub" or not inputs.shape:
            found = f"array {keys['features']!r} is of type {inputs.dtype} and shape {list(inputs.shape)}"
            raise DataError(f"{source}: {found}; inputs must be numbers of shape [records, ...]")
        return Table(source, inputs, labels, partial(read, key="data.partition.column"), self.shape, self.scale or 1.0)


def arrays_of(folder: Path, split: str) -> dict[str, Path]:
    """The file of each array of a split, by name. DataError: an archive is damaged."""
    archive = folder / f"{split}.npz"
    if not archive.exists():
        return {path.stem.removeprefix(f"{split}_"): path for path in sorted(folder.glob(f"{split}_*.npy"))}
    try:
        with archive.open("rb") as file, np.load(file) as arrays:
            return dict.fromkeys(arrays.files, archive)
    except (*_UNREADABLE, TypeError) as error:  # the last one: an npy file of that name
        why = one_line(error)
        raise DataError(f"{archive}: not a readable npz archive ({why}); write it with numpy.savez") from None


def _read(path: Path, name: str, most: int) -> NDArray[Any]:
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, mmap_mode="r"))
        with path.open("rb") as file:
            check_bytes(f"{path}: array {name!r}", array_bytes(file, name), most)
            file.seek(0)
            with np.load(file) as arrays:
                return np.asarray(arrays[name])
    except _UNREADABLE as error:
        what = "not a readable npy file" if path.suffix == ".npy" else f"array {name!r} cannot be read"
        raise DataError(f"{path}: {what} ({one_line(error)}); write it with numpy.save or savez") from None
