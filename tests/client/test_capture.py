"""Recorded programs, without CUDA: a tape of torch's operations takes the place of a graph.

Like a graph, the tape repeats operations on the memory that they had, and runs no Python of the program. So whatever
a program takes from elsewhere than its inputs stays as it was when it was recorded.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedamp import rng
from fedamp.client import capture
from fedamp.client.capture import RecordedPrograms, can_record
from fedamp.client.capture import record as cuda_record
from fedamp.client.worker import TrainingNode
from fedamp.models.pieces import Piece
from tests.client.counted import Counts, counts_of
from tests.client.federation import order_of
from tests.client.second_device import ELSEWHERE, Elsewhere, SecondDevice
from tests.client.test_device import CASES as DEVICE_CASES
from tests.client.test_device import client, setting


def place(tensor: Tensor) -> int:
    """Where the memory of a tensor begins."""
    return (tensor.held if isinstance(tensor, Elsewhere) else tensor).untyped_storage().data_ptr()


class Tape(TorchDispatchMode):
    """Records operations; each replay writes their results to where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def read(self) -> set[int]:
        """Where operands begin; numbers of the CPU are part of a graph."""
        operands = [each for call in self.calls for each in tree_leaves(call[1:3]) if isinstance(each, Tensor)]
        return {place(each) for each in operands if isinstance(each, Elsewhere) or each.dim()}

    def places(self) -> set[int]:
        """Where results begin."""
        return {place(each) for call in self.calls for each in tree_leaves(call[3]) if isinstance(each, Tensor)}

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, out in self.calls:
                taken = {place(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
                for before, now in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(before, Tensor) and place(before) not in taken:  # no view, and not in place
                        before.copy_(now)


def record(program: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> tuple[Callable[[], object], list[Tensor]]:
    with Tape() as tape:
        outputs = program(*inputs)
    return tape.replay, outputs


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second device whose programs are recorded."""
    monkeypatch.setattr(capture, "record", record)
    monkeypatch.setattr("fedamp.client.worker.can_record", lambda device: device == str(ELSEWHERE))
    monkeypatch.setattr(TrainingNode, "_stacking_refusal", lambda *_: "")  # other tests check that units keep apart
    with SecondDevice():
        yield


CAPTURED = ["fully connected", "full batches", "Adam", "FedProx", "labels", "convolutional", "own", "normalised"]
CAPTURED += ["coordinates", "records", "submodels", "tokens", "rates", "rates of records", "rates with momentum"]
RATES = [[1 + number, 0.5 / (1 + number)] for number in range(5)]
CASES = DEVICE_CASES | {
    "rates": {"client": client(learning_rate=RATES)},
    "rates of records": {"unit": "sample", "client": client(steps=1, learning_rate=RATES)},
    "rates with momentum": {"client": client(learning_rate=RATES, momentum=0.9)},
}
SLOW = (
    "rates of records",
    "rates with momentum",
    "Adam",
    "FedProx",
    "labels",
    "convolutional",
    "tokens",
    "submodels",
    "full batches",
    "coordinates",
    "normalised",
)


def constants_of(node: TrainingNode) -> list[Tensor]:
    """What programs of a node read beside their inputs, and keeps its place: modules, and records."""
    held = [] if node._kept is None else node._kept._held
    for trainer in node._trainers.values():
        held = [*held, *trainer.piece.module.buffers(), *trainer.piece.module.parameters()]
    return held


def rounds_of(
    name: str, device: str = str(ELSEWHERE), constants: list[Tensor] | None = None
) -> tuple[list[Any], list[RecordedPrograms], Counts]:
    """Rounds of other clients, from other models, at other clips; and what the last one dispatches."""
    task, records, arrays = setting(**CASES[name])
    node, found, counts = TrainingNode(task, records, device), [], Counts()
    for number in range(5):
        ids = list(range(number % 4, number % 4 + 4))
        seeds = rng.client_seeds(0, "test", 1 + number, np.array(ids)).tolist()
        moved = {key: array + np.float32(0.01 * number) for key, array in arrays.items()}
        order = order_of(ids, task, seeds=seeds, arrays=moved)
        order = replace(order, round=1 + number if isinstance(task.client.learning_rate, tuple) else 1)
        order = replace(order, clips=tuple(clip / (1 + number) for clip in order.clips))
        play = partial(lambda order: found.append(node.train(order)), order)
        if number < 4:
            play()
        else:
            counts = counts_of(play)
    if constants is not None:
        constants += constants_of(node)
    told = [(each.sums, each.failed, each.clipped, each.loss_sum, each.records) for each in found]
    return told, [trainer.programs for trainer in node._trainers.values()], counts


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in CAPTURED])
def test_replayed_rounds_have_the_bits_of_rounds_that_run_as_they_are(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants: list[Tensor] = []
    replayed, programs, last = rounds_of(name, constants=constants)
    assert not any(each.refused for each in programs)
    graphs = [graph for each in programs for graph in each._graphs.values() if graph]
    assert graphs
    for graph in graphs:  # a graph reads the same places for ever, so that nothing there may be freed
        made, lasting = graph.replay.__self__.places(), {place(each) for each in (*graph.inputs, *constants)}
        assert graph.replay.__self__.read() <= made | lasting
    assert (last.into, last.home) == (1, 1)
    monkeypatch.setattr("fedamp.client.worker.can_record", lambda device: False)
    for (sums, *told), (expected, *others) in zip(replayed, rounds_of(name)[0], strict=True):
        assert told == others
        for key, value in sums.items():
            np.testing.assert_array_equal(value, expected[key])


class LowPrecision(TorchFunctionMode):
    """Stands for autocast, which torch lacks for the second device: casts are kept by the tensor until cleared.

    Linear layers alone are lowered.
    """

    def __init__(self, kept: dict[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.kept = kept

    def low(self, tensor: Tensor) -> Tensor:
        if tensor.requires_grad and tensor.is_leaf:
            return self.kept.setdefault(id(tensor), (tensor, tensor.to(torch.bfloat16)))[1]
        return tensor.to(torch.bfloat16)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            args = [self.low(each) for each in args]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("casts", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_replayed_rounds_in_bfloat16_have_the_bits_of_rounds_that_run_as_they_are(
    casts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not casts:
        monkeypatch.setattr(Piece, "forward_in", lambda *_: None)  # as of code that does not compute in bfloat16
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    monkeypatch.setattr(torch, "autocast", lambda *_, enabled=True: LowPrecision(kept) if enabled else nullcontext())
    monkeypatch.setattr(torch, "clear_autocast_cache", kept.clear)
    said = CASES["own"] | {"client": client(steps=3, precision="bfloat16", momentum=0.9)}
    monkeypatch.setitem(CASES, "bfloat16", said)
    replayed, programs, _ = rounds_of("bfloat16")
    assert any(graph for each in programs for graph in each._graphs.values())
    monkeypatch.setattr("fedamp.client.worker.can_record", lambda device: False)
    as_they_are, _, _ = rounds_of("bfloat16")
    monkeypatch.setitem(CASES, "bfloat16", said | {"client": client(steps=3, momentum=0.9)})
    in_float32, _, _ = rounds_of("bfloat16")
    for (sums, *told), (expected, *others), (other, *_) in zip(replayed, as_they_are, in_float32, strict=True):
        assert told == others
        for key, value in sums.items():
            np.testing.assert_array_equal(value, expected[key])
            assert not np.array_equal(value, other[key]), "bfloat16 rounds otherwise"


@pytest.mark.parametrize("name", ["dropout", "own, one by one"])
def test_what_the_cpu_draws_or_reads_for_each_client_is_not_recorded(name: str) -> None:
    _, programs, _ = rounds_of(name)
    assert not any(graph for each in programs for graph in each._graphs.values())


def there(*numbers: float) -> Tensor:
    return torch.tensor(numbers).to(ELSEWHERE)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a value": (lambda inputs: inputs * float(inputs.sum()), "_local_scalar_dense"),
    "a shape": (lambda inputs: inputs.nonzero(), "nonzero"),
    "a mask": (lambda inputs: inputs[inputs > 0], "index"),
    "a copy": (lambda inputs: inputs + torch.ones(3).to(ELSEWHERE), "_to_copy"),
    "a copy of a number": (lambda inputs: inputs + torch.tensor(2.0).to(ELSEWHERE), "_to_copy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_program_that_cannot_be_recorded_runs_as_it_is_and_the_operation_is_named(name: str) -> None:
    program, operation = REFUSED[name]
    programs = RecordedPrograms()
    for number in range(3):
        given = there(1.0 + number, -2.0, 3.0)
        [found] = programs.run(lambda inputs: [program(inputs)], [given])
        assert torch.equal(found.cpu(), program(given).cpu())
    assert list(programs.refused.values()) == [operation]


def test_a_program_that_holds_a_number_of_python_is_found_by_its_bits() -> None:
    programs, calls = RecordedPrograms(), []

    def program(inputs: Tensor) -> list[Tensor]:
        calls.append(inputs)
        return [inputs * len(calls)]

    given = there(1.0, 2.0)
    assert [programs.run(program, [given])[0].cpu().tolist() for _ in range(3)] == [[1.0, 2.0], [2.0, 4.0], [4.0, 8.0]]
    assert list(programs.refused.values()) == ["its replay gives other bits"]


def test_a_graph_that_raises_is_refused_and_its_program_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    programs, given = RecordedPrograms(), [there(1.0, 2.0)]
    for _ in range(2):
        programs.run(lambda inputs: [inputs + 1], given)
    [graph] = programs._graphs.values()

    def fails() -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(graph, "replay", fails)
    for _ in range(2):
        assert programs.run(lambda inputs: [inputs + 1], given)[0].cpu().tolist() == [2.0, 3.0]
    assert list(programs.refused.values()) == ["RuntimeError: CUDA error: out of memory"]
    assert not programs._graphs, "its memory is free"


class Cuda:
    """Stands for torch.cuda: says in order what is asked of it, and may fail where a capture ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.current, self.error = self.stream_named("usual"), ""
        monkeypatch.setattr(capture, "_failed", set())
        capture._capture_stream.cache_clear()
        self.device = lambda device: nullcontext()
        self.current_stream = lambda: self.current
        self.Stream = lambda device: self.stream_named("aside")
        self.state = "usual"
        states = {
            "graphsafe_get_state": lambda: self.state,
            "graphsafe_set_state": lambda state: setattr(self, "state", state),
        }
        self.default_generators = {None: SimpleNamespace(**states)}
        monkeypatch.setattr(torch, "Generator", lambda device: "own")
        for name in (
            "default_generators",
            "device",
            "current_stream",
            "Stream",
            "set_stream",
            "stream",
            "CUDAGraph",
            "graph",
        ):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def stream_named(self, name: str) -> Any:
        return SimpleNamespace(name=name, wait_stream=lambda other: self.said.append(f"{name} waits for {other.name}"))

    def set_stream(self, stream: Any) -> None:
        self.current = stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    class CUDAGraph:
        shares: Any = None

        def replay(self) -> None: ...

        def pool(self) -> Any:
            return self.shares or id(self)

    @contextmanager
    def graph(self, graph: Any, pool: Any, stream: Any) -> Iterator[None]:
        self.said.append("capture")
        self.current, graph.shares = stream, pool
        yield
        if self.error:  # torch leaves its stream as it is
            raise RuntimeError(self.error)
        self.current = self.stream_named("usual")


def test_a_capture_warms_up_on_its_stream_and_shares_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, on = Cuda(monkeypatch), list[Any]()

    def program(inputs: Tensor) -> list[Tensor]:
        on.append((cuda.current.name, cuda.state, gc.isenabled()))
        return [inputs + 1]

    graphs = [cuda_record(program, [torch.ones(size)])[0].__self__ for size in (2, 3)]
    assert on == [("aside", "usual", True), ("aside", "own", False)] * 2, "an old graph that is freed ends a capture"
    assert cuda.said == ["aside waits for usual", "capture", "usual waits for aside"] * 2
    assert [graph.shares for graph in graphs] == [None, id(graphs[0])]
    del graphs
    gc.collect()
    assert not capture._live, "memory of graphs that are forgotten is not kept"
    assert can_record("cuda")


def test_a_capture_that_fails_is_the_last_and_gives_the_stream_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)

    def full(inputs: Tensor) -> list[Tensor]:
        if cuda.said[-1] == "capture":
            raise torch.OutOfMemoryError("no room")
        return [inputs]

    with pytest.raises(torch.OutOfMemoryError):
        cuda_record(full, [torch.ones(2)])
    assert (cuda.current.name, can_record("cuda")) == ("usual", True), "a smaller stack may have room"
    cuda.error = "operation failed due to a previous error during capture"
    with pytest.raises(RuntimeError, match="previous error"):
        cuda_record(lambda inputs: [inputs], [torch.ones(2)])
    assert (cuda.current.name, can_record("cuda"), len(capture._live)) == ("usual", False, 0)
    assert (cuda.state, gc.isenabled()) == ("usual", True)
    assert cuda.said[-1] == "usual waits for aside"


def test_a_device_that_cannot_record_runs_programs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(capture, "record", fails)
    programs = RecordedPrograms()
    for _ in range(3):
        assert programs.run(lambda inputs: [inputs + 1], [there(1.0)])[0].cpu().tolist() == [2.0]
    assert "not permitted" in next(iter(programs.refused.values()))
