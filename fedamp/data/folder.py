"""A data folder: training files, test files or none, and what part of the federation it holds.

train.npz  test.npz         or  train_x.npy  train_y.npy ...         or  train*.parquet  test*.parquet
federation.json             on a machine that holds some clients only (see docs/data.md)
"""

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from fedamp.data.partition import natural_column
from fedamp.data.sections import FolderData
from fedamp.data.stored import FederationFile, StoredSource
from fedamp.data.table import Table
from fedamp.errors import DataError


def open_folder(
    config: FolderData, base: Path, open_split: Callable[[FolderData, Path, str], Table | None]
) -> StoredSource:
    """The tables of a folder; reads headers only.

    Args:
        base: where a relative ``config.path`` starts.
        open_split: the table of a split (``train`` or ``test``) in a folder; None where it has none.

    Raises:
        DataError: a missing folder, file, array or column, or one that cannot be read.
    """
    folder = base / Path(config.path).expanduser()
    if not folder.is_dir():
        raise DataError(f"data.path: {folder} is not a folder; give the folder that holds train.{config.name}")
    federation = _federation_file(folder, config)
    train, test = (open_split(config, folder, split) for split in ("train", "test"))
    hosts_nobody = federation is not None and not federation.hosted
    if train is None and not (hosts_nobody and test is not None):
        holds = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise DataError(f"{folder}: no train.{config.name}; the folder holds {holds}")
    return StoredSource(config, train, test, federation)


def _federation_file(folder: Path, config: FolderData) -> FederationFile | None:
    path = folder / "federation.json"
    if not path.exists():
        return None
    if natural_column(config.partition) is None:
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
