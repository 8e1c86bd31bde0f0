"""Arrays that a person gives in Python: written to files once, which all workers map into memory."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.base import given
from fedamp.data.npz import NpzData
from fedamp.data.stored import Scale, StoredData, Tables
from fedamp.data.table import names_nobody
from fedamp.errors import DataError, one_line


class GivenData(StoredData):
    """The arrays ``data`` and ``test`` of ``fedamp.load`` and ``fedamp.run``, by a digest that tells others nothing."""

    name: Literal["given"]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="of the arrays, under the user's key")]
    scale: Scale = None

    def open(self, folder: Path) -> Tables:
        files = given.folder() / self.digest
        if not files.is_dir():
            expected = "expected: data=(x, y, client) and test=(x, y), the same arrays again (docs/python.md)"
            raise DataError(f"data: the arrays {self.digest[:8]}... are not given here; {expected}")
        keys: dict[str, Any] = self.model_dump(include={"scale", "shape", "test_is_public"})
        tables = NpzData(name="npz", path=str(files), **keys).open(folder)
        return Tables(replace(tables.train, source="data"), tables.test and replace(tables.test, source="test"))


def store(data: Sequence[Any], test: Sequence[Any] | None = None) -> str:
    """Write (x, y) or (x, y, client), and the public test (x, y) if any, to files; returns the digest of all.

    DataError: other arrays than these, or of other lengths. InputError: there is no space.
    """
    arrays = _named("data", data, "(x, y, client)") | ({} if test is None else _named("test", test, "(x, y)"))
    found = []
    with given.writing() as beside:
        for name, array in arrays.items():
            np.save(beside / f"{name}.npy", array, allow_pickle=False)
            with (beside / f"{name}.npy").open("rb") as stream:
                found.append(name.encode() + hashlib.file_digest(stream, "sha256").digest())
        target = given.folder() / given.digest(found)
        if not target.exists():
            beside.rename(target)
    return target.name


def _named(what: str, arrays: Sequence[Any], expected: str) -> dict[str, NDArray[Any]]:
    names = expected.strip("()").split(", ")
    if not isinstance(arrays, tuple | list) or len(arrays) not in (2, len(names)):
        raise DataError(f"{what}: got {type(arrays).__name__}; expected: {expected}")
    found, split = {}, "train" if what == "data" else "test"
    for name, each in zip(names, arrays, strict=False):
        try:
            array = _clients(each) if name == "client" else _plain(each)
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


def _plain(each: Any) -> NDArray[Any]:
    """Inputs or labels. A masked number is NaN: its record cannot be trained on."""
    if isinstance(each, np.ma.MaskedArray) and np.any(each.mask):
        nothing, of_texts = each.mask, each.dtype.kind in "US"
        return np.where(nothing, "" if of_texts else np.nan, each.data)
    array = np.asarray(each)
    return array.astype(str) if array.dtype == object and all(isinstance(one, str) for one in array.flat) else array


def _clients(each: Any) -> NDArray[Any]:
    """The client of each record, as exact as it was given. DataError: a record has none."""
    array = np.asarray(each)
    if isinstance(each, list | tuple) or array.dtype == object:  # NumPy makes floats of whole numbers above 2^63
        values = [one.item() if isinstance(one, np.generic) else one for one in each]
        if not all(type(one) is float for one in values):
            array = np.empty(len(values), object)
            array[:] = values
    nobodys = names_nobody(array)
    if isinstance(each, np.ma.MaskedArray):
        nobodys |= each.mask
    if nobodys.any():
        found = f"client names nobody for record {np.argmax(nobodys)}"
        raise DataError(f"data: {found}; expected: a whole number or a string for every record")
    if array.dtype == object:
        fits = all(isinstance(one, int) and -(2**63) <= one < 2**63 for one in array)
        return array.astype(np.int64 if fits else str)
    return array
