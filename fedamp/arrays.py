"""Types of a model's arrays, by parameter name."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]  # a model, or something of its shape that is kept
Sums = dict[str, NDArray[np.float64]]  # sums of updates
Update = Mapping[str, NDArray[np.floating[Any]]]  # a mean update, perhaps computed array by array as it is asked for
State = dict[str, Arrays]  # what an optimiser or a noise mechanism remembers: some model-shaped sets of arrays


def zeros_like(arrays: Mapping[str, NDArray[np.float32]]) -> Arrays:
    """Zeros of the same shapes."""
    return {name: np.zeros_like(array) for name, array in arrays.items()}
