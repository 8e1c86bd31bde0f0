"""Find which tabular files hold a split, and read their columns as they are spelled; nothing is guessed.

A library that guesses types reads ``007`` as 7 in one file and as a text in the next. Then one person becomes two, or
two become one, and no epsilon covers that. Here csv and JSON have spelled cells alone; a caller that asks for numbers
gets float64.

:mod:`fedamp.data.huggingface` and :mod:`fedamp.data.texts` open :class:`Files`. Read columns are kept in the cache,
under the digest of the files, so that a second process maps them into memory.
"""

import csv
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedamp.base.reading import open_regular, regular
from fedamp.data.places import kept
from fedamp.data.table import check_files
from fedamp.errors import DataError, needs_extras, one_line

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

_PIECE = r"[-_.]?\d+(-of-(?P<count>\d+))?(-[0-9a-f]+)?"
_BLOCK = 4096  # rows converted at once
_TRUTH = {"true": 1.0, "false": 0.0}
_LAYOUT = 1  # of the copies on disk


@dataclass(frozen=True)
class Files:
    """The files of one split in the order of their records. Every method raises DataError, one line.

    Attributes:
        kind: csv, json (an object a line) or parquet.
        paths: of the files.
    """

    kind: str
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path, split: str, kinds: Sequence[str], most: int) -> "Files | None":
        """Find the files of a split.

        They are ``train.csv``, the files in a folder of that name, or numbered pieces such as
        ``train-00000-of-00002.csv``. Other names, such as ``train_backup.csv``, are no part of the split.

        Args:
            folder: that holds the files.
            split: train or test.
            kinds: endings of names that may be read.
            most: bytes to which the files may unfold.

        Returns:
            The files; None: there are none.

        Raises:
            DataError: files of two kinds, a piece is missing, or they unfold to more than ``most`` bytes.
        """
        found = [cls(kind, paths) for kind in kinds if (paths := _of_kind(folder, split, kind))]
        if len(found) > 1:
            first, second = (each.paths[0].name for each in found[:2])
            raise DataError(f"{folder}: {first} and {second}; expected: files of one kind")
        for each in found:
            check_files(each.paths, most)
        return found[0] if found else None

    @property
    def source(self) -> str:
        """Name of the files in a message."""
        first, *others = self.paths
        return f"{first} ... {others[-1].name}" if others else str(first)

    def place(self, record: int) -> str:
        """Name file and row of a record in a message; rows are counted from 1, without a header."""
        number = int(np.searchsorted(self._ends, record, "right"))
        return f"{self.paths[number]}: row {record - ([0, *self._ends][number]) + 1}"

    @cached_property
    def _ends(self) -> list[int]:
        """Numbers of records up to the end of each file but the last one."""
        return list(
            accumulate(sum(map(len, self._blocks(path, self._names(path)[:1], True))) for path in self.paths[:-1])
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of the first file."""
        return self._names(self.paths[0])

    def rows(self, names: Sequence[str]) -> "datasets.Dataset":
        """Read columns of numbers: cells of csv and JSON as float64, NaN where a cell is none; of parquet as stored."""
        return self._rows(names, False)

    def spelled(self, name: str) -> NDArray[Any]:
        """Read a column of ids or texts [records]: integers of parquet, else objects; None where a record has none."""
        return spelled(self._rows([name], True).with_format("arrow")[:][name])

    def _rows(self, names: Sequence[str], spelled: bool) -> "datasets.Dataset":
        """Read columns into one arrow file in the cache, and map it into memory.

        Args:
            names: of the columns.
            spelled: whether cells are texts, as they are spelled; else numbers.
        """
        with library(f"{self.source}: cannot be read as {self.kind}") as datasets:
            import pyarrow as pa

            schema = self._schema(names, spelled)

            def write(file: Path) -> None:
                with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
                    for path in self.paths:
                        for block in self._blocks(path, names, spelled):
                            stream.write_table(block.cast(schema, safe=False))  # numbers beyond 2^53 are rounded

            what = json.dumps([_LAYOUT, self.kind, list(names), spelled, str(schema)])
            key = hashlib.sha256((what + self._digest).encode()).hexdigest()
            return datasets.Dataset.from_file(str(regular(kept("tables", f"{key}.arrow", write))))

    @cached_property
    def _digest(self) -> str:
        """Digest of all that the files hold: a time of modification can be that of other records."""
        found = []
        for path in self.paths:
            with open_regular(path) as stream:
                found.append(hashlib.file_digest(stream, "sha256").hexdigest())
        return " ".join(found)

    def _names(self, path: Path) -> tuple[str, ...]:
        """Read the names of a file's columns; JSON has all that any line has."""
        with library(f"{path}: cannot be read as {self.kind}"):
            if self.kind == "parquet":
                import pyarrow.parquet as pq

                return tuple(pq.read_schema(regular(path)).names)
            if self.kind == "csv":
                return tuple(next(_csv_rows(path), ()))
            return tuple(dict.fromkeys(name for line in _json_objects(path) for name in line))

    def _schema(self, names: Sequence[str], spelled: bool) -> "pa.Schema":
        """Find the types of columns, which all files must share."""
        import pyarrow as pa

        for path in self.paths:
            present = self._names(path)
            for name in names:
                if present.count(name) != 1:
                    raise DataError(f"{path}: {'two columns' if name in present else 'no column'} {name!r}")
        if self.kind != "parquet":
            return pa.schema([(name, pa.large_string() if spelled else pa.float64()) for name in names])
        import pyarrow.parquet as pq

        schemas = [pq.read_schema(regular(path)) for path in self.paths]
        described = {_noted_features(schema, names) for schema in schemas}
        types = {name: _common_type([schema.field(name).type for schema in schemas], spelled) for name in names}
        for name, found in types.items():
            if found is None or len(described) > 1:
                shown = ", ".join(sorted({str(schema.field(name).type) for schema in schemas}))
                raise DataError(
                    f"{self.source}: column {name!r} differs between the files ({shown}); expected: one type"
                )
        return pa.schema(list(types.items()), metadata={"huggingface": described.pop()})

    def _blocks(self, path: Path, names: Sequence[str], spelled: bool) -> "Iterator[pa.Table]":
        """Yield a file's columns in blocks of rows, as texts (``spelled``) or numbers."""
        import pyarrow as pa

        if self.kind == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(regular(path)) as file:
                for batch in file.iter_batches(1024, columns=list(names)):
                    yield pa.table([_without_dictionary(batch.column(name)) for name in names], names=list(names))
            return
        rows = _json_cells(path, names) if self.kind == "json" else _csv_cells(path, names)
        while block := list(islice(rows, _BLOCK)):
            texts = map(_as_texts, zip(*block, strict=True))
            yield pa.table(list(texts if spelled else map(_as_numbers, texts)), names=list(names))


def spelled(column: "pa.ChunkedArray") -> NDArray[Any]:
    """Convert a column of ids or texts to an array [records].

    Equal texts are one object, so that a million records of few people stay small.
    """
    import pyarrow as pa

    if pa.types.is_large_string(column.type) or pa.types.is_string(column.type):
        encoded = column.combine_chunks().dictionary_encode()
        different = np.array([*encoded.dictionary.to_pylist(), None], object)
        return np.take(different, np.asarray(encoded.indices.fill_null(len(different) - 1)))
    if column.null_count and not (pa.types.is_floating(column.type) or pa.types.is_temporal(column.type)):  # NaN, NaT
        return np.array(column.to_pylist(), object)
    return np.asarray(column.to_numpy())


def _of_kind(folder: Path, split: str, kind: str) -> tuple[Path, ...]:
    """Find a split's files of one kind, and refuse a split that is there twice or incomplete."""
    whole = folder / f"{split}.{kind}"
    form = re.compile(re.escape(split) + _PIECE + re.escape(f".{kind}"))
    pieces = {path: match for path in sorted(folder.iterdir()) if (match := form.fullmatch(path.name))}
    if whole.exists() and pieces:
        raise DataError(f"{folder}: {whole.name} and {next(iter(pieces)).name}; expected: one file, or its pieces")
    if whole.is_dir():
        inside = sorted(path for path in whole.iterdir() if path.name[0] not in "._")
        for path in inside:
            if path.is_dir() or path.suffix != f".{kind}":
                raise DataError(f"{path}: expected in {whole.name}: files *.{kind} alone")
        return tuple(inside)
    counts = {match["count"] for match in pieces.values()}
    if counts - {None} and {int(count or 0) for count in counts} != {len(pieces)}:
        raise DataError(f"{folder}: {len(pieces)} pieces {next(iter(pieces)).name} ...; expected: as many as they say")
    return (whole,) if whole.exists() else tuple(pieces)


def _csv_rows(path: Path) -> Iterator[list[str]]:
    """Yield the rows of a csv file, its header first, with cells as they are spelled.

    A cell in double quotes may have commas. Bytes that are no UTF-8 are written as escapes.
    """
    limit = csv.field_size_limit(sys.maxsize)  # of the whole process; texts may be longer
    try:
        with TextIOWrapper(open_regular(path), "utf-8-sig", "backslashreplace", newline="") as file:
            yield from filter(None, csv.reader(file, strict=True))
    finally:
        csv.field_size_limit(limit)


def _csv_cells(path: Path, names: Sequence[str]) -> Iterator[list[str | None]]:
    """Yield the cells of some columns. A row of another length has none: nobody knows which cells are whose."""
    rows = _csv_rows(path)
    header = next(rows, [])
    places = [header.index(name) for name in names]
    for row in rows:
        yield [row[place] if len(row) == len(header) else None for place in places]


def _json_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one a line, whose numbers are spelled; a line that is no object has no keys."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(pairs) if len(dict(pairs)) == len(pairs) else {}

    with TextIOWrapper(open_regular(path), "utf-8-sig", "backslashreplace", newline="\n") as file:
        for line in filter(str.strip, file):
            try:
                found = json.loads(
                    line, parse_int=str, parse_float=str, parse_constant=lambda _: None, object_pairs_hook=once
                )
            except (ValueError, RecursionError):
                found = {}
            yield found if isinstance(found, dict) else {}


def _json_cells(path: Path, names: Sequence[str]) -> Iterator[list[str | None]]:
    """Yield the cells of some keys; a list or an object in a cell counts as none."""
    for line in _json_objects(path):
        cells = [line.get(name) for name in names]
        cells = [str(cell).lower() if isinstance(cell, bool) else cell for cell in cells]
        yield [cell if isinstance(cell, str) else None for cell in cells]


def _as_texts(cells: Iterable[str | None]) -> "pa.Array":
    """Make an arrow array of texts; half a surrogate pair, which arrow refuses, is written as an escape."""
    import pyarrow as pa

    cells = list(cells)
    try:
        return pa.array(cells, pa.large_string())
    except UnicodeEncodeError:  # half a pair of JSON's \ud83d\ude00
        plain = [cell and cell.encode(errors="backslashreplace").decode() for cell in cells]
        return pa.array(plain, pa.large_string())


def _as_numbers(texts: "pa.Array") -> "pa.Array":
    """Convert texts to float64; NaN where a text is no number."""
    import pyarrow as pa

    try:
        return texts.cast(pa.float64()).fill_null(math.nan)
    except pa.ArrowInvalid:
        return pa.array(map(_as_number, texts.to_pylist()), pa.float64())


def _as_number(cell: str | None) -> float:
    """Convert a cell to a number; true and false are 1 and 0, and NaN stands for a cell that is none."""
    try:
        return math.nan if cell is None or "_" in cell else float(cell)
    except ValueError:
        return _TRUTH.get(str(cell).strip().lower(), math.nan)


def _without_dictionary(column: "pa.Array") -> "pa.Array":
    """Write out the values of a column that has a dictionary."""
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _common_type(types: "list[pa.DataType]", spelled: bool) -> "pa.DataType | None":
    """Find the type of a column whose type in each file is given; None if values would change.

    Args:
        types: of the column in each file.
        spelled: whether it names clients: then whole numbers and floats have no common type.
    """
    import pyarrow as pa

    types = [each.value_type if pa.types.is_dictionary(each) else each for each in types]
    is_list = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    is_text = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view

    def all_are(*kinds: Callable[[pa.DataType], bool]) -> bool:
        return all(any(kind(each) for kind in kinds) for each in types)

    if all_are(*is_text):
        return pa.large_string()
    if len(set(types)) == 1:
        return types[0]
    if all_are(pa.types.is_signed_integer):
        return pa.int64()
    if all_are(pa.types.is_unsigned_integer):
        return pa.uint64()
    if all_are(pa.types.is_integer, pa.types.is_floating) and not spelled:
        return pa.float64()
    if all_are(*is_list) and (inside := _common_type([each.value_type for each in types], spelled)):
        return pa.large_list(inside)
    return None


def _noted_features(schema: "pa.Schema", names: Sequence[str]) -> str:
    """Return what ``datasets`` has noted about columns: that they are images, and the order of the classes."""
    noted = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = (noted.get("info") or {}).get("features") or {}
    return json.dumps({"info": {"features": {name: features[name] for name in names if name in features}}})


@contextmanager
def library(complaint: str) -> Iterator[Any]:
    """Give ``datasets``, silent, while the context lasts.

    Args:
        complaint: begins the error.

    Raises:
        DataError: any error inside, with the complaint and the first cause.
    """
    with needs_extras():
        import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield datasets
    except DataError:
        raise
    except Exception as error:  # depends on the hub, the network and the format
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise DataError(f"{complaint} ({one_line(cause)})") from None
