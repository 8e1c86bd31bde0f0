"""How long training takes, from synthetic records: advice of ``fedamp check``, on which no run depends."""

import math
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.base import devices
from fedamp.client.task import StackSize
from fedamp.client.worker import TrainingNode
from fedamp.data import PaddedRecords
from fedamp.engines.wire import RoundOrder, rows
from fedamp.server.setup import RunInputs


def seconds_of_a_unit(prepared: RunInputs, steps: int, units: int | None = None) -> float:
    """Seconds of a unit's training in a round, from units that train on synthetic records here.

    Args:
        steps: the most gradient steps that are timed.
        units: how many train together at most; default: as the run does it.
    """
    task, plan = prepared.task, prepared.plan
    records, whole = prepared.records_and_steps
    few = min(whole, steps)
    changes: dict[str, Any] = {"client": task.client.model_copy(update={"steps": few, "epochs": None})}
    if units is not None:
        changes["stack"] = StackSize(units=units, records=task.stack.records)
    units = max(1, min(units or task.stack.units, math.floor(plan.expected_cohort)))

    def gather(clients: NDArray[np.int64]) -> PaddedRecords:
        return PaddedRecords(*prepared.made_up(len(clients), records), sizes(clients))

    def sizes(clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(clients), records)

    def lost(clients: NDArray[np.int64], read: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.zeros(len(clients), dtype=bool)

    made_up: Any = SimpleNamespace(input_shape=task.input_shape, sizes=sizes, gather=gather, lost=lost)
    node_device = devices.here(prepared.device)
    node = TrainingNode(task.model_copy(update=changes), made_up, node_device)
    seeds, (_, submodel) = [bytes(rng.SEED_BYTES)] * units, plan.submodels.choices(masks=1)[0]
    clips, arrays = (1.0,) * len(plan.parts), prepared.state.parameters
    train = partial(node.train, RoundOrder("", 1, clips, rows(range(units), seeds, submodel), arrays))
    with devices.one_thread(node_device):  # as workers train
        train()  # which tries, once, how clients can train together
        began = perf_counter()
        train()
        return (perf_counter() - began) / units * whole / few
