"""Everything that computes, on a second device: what is made or left on the wrong one is an error, without a GPU."""

import gc
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedamp import rng
from fedamp.base import devices
from fedamp.client import device_records, stacks
from fedamp.client.stacks import StackBatches
from fedamp.client.task import ClientTask, StackSize, bytes_of_a_worker
from fedamp.client.worker import TrainingNode
from fedamp.engines.wire import RoundOrder
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.losses import LOSSES
from fedamp.federation.submodels import DisjointSubmodels, DropoutSubmodels
from fedamp.models.inspection import kept_per_record
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters
from fedamp.server import launch
from fedamp.server.evaluate import evaluate
from fedamp.server.setup import prepare
from tests.client.federation import Records, order_of, task_of, trained
from tests.client.second_device import ELSEWHERE, SecondDevice, memory
from tests.federations import Silent, small


@pytest.fixture(autouse=True)
def second_device() -> Iterator[None]:
    # Whether units keep apart is tried elsewhere: here every operation takes long.
    with SecondDevice(), pytest.MonkeyPatch.context() as patch:
        twice = stacks._same_units_twice
        patch.setattr(stacks, "_TRIES", 1)
        patch.setattr(stacks, "_same_units_twice", lambda *given: itertools.islice(twice(*given), 1))
        yield


def records_of(shape: tuple[int, ...], longest: int, loss: str = "cross-entropy") -> Records:
    """Seven clients with up to six records, and labels as a loss takes them."""
    generator = np.random.default_rng(5)
    lengths = generator.integers(1, longest + 1, 7)
    inputs: Any = generator.normal(size=(7, longest, *shape)).astype(np.float32)
    labels: Any = generator.integers(0, 3, (7, longest))
    if loss == "token-cross-entropy":
        inputs = generator.integers(0, 5, (7, longest, *shape))
        labels = generator.integers(0, 3, (7, longest, *shape))
    elif loss != "cross-entropy":
        labels = generator.integers(0, 2, (7, longest, 3)).astype(np.float32)
    return Records(inputs, labels, lengths)


def client(**keys: Any) -> LocalTraining:
    return LocalTraining(**{"steps": 2, "batch_size": 3, "learning_rate": 0.5} | keys)


def own(name: str) -> Model:
    return Model(name=f"tests.client.second_device:{name}")


DROPOUT = DropoutSubmodels(scheme="dropout", keep=0.5)
DISJOINT = DisjointSubmodels(scheme="disjoint", count=2)
MLP, CNN = Model(name="mlp", hidden=(8,)), Model(name="cnn", channels=(4,), groups=2)
RESNET, LSTM = Model(name="resnet20", groups=4), Model(name="lstm", hidden=(6,), vocabulary=5)
IMAGES = {"cnn": (1, 6, 6), "resnet20": (1, 4, 4)}
DEALT, FROZEN = {"unowned": "partitioned"}, {"unowned": "frozen"}

CASES: dict[str, dict[str, Any]] = {
    "fully connected": {},
    "full batches": {"client": client(batch_size="full", steps=3)},
    "FedProx": {"client": client(proximal=0.1)},
    "momentum and decay": {"client": client(momentum=0.9, weight_decay=0.01)},
    "Adam": {"client": client(optimizer="adam", learning_rate=0.01)},
    "numbers": {"client": client(loss="mean-squared-error")},
    "labels": {"client": client(loss="binary-cross-entropy")},
    "tokens": {"client": client(loss="token-cross-entropy", steps=1), "model": LSTM},
    "convolutional": {"model": CNN},
    "convolutional, under vmap": {"model": CNN, "client": client(proximal=0.1)},
    "own": {"model": own("WithTable")},
    "own, one by one": {"model": own("Undecided")},
    "coordinates": {"linf_coordinates": 4},
    "normalised": {"normalised": True},
    "bfloat16": {"model": CNN, "client": client(precision="bfloat16")},
    "submodels": {"submodels": DISJOINT},
    "submodels, dealt": {"submodels": DISJOINT.model_copy(update=DEALT)},
    "submodels, frozen": {"submodels": DISJOINT.model_copy(update=FROZEN)},
    "convolutional submodels": {"model": CNN, "submodels": DISJOINT},
    "residual submodels": {"model": RESNET, "submodels": DISJOINT, "client": client(steps=1)},
    "own submodels": {"model": own("WithTable"), "submodels": DISJOINT},
    "dropout": {"submodels": DROPOUT},
    "dropout, dealt": {"submodels": DROPOUT.model_copy(update=DEALT)},
    "dropout, frozen": {"submodels": DROPOUT.model_copy(update=FROZEN)},
    "dropout of channels": {"model": CNN, "submodels": DROPOUT},
    "dropout, one by one": {"model": own("Undecided"), "submodels": DROPOUT},
    "records": {"unit": "sample"},
    "records, convolutional": {"unit": "sample", "model": CNN},
    "records, submodels": {"unit": "sample", "submodels": DISJOINT},
}


