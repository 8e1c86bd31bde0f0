"""Add up vectors of units that no training makes: for means and deviations of inputs, or those of an extension.

:mod:`fedamp.client.app` calls it for an order whose only array is ``STATISTICS``, before the first round, and where an
extension makes the vectors (the seam ``unit_vectors``). The vectors for means are those of
:class:`fedamp.data.transforms.Standardise`; the server adds noise and reads means from the sum
(:mod:`fedamp.server.moments`, :mod:`fedamp.federation.private_means`).
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fedamp.client.clipping import clip_and_sum
from fedamp.client.worker import TrainReport
from fedamp.data import Dataset
from fedamp.data.transforms import Standardise
from fedamp.engines.wire import RoundOrder
from fedamp.errors import DataError, one_line

STATISTICS = "statistics"  # the only array of an order that asks for means and deviations, [2, columns]
_AT_ONCE = 256  # units whose records are in memory together


UnitVectors = Callable[[NDArray[np.int64]], tuple[NDArray[np.float32], NDArray[np.bool_]]]
"""Function of units' ids, int64 [units]: their vectors, float32 [units, ..], and whose records are wrong, bool [units].

A row depends on the records of its unit alone.
"""


def means_vectors(step: Standardise, dataset: Dataset) -> UnitVectors:
    """Make the function that computes units' vectors for means and deviations.

    Args:
        step: the transform whose constants the statistics become.
        dataset: the inputs before that step.
    """

    def vectors(clients: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        cohort = dataset.gather(clients)
        return step.vectors(cohort.inputs, cohort.sizes), dataset.lost(clients, cohort.sizes)

    return vectors


def sum_vectors(order: RoundOrder, array: str, vectors: UnitVectors, dataset: Dataset) -> TrainReport:
    """Sum the units' vectors, clipped and exact as a sum of updates.

    A unit whose records are wrong adds zero, and the others do not notice.

    Args:
        order: its clips bound each vector's norm.
        array: name of the only array of the order.
        vectors: computes them.
        dataset: says what is wrong with records.

    Returns:
        A report with the sum, float64 in the array's shape, and the units that answered or failed. Private: it has no
        noise.
    """
    report, total = TrainReport(dummies=order.dummies), np.zeros(order.arrays[array].shape)

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
