"""How far diabetes progressed in a year, for the 442 patients that scikit-learn carries (Efron et al. 2004).

Ten measurements, and a number to predict, for ``client.loss: mean-squared-error``. Both are standardised with rounded
constants that are public.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp.data.builtin.digits import scikit_learn_file
from fedamp.data.sections import BuiltInData
from fedamp.data.source import Source, sources
from fedamp.data.stored import StoredSource
from fedamp.data.table import Table

# Age, sex, body mass index, blood pressure, six measurements of blood serum; and the progression.
_MEANS = np.array([48.5, 1.5, 26.4, 94.6, 189.0, 115.0, 49.8, 4.07, 4.64, 91.3])
_DEVIATIONS = np.array([13.1, 0.5, 4.4, 13.8, 34.6, 30.4, 12.9, 1.29, 0.52, 11.5])
_MEAN, _DEVIATION = 152.0, 77.0


@sources.register("diabetes")
def diabetes(config: BuiltInData, folder: Path) -> Source:
    return StoredSource(config, DiabetesTable(config.shape))


class DiabetesTable(Table):
    """Measurements and progression, each minus its mean over its deviation."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        super().__init__("diabetes", (10,), np.dtype(np.float64), shape)

    def __len__(self) -> int:
        return 442

    def stored_labels(self) -> NDArray[np.float64]:
        return (np.loadtxt(scikit_learn_file("diabetes_target.csv.gz")) - _MEAN) / _DEVIATION

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._measurements[records]

    @cached_property
    def _measurements(self) -> NDArray[np.float64]:
        measured = np.loadtxt(scikit_learn_file("diabetes_data_raw.csv.gz"))
        standardised: NDArray[np.float64] = (measured - _MEANS) / _DEVIATIONS
        return standardised
