"""Columns of files and of the library ``datasets``: parquet and csv files, image folders, and the Hugging Face hub.

fedamp itself lists the files of a split: ``datasets`` would guess it from any word in a path.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.data.files import Files, library
from fedamp.data.folder import ColumnsData, Names
from fedamp.data.images import KEPT, NUMBERS, Images, in_folders, shape_of_most, spread
from fedamp.data.stored import Scale, StoredData, Tables
from fedamp.data.table import Table, require
from fedamp.errors import DataError

if TYPE_CHECKING:
    import datasets


class TabularData(ColumnsData):
    """Files ``train.parquet`` and ``test.parquet``, or csv likewise, with columns of inputs, labels and clients."""

    name: Literal["parquet", "csv"]

    def split(self, folder: Path, split: str) -> Table | None:
        files = Files.of(folder, split, (self.name,), self.max_bytes)
        return _declared(_of_files(files, self), self) if files else None


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
        test_split = self.test_split if self.test_is_public else None
        local = folder / Path(self.dataset).expanduser()
        place = local if local.is_dir() else self._downloaded([self.train_split, *filter(None, [test_split])])
        with library(f"data.dataset {self.dataset!r}: cannot be read") as reader:
            splits: dict[str, datasets.Dataset] = {}
            if (place / "state.json").exists():  # of save_to_disk, as is the next one
                splits = {"train": reader.load_from_disk(str(place))}
            elif (place / "dataset_dict.json").exists():
                splits = reader.load_from_disk(str(place))

        def read(section: HuggingFaceData, name: str) -> Table:
            return section._saved(splits, name) if splits else section._split(place, name, place == local)

        if test_split is None:
            return Tables(_declared(read(self, self.train_split), self))
        test = read(self, test_split)
        of_test = isinstance(test.inputs, Images) and self.shape is None
        section = self.model_copy(update={"shape": test.inputs.shape[1:]}) if of_test else self
        return Tables(_declared(read(section, self.train_split), section), test)

    def _downloaded(self, splits: Sequence[str]) -> Path:
        """A folder with the hub's files of the splits, chosen by their names."""
        if Path(self.dataset).exists() or self.dataset.count("/") > 1 or self.dataset.startswith((".", "/", "~")):
            raise DataError(f"data.dataset: {self.dataset} is not a folder beside the scenario, and no name on the hub")
        with library(f"data.dataset {self.dataset!r}: not a folder, and not a hub data set that loads"):
            import huggingface_hub

            wanted = [f"{start}{split}{rest}" for split in splits for start in ("", "*/") for rest in ("[-._]*", "/*")]
            return Path(huggingface_hub.snapshot_download(self.dataset, repo_type="dataset", allow_patterns=wanted))

    def _saved(self, splits: "dict[str, datasets.Dataset]", name: str) -> Table:
        self._require(name, list(splits))
        rows = splits[name].with_format(None)

        def column(name: str) -> NDArray[Any]:
            require(name, rows.column_names, "data.partition.column", self.dataset)
            found = rows.with_format("arrow")[:][name]
            return np.array(found.to_pylist(), object) if found.null_count else np.asarray(found.to_numpy())

        return _table(rows, self, f"{self.dataset} ({name})", column)

    def _split(self, place: Path, name: str, is_local: bool) -> Table:
        """Files of a split, in the folder or in ``data`` (of the hub: any one) below it, or its folder of images."""
        below = [path for path in sorted(place.iterdir()) if path.is_dir() and (path.name == "data" or not is_local)]
        kinds = "parquet", "csv", "json"
        if (place / name).is_dir():
            return _table(in_folders(place / name), self, str(place / name))
        found = [files for each in (place, *below) if (files := Files.of(each, name, kinds, self.max_bytes))]
        if len(found) > 1:
            both = " and ".join(str(files.paths[0].relative_to(place)) for files in found[:2])
            raise DataError(f"data.dataset {self.dataset!r}: {both}; expected: one of them, name its folder")
        if not found:
            self._require(
                name, [str(path.relative_to(place)) for each in (place, *below) for path in sorted(each.iterdir())]
            )
        return _of_files(found[0], self)

    def _require(self, name: str, present: Sequence[str]) -> None:
        if name not in present:
            other = "(data.test_split: null and a data.test_fraction hold out a part of the training split)"
            found = f"no split {name!r}; it has {', '.join(present[:9])}"
            raise DataError(f"data.dataset {self.dataset!r}: {found} {other}")


def _declared(table: Table, section: "TabularData | HuggingFaceData") -> Table:
    """The table. DataError: it has images, and the scenario does not say their shape: no person's image decides it."""
    if isinstance(table.inputs, Images) and len(section.shape or ()) != 3:
        expected = "data.shape: [channels, height, width]; without data.shape, that of a public test set"
        raise DataError(f"{table.source}: people's images must not decide their shape; expected: {expected}")
    return table


