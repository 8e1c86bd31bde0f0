"""Columns of the library ``datasets``: parquet and csv files, image folders, and the Hugging Face hub.

Files are converted once to Arrow files under ``FEDAMP_CACHE``. These are mapped into memory, and workers share them.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.data.folder import ColumnsData, Names
from fedamp.data.stored import Scale, StoredData, Tables
from fedamp.data.table import Table, cache_folder, image_scale, require
from fedamp.errors import DataError, one_line

if TYPE_CHECKING:
    import datasets

KEPT = 256 * 2**20  # bytes; splits with at most so many decoded inputs are decoded once, larger ones as they are read


class TabularData(ColumnsData):
    """Files ``train*.parquet`` and ``test*.parquet``, or csv likewise, with columns of inputs, labels and clients."""

    name: Literal["parquet", "csv"]

    def split(self, folder: Path, split: str) -> Table | None:
        found = rows_of(folder, split, self.name)
        return found and _table(found[0], self, found[1])


class HuggingFaceData(StoredData):
    """A data set of the Hugging Face hub, or a local folder: of ``save_to_disk``, or of parquet, csv or image files."""

    name: Literal["huggingface"]
    dataset: str = Field(description="name on the hub, or a local folder")
    features: Names = Field("image", description="column or columns of the inputs")
    label: Names = Field("label", description="column or columns, as client.loss takes them")
    scale: Scale = None
    train_split: str = Field("train", description="split with the training records")
    test_split: str | None = Field(
        "test", description="split with the test records, if test_is_public; null: a test_fraction"
    )

    def open(self, folder: Path) -> Tables:
        local = folder / Path(self.dataset).expanduser()
        with _library(f"data.dataset {self.dataset!r}: not a folder, and not a hub data set that loads") as library:
            if (local / "state.json").exists():  # of save_to_disk, as is the next one
                splits = {"train": library.load_from_disk(str(local))}
            elif (local / "dataset_dict.json").exists():
                splits = library.load_from_disk(str(local))
            elif local.is_dir():
                splits = library.load_dataset(str(local), cache_dir=str(cache_folder("datasets")))
            else:
                splits = library.load_dataset(self.dataset)
        tables, test_split = [], self.test_split if self.test_is_public else None
        for name in filter(None, (self.train_split, test_split)):
            if name not in splits:
                other = "(data.test_split: null and a data.test_fraction hold out a part of the training split)"
                found = f"no split {name!r}; it has {', '.join(splits)}"
                raise DataError(f"data.dataset {self.dataset!r}: {found} {other}")
            tables.append(_table(splits[name], self, f"{self.dataset} ({name})"))
        return Tables(tables[0], tables[1] if test_split else None)


def rows_of(folder: Path, split: str, kind: str) -> "tuple[datasets.Dataset, str] | None":
    """The rows of a split's files of a kind (csv, json, parquet), and their source for messages; None without files."""
    paths = [str(path) for path in sorted(folder.glob(f"{split}*.{kind}"))]
    if not paths:
        return None
    source = paths[0] if len(paths) == 1 else f"{paths[0]} ... {Path(paths[-1]).name}"
    own = {"batch_size": 1024} if kind == "parquet" else {}  # the default fails on an empty parquet file
    with _library(f"{source}: cannot be read as {kind}") as library:
        read = getattr(library.Dataset, f"from_{kind}")
        return read(paths, cache_dir=str(cache_folder("datasets")), **own), source


def _table(rows: "datasets.Dataset", section: "TabularData | HuggingFaceData", source: str) -> Table:
    features, label = ([names] if isinstance(names, str) else names for names in (section.features, section.label))
    for key, names in (("features", features), ("label", label)):
        for name in names:
            require(name, rows.column_names, f"data.{key}", source)
    if not len(rows):
        raise DataError(f"{source}: no records; at least one is needed")
    inputs = _ColumnInputs(rows, features, source, section.shape)
    scale = image_scale(section.scale, inputs.dtype) if inputs.are_images else section.scale or 1.0

    def column(name: str) -> NDArray[Any]:
        require(name, rows.column_names, "data.partition.column", source)
        return np.asarray(rows.with_format(None)[name][:])  # numpy's format would round to float32

    return Table(source, inputs, _numbers(rows, label, source), column, section.shape, scale)


