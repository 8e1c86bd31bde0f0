"""Read arrays on disk: arrays of an npz archive are read into memory, npy files are mapped into memory.

train.npz                                    with arrays x, y and perhaps client
train_x.npy  train_y.npy  train_client.npy   the same; may exceed the memory, and workers share it

Arrays that a person gives in Python (``fedamp.load(.., data=(x, y))``) are written to such files once, in the user's
private folder. :func:`store` does it, and the scenario names them by a keyed digest.
"""

import hashlib
import pickle
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from fedamp.base import given
from fedamp.base.reading import open_regular, regular
from fedamp.data.stored import ColumnsData, PixelScale, StoredData, Tables
from fedamp.data.table import Table, a_name, array_bytes, check_bytes, exact, names_nobody, require
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
        """Open the arrays of a split; None without files. Nothing is unpickled."""
        files = arrays_of(folder, split)
        if not files:
            return None
        source = str(folder / (f"{split}.npz" if (folder / f"{split}.npz").exists() else f"{split}_*.npy"))

        columns = {name: partial(_read_array, files[name], name, self.max_bytes) for name in files}
        keys = {}
        for key, names in {"features": self.features, "label": self.label}.items():
            if not isinstance(names, str) and len(names) > 1:
                raise DataError(f"data.{key}: npz takes the name of one array, got {len(names)}")
            keys[key] = names if isinstance(names, str) else names[0]
            require(keys[key], files, f"data.{key}", source)
        inputs, labels = (columns[name]() for name in keys.values())
        if inputs.dtype.kind not in "fiub" or not inputs.shape:
            found = f"array {keys['features']!r} is of type {inputs.dtype} and shape {list(inputs.shape)}"
            raise DataError(f"{source}: {found}; inputs must be numbers of shape [records, ...]")
        table = Table(source, inputs, labels, columns, self.shape, self.scale or 1.0)
        table.features, table.label = (keys["features"],), keys["label"]
        return table


def arrays_of(folder: Path, split: str) -> dict[str, Path]:
    """Find the file of each array of a split, by the array's name.

    Raises:
        DataError: an archive is damaged.
    """
    archive = folder / f"{split}.npz"
    if not archive.exists():
        return {path.stem.removeprefix(f"{split}_"): path for path in sorted(folder.glob(f"{split}_*.npy"))}
    try:
        with open_regular(archive) as file, np.load(file) as arrays:
            return dict.fromkeys(arrays.files, archive)
    except (*_UNREADABLE, TypeError) as error:  # the last one: an npy file of that name
        why = one_line(error)
        raise DataError(f"{archive}: not a readable npz archive ({why}); write it with numpy.savez") from None


def _read_array(path: Path, name: str, most: int) -> NDArray[Any]:
    """Read an array, or map it from an npy file.

    Args:
        path: of the archive, or of the npy file.
        name: of the array.
        most: bytes that an archive's array may have.

    Raises:
        DataError: it cannot be read, or is too large.
    """
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(regular(path), mmap_mode="r"))
        with open_regular(path) as file:
            check_bytes(f"{path}: array {name!r}", array_bytes(file, name), most)
            file.seek(0)
            with np.load(file) as arrays:
                return np.asarray(arrays[name])
    except _UNREADABLE as error:
        what = "not a readable npy file" if path.suffix == ".npy" else f"array {name!r} cannot be read"
        raise DataError(f"{path}: {what} ({one_line(error)}); write it with numpy.save or savez") from None


class GivenData(StoredData):
    """The arrays ``data`` and ``test`` of ``fedamp.load`` and ``fedamp.run``, by a digest that tells others nothing."""

    name: Literal["given"]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), SkipJsonSchema()]  # of the arrays, under the user's key
    scale: PixelScale = None

    def open(self, folder: Path) -> Tables:
        """Open the arrays with this digest, which :func:`store` has written on this machine."""
        files = given.folder() / self.digest
        if not files.is_dir():
            expected = "expected: data=(x, y, client) and test=(x, y), the same arrays again (docs/python.md)"
            raise DataError(f"data: the arrays {self.digest[:8]}... are not given here; {expected}")
        keys: dict[str, Any] = self.model_dump(include={"scale", "shape", "test_is_public"})
        tables = NpzData(name="npz", path=str(files), **keys).open(folder)
        return Tables(replace(tables.train, source="data"), tables.test and replace(tables.test, source="test"))


