"""How many bytes files unfold to. It is checked before they are: two megabytes can be eleven gigabytes."""

import math
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedamp.errors import DataError

MOST = 8 * 2**30  # bytes; half of the memory of a common machine, more than any data set that is known by name
_A_CELL = 4  # times its text: two characters of csv or json are one number of eight bytes


def check_bytes(source: object, found: int, most: int) -> None:
    """Raises DataError if something unfolds to more than ``most`` bytes."""
    if found > most:
        raise DataError(f"{source}: unfolds to {found:,} bytes or more; expected: at most data.max_bytes {most:,}")


def inflated(source: object, content: bytes, most: int) -> bytes:
    """The content of gzip or zlib. DataError: it is more than ``most`` bytes; ValueError, zlib.error: it is damaged."""
    unfolding = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
    found = unfolding.decompress(content, most + 1)
    check_bytes(source, len(found), most)
    if not unfolding.eof:
        raise ValueError("it ends too early")
    return found


def check_files(paths: Iterable[Path], most: int) -> None:
    """Raises DataError, which names the file, where files unfold to over ``most`` bytes together: of parquet, arrow
    (of ``save_to_disk``), csv or json.
    """
    total = 0
    for path in paths:
        try:
            measure = {".parquet": _parquet, ".arrow": _arrow}.get(path.suffix)
            total += _A_CELL * path.stat().st_size if measure is None else measure(path, most - total)
        except Exception:  # of foreign formats: what reads the file says what is wrong with it
            continue
        check_bytes(path, total, most)


def array_bytes(archive: IO[bytes], name: str) -> int:
    """Size of an array in an npz archive, as its header says. Raises what zipfile and NumPy do for damaged ones."""
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    with zipfile.ZipFile(archive) as members:
        member = members.open(name if name in members.namelist() else f"{name}.npy")
    with member:
        version = np.lib.format.read_magic(member)[0]  # type: ignore[no-untyped-call]
        shape, _, dtype = read[min(version, 2)](member)  # type: ignore[no-untyped-call]
    return int(dtype.itemsize * math.prod(shape))


def _arrow(path: Path, most: int) -> int:
    """Of one batch after another: they are mapped into memory, unless somebody has compressed them."""
    import pyarrow as pa

    total = 0
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as batches:
        for batch in batches:
            total += batch.nbytes
            if total > most:
                break
    return total


def _parquet(path: Path, most: int) -> int:
    """As the footer says; cells of bytes, which may repeat one long value, are counted where they could be too many."""
    import pyarrow.parquet as pq

    widths = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
    total, bound, columns = 0, 0, set[str]()
    with pq.ParquetFile(path) as file:
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
    """Of a column whose dictionary holds each different value once: files are read with every value written out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type) or pa.types.is_primitive(column.type.value_type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return 8 * len(column) + int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)