def setting(**said: Any) -> tuple[ClientTask, Records, dict[str, np.ndarray]]:
    """A task, the clients' records, and where training starts."""
    single = said.get("unit") == "sample"
    given = {"model": MLP, "client": LocalTraining(steps=1, learning_rate=0.5) if single else client()} | said
    shape = IMAGES.get(given["model"].name, (5,))
    task = task_of(input_shape=shape, **given)
    records = records_of(shape, 1 if single else 6, task.client.loss)
    return task, records, initial_parameters(task.model, shape, 3, seed=1)


def instruction(task: ClientTask, clients: int = 7) -> RoundOrder:
    seeds = rng.client_seeds(0, "test", 1, np.arange(clients)).tolist()
    return order_of(list(range(clients)), task, seeds=seeds)


def test_devices_do_not_mix() -> None:
    here, there = torch.ones(3), torch.ones(3).to(ELSEWHERE)
    assert torch.equal((there * 2).cpu(), here * 2)
    with pytest.raises(RuntimeError, match="mixes the CPU"):
        here + there
    with pytest.raises((RuntimeError, TypeError)):
        there.numpy()


SLOW = ["residual submodels"]  # twenty layers


@pytest.mark.few(0, 7, 10, 14, 21)
@pytest.mark.parametrize("case", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in CASES])
def test_a_round_on_another_device_gives_the_same_sum(case: str, caplog: pytest.LogCaptureFixture) -> None:
    task, records, arrays = setting(**CASES[case])
    caplog.set_level("INFO")
    fails = task.client.loss != "token-cross-entropy"
    if fails:
        records.inputs[3] = np.nan  # a client that fails takes a way of its own
    records.lengths[2] = 0 if task.unit == "client" else 1
    there, here = (
        trained(TrainingNode(task, records, device), arrays, instruction(task)) for device in (str(ELSEWHERE), "cpu")
    )
    assert there[1].failed == here[1].failed == int(fails)
    assert there[1].clipped == here[1].clipped
    assert np.isclose(there[1].loss_sum, here[1].loss_sum, rtol=1e-5)
    for name, total in here[0].items():
        # Torch steps lists of tensors another way where it does not know the device: float32 rounds otherwise.
        np.testing.assert_allclose(there[0][name], total, rtol=1e-4, atol=1e-6)
    assert ("does not train in a stack" in caplog.text) == ("one by one" in case)  # as where devices are mixed


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in SLOW])
def test_records_that_stay_on_a_device_give_the_same_bits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, records, arrays = setting(**CASES[case])
    if records.inputs.dtype == np.float32:
        records.inputs[3] = np.nan
    records.lengths[2] = 0 if task.unit == "client" else 1
    found, order = [], instruction(task)
    for share in (1 << 28, 0):
        monkeypatch.setattr(device_records, "kept_bytes", lambda memory, share=share: share)
        node = TrainingNode(task, records, str(ELSEWHERE))
        found.append(trained(node, arrays, order))
        assert (node._kept is None) == (share == 0)
    (sums, report), (expected, other) = found
    assert (report.failed, report.clipped, report.loss_sum) == (other.failed, other.clipped, other.loss_sum)
    for name, total in expected.items():
        np.testing.assert_array_equal(sums[name], total)


def test_records_that_cannot_be_read_are_copied_where_their_client_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingNode, "_stacking_refusal", lambda *_: "")  # other tests check that units keep apart
    task, records, arrays = setting()
    kept = TrainingNode(task, records, str(ELSEWHERE))
    sums, _ = trained(kept, arrays, instruction(task, 3))
    kept.dataset = replace(records, unreadable=frozenset({6}))
    again, report = trained(kept, arrays, instruction(task, 3))
    assert kept._kept is None
    assert not report.failed
    for name, total in sums.items():
        np.testing.assert_array_equal(again[name], total)
    assert trained(kept, arrays, instruction(task, 7))[1].failed == 1


