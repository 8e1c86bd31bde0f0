"""Add up the units' vectors for means and deviations of inputs, before the first round.

:mod:`fedamp.client.app` calls it for an order whose only array is ``STATISTICS``. The vectors are those of
:class:`fedamp.data.transforms.Standardise`; the server adds noise and reads means from the sum
(:mod:`fedamp.server.moments`, :mod:`fedamp.federation.private_means`).
"""

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


def summed(order: RoundOrder, step: Standardise, dataset: Dataset) -> TrainReport:
    """Sum the units' vectors, clipped and exact as a sum of updates.

    A unit whose records are wrong adds zero, and the others do not notice.

    Args:
        order: its clips bound each vector's norm.
        step: the transform whose constants the statistics become.
        dataset: the inputs before that step.

    Returns:
        A report with the sum, float64 [2, columns], and the units that answered or failed. Private: it has no noise.
    """
    report, total = TrainReport(dummies=order.dummies), np.zeros(order.arrays[STATISTICS].shape)

    def add(clients: NDArray[np.int64]) -> None:
        cohort = dataset.gather(clients)
        vectors = torch.from_numpy(step.vectors(cohort.inputs, cohort.sizes))
        lost = dataset.lost(clients, cohort.sizes)
        clipped = clip_and_sum({STATISTICS: vectors}, [[STATISTICS]], order.clips, counted=report.counted(clients))
        report.add(clients, clipped)
        report.lose(clients[lost], dataset)
        np.add(total, clipped.sums[STATISTICS].numpy(), out=total)

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
    report.sums = {STATISTICS: total}
    return report
