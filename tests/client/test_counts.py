"""What a round dispatches, counted without a GPU: launches beside a bare ``vmap``, copies, and waits for values.

The time of a small model on a GPU is launches and round trips, and both can be counted. A bound may only fall.
"""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed import zoo
from fedamp import rng
from fedamp.client import clipping, device_records, ghost_clipping, stacks, worker
from fedamp.client.stacked_networks import ReluMaxPool
from fedamp.client.training import arithmetic
from fedamp.client.worker import TrainingNode, TrainReport, _RoundNumbers
from fedamp.federation.local_training import LocalTraining
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from tests.client.counted import Counts, counts_of
from tests.client.federation import order_of, task_of, trained
from tests.client.second_device import ELSEWHERE, SecondDevice, memory
from tests.client.test_device import records_of

CLIENTS, RECORDS, STEPS = 4, 4, (2, 4)
MINILM = zoo.Animal(
    {"name": "transformers:BertForSequenceClassification", "vocabulary": 256},
    (32,),
    own=zoo._SMALL | {"lora": zoo.LORA | {"target_modules": ["query", "value"]}},
)
MODELS = {
    "MLP": zoo.ZOO["two-layer perceptron"],
    "CNN": zoo.ZOO["convolutional network"],
    "ResNet-20": zoo.ZOO["ResNet-20"],
    "LSTM": zoo.ZOO["LSTM of characters"],
    "GRU": zoo.ZOO["nn.GRU"],
    "transformer": zoo.ZOO["nn.TransformerEncoder"],
    "GPT-2": zoo.ZOO["GPT-2"],
    "MiniLM with LoRA": MINILM,
    "ratings with embeddings": zoo.ZOO["table of 20,000 rows"],
}
QUICK = "MLP", "ratings with embeddings"
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # of a bare vmap over attention
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in MODELS]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip by array operations, as every device but the CPU does; and copy no array, wherever it begins."""
    monkeypatch.setattr(clipping, "_COMPILED", ())
    for each in (worker, stacks, ghost_clipping):
        monkeypatch.setattr(each, "aligned", lambda array: torch.from_numpy(array.copy()))


def both(name: str, steps: int) -> tuple[Counts, Counts]:
    """What a round dispatches after the first one, which tries whether clients keep apart; and a bare ``vmap``."""
    ours, bare, _, _ = zoo.play(MODELS[name], CLIENTS, RECORDS, steps=steps)
    ours(), bare()
    return counts_of(ours), counts_of(bare)


@pytest.mark.parametrize("name", CASES)
def test_a_step_dispatches_hardly_more_than_a_bare_vmap(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    few, many = (both(name, steps) for steps in STEPS)
    ours, bare = (after.dispatched - before.dispatched for before, after in zip(few, many, strict=True))
    print(f"{name}: {ours / 2:g} operations a step, a bare vmap {bare / 2:g}")
    assert ours <= 1.1 * bare


@pytest.mark.parametrize("name", CASES)
def test_a_step_in_bfloat16_casts_all_parameters_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the launches of float32: parameters and gradients in one each, and the outputs and their gradients."""
    monkeypatch.setattr(ReluMaxPool, "forward", lambda self, inputs: F.max_pool2d(F.relu(inputs), 2))  # as on a GPU
    monkeypatch.setattr(worker, "arithmetic", lambda precision, device: arithmetic(precision, "cuda"))
    found, bare = dict[str, Counts](), list[int]()
    for precision in ("float32", "bfloat16"):
        few, many = (zoo.play(MODELS[name], CLIENTS, RECORDS, precision=precision, steps=steps)[:2] for steps in STEPS)
        for ours, _ in (few, many):
            ours()
        found[precision] = counts_of(many[0])
        found[precision].operations.subtract(counts_of(few[0]).operations)
        bare.append(counts_of(many[1]).dispatched - counts_of(few[1]).dispatched)
    steps, (ours, low) = STEPS[1] - STEPS[0], (found["bfloat16"], found["float32"])
    print(f"{name}: {ours.launched / steps:g} launches a step, {low.launched / steps:g} in float32")
    assert ours.launched <= low.launched + 4 * steps
    assert ours.operations["_to_copy"] <= low.operations["_to_copy"] + 4 * steps
    assert ours.dispatched <= 1.1 * bare[-1]


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_networks_of_linear_layers_take_the_same_program_in_bfloat16(unit: str) -> None:
    found = []
    for precision in ("float32", "bfloat16"):
        client = LocalTraining(steps=1 if unit == "sample" else 3, learning_rate=0.5, precision=precision)
        task = task_of(model=Model(name="mlp", hidden=(8,)), client=client, unit=unit)
        records, arrays = records_of((5,), 1 if unit == "sample" else 6), initial_parameters(task.model, (5,), 3, 1)
        order = order_of(list(range(7)), task, seeds=rng.client_seeds(0, "test", 1, np.arange(7)).tolist())
        node = TrainingNode(task, records)
        trained(node, arrays, order)
        found.append(counts_of(lambda node=node, arrays=arrays, order=order: trained(node, arrays, order)).operations)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", CASES)
