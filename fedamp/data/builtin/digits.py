"""The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn carries (Alpaydin and Kaynak 1998, UCI)."""

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp.data.sections import BuiltInData
from fedamp.data.source import Source, sources
from fedamp.data.stored import StoredSource
from fedamp.data.table import Table


@sources.register("digits")
def digits(config: BuiltInData, folder: Path) -> Source:
    return StoredSource(config, DigitsTable(config.shape))


class DigitsTable(Table):
    """Pixels from 0 to 16, handed out in [0, 1]; their file is read when the first record is."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        super().__init__("digits", (64,), np.dtype(np.uint8), shape, scale=16)

    def __len__(self) -> int:
        return 1797

    def stored_labels(self) -> NDArray[np.int64]:
        return self._numbers[:, -1].astype(np.int64)

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._numbers.take(records, axis=0)[:, :-1]  # twice as fast as both at once

    @cached_property
    def _numbers(self) -> NDArray[np.float32]:
        return np.loadtxt(scikit_learn_file("digits.csv.gz"), delimiter=",", dtype=np.float32)


def scikit_learn_file(name: str) -> Path:
    """A file of records that scikit-learn carries."""
    package = find_spec("sklearn")  # importing it to ask where it is would take longer than many a training
    assert package is not None, "scikit-learn is a dependency"
    return Path(str(package.origin)).parent / "datasets" / "data" / name
