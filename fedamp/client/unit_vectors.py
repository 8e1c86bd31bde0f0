"""Add up vectors of units that no training makes: for private means of the inputs, or answers to questions.

:mod:`fedamp.client.app` calls it where the task asks an extension for such vectors (the seam ``unit_vectors``).
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fedamp.client.clipping import clip_and_sum
from fedamp.client.worker import TrainReport
from fedamp.data import Dataset
from fedamp.engines.wire import RoundOrder
from fedamp.errors import DataError, one_line

_AT_ONCE = 256  # units whose records are in memory together


UnitVectors = Callable[[NDArray[np.int64]], tuple[NDArray[np.float32], NDArray[np.bool_]]]
"""Function of units' ids, int64 [units]: their vectors, float32 [units, ..], and whose records are wrong, bool [units].

A row depends on the records of its unit alone.
"""


def sum_vectors(order: RoundOrder, vectors: UnitVectors, dataset: Dataset) -> TrainReport:
    """Sum the units' vectors, clipped and exact as a sum of updates.

    A unit whose records are wrong adds zero, and the others do not notice.

    Args:
        order: its clips bound each vector's norm. It has one array.
        vectors: computes them.
        dataset: says what is wrong with records.

    Returns:
        A report with the sum, float64 in the array's shape, and the units that answered or failed. Private: it has no
        noise.
    """
    [(array, like)] = order.arrays.items()
    report, total = TrainReport(dummies=order.dummies), np.zeros(like.shape)

    def add(clients: NDArray[np.int64]) -> None:
        found, lost = vectors(clients)
        counted = report.counted(clients)
        clipped = clip_and_sum({array: torch.from_numpy(found)}, [[array]], order.clips, counted=counted)
        report.add(clients, clipped)
        report.lose(clients[lost], dataset)
        np.add(total, clipped.sums[array].numpy(), out=total)

    units = order.units["id"].astype(np.int64)
    for clients in np.array_split(units, -(-len(units) // _AT_ONCE) or 1):
        try:
            add(clients)
        except Exception:  # of one unit's records: the others do not notice
            for client in np.split(clients, len(clients)):
                try:
                    add(client)
                except Exception as error:
                    report.fail(int(client[0]), one_line(error), there=not isinstance(error, DataError))
    report.reported.sort()
    report.sums = {array: total}
    return report
