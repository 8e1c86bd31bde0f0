"""A unit's update is a function of its own records, the released model, its own seed and public constants: to the bit.

Each path is played twice, with everything changed that must not count, and compared bit for bit.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedamp.client import configuration
from fedamp.client.stacks import stacking_refusal
from fedamp.client.task import StackSize
from fedamp.client.training import StackTrainer
from fedamp.client.worker import TrainingNode
from fedamp.data import PaddedRecords
from fedamp.errors import DataError
from fedamp.extensions.adapters.transformers import Middle
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.submodels import DisjointSubmodels, DropoutSubmodels, NoSubmodels
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from fedamp.server.setup import prepare
from tests.client.federation import order_of, task_of, trained
from tests.federations import small

CLASSES = 3
WHOLE = NoSubmodels()


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

    def lost(self, clients: np.ndarray, read: np.ndarray) -> np.ndarray:
        return np.zeros(len(clients), bool)

    def gather(self, clients: np.ndarray) -> PaddedRecords:
        sizes = self.sizes(clients)
        rows, labels = next(iter(self.records.values()))
        cohort = PaddedRecords(
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
    model: Model
    shape: tuple[int, ...]
    client: dict[str, Any]
    submodels: Any = WHOLE
    unit: str = "client"
    linf: int = 0


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


class Reading(nn.Module):
    """A recurrent layer and fused attention, which vmap alone refuses."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.recurrent, self.output = nn.GRU(input_shape[1], 24, batch_first=True), nn.Linear(24, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(inputs)
        return self.output(nn.functional.scaled_dot_product_attention(hidden, hidden, hidden)[:, -1])


class Between(Odd):
    """A small matrix between frozen factors."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.requires_grad_(False)
        self.first = nn.Sequential(Middle(torch.randn(7, *input_shape)), nn.Linear(7, 33).requires_grad_(False))


class Padded(nn.Module):
    """A token that stands for nothing, whose row has no gradient."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.table, self.output = nn.Embedding(5, 8, padding_idx=2), nn.Linear(8, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(self.table(inputs).tanh())


MLP, WIDE = Model(name="mlp", hidden=(9, 6)), Model(name="mlp", hidden=(64,))
CNN = Model(name="cnn", channels=(8, 12), groups=2)  # small ones are compared more often
RESNET = Model(name="resnet20", groups=4)
LSTM = Model(name="lstm", hidden=(6,), vocabulary=5)
HOT = {"steps": 20, "learning_rate": 3.0}  # training amplifies what rounding begins
DISJOINT = DisjointSubmodels(scheme="disjoint", count=2)
DROPOUT = DropoutSubmodels(scheme="dropout", keep=0.5)
TOKENS = {"loss": "token-cross-entropy", "steps": 2}
OWN = "Odd", "Branching", "Reading", "Between"
PADDED = Model(name="tests.client.test_apart:Padded", vocabulary=5)
ODD, BRANCHING, READING, BETWEEN = (Model(name=f"tests.client.test_apart:{name}") for name in OWN)

