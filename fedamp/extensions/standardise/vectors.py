"""Compute units' vectors for means and deviations on a node, from the inputs before the step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.client.unit_vectors import UnitVectors
from fedamp.data import Dataset
from fedamp.extensions.standardise.transform import PrivateStandardise


def vectors_of(task: Any, dataset: Dataset) -> UnitVectors | None:
    """Make the function that computes units' vectors for means and deviations.

    Args:
        task: with the key ``statistics``.
        dataset: the inputs; while the numbers are asked for, as they are before the step.

    Returns:
        None: the numbers are there, and units train.
    """
    step: PrivateStandardise = task.statistics
    if not step.is_private:
        return None

    def compute(units: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        cohort = dataset.gather(units)
        return step.vectors(cohort.inputs, cohort.sizes), dataset.lost(units, cohort.sizes)

    return compute
