"""The training of a unit before a run: whether it works, how clients train together, and how long it takes.

It trains on public test records or on synthetic ones, so no answer depends on anybody's records.
"""

import math
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.base import devices
from fedamp.client.stacks import aligned
from fedamp.client.task import StackSize
from fedamp.client.training import Trainer, arithmetic
from fedamp.client.worker import TrainingNode
from fedamp.data import PaddedRecords
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import DivergedError, FederationError, one_line
from fedamp.models.custom import is_import_path
from fedamp.models.pieces import Piece
from fedamp.server.setup import RunInputs, made_up, steps_and_records

_TRIED = 8  # public records that are trained on before the first round


def check_training(inputs: RunInputs) -> None:
    """Train the first model on public records, to find before the first round what fails for every unit.

    They are of the test set, else made up. FederationError: training raises. DivergedError: the update is not finite.
    Later failures depend on the units' data, so they do not stop the run.
    """
    seeds, public = np.zeros(1, dtype=f"V{rng.SEED_BYTES}"), len(inputs.test[1]) > 0
    tried, labels = (part[None, :_TRIED] for part in inputs.test) if public else made_up(inputs.test, 1, _TRIED)
    kind = "public test" if public else "synthetic"
    records, (piece, trainer, start) = PaddedRecords(tried, labels, np.array([tried.shape[1]])), _training(inputs)
    try:
        trained = trainer.train(start, records, seeds, piece.arguments(seeds))
    except Exception as error:  # a custom model may raise anything
        raise FederationError(
            f"round 1: no client can train: training on {kind} records fails ({one_line(error)})"
        ) from error
    if not all(bool(update.isfinite().all()) for update in trained.updates.values()):
        raise DivergedError(1, f"an update of {kind} records")


def how_clients_train(inputs: RunInputs) -> str:
    """Together or one by one, in words: it follows from the scenario and the model alone."""
    if alone := _why_one_by_one(inputs):
        return f"clients train one by one, slower than together: {alone}"
    most = inputs.task.stack.units
    return f"up to {most} clients train together" if most > 1 else "clients train one by one"


def seconds_of_a_unit(inputs: RunInputs, steps: int, units: int | None = None) -> float:
    """Seconds of a unit's training in a round, from units that train on synthetic records here.

    Args:
        steps: the most gradient steps that are timed.
        units: how many train together at most; default: as the run does it.
    """
    task, plan = inputs.task, inputs.plan
    whole, _, records = steps_and_records(task, plan.scenario.data)
    few = min(whole, steps)
    changes: dict[str, Any] = {"client": task.client.model_copy(update={"steps": few, "epochs": None})}
    if units is not None:
        changes["stack"] = StackSize(units=units, records=task.stack.records)
    units = max(1, min(units or task.stack.units, math.floor(plan.expected_cohort)))

    def gather(clients: NDArray[np.int64]) -> PaddedRecords:
        return PaddedRecords(*made_up(inputs.test, len(clients), records), sizes(clients))

    def sizes(clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(clients), records)

    def lost(clients: NDArray[np.int64], read: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.zeros(len(clients), dtype=bool)

    synthetic: Any = SimpleNamespace(input_shape=task.input_shape, sizes=sizes, gather=gather, lost=lost)
    device = devices.here(plan.scenario.engine.device)
    node = TrainingNode(task.model_copy(update=changes), synthetic, device)
    seeds, (_, submodel) = [bytes(rng.SEED_BYTES)] * units, plan.submodels.choices(masks=1)[0]
    clips, arrays = (1.0,) * len(plan.parts), inputs.state.parameters
    train = partial(node.train, RoundOrder("", 1, clips, rows(range(units), seeds, submodel), arrays))
    with devices.one_thread(device):  # as workers train
        train()  # which tries, once, how clients can train together
        began = perf_counter()
        train()
        return (perf_counter() - began) / units * whole / few


def _training(inputs: RunInputs) -> tuple[Piece, Trainer, dict[str, Tensor]]:
    """What trains as nodes do, where this machine has their device, and what it starts from."""
    piece = inputs.plan.submodels.a_piece(inputs.pieces)
    device = devices.here(inputs.plan.scenario.engine.device)
    piece.module.to(device)  # what is frozen, and buffers
    start = {name: aligned(array).to(device) for name, array in piece.extract(inputs.state.parameters).items()}
    return piece, Trainer(piece.forward, inputs.task.client, device, inputs.loss), start


def _why_one_by_one(inputs: RunInputs) -> str:
    """Why clients cannot train stacked; empty if they can, as with every built-in model."""
    task = inputs.task
    if not is_import_path(task.model.name):
        return ""
    piece, trainer, start = _training(inputs)
    if piece.random:
        return "the model draws random numbers, for each client from its own stream"
    slots = task.stack.slots(2, inputs.plan.units)
    row_inputs = partial(piece.row_inputs, start, decays=bool(task.client.weight_decay))
    with arithmetic(task.client.precision, trainer.device):
        while True:
            like = PaddedRecords(*made_up(inputs.test, slots, 2), np.zeros(slots, np.int64))
            try:
                return trainer.why_alone(start, like, row_inputs, task.model.vocabulary)
            except torch.OutOfMemoryError:  # nodes halve their stacks, too
                slots //= 2
