"""A training loop of one's own, made private: ``train(model, records, context) -> model``.

Nothing that it does can make a client's contribution longer than its clipping norm: what it returns is only ever
compared with what it was given, and the difference is clipped like any update. A client for which it raises, or answers
with something that is no such model, counts as zero and as failed.
"""

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor, nn

from fedamp import rng
from fedamp.base.arrays import Arrays
from fedamp.client import wire
from fedamp.client.clipping import clip_and_sum
from fedamp.client.task import ClientTask
from fedamp.client.worker import TrainInstruction, TrainReport
from fedamp.data import Dataset
from fedamp.engines import flower
from fedamp.errors import DeploymentError, one_line
from fedamp.federation.training import Client
from fedamp.models.generators import generators_from
from fedamp.models.pieces import WHOLE
from fedamp.models.registry import build

Model = nn.Module | Mapping[str, Any]


class Records(NamedTuple):
    """The records of one unit: inputs [records, *input_shape] (tokens: int64), labels as ``client.loss`` takes them."""

    inputs: NDArray[Any]
    labels: NDArray[Any]


@dataclass(frozen=True)
class TrainingContext:
    """What a loop may know beside model and records. Nothing of it tells who else takes part, or when.

    Attributes:
        client: id of the client (of the record, where the unit is a sample).
        round: number of the round, from 1.
        settings: the scenario's ``client`` section; a loop may keep to it or not.
        config: what the server app gave to ``start`` as ``train_config``; empty elsewhere.
        device: torch's name of the node's device.
        flower: Flower's context, with ``node_config`` and ``run_config``.
    """

    client: int
    round: int
    settings: Client
    config: Mapping[str, Any]
    device: str
    flower: Context


Train = Callable[[Any, Records | None, TrainingContext], Model]


def private_client(train: Train) -> ClientApp:
    """A Flower client app that runs a loop of one's own for each client, and answers as :mod:`fedamp.client.app` does.

    The loop must not carry anything from one client to another. Torch's, NumPy's and Python's own generators start from
    the client's seed each time, and are as they were afterwards.

    Args:
        train: called as ``train(model, records, context)`` for one unit, it returns the trained model.
            *model* is this unit's own copy of the global one: the scenario's model as a ``torch.nn.Module`` on the CPU;
            or, with ``data: {name: external}``, a dict of writable float32 arrays by name.
            *records* are the unit's (:class:`Records`), None with external data: the loop reads them itself.
            *context*: :class:`TrainingContext`.
            What is returned is a module or a mapping of arrays or tensors, with the names and shapes of the given one.

    With external data a node speaks for the clients that its configuration names: ``hosts``, else ``partition-id``.
    """
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        task_json, instruction = wire.instruction_of(message)
        task = ClientTask.from_json(task_json)
        external = task.data.name == "external"
        wire.check_hosted(instruction, wire.clients_of_app(context) if external else wire.hosts(context))
        dataset = None if external else wire.dataset(task_json, wire.text(context, "data"))[1]
        module = None if external else build(task.model, task.input_shape, task.num_classes)
        arrays: Arrays = flower.from_record(message.content["arrays"])  # type: ignore[arg-type]
        config, device = train_config(message), wire.device(context)

        def train_one(client: int) -> Mapping[str, Any]:
            about = TrainingContext(client, instruction.round, task.client, config, device, context)
            return _arrays_of(train(_own_copy(module, arrays), _records(dataset, client), about), arrays)

        return wire.trained(message, *sum_of_units(arrays, instruction, task, train_one))

    @app.query()
    def _query(message: Message, context: Context) -> Message:
        task_json = message.content["config"].get("task")
        external = bool(task_json) and ClientTask.from_json(str(task_json)).data.name == "external"
        here = wire.clients_of_app(context) if external else wire.hosted_clients(message, context)
        return wire.hosting(message, here)

    return app