CASES = {
    "perceptron": Case(WIDE, (64,), HOT),
    "perceptron, odd widths": Case(MLP, (13,), HOT),
    "perceptron, minibatches": Case(MLP, (10,), {"epochs": 3, "batch_size": 3, "learning_rate": 1.0}),
    "perceptron, steps of batches": Case(MLP, (10,), {"steps": 5, "batch_size": 3, "learning_rate": 1.0}),
    "perceptron, many records": Case(MLP, (3,), HOT),
    "logistic": Case(Model(name="logistic"), (5, 5), HOT),
    "disjoint": Case(MLP, (12,), HOT, DISJOINT),
    "dropout": Case(MLP, (12,), {"steps": 3}, DROPOUT),
    "ModelMix": Case(WIDE, (20,), HOT, linf=4),
    "channels": Case(CNN, (1, 6, 6), {"steps": 3}),
    "channels, disjoint": Case(CNN, (1, 6, 6), {"steps": 2}, DISJOINT),
    "channels, dropout": Case(CNN, (1, 6, 6), {"steps": 2}, DROPOUT),
    "residual": Case(RESNET, (1, 4, 4), {"steps": 1}),
    "tokens": Case(LSTM, (6,), TOKENS),
    "tokens with padding": Case(PADDED, (6,), TOKENS),
    "momentum": Case(WIDE, (64,), {"steps": 6, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": Case(WIDE, (16,), {"steps": 6, "optimizer": "adam", "learning_rate": 0.1}),
    "FedProx": Case(MLP, (12,), {"epochs": 2, "batch_size": 2, "proximal": 0.3}),
    "numbers": Case(MLP, (12,), {"loss": "mean-squared-error", "steps": 4}),
    "records": Case(WIDE, (30,), {"steps": 1}, unit="sample"),
    "records, convolutions": Case(CNN, (1, 6, 6), {"steps": 1}, unit="sample"),
    "records, Adam": Case(WIDE, (30,), {"steps": 1, "optimizer": "adam"}, unit="sample"),
    "one's own": Case(ODD, (17,), HOT),
    "one's own, reading": Case(READING, (5, 3), {"steps": 3}),
    "an adapter's middle": Case(BETWEEN, (13,), HOT),
    "one's own, one by one": Case(BRANCHING, (17,), {"steps": 4}),
}
LONG = ["an adapter's middle"]


@cache
def node_of(name: str) -> TrainingNode:
    """One node for all data: what it found out about its kernels holds for all."""
    case = CASES[name]
    task = task_of(
        model=case.model,
        input_shape=case.shape,
        client=LocalTraining(**{"learning_rate": 0.5} | case.client),
        unit=case.unit,
        submodels=case.submodels,
        linf_coordinates=case.linf,
        stack=StackSize(units=8, records=8 * 16),
    )
    return TrainingNode(task, people_of(case), "cuda" if torch.cuda.is_available() else "cpu")


def sums_of(name: str, people: People, clients: list[int]) -> dict[str, np.ndarray]:
    case, node = CASES[name], node_of(name)
    node.dataset = people
    arrays = initial_parameters(case.model, case.shape, CLASSES, seed=1)
    clips = [1.0] if case.submodels.scheme == "none" else [1.0, 1.0]
    sums, report = trained(node, arrays, order_of(clients, node.task, clips=clips))
    assert report.reported == sorted(clients), "also those that fail"
    return sums


def people_of(case: Case, seed: int = 0, count: int = 20) -> People:
    generator = np.random.default_rng(seed)
    sizes = np.ones(count, int) if case.unit == "sample" else generator.integers(0, 12, count)
    return People(case.shape, {client: draw(case, generator, int(size)) for client, size in enumerate(sizes)})


def changed(case: Case, people: People, client: int, how: str, generator: np.random.Generator) -> People:
    """Neighbouring data: other records of one client."""
    size = 1 if case.unit == "sample" else {"none": 0, "many": 100, "two": 2}.get(how, 5)
    inputs, labels = draw(case, generator, size)
    if how == "magnitudes" and inputs.dtype.kind == "f":
        inputs *= 10.0 ** generator.integers(-44, 19, inputs.shape)
    if how == "hostile" and inputs.dtype.kind == "f":
        inputs[...] = generator.choice([np.nan, np.inf, -np.inf, 1e38])
    if how == "hostile" and inputs.dtype.kind == "i":
        inputs[...] = -1  # cannot be read
    return replace(people, records=people.records | {client: (inputs, labels)})


@pytest.mark.few(0, 2, 6, 8, 15, 19)
@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in LONG)) for each in CASES])
@settings(max_examples=2, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), how=st.sampled_from(["none", "many", "two", "hostile", "magnitudes"]))
def test_one_clients_data_change_nobody_elses_update(name: str, seed: int, how: str) -> None:
    """With a client the sum is that of the others and its own: exactly, as sums are."""
    case, generator = CASES[name], np.random.default_rng(seed)
    people = people_of(case)
    cohort = generator.permutation(20)[: generator.integers(2, 20)].tolist()
    client = cohort[int(generator.integers(len(cohort)))]
    neighbouring = changed(case, people, client, how, generator)
    others = [each for each in cohort if each != client]
    without = sums_of(name, people, others)
    for data in (people, neighbouring):
        alone = sums_of(name, data, [client])
        for array, total in sums_of(name, data, cohort).items():
            np.testing.assert_array_equal(total, without[array] + alone[array])


