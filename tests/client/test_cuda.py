"""What only a GPU can show: ``sh benchmarks/speed/gpu_checks.sh`` runs these tests there, and no other machine does."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.speed import zoo
from fedamp.base import devices
from fedamp.client import capture
from fedamp.client.worker import TrainingNode
from tests.client.test_capture import CAPTURED, CASES, rounds_of
from tests.client.test_device import client

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here: about CUDA alone")
LOW = {"low": CASES["own"] | {"client": client(steps=3, precision="bfloat16", momentum=0.9)}}
LOW |= {"low, convolutional": CASES["convolutional"] | {"client": client(steps=3, precision="bfloat16")}}


@pytest.fixture(autouse=True)
def tried_again() -> Iterator[None]:
    """After a capture that fails a process records no more; here, the other cases are tried, too."""
    yield
    capture._failed.clear()


@pytest.mark.parametrize("name", [*CAPTURED, *LOW])
def test_graphs_have_the_bits_of_programs_that_run_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, case in LOW.items():
        monkeypatch.setitem(CASES, key, case)
    replayed, programs, _ = rounds_of(name, "cuda")
    assert not any(each.refused for each in programs), [each.refused for each in programs]
    assert any(graph for each in programs for graph in each._graphs.values())
    monkeypatch.setattr("fedamp.client.worker.can_record", lambda device: False)
    as_they_are, here = (rounds_of(name, device)[0] for device in ("cuda", "cpu"))
    tolerance = 0.1 if name in LOW else 1e-3  # eight bits; kernels of two kinds
    for (sums, *told), (expected, *others), (other, *_) in zip(replayed, as_they_are, here, strict=True):
        assert told == others
        for key, value in sums.items():
            np.testing.assert_array_equal(value, expected[key])
            assert np.linalg.norm(value - other[key]) <= tolerance * np.linalg.norm(other[key]) + 1e-6


@pytest.mark.parametrize("name", ["two-layer perceptron", "convolutional network", "LSTM of characters", "GPT-2"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_worker_takes_no_more_memory_than_is_estimated(name: str, precision: str) -> None:
    ours, _, _, prepared = zoo.play(zoo.ZOO[name], device="cuda", precision=precision)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        assert not ours().failed
    assert torch.cuda.max_memory_reserved() <= 2 * prepared.worker_bytes + (1 << 30), "with its graphs"


@pytest.mark.parametrize("name", ["two-layer perceptron", "ResNet-20", "nn.TransformerEncoder"])
def test_the_memory_of_a_stack_is_told_within_a_tenth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedamp.client.worker.can_record", lambda device: False)
    animal = zoo.ZOO[name]
    inputs, labels = zoo.records_of(animal, zoo.CLIENTS * zoo.RECORDS)
    data = (inputs, labels, np.repeat(np.arange(zoo.CLIENTS), zoo.RECORDS))
    prepared, node = zoo.prepared_of(animal, data, "cuda")
    order = zoo.order_of(prepared, range(zoo.CLIENTS))
    told = TrainingNode(prepared.task, node.dataset, "meta", compiled=False).bytes_of_a_stack(order)
    node.train(order)  # libraries make room for themselves, and the model is there
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    node.train(order)
    taken = torch.cuda.max_memory_allocated() - before + sum(each.nbytes for each in order.arrays.values())
    assert 0.9 * taken <= told <= 1.1 * taken


def test_a_share_of_the_memory_is_all_that_a_process_gets() -> None:
    whole = devices.total_memory("cuda")
    assert whole is not None
    try:
        devices.take_share("cuda", 0.25)
        assert devices.total_memory("cuda") == int(whole * 0.25)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(whole // 2, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
        devices._share = 1.0


def test_a_stack_without_room_is_cut_and_its_graphs_leave_theirs() -> None:
    animal, clients = zoo.ZOO["convolutional network"], 64
    inputs, labels = zoo.records_of(animal, clients * zoo.RECORDS)
    data = (inputs, labels, np.repeat(np.arange(clients), zoo.RECORDS))
    prepared, node = zoo.prepared_of(animal, data, "cuda")
    order, dataset = zoo.order_of(prepared, range(clients)), node.dataset
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    expected = node.train(order).sums
    limit = 0.6 * torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    del node
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(limit, 0)
    try:
        again = TrainingNode(prepared.task, dataset, "cuda")
        for _ in range(4):
            report = again.train(order)
            assert not report.failed
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    for name, total in expected.items():
        np.testing.assert_allclose(report.sums[name], total, rtol=1e-3, atol=1e-6)