def test_no_value_is_read_and_no_shape_follows_from_one(name: str) -> None:
    ours, _ = both(name, STEPS[0])
    assert not ours.reads
    assert not ours.dependent


UNTIED = "GPT-2"  # tied weights do not stay tied on the second device


@pytest.mark.parametrize("name", [each for each in CASES if each.values[0] != UNTIED])
def test_a_round_is_copied_to_the_device_once_and_home_once(name: str) -> None:
    animal = MODELS[name]
    inputs, labels = zoo.records_of(animal, CLIENTS * RECORDS)
    prepared, here = zoo.prepared_of(animal, (inputs, labels, np.repeat(np.arange(CLIENTS), RECORDS)))
    order = zoo.order_of(prepared, range(CLIENTS))
    with SecondDevice():
        node = TrainingNode(here.task, here.dataset, str(ELSEWHERE))
        assert not node.train(order).failed
        found = counts_of(lambda: node.train(order))
    assert not found.reads
    assert (found.into, found.home) == (1, 1)


def test_records_are_copied_to_the_device_once_and_home_once() -> None:
    client = LocalTraining(steps=1, learning_rate=0.5)
    task = task_of(model=Model(name="mlp", hidden=(8,)), client=client, unit="sample")
    records, arrays = records_of((5,), 1, client.loss), initial_parameters(task.model, (5,), 3, seed=1)
    order = order_of(list(range(7)), task, seeds=rng.client_seeds(0, "test", 1, np.arange(7)).tolist())
    with SecondDevice():
        node = TrainingNode(task, records, str(ELSEWHERE))
        assert not trained(node, arrays, order)[1].failed
        found = counts_of(lambda: trained(node, arrays, order))
    assert not found.reads
    assert not found.dependent
    assert (found.into, found.home) == (1, 1)