MODELS = {"cross-entropy": own("WithTable"), "mean-squared-error": CNN, "token-cross-entropy": LSTM}


@pytest.mark.parametrize("loss", LOSSES)
def test_evaluation_on_another_device(loss: str) -> None:
    model = MODELS.get(loss, MLP)
    task, records, arrays = setting(model=model, client=client(loss=loss))
    test = records.inputs.reshape(-1, *task.input_shape), records.labels.reshape(-1, *records.labels.shape[2:])
    found = [
        evaluate(build(model, task.input_shape, 3), arrays, *test, device, loss=LOSSES[loss]())
        for device in (str(ELSEWHERE), "cpu")
    ]
    assert found[0] == found[1]


def test_a_run_takes_its_device_from_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = small("rounds=2", "check_in.k=1", "data.clients=20")
    launch.launch(asked, Silent(), tmp_path / "here")
    monkeypatch.setattr(devices, "available", lambda asked: str(ELSEWHERE))
    with monkeypatch.context() as context:
        context.setattr(devices, "here", lambda asked: "cpu")
        taken = memory.of(lambda: launch.launch(asked, Silent(), tmp_path / "there"))
    for name, values in load_file(tmp_path / "here" / "model.safetensors").items():
        found = load_file(tmp_path / "there" / "model.safetensors")[name]
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-6)
    assert taken > 100_000  # a round's inputs are 10 clients' 72 records of 64 numbers: clients train there
    monkeypatch.setattr(devices, "total_memory", lambda device: 1 << 40)
    prepared = prepare(asked)
    evaluating = memory.of(lambda: prepared.evaluate(prepared.state.parameters))
    assert evaluating > 4 * prepared.test[0].size


# Wide, and with many records: what is the same for all clients is small beside what is stacked.
CROWDED: dict[str, dict[str, Any]] = {
    "fully connected": {},
    "Adam": {"client": client(optimizer="adam", proximal=0.1, weight_decay=0.1)},
    "numbers": {"client": client(loss="mean-squared-error", batch_size="full")},
    "convolutional dropout": {"model": Model(name="cnn", channels=(8, 8)), "submodels": DROPOUT},
    "records": {"unit": "sample"},
    "records, Adam": {"unit": "sample", "client": LocalTraining(steps=1, optimizer="adam")},
}


@pytest.mark.parametrize("case", CROWDED)
def test_a_batch_takes_no_more_memory_than_is_estimated(case: str) -> None:
    task, records, arrays = setting(**{"model": Model(name="mlp", hidden=(256,))} | CROWDED[case])
    clients = 2000 if case == "records" else 50
    records.inputs, records.labels = (
        np.resize(each, (clients, *each.shape[1:])) for each in (records.inputs, records.labels)
    )
    records.lengths = np.full(clients, records.inputs.shape[1])
    module = build(task.model, task.input_shape, 3)
    size, kept = sum(value.size for value in arrays.values()), kept_per_record(module, task.input_shape)
    single = case == "records"
    slots, places = 1 << (clients - 1).bit_length(), 1 if task.unit == "sample" else 8
    per_record = (4 if single else 1) * (kept + math.prod(task.input_shape))
    numbers = slots * (places * per_record + (0 if single else 2 * size))
    task = task.model_copy(update={"stack": StackSize(units=slots, records=slots * places)})
    node = TrainingNode(task, records, str(ELSEWHERE))
    trained(node, arrays, instruction(task, clients))  # tries whether they keep apart
    taken = memory.of(lambda: trained(node, arrays, instruction(task, clients)))
    estimate = bytes_of_a_worker(numbers) - bytes_of_a_worker(0)
    assert estimate / 8 < taken < estimate