def sum_of_units(
    arrays: Arrays, instruction: TrainInstruction, task: ClientTask, train_one: Callable[[int], Mapping[str, Any]]
) -> tuple[dict[str, NDArray[np.float64]], TrainReport]:
    """The sum of the units' clipped updates, trained minus received, whatever their training does.

    Args:
        arrays: what was received, by name.
        instruction: who trains, and the clipping norm.
        task: says whether coordinates are clipped, too.
        train_one: the trained arrays of a unit.

    Returns:
        The sum in the shape of ``arrays``, and a report whose ``error`` names the first unit that failed.

    Raises:
        DeploymentError: submodels are asked for; a loop of somebody else's cannot be kept to one.
    """
    if len(instruction.clips) != 1 or {instruction.extracted, *instruction.submodels} - {WHOLE}:
        raise DeploymentError("a training loop of one's own trains whole models; expected: submodels: {scheme: none}")
    begin, report = time.monotonic(), TrainReport()
    sums = {name: np.zeros(array.shape) for name, array in arrays.items()}
    for client, seed in zip(instruction.clients, instruction.seeds, strict=True):
        try:
            word = int(rng.client_words(np.frombuffer(seed, dtype=f"V{rng.SEED_BYTES}"), "own loop", 1)[0, 0])
            with generators_from(word >> 1, gpus=True):  # so that no unit's draws depend on another's
                update = _update(arrays, train_one(client))
        except Exception as error:  # whatever a loop does, the other clients' updates count
            report.fail(client, one_line(error))
            continue
        clipped = clip_and_sum(update, [tuple(update)], instruction.clips, task.linf_coordinates, task.normalised)
        for name, total in sums.items():
            total += clipped.sums[name].numpy().reshape(total.shape)
        report.clipped += int(clipped.clipped.any())
        report.below_clip += int(clipped.below_clip.any())
        if clipped.failed.any():
            report.fail(client, "its update is not finite")
        else:
            report.reported.append(client)
    report.seconds = time.monotonic() - begin
    return sums, report


def train_config(message: Message) -> dict[str, Any]:
    """What the server app gave to ``start`` for the loops."""
    found = message.content.get("train_config")
    return dict(found) if isinstance(found, ConfigRecord) else {}


def _update(arrays: Arrays, trained: Mapping[str, Any]) -> dict[str, Tensor]:
    """Trained minus received, float32 of shape [1, size]; ValueError where they are not of the same form."""
    if set(trained) != set(arrays):
        raise ValueError(f"the trained model has arrays {sorted(trained)}, not {sorted(arrays)}")
    update = {}
    for name, received in arrays.items():
        value = trained[name]
        value = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        with np.errstate(all="ignore"):  # what is not finite is found when it is clipped
            value = np.asarray(value, dtype=np.float32)
            if value.shape != received.shape:
                raise ValueError(f"the trained array {name} has shape {value.shape}, not {received.shape}")
            update[name] = torch.from_numpy((value - received).reshape(1, received.size))
    return update


def _own_copy(module: nn.Module | None, arrays: Arrays) -> Model:
    copies = {name: np.array(array) for name, array in arrays.items()}
    if module is None:
        return copies
    own = copy.deepcopy(module)
    own.load_state_dict({name: torch.from_numpy(array) for name, array in copies.items()}, strict=False)
    return own


def _arrays_of(model: Model, arrays: Arrays) -> Mapping[str, Any]:
    if isinstance(model, nn.Module):
        return {name: value for name, value in model.state_dict().items() if name in arrays}
    if isinstance(model, Mapping):
        return model
    raise TypeError(f"train must return the model, a torch module or a dict of arrays, got {type(model).__name__}")


def _records(dataset: Dataset | None, client: int) -> Records | None:
    if dataset is None:
        return None
    cohort = dataset.gather(np.array([client]))
    size = int(cohort.sizes[0])
    return Records(cohort.inputs[0, :size].copy(), cohort.labels[0, :size].copy())
