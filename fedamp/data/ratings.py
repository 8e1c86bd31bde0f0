"""Ratings by real people."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.data.idx import places_of
from fedamp.data.partition import AnyPartition, NaturalPartition
from fedamp.data.stored import BenchmarkData, Tables
from fedamp.data.table import Table
from fedamp.data.unfolded import inflated
from fedamp.errors import DataError, needs_extras, one_line

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
        students, lecturers, ratings = _read(self._folder(folder), self.max_bytes)
        order = np.argsort(students, kind="stable")
        starts = np.searchsorted(students[order], students[order])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) - starts  # of a rating among its student's
        held_out = place % 5 == 4

        def table(chosen: NDArray[np.bool_]) -> Table:
            columns = {"student": students[chosen]}
            return Table("insteval", lecturers[chosen, None], ratings[chosen], lambda name: _column(columns, name))

        return Tables(table(~held_out), table(held_out))

    def _folder(self, folder: Path) -> Path:
        for place in [*places_of(self.name), PACKAGE] if self.path is None else [folder / self.path]:
            if all((place / name).is_file() for name in _FILES):
                return place
        raise DataError(f"data.name insteval: no {' and '.join(_FILES)}; expected: make data, or data.path")


def _column(columns: dict[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in columns:
        raise DataError(f"insteval: no column {name!r}; expected: {', '.join(columns)}")
    return columns[name]


def _read(folder: Path, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Students, lecturers (from 0) and ratings of all records."""
    with needs_extras():
        import rdata
    try:
        index = _objects(rdata, inflated(folder / _FILES[0], (folder / _FILES[0]).read_bytes(), most))
        first, length = (int(each) for each in index["variables"]["InstEval"])
        raw = (folder / _FILES[1]).read_bytes()[first : first + length]
        frame = _objects(rdata, inflated(folder / _FILES[1], raw[4:], most))
        student, lecturer = (np.asarray(frame[name].astype(int)) for name in "sd")
        return student, np.unique(lecturer, return_inverse=True)[1], np.asarray(frame["y"], dtype=np.float64)
    except DataError:
        raise
    except Exception as error:  # of a foreign format
        raise DataError(f"{folder}: not the data of lme4 ({one_line(error)})") from None


def _objects(rdata: Any, content: bytes) -> Any:
    if not content.startswith(b"X\n"):  # the library would unfold it once more
        raise ValueError("not serialised by R")
    return rdata.conversion.convert(rdata.parser.parse_data(content, extension=".rds"))
