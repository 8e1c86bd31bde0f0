"""A small federation for the tests: a task with defaults, and records in memory."""

from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedamp.client.task import ClientTask, TrainInstruction
from fedamp.data import Cohort
from fedamp.data.sections import DigitsData
from fedamp.engines import flower
from fedamp.errors import DataError
from fedamp.federation.submodels import NoSubmodels
from fedamp.federation.training import Client
from fedamp.models.section import Model


def task_of(**changes: object) -> ClientTask:
    """A task of whole models and clients; ``changes`` are its fields."""
    task = ClientTask(
        model=Model(name="mlp", hidden=(8, 6)),
        input_shape=(5,),
        num_classes=3,
        client=Client(steps=2, batch_size=3, learning_rate=0.5),
        unit="client",
        submodels=NoSubmodels(),
        split_seed=4,
        linf_coordinates=0,
        data=DigitsData(name="digits", clients=10),
        data_seed=0,
    )
    return task.model_copy(update=changes)


def order_of(clients: list[int], task: ClientTask, **changes: object) -> TrainInstruction:
    """A round of these clients; with disjoint submodels, every other one trains the second of them."""
    disjoint = task.submodels.scheme == "disjoint"
    parts = 2 if task.submodels.scheme != "none" and task.submodels.rest == "shared" else 1
    submodels = [client % 2 if disjoint else -1 for client in clients]
    order = TrainInstruction(1, clients, [client.to_bytes(32) for client in clients], submodels, [0.1, 0.2][-parts:])
    return replace(order, **changes)


def send(
    to, kind: str, config: dict[str, object], arrays, state: RecordDict | None = None, **node_config
) -> RecordDict:
    """The answer of an app to a message, on a node with this configuration and state."""
    flower.identify()
    content = RecordDict({"config": ConfigRecord(config), "train_config": ConfigRecord({"lr": 0.1})})
    if kind == "train":
        content["arrays"] = flower.to_record(arrays)
    message = Message(content, 2, kind)
    flower.set_message_id(message, "1")
    return to(message, Context(1, 2, node_config, RecordDict() if state is None else state, {})).content


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

    def gather(self, clients: np.ndarray) -> Cohort:
        if self.unreadable.intersection(clients.tolist()):
            raise DataError("records cannot be read")
        longest = int(self.lengths[clients].max(initial=0))
        return Cohort(self.inputs[clients, :longest], self.labels[clients, :longest], self.lengths[clients])


def records(clients: int = 9) -> Records:
    generator = np.random.default_rng(3)
    inputs = generator.normal(size=(clients, 4, 5)).astype(np.float32)
    return Records(inputs, generator.integers(0, 3, size=(clients, 4)), generator.integers(1, 5, size=clients))