def test_the_program_of_records_runs_without_data_in_few_operations() -> None:
    client = LocalTraining(steps=1, learning_rate=0.5)
    task = task_of(model=Model(name="mlp", hidden=(8,)), client=client, unit="sample")
    records, arrays = records_of((5,), 1, client.loss), initial_parameters(task.model, (5,), 3, seed=1)
    order = order_of(list(range(7)), task, arrays=arrays)
    node, report = TrainingNode(task, records), TrainReport()
    [waiting] = node._next_wave(node._members(order, {}, report), [], report)
    trainer, start = waiting.members.submodel.trainer, waiting.members.submodel.start
    numbers = torch.from_numpy(clipping.clip_numbers(order.clips))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        rate = mode.from_tensor(torch.tensor(0.1, dtype=torch.float64))
        clips = _RoundNumbers(1, order.clips, rate, mode.from_tensor(numbers))
        there = {name: mode.from_tensor(value) for name, value in start.items()}
        trained = trainer.train(there, waiting, [mode.from_tensor(each) for each in waiting.tensors], clips)
    assert {name: total.shape for name, total in trained.clipped.sums.items()} == {
        name: array.shape for name, array in arrays.items()
    }
    module = trainer.piece.module

    def loss(values: dict[str, torch.Tensor], record: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(module, values, (record[None],)), label[None])

    def summed() -> list[torch.Tensor]:
        """Clipped and added up, in float32 and without quanta."""
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(start, *waiting.tensors[:2])
        flat = [value.flatten(1) for value in each.values()]
        factor = (1 / sum(value.square().sum(1) for value in flat).sqrt()).clamp(max=1)
        return [(factor @ value).view(each[name].shape[1:]) for name, value in zip(each, flat, strict=True)]

    clips = _RoundNumbers(1, order.clips, torch.tensor(0.1, dtype=torch.float64), numbers)
    ours = counts_of(lambda: trainer.train(start, waiting, waiting.tensors, clips))
    bare = counts_of(summed)
    print(f"records: {ours.dispatched} operations, {ours.launched} launches")
    print(f"a bare vmap: {bare.dispatched}, {bare.launched}")
    assert not ours.reads
    assert not ours.dependent
    assert ours.dispatched <= 1.1 * bare.dispatched


def test_more_numbers_of_records_are_no_more_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ghost clipping on a GPU; on a CPU it goes by blocks that stay in the cache."""
    monkeypatch.setattr(TrainingNode, "_stacking_refusal", lambda *_: "")  # other tests check that units keep apart
    client, found = LocalTraining(steps=1, learning_rate=0.5), []
    for width in (5, 1 << 14):
        task = task_of(input_shape=(width,), model=Model(name="mlp", hidden=(2,)), client=client, unit="sample")
        records, arrays = records_of((width,), 1), initial_parameters(task.model, (width,), 3, seed=1)
        order = order_of(list(range(7)), task, seeds=rng.client_seeds(0, "test", 1, np.arange(7)).tolist())
        with SecondDevice():
            node = TrainingNode(task, records, str(ELSEWHERE))
            trained(node, arrays, order)
            found.append(counts_of(lambda node=node, order=order, arrays=arrays: trained(node, arrays, order)))
    assert found[0].operations == found[1].operations


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_a_round_copies_numbers_of_records_in_place_of_records(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingNode, "_stacking_refusal", lambda *_: "")  # other tests check that units keep apart
    client = LocalTraining(steps=1, learning_rate=0.5)
    task = task_of(input_shape=(300,), model=Model(name="mlp", hidden=(8,)), client=client, unit=unit)
    records, arrays = records_of((300,), 1 if unit == "sample" else 6), initial_parameters(task.model, (300,), 3, 1)
    order = order_of(list(range(7)), task, seeds=rng.client_seeds(0, "test", 1, np.arange(7)).tolist())
    found, sums = [], []
    with SecondDevice():
        for share in (1 << 28, 0):  # what may stay on the device
            monkeypatch.setattr(device_records, "kept_bytes", lambda memory, share=share: share)
            node = TrainingNode(task, records, str(ELSEWHERE))
            sums.append(trained(node, arrays, order)[0])
            found.append(counts_of(lambda node=node: trained(node, arrays, order)))
    kept, copied = (each.bytes_into - sum(array.nbytes for array in arrays.values()) for each in found)
    assert copied > records.lengths.sum() * 300 * 4
    assert kept < copied / 10
    for name, total in sums[0].items():
        np.testing.assert_array_equal(total, sums[1][name])


@pytest.mark.parametrize("name", CASES)
def test_the_program_of_a_stack_runs_without_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReluMaxPool, "forward", lambda self, inputs: F.max_pool2d(F.relu(inputs), 2))  # as on a GPU
    inputs, labels = zoo.records_of(MODELS[name], CLIENTS * RECORDS)
    prepared, node = zoo.prepared_of(MODELS[name], (inputs, labels, np.repeat(np.arange(CLIENTS), RECORDS)))
    order, report = zoo.order_of(prepared, range(CLIENTS)), TrainReport()
    [waiting] = node._next_wave(node._members(order, {}, report), [], report)
    submodel, numbers = waiting.members.submodel, torch.from_numpy(clipping.clip_numbers(order.clips))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:  # what asks for a value raises there
        start = {key: mode.from_tensor(value) for key, value in submodel.start.items()}
        rate = mode.from_tensor(torch.tensor(0.1, dtype=torch.float64))
        clips = _RoundNumbers(1, order.clips, rate, mode.from_tensor(numbers))
        tensors = [mode.from_tensor(each) for each in waiting.tensors]
        trained = submodel.trainer.train(start, waiting, tensors, clips)
    assert {key: total.shape for key, total in trained.clipped.sums.items()} == {
        key: value.shape for key, value in start.items()
    }


class _Order(TorchDispatchMode):
    """Notes which operations run while torch is asked for deterministic algorithms, and which while it is not."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[bool, set[str]] = {True: set(), False: set()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[torch.are_deterministic_algorithms_enabled()].add(func._overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["MLP", "ratings with embeddings"])
