"""Whether clients train faster together or one by one: tried on made-up records, once a run."""

import math
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.base import devices
from fedamp.client.memory import StackSize
from fedamp.client.task import TrainInstruction
from fedamp.client.worker import TrainingNode
from fedamp.data import Cohort
from fedamp.models.architectures import is_import_path
from fedamp.server.setup import Prepared

# Operations of a gradient step from which on it is measured: clients with less work train faster together. And the gain
# that one by one needs, so that chance seldom decides.
WORTH_MEASURING, _GAIN = 3e8, 1.15


def seconds_of_a_unit(prepared: Prepared, steps: int, units: int | None = None) -> float:
    """Seconds of a unit's training in a round, from units that train on made-up records here.

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

    def gather(clients: NDArray[np.int64]) -> Cohort:
        return Cohort(*prepared.made_up(len(clients), records), sizes(clients))

    def sizes(clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(clients), records)

    made_up: Any = SimpleNamespace(input_shape=task.input_shape, sizes=sizes, gather=gather)
    node_device = devices.here(prepared.device)
    node = TrainingNode(task.model_copy(update=changes), made_up, node_device)
    seeds, (_, submodel) = [bytes(rng.SEED_BYTES)] * units, plan.submodels.choices(masks=1)[0]
    order = TrainInstruction(1, list(range(units)), seeds, [submodel] * units, [1.0] * len(plan.parts))
    train = partial(node.train, prepared.state.parameters, order)
    with devices.one_thread(node_device):  # as workers train
        train()  # which tries, once, how clients can train together
        began = perf_counter()
        train()
        return (perf_counter() - began) / units * whole / few


def in_the_faster_way(prepared: Prepared) -> tuple[Prepared, str]:
    """The run with stacks of one client, where that is faster; and in words how clients train.

    Only a model that is not built in is tried, and only where a gradient step is long, unless the scenario decides.
    """
    asked, alone = prepared.plan.scenario, prepared.why_one_by_one
    if alone:
        return prepared, f"clients train one by one, slower than together: {alone}"
    most = prepared.task.stack.units
    how = f"up to {most} clients train together" if most > 1 else "clients train one by one"
    fixed = asked.engine.clients_per_batch != "auto" or asked.engine.address is not None

    def operations() -> float:
        return prepared.cost.flops_per_record * prepared.records_a_step

    if most == 1 or fixed or not is_import_path(asked.model.name) or operations() < WORTH_MEASURING:
        return prepared, how
    together, single = (seconds_of_a_unit(prepared, 1, units) for units in (None, 1))
    if single * _GAIN > together:
        return prepared, f"{how}, {together:.2g} s each where one alone takes {single:.2g} s"
    engine = asked.engine.model_copy(update={"clients_per_batch": 1})
    plan = replace(prepared.plan, scenario=asked.model_copy(update={"engine": engine}))
    task = prepared.task.model_copy(update={"stack": StackSize(units=1, records=prepared.task.stack.records)})
    how = f"clients train one by one, {single:.2g} s each where those together take {together:.2g} s"
    return replace(prepared, plan=plan, task=task), how
