"""Put units into stacks, send them to a device, order their batches, and check that units in a stack keep apart.

The update of a unit must be a function of its own records, the released model, its own seed and public constants. Else
one client's records would change other clients' updates, and nothing charges for that. Rounding is where it could fail:
a matrix product rounds by its shape, and by where its operands lie in memory. So a stack has a public number of slots,
and of places for records, which follows from the unit's own number (:func:`fedamp.client.task.places_for`). A kernel is
used only after a test that it rounds alike in every slot, beside any mates.

:mod:`fedamp.client.worker` fills the stacks, and :mod:`fedamp.client.training` trains them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.base.devices import is_gpu
from fedamp.data import PaddedRecords
from fedamp.errors import one_line
from fedamp.federation.local_training import LocalTraining

# Numbers of updates to compare, twice, before units are taken to keep apart; and stacks, at most.
_COMPARED, _TRIES = 40_000, 100

_LAST = np.uint64(2**64 - 1)

MILD_RATE = 0.1  # learning rate of these tests: with any scenario's, random units' updates might not be finite

_Filled = tuple[PaddedRecords, NDArray[np.void]]
StackTraining = Callable[[PaddedRecords, NDArray[np.void], NDArray[np.int64]], dict[str, Tensor]]


@dataclass(frozen=True)
class ClientStack:
    """Units in the slots of a stack, from the first on; the slots behind them are empty.

    Attributes:
        units: their ids, int64 [units].
        seeds: 32 secret bytes for each slot, [slots]; zeros for empty slots.
        cohort: records [slots, places, ...]; an empty slot has none.
    """

    units: NDArray[np.int64]
    seeds: NDArray[np.void]
    cohort: PaddedRecords

    @classmethod
    def of(
        cls, units: NDArray[np.int64], seeds: NDArray[np.void], records: PaddedRecords, slots: int, places: int
    ) -> "ClientStack":
        """Put units into a stack that has room for them.

        Args:
            units: their ids, int64 [units].
            seeds: 32 secret bytes each, [units].
            records: of the units, in the same order.
            slots: of the stack, at least as many as units.
            places: for the records of a unit, at least as many as any has.
        """
        filled, sizes = np.zeros(slots, seeds.dtype), np.zeros(slots, np.int64)
        filled[: len(units)], sizes[: len(units)] = seeds, records.sizes
        inputs, labels = (_in_slots(each, slots, places) for each in (records.inputs, records.labels))
        return cls(units, filled, PaddedRecords(inputs, labels, sizes))


def _in_slots(array: NDArray[Any], slots: int, places: int) -> NDArray[Any]:
    """Copy an array into zeros [slots, places, ...], in memory that begins where torch's tensors begin."""
    # Torch's memory begins at a multiple of 64 bytes, NumPy's anywhere: kernels may round by where they begin.
    filled = torch.zeros(slots, places, *array.shape[2:], dtype=torch.from_numpy(array[:0, :0]).dtype).numpy()
    filled[: len(array), : array.shape[1]] = array
    return filled


def stacking_refusal(train: StackTraining, like: PaddedRecords, numbers: int, vocabulary: int | None = None) -> str:
    """Say why units cannot share a stack; empty where each gets the same update, to the bit, beside any mates.

    Random units train once. They train again in other slots without one half of them, and again without the other half.
    The slots of the missing half are empty, or hold numbers that are not finite, huge or tiny. So every slot is
    compared. Small updates show a kernel's rounding seldom, so they are tried more often. A stack of one slot has no
    mates.

    Args:
        train: the updates by name of some of the slots' units, from records, seeds [slots] and these slots.
        like: records of the shape and type of the stack; their values do not count.
        numbers: in the update of a unit.
        vocabulary: number of tokens; None where inputs are numbers.

    Returns:
        The reason in one line, for the node's log.

    Raises:
        torch.OutOfMemoryError: the device has no room for the stack.
    """
    generator, slots = rng.public_stream(0, "units apart"), len(like.sizes)
    for _ in range(min(_TRIES, math.ceil(_COMPARED / (numbers * slots))) if slots > 1 else 0):
        for first, second, kept in _same_units_twice(generator, like, vocabulary):
            try:
                before, after = train(*first, kept[0]), train(*second, kept[1])
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a custom model may raise anything
                return f"the model does not train in a stack ({one_line(error)})"
            if not all(torch.equal(values, after[name]) for name, values in before.items()):  # a NaN proves nothing
                return "a client's update would depend on its mates, in the last bits"
    return ""


