"""Types of a model's arrays, by parameter name."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[np.float32]]  # a model, or something of its shape that is kept
Sums = dict[str, NDArray[np.float64]]  # sums of updates
State = dict[str, dict[str, NDArray[Any]]]  # what an optimiser or a noise mechanism remembers, by kind and parameter

BLOCK = 1 << 16  # coordinates handled at a time: they stay in the cache from one operation to the next


def zeros_like(arrays: Mapping[str, NDArray[np.float32]]) -> Arrays:
    """Zeros of the same shapes."""
    return {name: np.zeros_like(array) for name, array in arrays.items()}
