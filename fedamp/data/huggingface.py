"""Read columns of files and of the library ``datasets``: parquet and csv, image folders, and the Hugging Face hub.

fedamp itself lists the files of a split: ``datasets`` would guess it from any word in a path. Images have their pixels
in [0, 1] by each image's own type.

No person's record may decide the shape, the classes or the rounding of the others' records. So those come from the
scenario, from the type of a column, or from a public test set, and else the data are refused.
:mod:`fedamp.data.tabular` finds the files and reads their cells; :mod:`fedamp.data.stored` partitions the result.
"""

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import filter as matching
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from fedamp.base.reading import open_regular, regular_inside
from fedamp.base.section import removed
from fedamp.base.text import canonical
from fedamp.data.stored import ColumnsData, Names, PixelScale, RecordShape, StoredData, Tables, all_differ
from fedamp.data.table import Table, check_files, of_words, require
from fedamp.data.tabular import Files, library, spelled
from fedamp.errors import DataError, needs_extras

if TYPE_CHECKING:
    import datasets

KEPT = 256 * 2**20  # bytes; splits with at most so many decoded inputs are decoded once, larger ones as they are read
_TRAIN = "train"  # the split with the training records
NUMBERS = "numbers or equally long lists of numbers (inputs: or images)"
_OTHERS = "*"  # among the words of a column: all that are not listed
_TYPE_LARGEST = {"I;16": 2.0**16 - 1, "I": 2.0**16 - 1, "F": 1.0}  # by PIL's mode; I is of 16 bits except in TIFF
_BITS, _SIGN = 258, 339  # tags of TIFF


def in_folders(folder: Path, classes: Sequence[str]) -> "tuple[datasets.Dataset, list[str]]":
    """Return columns ``image`` and ``label`` of a split's images, which have a folder for each class, and their files.

    No other name in a path says anything.

    Args:
        folder: of the split.
        classes: names of the classes; empty: those of the folders.

    Returns:
        The columns, with label -1 for a folder that is no class; and the path of each image.

    Raises:
        DataError: an image without a class, or a table that would give others.
    """
    with needs_extras():
        import datasets
        from PIL import Image

    Image.init()
    named = [path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    classes = [canonical(name) for name in classes] or sorted(set(map(canonical, named)))
    paths, labels = list[str](), list[int]()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.name.startswith("metadata."):
            raise DataError(f"{path}: is not read; expected: images in a folder for each class, or parquet files")
        if path.suffix.lower() in Image.EXTENSION and not any(part[0] == "." for part in inside):
            if len(inside) == 1:
                raise DataError(f"{path}: expected: a folder for each class, {folder.name}/CLASS/{path.name}")
            paths.append(str(path))
            labels.append(classes.index(name) if (name := canonical(inside[0])) in classes else -1)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=classes)})
    return datasets.Dataset.from_dict({"image": paths, "label": labels}, features=features), paths


def spread(records: int) -> NDArray[np.int64]:
    """Return the numbers of up to 101 records, evenly spread, which are looked at in place of all; int64."""
    return np.unique(np.linspace(0, records - 1, 101 if records else 0).astype(np.int64))