def test_nothing_is_sorted_whose_order_changes_no_bit(name: str) -> None:
    """Torch's deterministic ways of these operations on CUDA sort, in many launches that the CPU does not show."""
    sorting = {"scatter_add_", "scatter_", "index_add_", "index_put_"}
    inputs, labels = zoo.records_of(MODELS[name], CLIENTS * RECORDS)
    prepared, here = zoo.prepared_of(MODELS[name], (inputs, labels, np.repeat(np.arange(CLIENTS), RECORDS)))
    order = zoo.order_of(prepared, range(CLIENTS))
    with SecondDevice(), _Order() as seen:
        assert not TrainingNode(here.task, here.dataset, str(ELSEWHERE)).train(order).failed
    assert sorting & seen.found[False] >= {"scatter_add_"} | ({"scatter_", "index_add_"} if name != "MLP" else set())
    assert not sorting & seen.found[True]


@pytest.mark.few(8)
@pytest.mark.parametrize("name", MODELS)
def test_the_memory_of_a_stack_is_told_without_a_device(name: str) -> None:
    clients = 16
    inputs, labels = zoo.records_of(MODELS[name], clients * RECORDS)
    data = (inputs, labels, np.repeat(np.arange(clients), RECORDS))
    prepared, here = zoo.prepared_of(MODELS[name], data)
    order = zoo.order_of(prepared, range(clients))
    meta = TrainingNode(here.task, here.dataset, "meta", compiled=False)
    told = meta.bytes_of_a_stack(order, several=True)
    if name == UNTIED:  # there are no sums to compare with
        assert told > clients * sum(array.nbytes for array in order.arrays.values())
        return
    if all(slots >= clients for slots in meta._slots.values()):  # a round is one stack
        told = meta.bytes_of_a_stack(order)
    with SecondDevice():
        node = TrainingNode(here.task, here.dataset, str(ELSEWHERE))
        assert not node.train(replace(order, rows=order.rows[:0])).reported  # it copies records
        gc.collect()
        before = memory.used
        assert not node.train(order).failed
        memory.peak = memory.used
        node.train(order)  # some layers of torch keep the last weights until then
    taken = memory.peak - before
    print(f"{name}: {told:,} bytes are told, {taken:,} are taken")
    assert 0.97 * taken <= told <= 1.03 * taken


def test_a_count_sees_what_it_is_for() -> None:
    values = torch.arange(4.0)
    found = counts_of(lambda: values[values > float(values.sum() / 4)].nonzero())
    assert found.reads == {"_local_scalar_dense": 1}
    assert found.dependent == {"index": 1, "nonzero": 1}
    with SecondDevice():
        moved = counts_of(lambda: (values.to(ELSEWHERE) * 2).cpu())
    assert (moved.into, moved.home) == (1, 1)
