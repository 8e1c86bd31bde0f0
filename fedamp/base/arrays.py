"""Name the types of a model's arrays, by parameter name.

A model, an update and a sum of updates are mappings from parameter names to arrays. These aliases say which precision
each of them has. Models and updates travel and rest in float32. Sums have float64, because clipped coordinates lie on
a grid (:func:`fedamp.client.clipping.quantum`) on which float64 adds without rounding. Every room uses these names.
"""

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
    """Make zeros of the same names and shapes.

    Args:
        arrays: a model, or a part of it.

    Returns:
        New arrays, float32; the optimizers start their moments from them.
    """
    return {name: np.zeros_like(array) for name, array in arrays.items()}