@pytest.mark.parametrize("keys", [["client.momentum=0.5"], ["submodels={scheme: dropout, keep: 0.5}"], []])
def test_in_stacks_of_a_scenarios_own_size_the_last_slots_train_as_the_others(
    keys: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What is left after whole vectors of numbers is computed otherwise: the last three of 27 slots trained so."""
    data = "data={name: synthetic, clients: 400, records_per_client: 4, features: 64}"
    asked = small(
        data, "model={name: mlp, hidden: [64]}", "check_in={scheme: poisson, rate: 0.1}", "client.steps=4", *keys
    )
    prepared = prepare(asked)
    task, arrays = prepared.task, prepared.state.parameters
    node = TrainingNode(task, configuration.dataset(task.to_json(), ""))

    def sums(first: int, last: int) -> dict[str, np.ndarray]:
        return trained(node, arrays, order_of(list(range(first, last)), task))[0]

    parts = [sums(0, 16), *(sums(client, client + 1) for client in range(16, 40))]
    for name, total in sums(0, 40).items():
        np.testing.assert_array_equal(total, sum(part[name] for part in parts))
    assert "one by one" not in caplog.text


@pytest.mark.usefixtures("few_tries")
def test_padding_trains_together_as_it_does_alone() -> None:
    """Torch's own vmap takes the gradient of padding from the first slot alone."""
    people = people_of(CASES["tokens with padding"])
    together = sums_of("tokens with padding", people, list(range(20)))
    assert max(node_of("tokens with padding")._slots.values()) == 8
    padding = [np.full_like(inputs, 2) for inputs, _ in people.records.values()]
    only = replace(people, records={c: (padding[c], labels) for c, (_, labels) in people.records.items()})
    assert (together["table.weight"][[0, 1, 3, 4]] != 0).any(1).all()
    assert (sums_of("tokens with padding", only, list(range(20)))["table.weight"] == 0).all()
    assert (together["table.weight"][2] == 0).all()


def test_a_model_that_cannot_share_a_stack_trains_alone_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    node_of.cache_clear()  # the tests above have nodes that know their kernels
    for _ in range(2):
        sums_of("one's own, one by one", people_of(CASES["one's own, one by one"]), [0, 1, 2])
    said = [record.getMessage() for record in caplog.records]
    assert said
    assert all(line.startswith("clients train one by one, slower than together: the model does not") for line in said)
    assert len(said) == len(set(node_of("one's own, one by one")._slots)), "once for every shape"


def found(slots: int, fault: str, numbers: int) -> bool:
    """Whether a fault is found, of updates that are said to have so many numbers: many are tried once."""
    like = PaddedRecords(np.zeros((slots, 4, 3), np.float32), np.zeros((slots, 4), np.int64), np.zeros(slots, np.int64))

    def train(cohort: PaddedRecords, seeds: np.ndarray, kept: np.ndarray) -> dict[str, torch.Tensor]:
        sums = torch.from_numpy(cohort.inputs).sum((1, 2))
        match fault:
            case "slot":
                sums = sums * (1 + torch.arange(slots) % 2 * 2**-22)
            case "last slot":
                sums[-1] *= 1.001
            case "mates":
                sums = sums * (1 + 2**-22 * torch.from_numpy(cohort.sizes > 0).sum())
            case "not finite":
                sums = sums + 0 * sums.sum()
            case "largest":  # as kernels do that choose one scale for all, and look away from what is not finite
                finite = sums[sums.isfinite()].abs().max()
                sums = sums + (2**-22 * sums if finite > 1e6 else 0)
        return {"weight": sums[torch.from_numpy(kept), None]}

    return bool(stacking_refusal(train, like, numbers))


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("fault", ["none", "slot", "mates", "not finite", "largest"])
def test_what_depends_on_slot_or_mates_is_found(slots: int, fault: str) -> None:
    assert found(slots, fault, 1) == (fault != "none" and slots > 1)


def test_one_try_compares_every_slot() -> None:
    assert all(found(slots, "last slot", 10**6) for slots in range(2, 40))


def test_a_learning_rate_that_diverges_hides_nothing() -> None:
    """Two updates that are not finite would look alike."""

    def by_slot(parameters: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        outputs = torch.bmm(inputs, parameters["weight"].mT)
        return outputs * (1 + torch.arange(len(inputs))[:, None, None] % 2 * 2**-22)

    like = PaddedRecords(np.zeros((8, 4, 3), np.float32), np.zeros((8, 4), np.int64), np.zeros(8, np.int64))
    start = {"weight": torch.ones(CLASSES, 3)}
    trainer = StackTrainer(by_slot, LocalTraining(learning_rate=1e30, steps=3))
    trainer.stacked = by_slot
    assert trainer.stacking_refusal(start, like, lambda inputs, seeds: ([], {}), None)