class Images:
    """Inputs [records, channels, height, width], float32, from a column of images.

    An image of another shape, or that cannot be read, is NaN.

    Args:
        rows: a data set of the library.
        name: of the column.
        source: of the records, for errors.
        shape: of one image; None: that of the first one, for public images.
        scale: pixels are divided by it; None: by the largest value of each image's own type.

    Attributes:
        shape: [records, channels, height, width].
        dtype: float32.
        expected: description of an image that can be used, for errors.

    Raises:
        DataError: no shape is given, and no image can be read.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, rows: "datasets.Dataset", name: str, source: str, shape: tuple[int, ...] | None, scale: float | None
    ) -> None:
        from datasets import Image

        self._mode = rows.features[name].mode
        self._rows = rows.select_columns([name]).cast_column(name, Image(decode=False)).with_format(None)
        self._name, self._scale = name, scale
        found = [image for number in spread(len(rows)) if (image := self._image(number)) is not None]
        if shape is None and not found:
            raise DataError(f"{source}: column {name!r} must hold {NUMBERS}")
        self.shape = (len(rows), *(shape or found[0][0].shape))
        self.expected = f"an image of shape {list(self.shape[1:])} that can be read"
        self._fits = math.prod(self.shape) * max((pixels.itemsize for pixels, _ in found), default=4) <= KEPT

    def __getitem__(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read the images of these record numbers, float32 [records, channels, height, width]."""
        pixels, divisors = (each[records] for each in self._all) if self._fits else self._decoded(records)
        return np.asarray(pixels.astype(np.float32) / divisors[:, None, None, None])

    @cached_property
    def _all(self) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Decode all images, once, where they fit into ``KEPT`` bytes."""
        return self._decoded(np.arange(self.shape[0]))

    def _decoded(self, records: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return pixels as stored, and the divisor of each image: NaN for one that cannot be used."""
        found = [self._image(number) for number in records]
        fits = [image if image is not None and image[0].shape == self.shape[1:] else None for image in found]
        nothing = np.zeros(self.shape[1:], np.uint8), np.nan
        pixels, divisors = zip(*(image or nothing for image in [*fits, None]), strict=True)  # one at least, to stack
        return np.stack(pixels)[:-1], np.array(divisors[:-1], np.float32)

    def _image(self, number: np.int64) -> tuple[NDArray[Any], float] | None:
        """Read one image, channels first, and its divisor; None where it cannot be read, or has pixels out of range."""
        try:
            pixels, largest = _pixels_of(self._rows[int(number)][self._name], self._mode)
        except Exception:  # of foreign code
            return None
        if self._scale is not None:
            return pixels, self._scale
        return (pixels, largest) if pixels.min() >= 0 and pixels.max() <= largest else None


def _pixels_of(stored: Any, asked: str | None) -> tuple[NDArray[Any], float]:
    """Read an image with channels first, in the mode that is asked for.

    Args:
        stored: its bytes, or the path of its file.
        asked: mode of PIL; None: that of the image, with palettes and transparency as RGB.

    Returns:
        Pixels [channels, height, width], and the largest value of their type, which stands for 1.
    """
    from PIL import Image, ImageOps

    source = open_regular(stored["path"]) if stored["bytes"] is None else io.BytesIO(stored["bytes"])
    with source, Image.open(source) as opened:
        image: Image.Image = ImageOps.exif_transpose(opened)
        if asked is not None:
            image = image.convert(asked)
        mode, tags = image.mode, getattr(opened, "tag_v2", {})
        if mode == "1":
            image = image.convert("L")
        elif mode not in ("L", "RGB", "I", "F") and not mode.startswith(
            "I;16"
        ):  # palettes, transparency, print colours
            image = image.convert("RGB")
        pixels, largest = np.asarray(image), _TYPE_LARGEST.get(mode[:4], 255.0)
    if mode == "I" and opened.format == "TIFF":
        bits, signed = tags.get(_BITS, (32,))[0], tags.get(_SIGN, (1,))[0] == 2
        pixels, largest = pixels if signed or bits < 32 else pixels.view(np.uint32), 2.0 ** (bits - signed) - 1
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), largest


class Columns(StoredData):
    """Base of the sections whose inputs and labels may be columns of lists."""

    label_shape: RecordShape = Field(
        None,
        exclude_if=lambda shape: shape is None,
        description="shape of one label, where labels are lists; default: by the column's type, or a public test set",
    )
    categories: Mapping[str, Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(all_differ)]] = Field(
        {},
        exclude_if=lambda words: not words,
        description="the words of columns of features, such as colour: [red, blue, '*']; each word becomes an input of "
        "0 or 1, and '*' stands for all others; without it, a record with another word cannot train",
    )

    def like(self, test: Table) -> Self:
        """Copy the section; what it leaves open (shapes, classes) is as the public test set has it."""
        found = {"shape": self.shape or test.input_shape, "label_shape": self.label_shape or test.labels.shape[1:]}
        return self.model_copy(update=found if self.words else found | {"classes": test.classes or self.classes})


