"""A data folder: training files, test files if any, and the part of the federation that it holds.

train.npz test.npz, or train_x.npy train_y.npy ..., or train*.parquet test*.parquet, or train*.csv test*.csv
federation.json on a machine that holds some clients only (see docs/data.md)
"""

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, ValidationError

from fedamp.data.partition import NaturalPartition
from fedamp.data.stored import FederationFile, Scale, StoredData, Tables
from fedamp.data.table import Table
from fedamp.errors import DataError

Names = Annotated[list[str], Field(min_length=1)] | str


class FolderData(StoredData):
    """Base of the sections of folders with train and test files."""

    path: str = Field(description="folder; relative paths start at the scenario's folder")

    @abstractmethod
    def split(self, folder: Path, split: str) -> Table | None:
        """The table of a split, ``train`` or ``test``; None without files."""

    def like(self, test: Table) -> Self:
        """The section, with what it leaves open as the public test set has it."""
        return self

    def place(self, folder: Path) -> Path:
        """The folder of the files; DataError if there is none."""
        return existing_folder(folder, self.path, f"train.{self.name}")

    def open(self, folder: Path) -> Tables:
        folder = self.place(folder)
        federation = self._federation_file(folder / "federation.json")
        is_servers = federation is not None and not federation.hosted
        # A test file in the server's folder is said to be public by the place where it lies.
        test = self.split(folder, "test") if self.test_is_public or is_servers else None
        train = (self if test is None else self.like(test)).split(folder, "train")
        if is_servers and train is None:
            public = test or self._nothing(folder)
            return Tables(public, public, federation)
        if train is None:
            raise DataError(f"{folder}: no train.{self.name}; the folder holds {some_files(folder)}")
        return Tables(train, test, federation)

    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of an input, where the scenario says it."""
        return self.shape

    def _nothing(self, folder: Path) -> Table:
        """No records, for a server that evaluates nothing."""
        shape = self.input_shape()
        if shape is None:
            expected = f"test.{self.name} of public records, or data.shape, the shape of an input, and no evaluation"
            raise DataError(f"{folder}: no test.{self.name}; expected: {expected}")
        return Table(str(folder), np.zeros((0, *shape), np.float32), np.zeros(0, np.int64))

    def _federation_file(self, path: Path) -> FederationFile | None:
        if not path.exists():
            return None
        if not isinstance(self.partition, NaturalPartition):
            raise DataError(
                f"{path}: a folder that holds a part of the federation needs data.partition {{scheme: natural}}, "
                f"got {self.partition.scheme}"
            )
        try:
            return FederationFile.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"][:1])
            raise DataError(f"{path}: {where}{first['msg']}; keys are clients, hosted, classes") from None


class ColumnsData(FolderData):
    """Base of those whose columns are inputs and labels."""

    features: Names = Field("x", description="array (npz), or column or columns, of the inputs")
    label: Names = Field(
        "y", description="likewise of the labels: classes, numbers or tokens, as client.loss takes them"
    )
    scale: Scale = None

    def input_shape(self) -> tuple[int, ...] | None:
        are_columns = not isinstance(self.features, str) and len(self.features) > 1
        return self.shape or ((len(self.features),) if are_columns else None)


def existing_folder(start: Path, path: str, file: str) -> Path:
    """The folder ``data.path``. Raises DataError, which names a file that it needs, if there is none."""
    folder = start / Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"data.path: {folder} is not a folder; give the folder that holds {file}")
    return folder


def some_files(folder: Path) -> str:
    """Names of a few files of a folder, for a message."""
    return ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
