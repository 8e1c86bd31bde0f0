"""Run the program of a stack on a GPU as one graph: launched once, it does not wait for Python between operations.

A graph repeats the operations that were recorded, on the memory that they had. So a program is recorded only if it
reads no value and copies nothing from the CPU (:class:`_Watch`). It is recorded on zeros, then replayed on real values,
and used only if it gives the bits of the program itself. All others run as they are, and so does a program whose graph
raises; the log says why.

:mod:`fedamp.client.worker` has the programs.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet, finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedamp.client.task import log
from fedamp.errors import one_line

Program = Callable[..., list[Tensor]]

_MOST = 8  # graphs of a trainer, each of which keeps the memory of a stack
# Operations for whose result the CPU waits: values, and shapes that follow from values.
_WAITING = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique_dim", "_unique2"}
_WAITING |= {"unique_consecutive", "bincount", "repeat_interleave"}


# Graphs share the memory that only their own operations use: they are replayed one after the other, and results are
# copied at once. After a capture that fails, torch cannot free memory that it keeps, so it is the last of the process.
_live: WeakSet[Any] = WeakSet()
_failed: set[torch.device] = set()


def can_record(device: str) -> bool:
    """Say whether programs are recorded on a device."""
    return device.startswith("cuda") and not _failed


@cache
def _capture_stream(device: torch.device) -> Any:
    """Return the stream of all captures: graphs share memory, and libraries their workspaces, by the stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def record(program: Program, inputs: Sequence[Tensor]) -> tuple[Callable[[], object], list[Tensor]]:
    """Record a program on CUDA.

    Args:
        program: from tensors to tensors, all on one GPU.
        inputs: which every replay reads; their values do not count.

    Returns:
        What replays the program, and the tensors that it writes to.
    """
    device = inputs[0].device
    with torch.cuda.device(device):
        before, aside, graph = torch.cuda.current_stream(), _capture_stream(device), torch.cuda.CUDAGraph()
        aside.wait_stream(before)
        try:
            with torch.cuda.stream(aside):
                program(*inputs)  # libraries choose kernels and make room for them in a first call
            shared = next((each.pool() for each in _live), None)
            _failed.add(device)
            with _undisturbed(device), torch.cuda.graph(graph, pool=shared, stream=aside):
                outputs = program(*inputs)
            _failed.discard(device)
        except torch.OutOfMemoryError:  # a smaller program may have room
            _failed.discard(device)
            raise
        finally:
            torch.cuda.set_stream(before)  # a capture that fails leaves its own
            before.wait_stream(aside)
    _live.add(graph)
    return graph.replay, outputs


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Keep a capture from what else the process does, and the process from a capture that fails.

    An older graph that Python's collector of garbage destroys would end the capture. And a capture that fails would
    leave the generator of the device unable to draw, so the capture has a generator's state of its own.
    """
    generator, collects = torch.cuda.default_generators[device.index], gc.isenabled()
    state = generator.graphsafe_get_state()
    gc.disable()
    try:
        generator.graphsafe_set_state(torch.Generator(device))
        yield
    finally:
        generator.graphsafe_set_state(state)
        if collects:
            gc.enable()


@dataclass
class _Graph:
    """A recorded program: its inputs, its outputs, and what replays it."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    replay: Callable[[], object]

    def __call__(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs for these inputs, in new memory."""
        for static, each in zip(self.inputs, given, strict=True):
            static.copy_(each)
        self.replay()
        return [each.clone() for each in self.outputs]


class RecordedPrograms:
    """Runs programs: the first time of a kind as they are, the second time they are recorded, then replayed.

    Attributes:
        refused: why programs of a kind are not recorded.
    """

    def __init__(self) -> None:
        self.refused: dict[object, str] = {}
        self._graphs: dict[object, _Graph | None] = {}

    def run(self, program: Program, given: Sequence[Tensor]) -> list[Tensor]:
        """Run a program, or its graph.

        Args:
            program: from tensors to tensors, which depend on nothing else but the shapes of the given ones.
            given: the tensors, all on one device.
        """
        kind = tuple((each.shape, each.dtype) for each in given)
        if kind in self.refused:
            return program(*given)
        if (graph := self._graphs.get(kind)) is not None:
            try:
                return graph(given)
            except torch.OutOfMemoryError:  # the node frees all graphs, and tries a smaller stack
                raise
            except Exception as error:
                self._refuse(kind, one_line(error))
                return program(*given)
        if kind not in self._graphs:
            self._graphs[kind] = None
            with _Watch() as watch:  # type: ignore[no-untyped-call]
                found = program(*given)
            if watch.found or len(self._graphs) > _MOST:
                self._refuse(kind, watch.found or "too many shapes")
            return found
        found = program(*given)
        try:
            zeros = [torch.zeros_like(each) for each in given]
            replay, outputs = record(program, zeros)
            graph = _Graph(zeros, outputs, replay)
            alike = all(map(_same_bits, graph(given), found))
        except Exception as error:  # torch and custom models raise anything
            self._refuse(kind, one_line(error))
        else:
            self._graphs[kind] = graph
            if not alike:
                self._refuse(kind, "its replay gives other bits")
        return found

    def forget(self) -> None:
        """Free the memory of all graphs; programs are recorded again."""
        self._graphs.clear()

    def _refuse(self, kind: object, why: str) -> None:
        """Run programs of a kind as they are from here on."""
        log.info("a stack runs operation by operation: %s", why)
        self.refused[kind] = why
        self._graphs.pop(kind, None)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors have the same bits, NaN included."""
    return torch.equal(*(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))


class HeldBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of tensors that are made while the context lasts; those on torch's ``meta`` device take none.

    Attributes:
        now, most: bytes that are held, and were held at most.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: WeakSet[torch.UntypedStorage] = WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count the memory of its results until it is freed."""
        out = func(*args, **(kwargs or {}))
        for storage in {each.untyped_storage() for each in tree_leaves(out) if isinstance(each, Tensor)}:
            if storage not in self._known:
                self._known.add(storage)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                finalize(storage, self._free, storage.nbytes())
        return out

    def _free(self, size: int) -> None:
        self.now -= size


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks for the first operation that cannot be recorded, while the context lasts.

    Attributes:
        found: its name; empty: there is none.
    """

    found = ""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and look at it."""
        out, name = func(*args, **(kwargs or {})), func._overloadpacket.__name__
        tensors = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, Tensor)]
        masks = tree_leaves(args[1]) if name in ("index", "index_put", "index_put_") else ()
        masked = any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in masks)
        moved = name in ("_to_copy", "copy_") and len({each.device for each in tensors}) > 1
        if name in _WAITING or masked or moved:
            self.found = self.found or name
        return out