class TabularData(Columns, ColumnsData):
    """Files ``train.parquet`` and ``test.parquet``, or the same in csv, with columns of inputs, labels and clients."""

    name: Literal["parquet", "csv"]

    def input_shape(self) -> tuple[int, ...] | None:
        """Return the shape that the scenario says, or one number for each column of numbers and each category."""
        names = _as_list(self.features)
        if self.shape is None and any("*" in name for name in names):  # the records know how many columns match
            return None
        if self.shape is None and self.categories:
            return (sum(_width(self, name) for name in names),)
        return super().input_shape()

    def split(self, folder: Path, split: str) -> Table | None:
        """Open the files of a split; None without files."""
        files = Files.of(folder, split, (self.name,), self.max_bytes)
        return _of_files(files, self, split == "test") if files else None


class HuggingFaceData(Columns):
    """A data set of the Hugging Face hub, or a local folder: of ``save_to_disk``, or of parquet, csv or image files."""

    name: Literal["huggingface"]
    dataset: str = Field(description="name on the hub, or a local folder")
    features: Names = Field("image", description="column or columns of the inputs, or patterns such as soil_*")
    label: Names = Field("label", description="column or columns, as client.loss takes them")
    scale: PixelScale = None
    train_split: Annotated[str, *removed(_TRAIN, "a split with this name")] = _TRAIN
    test_split: str | None = Field(
        "test", description="split with the test records, if test_is_public; null: a test_fraction"
    )

    def open(self, folder: Path) -> Tables:
        """Open the splits of a local folder, or download those of the hub that are asked for."""
        test_split = self.test_split if self.test_is_public else None
        local = folder / Path(self.dataset).expanduser()
        place = local if local.is_dir() else self._downloaded([_TRAIN, *filter(None, [test_split])])
        with library(f"data.dataset {self.dataset!r}: cannot be read") as reader:
            splits: dict[str, datasets.Dataset] = {}
            check_files(sorted(place.rglob("*.arrow")), self.max_bytes)
            if (place / "state.json").exists():  # of save_to_disk, as is the next one
                splits = {"train": reader.load_from_disk(str(regular_inside(place)))}
            elif (place / "dataset_dict.json").exists():
                splits = reader.load_from_disk(str(regular_inside(place)))

        def read(section: HuggingFaceData, name: str, public: bool) -> Table:
            if splits:
                return section._saved(splits, name, public)
            return section._split(place, name, place == local, public)

        test = None if test_split is None else read(self, test_split, True)
        return Tables(read(self if test is None else self.like(test), _TRAIN, False), test)

    def _downloaded(self, splits: Sequence[str]) -> Path:
        """Return a folder with the hub's files of the splits, chosen by their names."""
        if Path(self.dataset).exists() or self.dataset.count("/") > 1 or self.dataset.startswith((".", "/", "~")):
            raise DataError(
                f"data.dataset: {self.dataset} is neither a folder beside the scenario nor a name on the hub"
            )
        with library(f"data.dataset {self.dataset!r}: not a folder, and not a hub data set that loads"):
            import huggingface_hub

            wanted = [f"{start}{split}{rest}" for split in splits for start in ("", "*/") for rest in ("[-._]*", "/*")]
            return Path(huggingface_hub.snapshot_download(self.dataset, repo_type="dataset", allow_patterns=wanted))

    def _saved(self, splits: "dict[str, datasets.Dataset]", name: str, public: bool) -> Table:
        """Return the table of a split that ``save_to_disk`` has written."""
        self._require(name, list(splits))
        rows = splits[name].with_format(None)

        def column(name: str) -> NDArray[Any]:
            return spelled(rows.with_format("arrow")[:][name])

        columns = {each: partial(column, each) for each in rows.column_names}
        return _table_of_rows(rows, self, f"{self.dataset} ({name})", public, columns)

    def _split(self, place: Path, name: str, is_local: bool, public: bool) -> Table:
        """Open a split's files or its folder of images.

        They are in the folder, or in ``data`` (of the hub: in any folder) below it.

        Args:
            place: the folder of the data set.
            name: of the split.
            is_local: whether the folder is the user's, not the hub's.
            public: whether everybody may know the records.

        Raises:
            DataError: the split is there twice, or not at all; or people's images would decide the classes.
        """
        below = [path for path in sorted(place.iterdir()) if path.is_dir() and (path.name == "data" or not is_local)]
        kinds = "parquet", "csv", "json"
        if (place / name).is_dir():
            if not (public or self.words):
                expected = "data.classes, the list of these words; without it, the classes of a public test set"
                raise DataError(f"{place / name}: people's images must not decide the classes; expected: {expected}")
            images, paths = in_folders(place / name, self.words)
            return _table_of_rows(images, self, str(place / name), public, place=paths.__getitem__)
        found = [files for each in (place, *below) if (files := Files.of(each, name, kinds, self.max_bytes))]
        if len(found) > 1:
            both = " and ".join(str(files.paths[0].relative_to(place)) for files in found[:2])
            raise DataError(f"data.dataset {self.dataset!r}: {both}; expected: one of them, name its folder")
        if not found:
            self._require(
                name, [str(path.relative_to(place)) for each in (place, *below) for path in sorted(each.iterdir())]
            )
        return _of_files(found[0], self, public)

    def _require(self, name: str, present: Sequence[str]) -> None:
        """Refuse a split that is not there, and name those that are."""
        if name not in present:
            other = "(data.test_split: null and a data.test_fraction hold out a part of the training split)"
            found = f"no split {name!r}; it has {', '.join(present[:9])}"
            raise DataError(f"data.dataset {self.dataset!r}: {found} {other}")