def store(data: Sequence[Any], test: Sequence[Any] | None = None) -> str:
    """Write arrays to files of the user, and return the digest of all, by which a scenario names them.

    Args:
        data: (x, y) or (x, y, client), with a row for every record.
        test: (x, y) of public records; None: there are none.

    Returns:
        64 hexadecimal digits: a digest under the user's own key, so it tells others nothing.

    Raises:
        DataError: other arrays than these, or of other lengths.
        InputError: there is no space.
    """
    arrays = _named_arrays("data", data, "(x, y, client)") | (
        {} if test is None else _named_arrays("test", test, "(x, y)")
    )
    found = []
    with given.writing() as beside:
        for name, array in arrays.items():
            np.save(beside / f"{name}.npy", array, allow_pickle=False)
            with open_regular(beside / f"{name}.npy") as stream:
                found.append(name.encode() + hashlib.file_digest(stream, "sha256").digest())
        target = given.folder() / given.digest(found)
        if not target.exists():
            beside.rename(target)
    return target.name


def _named_arrays(what: str, arrays: Sequence[Any], expected: str) -> dict[str, NDArray[Any]]:
    """Check the arrays that a person gives, and name each as its file, ``train_x`` and so on.

    Args:
        what: data or test.
        arrays: that are given.
        expected: the names of the arrays, in parentheses.

    Raises:
        DataError: other arrays, or of other lengths; or there is no record.
    """
    names = expected.strip("()").split(", ")
    if not isinstance(arrays, tuple | list) or len(arrays) not in (2, len(names)):
        raise DataError(f"{what}: got {type(arrays).__name__}; expected: {expected}")
    found, split = {}, "train" if what == "data" else "test"
    for name, each in zip(names, arrays, strict=False):
        try:
            array = _client_names(each) if name == "client" else _plain_array(each)
            shown = f"{name} is of type {array.dtype} and shape {list(array.shape)}"
            fits = array.dtype != object and array.ndim and len(array) == len(arrays[0])
        except DataError:
            raise
        except Exception as error:  # of foreign types, such as tensors on a GPU
            shown, fits = f"{name}: {one_line(error)}", False
        if not fits:
            raise DataError(f"{what}: {shown}; expected: {expected}, arrays with a row for every record")
        if not len(array):
            raise DataError(f"{what}: {shown}; expected: at least one record")
        # NumPy writes other orders piece by piece, but Fortran's as it is: its rows would be slow to map.
        found[f"{split}_{name}"] = np.ascontiguousarray(array) if np.isfortran(array) else array
    return found


def _plain_array(each: Any) -> NDArray[Any]:
    """Convert inputs or labels to an array. A masked number is NaN: its record cannot be trained on."""
    if isinstance(each, np.ma.MaskedArray) and np.any(each.mask):
        nothing, of_texts = each.mask, each.dtype.kind in "US"
        return np.where(nothing, "" if of_texts else np.nan, each.data)
    array = np.asarray(each)
    return array.astype(str) if array.dtype == object and all(isinstance(one, str) for one in array.flat) else array


def _client_names(each: Any) -> NDArray[Any]:
    """Convert the client of each record, as exact as it was given.

    Raises:
        DataError: a record has none.
    """
    array = np.asarray(each)
    are_objects = isinstance(each, list | tuple) or array.dtype == object
    if are_objects and (array.dtype.kind != "f" or len({np.asarray(one).dtype for one in each}) > 1):
        # NumPy makes floats of whole numbers above 2^63, and float32 of the float16 beside them.
        array = np.empty(len(each), object)
        array[:] = [one.item() if isinstance(one, np.generic) else one for one in each]
        array = exact(array)
    nobodys = names_nobody(array)
    if isinstance(each, np.ma.MaskedArray):
        nobodys |= each.mask
    if nobodys.any():
        found = f"client names no one for record {np.argmax(nobodys)}"
        raise DataError(f"data: {found}; expected: {a_name(array)}")
    if array.dtype == object:
        fits = all(isinstance(one, int) and -(2**63) <= one < 2**63 for one in array)
        return array.astype(np.int64 if fits else str)
    return array
