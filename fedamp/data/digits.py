"""The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn carries (Alpaydin and Kaynak 1998, UCI)."""

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp import scenario
from fedamp.data.source import Source, sources
from fedamp.data.stored import StoredSource
from fedamp.data.table import checked_shape
from fedamp.errors import DataError


@sources.register("digits")
def digits(config: scenario.DigitsData, folder: Path) -> Source:
    return StoredSource(config, DigitsTable(config.shape))


class DigitsTable:
    """Pixels scaled from 0 ... 16 to [0, 1]; its file is read when the first record is."""

    source = "digits"
    stored = np.dtype(np.uint8)

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        self.input_shape = checked_shape((64,), shape, self.source)

    def __len__(self) -> int:
        return 1797

    def labels(self) -> NDArray[np.int64]:
        return self._arrays[1]

    def column(self, name: str) -> NDArray[np.int64]:
        raise DataError(f"digits: no column {name!r}; partition the digits by iid, dirichlet or shards")

    def read(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._arrays[0][records].reshape(len(records), *self.input_shape)

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        numbers = np.loadtxt(_file(), delimiter=",", dtype=np.float32)
        return numbers[:, :-1] / 16, numbers[:, -1].astype(np.int64)


def _file() -> Path:
    """Where scikit-learn keeps the digits. Importing it to ask would take longer than many a training."""
    package = find_spec("sklearn")
    assert package is not None, "scikit-learn is a dependency"
    assert package.origin is not None, "it is a regular package"
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