def _with_matched_columns(section: "TabularData | HuggingFaceData", files: Files) -> "TabularData | HuggingFaceData":
    """Replace patterns among the features, as ``soil_*``, by the columns that match, in the order of their names.

    So the order of the columns in a file changes nothing. A column with exactly that name is no pattern.

    Raises:
        DataError: no column matches, or one matches twice.
    """
    features = _as_list(section.features)
    if not any("*" in name and name not in files.names for name in features):
        return section
    known = sorted(set(files.names) - set(_as_list(section.label)))
    matched = [[name] if name in files.names or "*" not in name else matching(known, name) for name in features]
    for name, found in zip(features, matched, strict=True):
        if not found:
            raise DataError(f"{files.source}: data.features: no column matches {name}; columns: {', '.join(known)}")
    columns = [name for found in matched for name in found]
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise DataError(f"{files.source}: data.features: {twice[0]} is named, or matches, twice")
    return section.model_copy(update={"features": tuple(columns) if len(columns) > 1 else columns[0]})


def _of_files(files: Files, section: "TabularData | HuggingFaceData", public: bool) -> Table:
    """Return the table of a split's files; labels that are words are read as they are spelled."""
    section = _with_matched_columns(section, files)
    features, label = _as_list(section.features), _as_list(section.label)
    for key, names in (("features", features), ("label", label)):
        for name in names:
            require(name, files.names, f"data.{key}", files.source)
    features = [name for name in features if name not in section.categories]
    words = files.spelled(label[0]) if section.words and len(label) == 1 and files.kind != "parquet" else None
    rows = files.rows(list(dict.fromkeys(features + (label if words is None else []))) or label)
    columns = {name: partial(files.spelled, name) for name in files.names}
    return _table_of_rows(rows, section, files.source, public, columns, files.place, words)


