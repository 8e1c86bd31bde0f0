"""Compute people's vectors on a node, from the columns that the questions read.

A person's vector depends on her own records alone. Whatever is in a cell of a file is a number, a word or nothing
there, so no value raises an error.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.client.task import ClientTask
from fedamp.client.unit_vectors import UnitVectors
from fedamp.data import Dataset
from fedamp.extensions.statistics.section import Questions


def vectors_of(task: ClientTask, dataset: Dataset) -> UnitVectors:
    """Make the function that computes the vectors of units, each of norm at most 1.

    Args:
        task: with the key ``questions``.
        dataset: the records of the units.

    Raises:
        DataError: a question reads a column that these data do not have.
    """
    asked: Questions = getattr(task, "questions")  # noqa: B009 - a key of this extension

    @cache
    def values_of(column: str) -> NDArray[Any]:
        return dataset.column_values(column, "questions")

    for name in filter(None, asked.column_names):
        values_of(name)

    def compute(units: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        vectors, (places, sizes) = np.zeros((len(units), asked.number_of_cells)), dataset.record_places(units)
        columns = {name: values_of(name)[places] if name else places for name in asked.column_names}
        owners = np.repeat(np.arange(len(units)), sizes)
        for _, question, block, factor in asked.vector_blocks():
            parts = question.record_parts(columns)
            counted = np.bincount(owners[parts[0][0] >= 0], minlength=len(units))
            weight = factor * np.minimum(1.0, question.records / np.maximum(counted, 1))
            found = np.zeros(len(units) * question.number_of_cells)
            for cells, values in parts:
                inside = cells >= 0
                each = owners[inside] * question.number_of_cells + cells[inside]
                found += np.bincount(each, values[inside] * weight[owners[inside]], len(found))
            vectors[:, block] = found.reshape(len(units), -1)
        return vectors.astype(np.float32), np.zeros(len(units), bool)

    return compute
