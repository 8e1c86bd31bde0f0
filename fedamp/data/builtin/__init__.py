"""Data sets that fedamp brings: they work offline, and are small enough to read at once."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedamp.data.stored import BenchmarkData, Tables
from fedamp.data.table import Table


class BuiltInData(BenchmarkData):
    """Base of data sets of arrays. A further one is a class with a name and arrays, and a line in sections.py."""

    @abstractmethod
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs [records, ...] and labels [records, ...] of all records."""

    def open(self, folder: Path) -> Tables:
        return Tables(Table(self.name, *self.arrays(), shape=self.shape))