def _table_of_rows(
    rows: "datasets.Dataset",
    section: "TabularData | HuggingFaceData",
    source: str,
    public: bool,
    columns: Mapping[str, Callable[[], NDArray[Any]]] = MappingProxyType({}),
    place: Callable[[int], str] | None = None,
    words: NDArray[Any] | None = None,
) -> Table:
    """Make a table of rows, with their columns of ids and of labels that are words, if they are not in the rows.

    Args:
        rows: a data set of the library.
        section: of the scenario.
        source: of the records, for errors.
        public: whether everybody may know the records, so that the first one may decide a shape.
        columns: reads a column of ids, by its name.
        place: names file and row of a record.
        words: labels that are words, [records]; None: the rows hold the labels.

    Raises:
        DataError: records are not public, and neither the scenario nor a type says the shape of inputs or labels.
    """
    features, label = _as_list(section.features), _as_list(section.label)
    for name in section.categories:
        require(name, [each for each in features if each in columns], "data.categories", source)
    given = [name for name in features if name not in section.categories]
    for key, names in (("features", given), ("label", label if words is None else [])):
        for name in names:
            require(name, rows.column_names, f"data.{key}", source)
    feature = rows.features.get(label[0]) if len(label) == 1 else None
    classes = getattr(feature, "names", None)
    if words is None and section.words and getattr(feature, "dtype", None) in ("string", "large_string"):
        words = np.array(rows.with_format(None)[label[0]][:], object)
    labels = numbers(rows, label, source, section.label_shape, public=public) if words is None else words
    are_images = len(features) == len(given) == 1 and type(rows.features[features[0]]).__name__ == "Image"
    if are_images and not public and len(section.shape or ()) != 3:  # no person's image decides it
        expected = "data.shape: [channels, height, width]; without data.shape, that of a public test set"
        raise DataError(f"{source}: people's images must not decide their shape; expected: {expected}")
    shape = section.shape if len(features) == 1 else None
    inputs: Any
    if are_images:
        inputs = Images(rows, features[0], source, shape, section.scale)
    elif len(given) == len(features):
        inputs = _ColumnInputs(rows, features, source, shape, public)
    else:
        inputs = _CategoryInputs(section, {name: columns[name]() for name in section.categories}, rows, source)
        features = [name for name in features for _ in range(_width(section, name))]
    return Table(
        source,
        inputs,
        labels,
        columns,
        section.shape,
        scale=1.0 if are_images else section.scale or 1.0,
        classes=None if classes is None else tuple(classes),
        place=place,
        features=features,
        label=label[0] if len(label) == 1 else "",
    )


def _as_list(names: Names) -> list[str]:
    """Return one or several names of columns as a list."""
    return [names] if isinstance(names, str) else list(names)


class _ColumnInputs:
    """Inputs from one column of (nested) lists of numbers, or from columns of numbers, read by record numbers.

    Up to ``KEPT`` bytes are decoded once, larger ones each time.
    """

    def __init__(
        self, rows: "datasets.Dataset", names: list[str], source: str, shape: tuple[int, ...] | None, public: bool
    ) -> None:
        self._rows, self._names, self._source = rows.select_columns(names), names, source
        example = numbers(rows.select(range(min(1, len(rows)))), names, source, shape, "data.shape", public)
        self.shape, self.dtype = (len(rows), *example.shape[1:]), example.dtype
        self._fits = math.prod(self.shape) * self.dtype.itemsize <= KEPT

    def __getitem__(self, records: NDArray[np.int64]) -> NDArray[Any]:
        """Read the inputs of these record numbers, [records, ...]."""
        return self._all[records] if self._fits else self._decoded(self._rows.select(records))

    @cached_property
    def _all(self) -> NDArray[Any]:
        """Inputs of all records, decoded once."""
        return self._decoded(self._rows)

    def _decoded(self, rows: "datasets.Dataset") -> NDArray[Any]:
        """Decode the inputs of some rows."""
        return numbers(rows, self._names, self._source, self.shape[1:])


def _width(section: Columns, name: str) -> int:
    """Count the inputs of a column: one, or one for each of its declared words."""
    return len(section.categories.get(name, [name]))


