"""npz archives: arrays stored without compression are mapped into memory, and only what is asked for is read."""

import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedamp.data.table import as_inputs, checked_shape, first_line
from fedamp.errors import DataError

# What zipfile, zlib and numpy raise on files that are damaged, encrypted or of another kind.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class _Header:
    """What the archive says about one array; ``offset`` is where its numbers start, or None if compressed."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    column_major: bool
    offset: int | None


class NpzTable:
    """Arrays of one npz file: inputs [records, ...], labels [records], and columns [records]."""

    def __init__(self, path: Path, inputs: str, label: str, shape: tuple[int, ...] | None, scale: float) -> None:
        """Reads the headers.

        Raises:
            DataError: not an npz archive, or an array missing, or of the wrong type or shape.
        """
        self.source = str(path)
        self._headers = _headers(path)
        self._inputs, self._label, self._scale = inputs, label, scale
        header = self._header(inputs, "data.features")
        self._header(label, "data.label")
        if header.dtype.kind not in "fiub" or not header.shape:
            raise DataError(
                f"{self.source}: array {inputs!r} is of type {header.dtype} and shape {list(header.shape)}; "
                "inputs must be numbers of shape [records, ...]"
            )
        if header.shape[0] == 0:
            raise DataError(f"{self.source}: no records; at least one is needed")
        self._records = header.shape[0]
        self.input_shape = checked_shape(header.shape[1:], shape, self.source)
        self.stored = header.dtype

    def __len__(self) -> int:
        return self._records

    def labels(self) -> NDArray[Any]:
        return self._array(self._label)

    def column(self, name: str) -> NDArray[Any]:
        self._header(name, "data.partition.column")
        return self._array(name)

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        return as_inputs(self._stored_inputs[records], records, self.input_shape, self._scale, self.source)

    @cached_property
    def _stored_inputs(self) -> NDArray[Any]:
        return self._array(self._inputs)

    def _header(self, name: str, key: str) -> _Header:
        if name not in self._headers:
            raise DataError(f"{self.source}: no array {name!r}; {key} must be one of {', '.join(self._headers)}")
        return self._headers[name]

    def _array(self, name: str) -> NDArray[Any]:
        header = self._headers[name]
        order: Any = "F" if header.column_major else "C"
        try:
            if header.offset is not None and 0 not in header.shape and not header.dtype.hasobject:
                return np.asarray(np.memmap(self.source, header.dtype, "r", header.offset, header.shape, order))
            with np.load(self.source) as archive:
                return np.asarray(archive[name])
        except _UNREADABLE as error:
            raise DataError(f"{self.source}: array {name!r} cannot be read: {first_line(error)}") from None


def _headers(path: Path) -> dict[str, _Header]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            return {member.filename[: -len(".npy")]: _member_header(path, archive, member) for member in members}
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: not a readable npz archive ({first_line(error)}); write it with numpy.savez"
        ) from None


def _member_header(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    with archive.open(member) as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, column_major, dtype = read(file)
        header_size = file.tell()
    if member.compress_type != zipfile.ZIP_STORED:
        return _Header(shape, dtype, column_major, None)
    with path.open("rb") as raw:
        raw.seek(member.header_offset)
        local = raw.read(30)  # the local header repeats the name and has an extra field of its own length
    names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    return _Header(shape, dtype, column_major, member.header_offset + 30 + names + header_size)
