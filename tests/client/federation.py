"""A small federation for the tests: a task with defaults, and records in memory."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedamp.client.task import ClientTask
from fedamp.client.worker import TrainingNode, TrainReport
from fedamp.data import PaddedRecords
from fedamp.data.partition import NaturalPartition
from fedamp.data.sections import DigitsData, NpzData
from fedamp.engines import flower
from fedamp.engines.wire import RoundAnswer, RoundOrder, rows
from fedamp.errors import DataError
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.submodels import NoSubmodels
from fedamp.models.model import Model


def task_of(**changes: object) -> ClientTask:
    """A task of whole models and clients; ``changes`` are its fields."""
    task = ClientTask(
        model=Model(name="mlp", hidden=(8, 6)),
        input_shape=(5,),
        num_classes=3,
        client=LocalTraining(steps=2, batch_size=3, learning_rate=0.5),
        unit="client",
        submodels=NoSubmodels(),
        split_seed=4,
        linf_coordinates=0,
        data=DigitsData(name="digits", clients=10),
        data_seed=0,
    )
    return task.model_copy(update=changes)


def order_of(clients: list[int], task: ClientTask, seeds=None, submodels=None, counted=True, **changes) -> RoundOrder:
    """A round of these clients; with disjoint submodels, every other one trains the second of them."""
    disjoint = task.submodels.scheme == "disjoint"
    parts = 2 if task.submodels.scheme != "none" and task.submodels.unowned == "shared" else 1
    submodels = submodels or [client % 2 if disjoint else -1 for client in clients]
    units = rows(clients, seeds or [client.to_bytes(32) for client in clients], submodels, counted)
    order = RoundOrder(task.to_json(), 1, (0.1, 0.2)[-parts:], units, config={"lr": 0.1})
    return replace(order, **changes)


def query_of(task: ClientTask | None = None) -> RoundOrder:
    return RoundOrder(task.to_json() if task else "", below=100, config={"lr": 0.1})


def trained(node: TrainingNode, arrays, order: RoundOrder) -> tuple[dict[str, np.ndarray], TrainReport]:
    """A node's sums and its answer."""
    answer = node.train(replace(order, arrays=arrays))
    return answer.sums, answer


def send(to, order: RoundOrder, state: RecordDict | None = None, **node_config) -> RoundAnswer:
    """The answer of an app to an order, on a node with this configuration and state."""
    flower.identify()
    message = Message(order.content(), 2, "train" if order.arrays else "query")
    flower.set_message_id(message, "1")
    context = Context(1, 2, node_config, RecordDict() if state is None else state, {})
    return RoundAnswer.of(to(message, context).content, order)


@dataclass
class Records:
    """A data set in memory, which can be poisoned."""

    inputs: np.ndarray  # [clients, longest, ...]
    labels: np.ndarray
    lengths: np.ndarray
    unreadable: frozenset[int] = frozenset()
    hosted: np.ndarray | None = None
    num_classes: int = 3

    @property
    def num_clients(self) -> int:
        return len(self.lengths)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.inputs.shape[2:]

    def sizes(self, clients: np.ndarray) -> np.ndarray:
        return self.lengths[clients]

    def lost(self, clients: np.ndarray, read: np.ndarray) -> np.ndarray:
        return np.zeros(len(clients), dtype=bool)

    def gather(self, clients: np.ndarray) -> PaddedRecords:
        if self.unreadable.intersection(clients.tolist()):
            raise DataError("records cannot be read")
        longest = int(self.lengths[clients].max(initial=0))
        return PaddedRecords(self.inputs[clients, :longest], self.labels[clients, :longest], self.lengths[clients])


def records(clients: int = 9) -> Records:
    generator = np.random.default_rng(3)
    inputs = generator.normal(size=(clients, 4, 5)).astype(np.float32)
    return Records(inputs, generator.integers(0, 3, size=(clients, 4)), generator.integers(1, 5, size=clients))


LOGISTIC, UNITS = Model(name="logistic"), 6  # of a node that reads its records from a folder, five of each unit


def records_in_a_folder() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    owners = np.repeat(np.arange(UNITS), 5)
    x = generator.normal(size=(len(owners), 5)).astype(np.float32)
    return {"x": x, "y": generator.integers(0, 3, len(owners)), "client": owners}


def write_folder(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    np.savez(folder / "train.npz", **arrays)
    (folder / "federation.json").write_text(json.dumps({"clients": UNITS, "hosted": list(range(UNITS)), "classes": 3}))


def task_of_a_folder(**changes: object) -> ClientTask:
    section = NpzData(name="npz", path="elsewhere", partition=NaturalPartition(scheme="natural"))
    return task_of(model=LOGISTIC, client=LocalTraining(steps=1), data=section, **changes)