def test_a_node_draws_the_next_round_ahead_and_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingNode, "_stacking_refusal", lambda *_: "")
    task, records, arrays = setting()
    now, following = instruction(task, 5), replace(instruction(task, 7), round=2)
    told = RoundOrder.of(replace(now, arrays=arrays, following=following.rows).content())
    drawn, draw, home = list[str](), StackBatches.drawn, TrainingNode._bring_home
    monkeypatch.setattr(StackBatches, "drawn", lambda *given: drawn.append("drawn") or draw(*given))
    monkeypatch.setattr(TrainingNode, "_bring_home", lambda *given: drawn.append("home") or home(*given))
    expected, _ = trained(TrainingNode(task, records, str(ELSEWHERE)), arrays, following)
    node = TrainingNode(task, records, str(ELSEWHERE))
    node.train(told)
    assert drawn[-2:] == ["drawn", "home"], "while the device trains"
    drawn.clear()
    found, _ = trained(node, arrays, following)
    assert drawn == ["home"]
    for name, total in expected.items():
        np.testing.assert_array_equal(found[name], total)
    node.train(told)
    drawn.clear()
    trained(node, arrays, replace(following, rows=following.rows[1:]))
    assert "drawn" in drawn, "another cohort than was told"


@pytest.mark.slow
def test_a_run_that_draws_ahead_has_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda asked: str(ELSEWHERE))
    monkeypatch.setattr(devices, "here", lambda asked: "cpu")
    asked, taken = small("rounds=4", "check_in.k=2", "data.clients=20", "engine.device=cuda"), list[bool]()
    read = TrainingNode._read

    def reading(node: TrainingNode, *given: Any) -> Any:
        found = read(node, *given)
        taken.append(any(found.tensors is each.tensors for each in node._ahead.values()))
        return found

    monkeypatch.setattr(TrainingNode, "_read", reading)
    launch.launch(asked, Silent(), tmp_path / "ahead")
    assert any(taken)
    monkeypatch.setattr(TrainingNode, "_draw_ahead", lambda *_: None)
    launch.launch(asked, Silent(), tmp_path / "later")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("ahead", "later"))
    assert all(np.array_equal(values, other[name]) for name, values in one.items())


def test_records_that_stay_on_a_device_make_room_for_a_stack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TrainingNode, "_stacking_refusal", lambda *_: "")
    task = task_of(input_shape=(300,), model=MLP, client=client(), stack=StackSize(units=8))
    records = records_of((300,), 6)
    records.lengths[:] = 6  # one stack
    arrays, order = initial_parameters(task.model, (300,), 3, seed=1), instruction(task)
    node = TrainingNode(task, records, str(ELSEWHERE))
    sums, _ = trained(node, arrays, order)
    assert node._kept is not None
    gc.collect()
    needed = memory.of(lambda: trained(node, arrays, order))
    monkeypatch.setattr(memory, "limit", memory.used + needed - records.inputs.nbytes // 2)
    again, report = trained(node, arrays, order)
    assert node._kept is None
    assert not report.failed
    assert "has no memory" not in caplog.text
    for name, total in sums.items():
        np.testing.assert_array_equal(again[name], total)


def test_a_stack_that_has_no_room_is_cut(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(device_records, "kept_bytes", lambda memory: 0)
    task, records, arrays = setting(model=CNN)
    task, order = task.model_copy(update={"stack": StackSize(units=8)}), instruction(task)
    enough, enough_report = trained(TrainingNode(task, records, str(ELSEWHERE)), arrays, order)
    needed = memory.of(lambda: trained(TrainingNode(task, records, str(ELSEWHERE)), arrays, order))
    gc.collect()  # what is freed later would be more room
    monkeypatch.setattr(memory, "limit", memory.used + needed // 2)
    node = TrainingNode(task, records, str(ELSEWHERE))
    told: list[int] = []
    for _ in range(2):
        cut, report = trained(node, arrays, order)
        assert sorted(report.reported) == list(range(7))
        assert (report.failed, report.clipped, report.records) == (0, enough_report.clipped, enough_report.records)
        for name, total in enough.items():
            np.testing.assert_allclose(cut[name], total, rtol=1e-4, atol=1e-6)
        told.append(caplog.text.count("has no memory for 8 clients together, so 4 train at once"))
    assert told[0] == told[1] > 0, "what was learnt is kept"
    monkeypatch.setattr(memory, "limit", memory.used + needed // 20)
    # How much memory a client needs follows from its records, so the others train.
    _, report = trained(node, arrays, order)
    assert sorted(report.reported) == list(range(7))
    assert 0 < report.failed <= 7
    assert "no memory for the training of one client; expected: fewer engine.workers" in report.text
