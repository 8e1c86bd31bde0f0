"""Hold the records of one split as they are stored, before they are partitioned.

Sections of :mod:`fedamp.data.stored` make a :class:`Table` of their files, and take its records. What files unfold to
is checked before they are read: two megabytes can be eleven gigabytes. A record that cannot be read is marked, never an
error, because it must not take others away.
"""

import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedamp.base.reading import regular
from fedamp.data.form import CLASSIFICATION, Form, is_whole
from fedamp.errors import DataError

MOST = 8 * 2**30  # bytes; half of the memory of a common machine, more than any data set that is known by name
_A_CELL = 4  # times its text: two characters of csv or json are one number of eight bytes


def check_bytes(source: object, found: int, most: int) -> None:
    """Refuse what unfolds to more than ``most`` bytes.

    Args:
        source: file or array, for the error.
        found: bytes.
        most: the scenario's ``data.max_bytes``.

    Raises:
        DataError: it is more.
    """
    if found > most:
        raise DataError(f"{source}: unfolds to {found:,} bytes or more; expected: at most data.max_bytes {most:,}")


def inflated(source: object, content: bytes, most: int) -> bytes:
    """Unfold gzip or zlib, up to ``most`` bytes.

    Raises:
        DataError: it is more than ``most`` bytes.
        ValueError: it ends too early.
        zlib.error: it is damaged.
    """
    unfolding = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
    found = unfolding.decompress(content, most + 1)
    check_bytes(source, len(found), most)
    if not unfolding.eof:
        raise ValueError("it ends too early")
    return found


def check_files(paths: Iterable[Path], most: int) -> None:
    """Refuse files that unfold to over ``most`` bytes together: parquet, arrow (of ``save_to_disk``), csv or json.

    A damaged file is no error here: the library that reads it says what is wrong.

    Raises:
        DataError: they do; it names the file that is too much.
    """
    total = 0
    for path in paths:
        try:
            measure = {".parquet": _parquet_size, ".arrow": _arrow_size}.get(path.suffix)
            total += _A_CELL * path.stat().st_size if measure is None else measure(path, most - total)
        except Exception:  # of foreign formats: what reads the file says what is wrong with it
            continue
        check_bytes(path, total, most)


def array_bytes(archive: IO[bytes], name: str) -> int:
    """Return the size in bytes of an array in an npz archive, as its header says.

    Args:
        archive: opened.
        name: of the array.

    Raises:
        zipfile.BadZipFile: a damaged archive; NumPy raises ValueError for a damaged header.
    """
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    with zipfile.ZipFile(archive) as members:
        member = members.open(name if name in members.namelist() else f"{name}.npy")
    with member:
        version = np.lib.format.read_magic(member)[0]  # type: ignore[no-untyped-call]
        shape, _, dtype = read[min(version, 2)](member)  # type: ignore[no-untyped-call]
    return int(dtype.itemsize * math.prod(shape))


def _arrow_size(path: Path, most: int) -> int:
    """Add up the bytes of one batch after another, until they are too many.

    Batches are mapped into memory, unless they are compressed.
    """
    import pyarrow as pa

    total = 0
    with pa.memory_map(str(regular(path))) as file, pa.ipc.open_stream(file) as batches:
        for batch in batches:
            total += batch.nbytes
            if total > most:
                break
    return total


def _parquet_size(path: Path, most: int) -> int:
    """Count the bytes that the footer says.

    Cells of bytes may repeat one long value; they are read and counted where they could be too many.
    """
    import pyarrow.parquet as pq

    widths = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
    total, bound, columns = 0, 0, set[str]()
    with pq.ParquetFile(regular(path)) as file:
        footer: Any = file.metadata
        for group in range(footer.num_row_groups):
            for number in range(footer.num_columns):
                chunk = footer.row_group(group).column(number)
                width = widths.get(chunk.physical_type, footer.schema.column(number).length or 0)
                total += max(chunk.total_uncompressed_size, chunk.num_values * width)
                if chunk.physical_type == "BYTE_ARRAY":
                    bound += chunk.num_values * chunk.total_uncompressed_size
                    columns.add(chunk.path_in_schema)
        if total <= most < total + bound:
            for batch in file.iter_batches(64, columns=sorted(columns)):
                total += sum(map(_decoded_bytes, batch.columns))
                if total > most:
                    break
    return total


