"""A unit's update is a function of its own records, the released model, its own seed and public constants: to the bit.

Each path is played twice, with everything changed that must not count, and compared bit for bit.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedamp import scenario
from fedamp.client.memory import StackSize
from fedamp.client.task import ClientTask
from fedamp.client.worker import TrainingNode, TrainInstruction
from fedamp.data import Cohort
from fedamp.errors import DataError
from fedamp.models.registry import initial_parameters

CLASSES = 3
WHOLE = scenario.NoSubmodels()


@dataclass
class People:
    """Clients with records of their own, which a test may change."""

    input_shape: tuple[int, ...]
    records: dict[int, tuple[np.ndarray, np.ndarray]]
    num_classes: int = CLASSES
    hosted: np.ndarray | None = None

    @property
    def num_clients(self) -> int:
        return max(self.records) + 1

    def sizes(self, clients: np.ndarray) -> np.ndarray:
        return np.array([len(self.records[client][1]) for client in clients.tolist()], np.int64)

    def gather(self, clients: np.ndarray) -> Cohort:
        sizes = self.sizes(clients)
        rows, labels = next(iter(self.records.values()))
        cohort = Cohort(
            np.zeros((len(clients), sizes.max(initial=0), *rows.shape[1:]), rows.dtype),
            np.zeros((len(clients), sizes.max(initial=0), *labels.shape[1:]), labels.dtype),
            sizes,
        )
        for place, client in enumerate(clients.tolist()):
            for into, own in zip((cohort.inputs, cohort.labels), self.records[client], strict=True):
                if own.dtype.kind == "i" and (own < 0).any():
                    raise DataError("a token outside the vocabulary")
                into[place, : len(own)] = own
        return cohort


def draw(case: "Case", generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    shape = (size, *case.shape)
    if case.model.vocabulary:
        return generator.integers(0, case.model.vocabulary, shape), generator.integers(0, CLASSES, shape)
    if case.client.get("loss") == "mean-squared-error":
        labels: Any = generator.normal(size=(size, CLASSES)).astype(np.float32)
    else:
        labels = generator.integers(0, CLASSES, size)
    return generator.normal(size=shape).astype(np.float32), labels


@dataclass(frozen=True)
class Case:
    model: scenario.Model
    shape: tuple[int, ...]
    client: dict[str, Any]
    submodels: Any = WHOLE
    unit: str = "client"
    linf: int = 0
    together: bool = True  # no kernel of it needs clients one by one


class Odd(nn.Module):
    """Somebody's own, whose widths are no multiples of anything."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.output = nn.Linear(input_shape[0], 33), nn.Linear(33, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(torch.tanh(self.first(inputs)))