class _ColumnInputs:
    """Inputs from one column of images (channels first) or (nested) lists of numbers, or from columns of numbers.

    All have the declared shape, else that of the first one that can be read; another record is NaN.
    """

    def __init__(self, rows: "datasets.Dataset", names: list[str], source: str, shape: tuple[int, ...] | None) -> None:
        from datasets import Image

        self._rows, self._names, self._source = rows.select_columns(names), names, source
        self.are_images = isinstance(rows.features[names[0]], Image)
        self._shape = shape if self.are_images and shape and len(shape) == 3 else None
        example = self._example()
        self.shape, self.dtype = (len(rows), *example.shape[1:]), example.dtype
        self._shape = self.shape[1:]
        self._fits = math.prod(self.shape) * self.dtype.itemsize <= KEPT

    def _example(self) -> NDArray[Any]:
        for number in range(len(self._rows)):
            with suppress(DataError):
                return self._decoded(np.array([number]))
        raise DataError(f"{self._source}: column {self._names[0]!r} must hold {_NUMBERS}")

    def __getitem__(self, records: NDArray[np.int64]) -> NDArray[Any]:
        if len(records) == 0:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        return self._all[records] if self._fits else self._decoded(records)

    @cached_property
    def _all(self) -> NDArray[Any]:
        return self._decoded(np.arange(self.shape[0]))

    def _decoded(self, records: NDArray[np.int64]) -> NDArray[Any]:
        rows = self._rows.select(records)
        if not self.are_images:
            return _numbers(rows, self._names, self._source, self._shape)
        rows, images = rows.with_format(None), list[NDArray[Any] | None]()
        for number in range(len(rows)):
            try:
                images.append(_pixels(rows[number][self._names[0]]))
            except Exception:  # of foreign code
                images.append(None)
        return _stacked(images, self._shape, f"{self._source}: column {self._names[0]!r} must hold {_NUMBERS}")


_NUMBERS = "numbers or equally long lists of numbers (inputs: or images)"


def _numbers(
    rows: "datasets.Dataset", names: list[str], source: str, shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Columns of plain values or of equally long (nested) lists, as an array [records, ...]; other cells are NaN."""
    import pyarrow as pa

    columns = []
    for name in names:
        stored, complaint = rows.data.schema.field(name).type, f"{source}: column {name!r} must hold {_NUMBERS}"
        while isinstance(stored, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            stored = stored.value_type
        kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean
        if not (isinstance(stored, pa.ExtensionType) or any(kind(stored) for kind in kinds)):
            raise DataError(complaint)
        try:
            with np.errstate(over="ignore"):
                values = np.asarray(rows.select_columns([name]).with_format("numpy")[:][name])
        except ValueError:  # lists of different lengths
            values = np.empty(0, dtype=object)
        expected = shape if shape is None or len(names) == 1 else ()
        wanted = values.dtype.kind in "fiub" and expected in (None, values.shape[1:])
        if rows.data.column(name).null_count or not wanted:  # some versions of the library read NaN for no value
            cells = [_cell(cell) for cell in rows.with_format(None)[name][:]]
            values = _stacked(cells, expected, complaint)
        columns.append(values)
    if len(columns) > 1 and any(column.ndim > 1 for column in columns):
        raise DataError(f"{source}: of several columns ({', '.join(names)}) each must hold one number a record")
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _cell(cell: Any) -> NDArray[Any] | None:
    """One value or (nested) list of numbers; None for others."""
    try:
        return None if cell is None else np.asarray(cell, dtype=np.float64)
    except (TypeError, ValueError):  # an empty cell within, or lists of different lengths
        return None


def _stacked(each: Sequence[NDArray[Any] | None], shape: tuple[int, ...] | None, complaint: str) -> NDArray[Any]:
    """Arrays of one shape, default: that of the first; NaN in place of others. DataError: there is none."""
    shape = next((one.shape for one in each if one is not None), None) if shape is None else shape
    if shape is None:
        raise DataError(complaint)
    nothing = np.full(shape, np.nan, np.float32)
    return np.stack([nothing if one is None or one.shape != shape else one for one in each])


@contextmanager
def _library(complaint: str) -> Iterator[Any]:
    """``datasets``, silent; whatever it raises inside becomes a DataError with the complaint and the first cause."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield datasets
    except Exception as error:  # depends on the hub, the network and the format
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise DataError(f"{complaint} ({one_line(cause)})") from None


def _pixels(image: Any) -> NDArray[Any]:
    """A PIL image with channels first."""
    if image.mode == "1":
        image = image.convert("L")
    elif image.mode not in ("L", "RGB", "I", "I;16", "F"):  # palettes, transparency, print colours
        image = image.convert("RGB")
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