def _decoded_bytes(column: Any) -> int:
    """Count the bytes of a column with each value written out, as files are read.

    A dictionary holds each different value once, so its own bytes would be too few.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type) or pa.types.is_primitive(column.type.value_type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return 8 * len(column) + int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


CHECKED_AT_ONCE = 256 * 2**20  # bytes; inputs up to this size are checked when loaded, larger ones as they are read


@dataclass(eq=False)
class Table:
    """Labelled records of one split, which can be read by number.

    Attributes:
        source: its name in errors, for example the file.
        inputs: [records, ...]; an array, or an object with shape, dtype and inputs[record numbers].
        labels: [records] or [records, ...], as stored.
        columns: functions that read further columns, [records] each; they may name clients.
        shape: of one input as :meth:`read` gives it; None: as stored (a single number: [1]).
        scale: inputs are divided by it.
        classes: names of labels 0, 1, ...; None: they have none.
        place: names file and row of a record; None: its source and its number are used.
        features: columns of an input, in the order of its numbers; or the one of all of them.
        label: column of the labels.
        before: table of whose inputs these are computed, each number from others; None: these are the stored ones.
        input_shape: of one input.

    Raises:
        DataError: inputs without numbers, or of another shape than ``shape``.
    """

    source: str
    inputs: Any
    labels: NDArray[Any]
    columns: Mapping[str, Callable[[], NDArray[Any]]] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    scale: float = 1.0
    classes: tuple[str, ...] | None = None
    place: Callable[[int], str] | None = None
    features: Sequence[str] = ()
    label: str = ""
    before: "Table | None" = None

    def __post_init__(self) -> None:
        stored = tuple(self.inputs.shape[1:])
        numbers, shape = math.prod(stored), self.shape
        if numbers == 0:
            raise DataError(f"{self.source}: one input has shape {list(stored)}; it must hold at least one number")
        if shape is not None and math.prod(shape) != numbers:
            found = f"one input has {numbers} numbers (stored as {list(stored)})"
            raise DataError(f"{self.source}: {found}, data.shape {list(shape)} needs {math.prod(shape)}")
        self.input_shape: tuple[int, ...] = (stored or (1,)) if shape is None else tuple(shape)

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read inputs of the records, in the given order, float32 [records, *input_shape].

        A number that is too large for float32 is infinite. A record that cannot be read is NaN: it must not take others
        away.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            inputs = np.asarray(self.inputs[records])
            if inputs.dtype.kind in "iu" and inputs.dtype.itemsize == 8:  # rounded as where a record made them float64
                inputs = inputs.astype(np.float64)
            inputs = inputs.astype(np.float32, copy=False)
            inputs = inputs.reshape(len(records), *self.input_shape)
            if self.scale != 1:
                inputs = inputs / np.float32(self.scale)
        return inputs

    def wrong(self, form: Form) -> NDArray[np.bool_]:
        """Say which records cannot be trained on, by their inputs, bool [records]; they are read in blocks.

        Above 256 MB, or where inputs are computed as they are read, no record is wrong yet: :meth:`read` finds it.
        """
        wrong, bytes_per_record = np.zeros(len(self), bool), math.prod(self.input_shape) * self.inputs.dtype.itemsize
        could_be = self.inputs.dtype.kind == "f" or form.vocabulary is not None
        if could_be and len(self) * bytes_per_record <= CHECKED_AT_ONCE:
            step = max(1, 2**22 // bytes_per_record)
            for start in range(0, len(self), step):
                block = np.arange(start, min(start + step, len(self)))
                wrong[block] = form.wrong(self.read(block))
        return wrong

    def at(self, record: int) -> str:
        """Return the place of a record in a message, where it is known, else the source."""
        return self.source if self.place is None else self.place(record)

    def fault(self, record: int, form: Form, outputs: float = math.inf, public: bool = False) -> str:
        """Describe the place and the column of a record that cannot be trained on, and what is expected, in one line.

        The text about people's records is for those alone who may see them.

        Args:
            record: its number.
            form: what the task expects.
            outputs: of the model.
            public: whether everybody may know the record; only then its value is told.
        """
        table, label = self.before or self, self.labels[record : record + 1]
        if form.labels.wrong(form.labels.read(label), outputs)[0]:
            limit = f", for {outputs} outputs (data.classes)" if math.isfinite(outputs) else ""
            expected = f"one of {', '.join(table.classes)}" if table.classes else form.labels.expected + limit
            what = f"is {label[0].tolist()}" if public and not table.classes else "is wrong"
            column, found = table.label, f"the label of record {record} {what}; labels must be {expected}"
        else:
            fine = (form if table is self else CLASSIFICATION).fine(table.read(np.array([record])))
            number = int(np.argmin(fine)) if len(table.features) > 1 else 0
            column = "".join(table.features[number : number + 1])
            expected = getattr(table.inputs, "expected", form.expected)
            if column in table.columns and not hasattr(table.inputs, "expected"):
                expected += of_words(column) if _is_word(table.columns[column]()[record]) else ""
            found = f"the inputs of record {record} are others than {expected}"
        return f"{self.at(record)}: {f'column {column!r}: ' if column else ''}{found}"

    def column(self, name: str, complete: bool = True, key: str = "data.partition.column") -> NDArray[Any]:
        """Return the client of each record as stored: integers, strings or anything else that is ordered.

        Args:
            name: of the column.
            complete: whether each record must name a client: an empty text, NaN, or a number that is not whole names
                none.
            key: of the scenario, which names the column, for errors.

        Returns:
            [records].

        Raises:
            DataError: there is no such column, it has not a value for each record, or (``complete``) values name
                nobody.
        """
        if not self.columns:
            raise DataError(f"{self.source}: no column {name!r}; partition these data by iid, dirichlet or shards")
        require(name, self.columns, key, self.source)
        values = exact(self.columns[name]())
        if values.shape != (len(self),) or values.dtype.kind not in "biufUSOMm":
            raise DataError(
                f"{self.source}: column {name!r} must name a client (a number or a string) for each of the "
                f"{len(self)} records; it is of type {values.dtype} and shape {list(values.shape)}"
            )
        if complete and (nobodys := names_nobody(values)).any():
            number = int(np.argmax(nobodys))
            found = f"column {name!r} must name a client, and names none for record {number}"
            raise DataError(f"{self.at(number)}: {found}; expected: {a_name(values)}")
        return values


def of_words(column: str) -> str:
    """Say which key declares the words of a column, for the end of an error."""
    return f"; if it holds words, data.categories: {{{column}: [WORD, ..]}}"


def _is_word(cell: object) -> bool:
    """Say whether a cell is a text that is no number."""
    if not isinstance(cell, str) or not cell.strip():
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def exact(values: NDArray[Any]) -> NDArray[Any]:
    """Return names of clients, with decimal numbers that are whole as integers."""
    if values.dtype != object or not any(isinstance(value, Decimal) for value in values):
        return values
    found = np.empty(len(values), object)
    found[:] = [int(each) if isinstance(each, Decimal) and _is_integer(each) else each for each in values]
    return found


def _is_integer(decimal: Decimal) -> bool:
    """Say whether a decimal number is finite and whole."""
    return decimal.is_finite() and decimal == decimal.to_integral_value()


def a_name(values: NDArray[Any]) -> str:
    """Describe what names a client in an array of this type, for a message."""
    is_float, kind = values.dtype.kind == "f", values.dtype
    limit = f" below 2^{np.finfo(kind).nmant + 1} (larger ones are not exact as {kind})" if is_float else ""
    return f"a text, a date or a whole number{limit}"


def names_nobody(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Say which clients' names are none, bool [records]: empty, not a number, not whole, or too large to be exact."""
    if values.dtype.kind == "f":
        return ~is_whole(values)
    if values.dtype.kind in "Mm":
        return np.asarray(np.isnat(values))
    if values.dtype.kind in "US":
        return np.asarray(np.char.str_len(values) == 0)
    if values.dtype.kind == "O":
        return np.array([not isinstance(value, str | bytes | int) or value in ("", b"") for value in values], bool)
    return np.zeros(len(values), bool)


def distinct(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the different values, ascending, and the place of each value among them.

    It is ``np.unique``, also quick for texts.

    >>> distinct(np.array(["b", "a", "b"], object))[1].tolist()
    [1, 0, 1]
    """
    if values.dtype != object:
        return np.unique(values, return_inverse=True)
    words = sorted(set(values.tolist()))
    place = {word: number for number, word in enumerate(words)}
    found = np.empty(len(words), object)
    found[:] = words
    return found, np.array([place[value] for value in values.tolist()], np.int64)


def require(name: str, present: Collection[str], key: str, source: str) -> None:
    """Refuse a name for which there is no column, or array.

    Args:
        name: of the column.
        present: names of the columns that are there.
        key: of the scenario, which gives the name, for the error.
        source: of the records, for the error.

    Raises:
        DataError: it is not there.
    """
    if name not in present:
        found = ", ".join(present) or "none: csv begins with a header, and json has an object a line"
        raise DataError(f"{source}: no column {name!r}; {key} must be one of {found}")