class Branching(Odd):
    """Looks at its data to decide what to do, which vmap refuses."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(-inputs if float(inputs.detach().sum()) > 0 else inputs)


MLP, WIDE = scenario.Model(name="mlp", hidden=(9, 6)), scenario.Model(name="mlp", hidden=(64,))
CNN = scenario.Model(name="cnn", channels=(4, 6), groups=2)
RESNET = scenario.Model(name="resnet20", groups=4)
LSTM = scenario.Model(name="lstm", hidden=(6,), vocabulary=5)
HOT = {"steps": 20, "learning_rate": 3.0}  # training amplifies what rounding begins
DISJOINT = scenario.DisjointSubmodels(scheme="disjoint", count=2)
DROPOUT = scenario.DropoutSubmodels(scheme="dropout", keep=0.5)
TOKENS = {"loss": "token-cross-entropy", "steps": 2}
ODD, BRANCHING = (scenario.Model(name=f"tests.client.test_apart:{name}") for name in ("Odd", "Branching"))

CASES = {
    "perceptron": Case(WIDE, (64,), HOT),
    "perceptron, odd widths": Case(MLP, (13,), HOT),
    "perceptron, minibatches": Case(MLP, (10,), {"epochs": 3, "batch_size": 3, "learning_rate": 1.0}),
    "perceptron, many records": Case(MLP, (3,), HOT),
    "logistic": Case(scenario.Model(name="logistic"), (5, 5), HOT),
    "disjoint": Case(MLP, (12,), HOT, DISJOINT),
    "dropout": Case(MLP, (12,), {"steps": 3}, DROPOUT),
    "ModelMix": Case(WIDE, (20,), HOT, linf=4),
    "channels": Case(CNN, (1, 6, 6), {"steps": 3}),
    "channels, disjoint": Case(CNN, (1, 6, 6), {"steps": 2}, DISJOINT),
    "channels, dropout": Case(CNN, (1, 6, 6), {"steps": 2}, DROPOUT),
    "residual": Case(RESNET, (1, 4, 4), {"steps": 1}),
    "tokens": Case(LSTM, (6,), TOKENS),
    "momentum": Case(WIDE, (64,), {"steps": 6, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": Case(WIDE, (16,), {"steps": 6, "optimizer": "adam", "learning_rate": 0.1}),
    "FedProx": Case(MLP, (12,), {"epochs": 2, "batch_size": 2, "proximal": 0.3}),
    "numbers": Case(MLP, (12,), {"loss": "mean-squared-error", "steps": 4}),
    "records": Case(WIDE, (30,), {"steps": 1}, unit="sample"),
    "records, convolutions": Case(CNN, (1, 6, 6), {"steps": 1}, unit="sample"),
    "records, Adam": Case(WIDE, (30,), {"steps": 1, "optimizer": "adam"}, unit="sample"),
    "one's own": Case(ODD, (17,), HOT),
    "one's own, one by one": Case(BRANCHING, (17,), {"steps": 4}, together=False),
}


def node_of(case: Case, people: People, slots: int = 16) -> TrainingNode:
    task = ClientTask(
        model=case.model,
        input_shape=case.shape,
        num_classes=CLASSES,
        client=scenario.Client(**{"learning_rate": 0.5} | case.client),
        unit=case.unit,
        submodels=case.submodels,
        split_seed=4,
        linf_coordinates=case.linf,
        data=scenario.BuiltInData(name="digits", clients=40),
        data_seed=0,
        stack=StackSize(units=slots, records=slots * 16),
    )
    return TrainingNode(task, people)


def sums_of(case: Case, node: TrainingNode, clients: list[int]) -> dict[str, np.ndarray]:
    arrays = initial_parameters(case.model, case.shape, CLASSES, seed=1)
    disjoint = case.submodels.scheme == "disjoint"
    seeds = [client.to_bytes(32) for client in clients]
    clips = [1.0] if case.submodels.scheme == "none" else [1.0, 1.0]
    order = TrainInstruction(1, clients, seeds, [client % 2 if disjoint else -1 for client in clients], clips)
    return node.train(arrays, order)[0]


def people_of(case: Case, seed: int = 0, count: int = 20) -> People:
    generator = np.random.default_rng(seed)
    sizes = np.ones(count, int) if case.unit == "sample" else generator.integers(0, 12, count)
    return People(case.shape, {client: draw(case, generator, int(size)) for client, size in enumerate(sizes)})


def changed(case: Case, people: People, client: int, how: str, generator: np.random.Generator) -> People:
    """Neighbouring data: other records of one client."""
    size = 1 if case.unit == "sample" else {"none": 0, "many": 100, "two": 2}.get(how, 5)
    inputs, labels = draw(case, generator, size)
    if how == "hostile" and inputs.dtype.kind == "f":
        inputs[...] = generator.choice([np.nan, np.inf, -np.inf, 1e38])
    if how == "hostile" and inputs.dtype.kind == "i":
        inputs[...] = -1  # cannot be read
    return replace(people, records=people.records | {client: (inputs, labels)})


def own_share(case: Case, people: People, client: int) -> dict[str, np.ndarray]:
    """A client's clipped update, trained where nobody else is."""
    return sums_of(case, node_of(case, people), [client])


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), how=st.sampled_from(["none", "many", "two", "hostile"]))
def test_one_clients_data_change_nobody_elses_update(name: str, seed: int, how: str) -> None:
    """With a client the sum is that of the others and its own: exactly, as sums are."""
    case, generator = CASES[name], np.random.default_rng(seed)
    people = people_of(case)
    cohort = generator.permutation(20)[: generator.integers(2, 20)].tolist()
    client = cohort[int(generator.integers(len(cohort)))]
    neighbouring = changed(case, people, client, how, generator)
    others = [each for each in cohort if each != client]
    without = sums_of(case, node_of(case, people), others)
    for data in (people, neighbouring):
        alone = own_share(case, data, client)
        together = sums_of(case, node_of(case, data), cohort)
        for array, total in together.items():
            np.testing.assert_array_equal(total, without[array] + alone[array])