def _same_units_twice(
    generator: np.random.Generator, like: PaddedRecords, vocabulary: int | None
) -> Iterator[tuple[_Filled, _Filled, tuple[NDArray[np.int64], NDArray[np.int64]]]]:
    """Yield random units in a stack, and the same units in other slots without one half; then without the other half.

    With each pair come the slots of those left, in the first stack and in the second. All draws are public and always
    the same, so the test is reproducible.
    """
    slots, places = like.inputs.shape[:2]
    sizes = generator.integers(places // 2 + 1, places + 1, slots)
    inputs, labels = (_in_slots(each[:0], slots, places) for each in (like.inputs, like.labels))
    shape = inputs.shape
    if vocabulary is None:
        drawn: Any = generator.standard_normal(shape)
    else:  # the first and the last tokens often have a meaning of their own; some units have little but one of them
        special = generator.choice([0, 1, 2, 3, vocabulary - 1], shape).clip(max=vocabulary - 1)
        special[::2] = special.reshape(slots, -1)[::2, :1].reshape(-1, *[1] * (len(shape) - 1))
        share = generator.random((slots, *[1] * (len(shape) - 1)))
        drawn = np.where(generator.random(shape) < share, special, generator.integers(vocabulary, size=shape))
    real = np.arange(places) < sizes[:, None]
    inputs[real] = drawn[real]
    seeds = np.frombuffer(generator.bytes(rng.SEED_BYTES * slots), dtype=f"V{rng.SEED_BYTES}")
    order, cycle = np.empty(slots, np.int64), generator.permutation(slots)
    order[cycle] = np.roll(cycle, 1)  # no unit stays where it was
    halves = np.split(generator.permutation(slots), [slots // 2])
    for kept, gone in (halves, halves[::-1]):
        moved, there = _in_slots(inputs[order], slots, places), sizes[order]
        empty = generator.random(len(gone)) < (0.5 if vocabulary is None else 1)
        there[gone[empty]] = moved[gone[empty]] = 0
        if vocabulary is None:
            size = generator.choice([np.nan, np.inf, 1e30, 1e-40], ((~empty).sum(), *[1] * (len(shape) - 1)))
            moved[gone[~empty]] = size * generator.choice([-1.0, 1.0], (len(size), *shape[1:]))
        one, other = PaddedRecords(inputs, labels, sizes), PaddedRecords(moved, labels, there)
        yield (one, seeds), (other, seeds[order]), (order[kept], kept)


def batch_order(
    config: LocalTraining, sizes: NDArray[np.int64], seeds: NDArray[np.void], places: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.float32], int]:
    """Draw the gradient steps of clients with these numbers of records, side by side.

    An epoch is a random order of the client's records, cut into batches, of which the last may be smaller. ``steps``
    counts batches over as many epochs as needed. Default: one epoch. A client's order depends on its own size and seed
    only, and its shape on ``places``. A client without records has no steps.

    Args:
        config: the scenario's ``client`` section.
        sizes: number of records of each client, int64 [clients], at most ``places``.
        seeds: 32 secret bytes for each client.
        places: for the records of a client in the stack.

    Returns:
        records: int64 [steps, clients, batch], places in the client's records; None: all of them, each step.
        weights: float32 [steps, clients, batch], one over the number of records in the batch; zero for padding, and for
            a client that has done all its steps. With full batches the first axis has length one: all steps are alike.
        steps: number of steps of a client that has as many records as there are places.
    """
    batch = places if config.batch_size == "full" else min(config.batch_size, places)
    if batch == 0:
        return None, np.zeros((1, len(sizes), 0), dtype=np.float32), 0
    most, epochs = -(-places // batch), config.epochs or 1
    count = config.steps or most * epochs
    if batch == places:
        real = np.arange(batch) < sizes[:, None]
        return None, (real / np.maximum(sizes, 1)[:, None]).astype(np.float32)[None], count
    per_epoch = np.where(sizes > 0, -(-sizes // batch), most)
    steps = np.where(sizes > 0, config.steps or per_epoch * epochs, 0)
    step = np.arange(count)[:, None]
    epoch, place = np.divmod(step, per_epoch)
    taken = place[:, :, None] * batch + np.arange(batch)
    real = (taken < sizes[:, None]) & (step < steps)[:, :, None]
    in_batch = np.maximum(real.sum(2, keepdims=True), 1)
    padding = np.arange(places) >= sizes[:, None]
    orders = []  # of each epoch, a permutation of each client's records; padding comes last
    for number in range(int(epoch.max()) + 1):
        keys = rng.client_words(seeds, f"batch order of epoch {number}", places)
        orders.append(np.argsort(np.where(padding, _LAST, keys), axis=1, kind="stable"))
    clients = np.arange(len(sizes))[:, None]
    records = np.stack(orders)[epoch[:, :, None], clients, np.minimum(taken, places - 1)]
    return records, (real / in_batch).astype(np.float32), count


@dataclass(frozen=True)
class StackBatch:
    """The records of one gradient step.

    Attributes:
        records: int64 [clients, batch], places in the clients' records; None: all of them.
        labels: [clients, batch, ...].
        weights: float32 [clients, batch], of each record in its client's loss.
    """

    records: Tensor | None
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True)
class StackBatches:
    """The records of a stack of clients and the batches of their gradient steps: what their program is given.

    Attributes:
        inputs: of all records, [clients, places, ...].
        labels: of all records, [clients, places, ...].
        weights, records: as :func:`batch_order` draws them.
        steps: how many batches there are.
        counts: [clients], records in each client's first batch; on the CPU.
    """

    inputs: Tensor
    labels: Tensor
    weights: Tensor
    records: Tensor | None
    steps: int
    counts: NDArray[np.int64]

    @classmethod
    def drawn(cls, config: LocalTraining, cohort: PaddedRecords, seeds: NDArray[np.void]) -> "StackBatches":
        """Draw the batches on the CPU.

        Args:
            config: the scenario's ``client`` section.
            cohort: the clients' records.
            seeds: of the order of each client's records, 32 bytes [clients].
        """
        records, weights, steps = batch_order(config, cohort.sizes, seeds, cohort.inputs.shape[1])
        chosen = None if records is None else torch.from_numpy(records)
        tensors = aligned(cohort.inputs), torch.from_numpy(cohort.labels), torch.from_numpy(weights), chosen
        return cls(*tensors, steps, (weights[0] > 0).sum(1))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors; without ``records`` where there are none."""
        found = [self.inputs, self.labels, self.weights]
        return found if self.records is None else [*found, self.records]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "StackBatches":
        """Return the same batches with other tensors, in the order of :attr:`tensors`, such as those on a device."""
        inputs, labels, weights, *records = tensors
        changed = {"inputs": inputs, "labels": labels, "weights": weights, "records": records[0] if records else None}
        return replace(self, **changed)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[StackBatch]:
        """Yield the batch of each step, in turn. Labels are gathered, inputs are not (:meth:`inputs_of`)."""
        for step in range(self.steps):
            if self.records is None:
                yield StackBatch(None, self.labels, self.weights[0])
            else:
                records = self.records[step]
                yield StackBatch(records, self.labels[self._clients, records], self.weights[step])

    def inputs_of(self, batch: StackBatch) -> Tensor:
        """Take the inputs of a batch, [clients, batch, ...]."""
        return self.inputs if batch.records is None else self.inputs[self._clients, batch.records]

    @cached_property
    def _clients(self) -> Tensor:
        """Indices of the clients, [clients, 1]."""
        return torch.arange(len(self.counts), device=self.inputs.device)[:, None]


# Blocks of arrays: on a GPU each copy waits for the one before and for Python, and on the CPU nothing is copied. The
# worker sends the orders and records of a round, and brings its sums home.

# Every array of a block begins at a multiple of so many bytes, as torch's own tensors do on a GPU: kernels may round by
# where their operands begin.
_ALIGNMENT = 512


def aligned(array: NDArray[Any]) -> Tensor:
    """Make a tensor on the CPU whose memory begins at a multiple of 64 bytes; a copy where the array's does not."""
    fits = array.flags.writeable and array.ctypes.data % 64 == 0
    return torch.from_numpy(array) if fits else torch.tensor(array)


def send_block(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
    """Copy tensors of the CPU to a device as one block; on the CPU they are returned as they are.

    Args:
        tensors: of any types and shapes.
        device: torch's name of the device.

    Returns:
        Tensors of the same types, shapes and values, contiguous, on the device.

    Raises:
        torch.OutOfMemoryError: the device has no room for the block.
    """
    if not is_gpu(device):
        return list(tensors)
    sizes = [-(-each.numel() * each.element_size() // _ALIGNMENT) * _ALIGNMENT for each in tensors]
    block = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.startswith("cuda"))
    for part, each in zip(torch.split(block, sizes), tensors, strict=True):
        _as_in(part, each).copy_(each)
    there = block.to(device, non_blocking=True)
    return [_as_in(part, each) for part, each in zip(torch.split(there, sizes), tensors, strict=True)]


def _as_in(part: Tensor, like: Tensor) -> Tensor:
    """View the first bytes of a part of a block as a tensor of the type and shape of another one."""
    return part[: like.numel() * like.element_size()].view(like.dtype).view(like.shape)


def fetch_block(tensors: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    """Copy tensors home as one block; those on the CPU share their memory where they are float64.

    Args:
        tensors: on one device; float64, float32, or bool.

    Returns:
        float64 arrays in the tensors' shapes.
    """
    if not any(is_gpu(each.device.type) for each in tensors):
        return [each.numpy().astype(np.float64, copy=False) for each in tensors]
    block = torch.cat([each.flatten().double() for each in tensors]).cpu().numpy()
    ends = np.cumsum([math.prod(each.shape) for each in tensors])[:-1]
    return [part.reshape(each.shape) for part, each in zip(np.split(block, ends), tensors, strict=True)]
