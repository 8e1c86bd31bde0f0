"""A data folder: a training file, a test file or none, and what part of the federation it holds.

train.npz  test.npz                 or  train*.parquet  test*.parquet
federation.json                     on a machine that holds some clients only (see docs/data.md)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from fedamp import scenario
from fedamp.data.npz import NpzTable
from fedamp.data.parquet import ParquetTable
from fedamp.data.table import Table
from fedamp.errors import DataError


class FederationFile(scenario.Section):
    """``federation.json``: what a folder that holds a part of the federation says about the whole."""

    clients: scenario.Count  # of the whole federation
    hosted: tuple[Annotated[int, Field(ge=0, strict=True)], ...]  # ids of those whose records are here
    classes: Annotated[int, Field(ge=2, strict=True)]  # number of labels in the whole federation

    @model_validator(mode="after")
    def _hosted_are_clients(self) -> "FederationFile":
        if len(set(self.hosted)) != len(self.hosted) or max(self.hosted, default=0) >= self.clients:
            raise ValueError(f"hosted must be different ids from 0 to {self.clients - 1}")
        return self


@dataclass(frozen=True)
class Tables:
    """What was opened.

    Attributes:
        train: training table.
        test: test table; None: a part of the training table is to be kept out.
        federation: which part of a federation this is; None: all of it.
    """

    train: Table
    test: Table | None = None
    federation: FederationFile | None = None


class NoRecords:
    """The training table of a machine that hosts no client, for example the server's."""

    def __init__(self, like: Table) -> None:
        self.source = like.source
        self.input_shape = like.input_shape
        self.stored = like.stored

    def __len__(self) -> int:
        return 0

    def labels(self) -> NDArray[Any]:
        return np.zeros(0, dtype=np.int64)

    def column(self, name: str) -> NDArray[Any]:
        return np.zeros(0, dtype=np.int64)

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.zeros((0, *self.input_shape), dtype=np.float32)


def open_folder(config: scenario.FolderData, base: Path) -> Tables:
    """The tables of a npz or parquet folder; reads headers only.

    Raises:
        DataError: a missing folder, file, array or column, or one that cannot be read.
    """
    folder = base / Path(config.path).expanduser()
    if not folder.is_dir():
        raise DataError(f"data.path: {folder} is not a folder; give the folder that holds train.{config.name}")
    federation = _federation_file(folder, config)
    train, test = (_open_split(config, folder, split) for split in ("train", "test"))
    if train is None and test is not None and federation is not None and not federation.hosted:
        train = NoRecords(test)
    if train is None:
        holds = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise DataError(f"{folder}: no train.{config.name}; the folder holds {holds}")
    return Tables(train, test, federation)


def _open_split(config: scenario.FolderData, folder: Path, split: str) -> Table | None:
    features: Sequence[str] = [config.features] if isinstance(config.features, str) else config.features
    if config.name == "npz":
        path = folder / f"{split}.npz"
        if len(features) != 1:
            raise DataError(f"data.features: npz takes the name of one array, got {len(features)}")
        return NpzTable(path, features[0], config.label, config.shape, config.scale) if path.exists() else None
    paths = sorted(folder.glob(f"{split}*.parquet"))
    return ParquetTable(paths, features, config.label, config.shape, config.scale) if paths else None


def _federation_file(folder: Path, config: scenario.FolderData) -> FederationFile | None:
    path = folder / "federation.json"
    if not path.exists():
        return None
    if not isinstance(config.partition, scenario.NaturalPartition):
        raise DataError(
            f"{path}: a folder that holds a part of the federation needs data.partition {{scheme: natural}}, "
            f"got {config.partition.scheme}"
        )
    try:
        return FederationFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"{path}: {where + ': ' if where else ''}{first['msg']}; keys are clients, hosted, classes"
        ) from None