def _of_files(files: Files, section: "TabularData | HuggingFaceData") -> Table:
    def column(name: str) -> NDArray[Any]:
        require(name, files.names, "data.partition.column", files.source)
        return files.spelled(name)

    features, label = _list(section.features), _list(section.label)
    for key, names in (("features", features), ("label", label)):
        for name in names:
            require(name, files.names, f"data.{key}", files.source)
    words = files.spelled(label[0]) if section.words and len(label) == 1 and files.kind != "parquet" else None
    rows = files.rows(list(dict.fromkeys(features + (label if words is None else []))))
    return _table(rows, section, files.source, column, files.place, words)


def _table(
    rows: "datasets.Dataset",
    section: "TabularData | HuggingFaceData",
    source: str,
    column: Callable[[str], NDArray[Any]] | None = None,
    place: Callable[[int], str] | None = None,
    words: NDArray[Any] | None = None,
) -> Table:
    """A table of rows, with their columns of ids and of labels that are words, if they are not in the rows."""
    features, label = _list(section.features), _list(section.label)
    for key, names in (("features", features), ("label", label if words is None else [])):
        for name in names:
            require(name, rows.column_names, f"data.{key}", source)
    feature = rows.features.get(label[0]) if len(label) == 1 else None
    classes = getattr(feature, "names", None)
    if words is None and section.words and getattr(feature, "dtype", None) in ("string", "large_string"):
        words = np.array(rows.with_format(None)[label[0]][:], object)
    are_images = len(features) == 1 and type(rows.features[features[0]]).__name__ == "Image"
    images = Images(rows, features[0], source, section.shape, section.scale) if are_images else None
    return Table(
        source,
        images or _ColumnInputs(rows, features, source, section.shape if len(features) == 1 else None),
        numbers(rows, label, source) if words is None else words,
        column,
        section.shape,
        scale=1.0 if images else section.scale or 1.0,
        classes=None if classes is None else tuple(classes),
        place=place,
    )


def _list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


class _ColumnInputs:
    """Inputs from one column of (nested) lists of numbers, or from columns of numbers, read by record numbers.

    All have the declared shape, else that of most; another record is NaN.
    """

    def __init__(
        self, rows: "datasets.Dataset", names: list[str], source: str, shape: tuple[int, ...] | None = None
    ) -> None:
        self._rows, self._names, self._source = rows.select_columns(names), names, source
        example = numbers(rows.select(spread(len(rows))), names, source, shape)
        self.shape, self.dtype = (len(rows), *example.shape[1:]), example.dtype
        self._fits = math.prod(self.shape) * self.dtype.itemsize <= KEPT

    def __getitem__(self, records: NDArray[np.int64]) -> NDArray[Any]:
        if len(records) == 0:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        return self._all[records] if self._fits else self._decoded(self._rows.select(records))

    @cached_property
    def _all(self) -> NDArray[Any]:
        return self._decoded(self._rows)

    def _decoded(self, rows: "datasets.Dataset") -> NDArray[Any]:
        return numbers(rows, self._names, self._source, self.shape[1:])


def numbers(
    rows: "datasets.Dataset", names: list[str], source: str, shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Columns of plain values or of equally long (nested) lists, as an array [records, ...]; other cells are NaN.

    With a shape, lists of as many numbers get it.
    """
    import pyarrow as pa

    columns = []
    for name in names:
        cells, complaint = rows.with_format("arrow")[:][name], f"{source}: column {name!r} must hold {NUMBERS}"
        stored = cells.type.storage_type if isinstance(cells.type, pa.ExtensionType) else cells.type
        is_plain = not pa.types.is_nested(stored)
        while isinstance(stored, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            stored = stored.value_type
        kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean
        if not (is_plain or len(cells)):  # no record says the shape
            raise DataError(f"{source}: no records; at least one is needed")
        if not any(kind(stored) for kind in kinds):
            raise DataError(complaint)
        if is_plain:
            columns.append(np.asarray(cells.cast(pa.float64()) if cells.null_count else cells))
            continue
        try:
            with np.errstate(over="ignore"):
                values = np.asarray(rows.select_columns([name]).with_format("numpy")[:][name])
        except ValueError:  # lists of different lengths
            values = np.empty(0, dtype=object)
        expected = shape if shape is None or len(names) == 1 else ()
        wanted = values.dtype.kind in "fiub" and (
            expected is None or math.prod(expected) == math.prod(values.shape[1:])
        )
        if wanted and expected is not None:
            values = values.reshape(len(values), *expected)
        if cells.null_count or not wanted:  # some versions of the library read NaN for no value
            values = _stacked([_cell(cell) for cell in cells.to_pylist()], expected, complaint)
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
    """Arrays of one shape, default: that of most; NaN in place of others. DataError: there is none."""
    if shape is None:
        shape = shape_of_most((one.shape for one in each if one is not None), complaint)
    nothing = np.full(shape, np.nan, np.float32)
    return np.stack([nothing if one is None or one.size != nothing.size else one.reshape(shape) for one in each])
