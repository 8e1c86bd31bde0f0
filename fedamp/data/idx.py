"""IDX, the format in which MNIST and its relatives are handed out, and the data sets that are known by name.

train-images-idx3-ubyte  train-labels-idx1-ubyte     each may be compressed (.gz)
t10k-images-idx3-ubyte   t10k-labels-idx1-ubyte      the test set; may be missing
"""

import gzip
import json
import math
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedamp.data.sections import HuggingFaceData, IdxData, KnownImages
from fedamp.data.source import Source, sources
from fedamp.data.stored import StoredSource
from fedamp.data.table import Table, first_line, image_scale
from fedamp.errors import DataError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_FILE = re.compile(r"(?P<split>train|t10k|test)[-_.](?P<what>images|labels)[-_.]idx\d-ubyte(\.gz)?")
# Of this environment (make data), of the system's packages, and npm's.
INSTALLED = (Path(sys.prefix) / "share" / "datasets", Path("/usr/share/datasets"), Path("node_modules"))
_HUB = {"mnist": "ylecun/mnist", "fashion-mnist": "zalando-datasets/fashion_mnist"}
_HOW_TO_GET = {
    "fashion-mnist": "Debian: apt install dataset-fashion-mnist; elsewhere: pip install 'fedamp[huggingface]'",
    "mnist": "npm install mnist (10,000 of its digits); or pip install 'fedamp[huggingface]'",
}


@sources.register("idx")
def idx(config: IdxData, folder: Path) -> Source:
    return _source(config, folder / Path(config.path).expanduser())


@sources.register("fashion-mnist", "mnist")
def known_images(config: KnownImages, folder: Path) -> Source:
    """The images in the folder that ``data.path`` names, or where packages put them, or from the Hugging Face hub."""
    if config.path is not None:
        return _source(config, folder / Path(config.path).expanduser())
    found = [place for place in _places(config.name) if place.is_dir()]
    if found:
        return _source(config, found[0])
    try:
        return _from_hub(config)
    except DataError as error:
        raise DataError(
            f"data.name {config.name}: not on this machine ({_HOW_TO_GET[config.name]}; or name a folder of IDX files "
            f"as data.path), and not to be had from the hub: {error}"
        ) from None


def _places(name: str) -> Iterator[Path]:
    """Where the files of a data set may lie: first where the user says."""
    if "FEDAMP_DATA" in os.environ:
        yield Path(os.environ["FEDAMP_DATA"]) / name
    for folder in INSTALLED:
        yield folder / name


def _source(config: IdxData | KnownImages, folder: Path) -> StoredSource:
    if not folder.is_dir():
        raise DataError(f"data.path: {folder} is not a folder; give the folder that holds train-images-idx3-ubyte")
    if (folder / "src" / "digits").is_dir():
        return StoredSource(config, JsonDigits(folder / "src" / "digits", config.shape))
    train = _split(config, folder, "train")
    if train is None:
        holds = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise DataError(f"{folder}: no train-images-idx3-ubyte and train-labels-idx1-ubyte; the folder holds {holds}")
    return StoredSource(config, train, _split(config, folder, "t10k", "test"))


def _split(config: IdxData | KnownImages, folder: Path, *names: str) -> "IdxTable | None":
    found = [(_FILE.fullmatch(path.name), path) for path in sorted(folder.iterdir())]
    paths = {match["what"]: path for match, path in found if match and match["split"] in names}
    if not paths:
        return None
    for what in ("images", "labels"):
        if what not in paths:
            raise DataError(f"{folder}: {names[0]}-{what} are missing beside {next(iter(paths.values())).name}")
    return IdxTable(paths["images"], paths["labels"], config)


class IdxFile:
    """An array in a file; its header is read at once, its numbers when they are asked for.

    Raises:
        DataError: not IDX, damaged, or of another length than its header says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            zeros, kind, dimensions = struct.unpack(">HBB", file.read(4))
            if zeros or kind not in _TYPES or not dimensions:
                raise ValueError("it does not begin as IDX does")
            self.shape: tuple[int, ...] = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        self.type = np.dtype(_TYPES[kind])
        self._header = 4 + 4 * dimensions

    @cached_property
    def values(self) -> NDArray[Any]:
        """The whole array."""
        size = math.prod(self.shape) * self.type.itemsize
        with self._open() as file:
            content = file.read(self._header + size + 1)[self._header :]
            if len(content) != size:
                raise ValueError(f"its header says {size:,} bytes, it has {'more' if len(content) > size else 'fewer'}")
        return np.frombuffer(content, self.type).reshape(self.shape)

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        try:
            with gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb") as file:
                yield file  # type: ignore[misc]
        except (OSError, EOFError, ValueError, OverflowError, MemoryError, struct.error, zlib.error) as error:
            raise DataError(f"{self.path}: not a readable IDX file ({first_line(error)})") from None


class IdxTable(Table):
    """Images and labels. Images of [height, width] are handed out with a channel, as [1, height, width]."""

    def __init__(self, images: Path, labels: Path, config: IdxData | KnownImages) -> None:
        self._images, self._labels = IdxFile(images), IdxFile(labels)
        count, *stored = self._images.shape
        if count == 0:
            raise DataError(f"{images}: no records; at least one is needed")
        shape = config.shape or ((1, *stored) if len(stored) == 2 else None)
        scale = image_scale(config.scale, self._images.type)
        super().__init__(str(images), tuple(stored), self._images.type, shape, scale)

    def __len__(self) -> int:
        return self._images.shape[0]

    def stored_labels(self) -> NDArray[Any]:
        return self._labels.values

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[Any]:
        inputs: NDArray[Any] = self._images.values[records]
        return inputs


class JsonDigits(Table):
    """The 10,000 digits of MNIST in npm's package ``mnist``: a file a digit, its pixels in [0, 1] one after another."""

    def __init__(self, folder: Path, shape: tuple[int, ...] | None = None) -> None:
        self._folder = folder
        super().__init__(str(folder), (784,), np.dtype(np.float32), shape or (1, 28, 28))

    def __len__(self) -> int:
        return len(self._digits)

    def stored_labels(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(10), [len(digits) for digits in self._by_digit])

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._digits[records]

    @cached_property
    def _digits(self) -> NDArray[np.float32]:
        return np.concatenate(self._by_digit)

    @cached_property
    def _by_digit(self) -> list[NDArray[np.float32]]:
        return [self._read(self._folder / f"{digit}.json") for digit in range(10)]

    def _read(self, path: Path) -> NDArray[np.float32]:
        try:
            return np.array(json.loads(path.read_bytes())["data"], dtype=np.float32).reshape(-1, 784)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a file of npm's package mnist ({first_line(error)})") from None


def _from_hub(config: KnownImages) -> Source:
    keys = config.model_dump(exclude={"name", "path"})
    hub = HuggingFaceData(name="huggingface", dataset=_HUB[config.name], **keys)
    return sources.all()["huggingface"](hub, Path())