class _CategoryInputs:
    """Inputs [records, width], float32, of which some columns are words: each word is a number of 0 or 1.

    Width and order follow from the scenario alone. The inputs of an undeclared word are NaN.

    Args:
        section: of the scenario, with columns as features and with categories.
        words: of each column of words, [records].
        rows: a data set of the library, with the other columns.
        source: of the records, for errors.
    """

    dtype = np.dtype(np.float32)
    expected = "finite numbers, or words that data.categories has of the column"

    def __init__(
        self,
        section: "TabularData | HuggingFaceData",
        words: Mapping[str, NDArray[Any]],
        rows: "datasets.Dataset",
        source: str,
    ) -> None:
        self._widths = {name: _width(section, name) for name in _as_list(section.features)}
        self._places = {name: _places_of(words[name], section.categories[name]) for name in words}
        others = [name for name in self._widths if name not in words]
        if len(self._widths) != len(_as_list(section.features)):
            raise DataError(f"{source}: data.features names a column twice; expected: once, beside data.categories")
        self._numbers = _ColumnInputs(rows, others, source, None, False) if others else None
        if self._numbers is not None and self._numbers.shape[1:] not in ((), (len(others),)):
            raise DataError(f"{source}: column {others[0]!r} has lists; expected: a number, beside data.categories")
        self.shape = (len(next(iter(words.values()))), sum(self._widths.values()))

    def __getitem__(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the inputs of these record numbers, float32 [records, width]."""
        found, start, number = np.zeros((len(records), self.shape[1]), np.float32), 0, 0
        for name, width in self._widths.items():
            block = found[:, start : start + width]
            if name in self._places:
                places = self._places[name][records]
                block[np.arange(len(records)), places] = 1
                block[places < 0] = np.nan
            elif self._numbers is not None:
                columns = self._numbers[records].reshape(len(records), math.prod(self._numbers.shape[1:]))
                block[:, 0] = columns[:, number]
                number += 1
            start += width
        return found


def _places_of(values: NDArray[Any], words: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of each value among words, int64 [records]; -1: it is not there, and no word stands for it."""
    place = {canonical(word): number for number, word in enumerate(words)}
    other, cells = place.pop(_OTHERS, -1), values.tolist()
    found = {cell: -1 if cell is None else place.get(canonical(str(cell)), other) for cell in set(cells)}
    return np.array([found[cell] for cell in cells], np.int64)


def numbers(
    rows: "datasets.Dataset",
    names: list[str],
    source: str,
    shape: tuple[int, ...] | None = None,
    key: str = "data.label_shape",
    public: bool = False,
) -> NDArray[Any]:
    """Convert columns of plain values, or one of (nested) lists, to floats; other cells are NaN.

    Lists of as many numbers get the shape, by default that of the column's type, else of the first public record.

    Args:
        rows: a data set of the library.
        names: of the columns.
        source: of the records, for errors.
        shape: of one record's list; None: see above.
        key: of the scenario that would give the shape, for errors.
        public: whether everybody may know the records.

    Returns:
        [records, ...]: float32 for floats of up to 32 bits and whole numbers of up to 16, else float64.

    Raises:
        DataError: no shape is known, the column's type holds no numbers, or lists are in several columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for name in names:
        cells: Any = rows.with_format("arrow")[:][name]
        ends, lengths, expected = np.arange(len(cells) + 1), list[int | None](), getattr(cells.type, "shape", None)
        flat = cells.cast(cells.type.storage_type) if isinstance(cells.type, pa.ExtensionType) else cells
        while isinstance(flat.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            lengths.append(getattr(flat.type, "list_size", None))
            ends = np.concatenate([[0], np.cumsum(pc.list_value_length(flat).fill_null(0))])[ends]
            flat = pc.list_flatten(flat)
        is_number = pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)
        if not is_number:
            is_input = key == "data.shape" and (pa.types.is_string(flat.type) or pa.types.is_large_string(flat.type))
            raise DataError(f"{source}: column {name!r} must hold {NUMBERS}{of_words(name) if is_input else ''}")
        # By the column's type alone: one person's empty cell must not change how the others' numbers are rounded.
        small = flat.type.bit_width <= (32 if pa.types.is_floating(flat.type) else 16)
        values = flat.cast(pa.float32() if small else pa.float64(), safe=False).to_numpy()
        if lengths and len(names) > 1:
            raise DataError(f"{source}: of several columns ({', '.join(names)}) each must hold one number a record")
        if lengths:
            expected = shape or expected or lengths
            if None in expected and public and len(cells):
                expected = np.shape(cells[0].as_py())
            if None in expected:
                why = f"column {name!r} has lists, and people's lists must not decide their length"
                raise DataError(f"{source}: {why}; expected: {key}, or a public test set")
            counts, size = np.diff(ends), math.prod(expected)
            found = np.full((len(cells), size), np.nan, values.dtype)
            found[counts == size] = values[np.repeat(counts == size, counts)].reshape(-1, size)
            values = found.reshape(len(cells), *expected)
        columns.append(values)
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
