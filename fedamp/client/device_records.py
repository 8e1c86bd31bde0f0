"""Keep the records of a simulated node's clients on its GPU: a round sends their numbers, and gathers them there.

They are copied once, if they take at most a public share of the GPU's memory (:func:`kept_bytes`). Where they do not
fit, and in a deployment, where each message has a process of its own, a round copies the records of its clients.
Either way a client trains on the same bits.

:mod:`fedamp.client.worker` decides which way is taken.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp.base.numbers import amount_of_bytes
from fedamp.client.stacks import ClientStack
from fedamp.client.task import kept_bytes, power_above
from fedamp.data import Dataset, PaddedRecords
from fedamp.errors import DataError

_BLOCK_BYTES = 1 << 28  # of records that are read at once


class DeviceRecords:
    """The records of all clients of a data set, one after the other on a device; behind them is one of zeros.

    Args:
        dataset: the records.
        read: reads the records of clients, as for a round.
        device: torch's name of the device.
        memory: bytes of the device; None: not known.

    Raises:
        DataError: they do not fit, or the records of some client cannot be read.
        torch.OutOfMemoryError: the device has no room for them.
    """

    def __init__(
        self,
        dataset: Dataset,
        read: Callable[[NDArray[np.int64]], PaddedRecords],
        device: str,
        memory: int | None,
    ) -> None:
        clients = np.arange(dataset.num_clients) if dataset.hosted is None else dataset.hosted
        sizes, self._like = dataset.sizes(clients), read(clients[:1])
        shapes = [(each.dtype, each.shape[2:]) for each in (self._like.inputs, self._like.labels)]
        each = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in shapes)
        self._zeros, most = int(sizes.sum()), kept_bytes(memory)
        if (self._zeros + 1) * each > most or self._zeros > np.iinfo(np.int32).max:
            raise DataError(f"the records take more than {amount_of_bytes(most)}")
        self._first, self._sizes = np.zeros((2, dataset.num_clients), np.int64)
        self._held = [
            torch.from_numpy(np.zeros(0, dtype)).to(device).new_zeros(self._zeros + 1, *shape)
            for dtype, shape in shapes
        ]
        filled, rooms = 0, np.array([power_above(size) for size in sizes.tolist()], np.int64)
        for room in np.unique(rooms).tolist():  # beside one with many records, the others would be mostly padding
            some = clients[rooms == room]
            for part in np.array_split(some, -(-len(some) * room * each // _BLOCK_BYTES) or 1):
                cohort = read(part)
                real = np.arange(cohort.inputs.shape[1]) < cohort.sizes[:, None]
                for held, records in zip(self._held, (cohort.inputs, cohort.labels), strict=True):
                    held[filled : filled + real.sum()] = torch.from_numpy(records[real]).to(device)
                self._first[part] = filled + np.cumsum(cohort.sizes) - cohort.sizes
                self._sizes[part] = cohort.sizes
                filled += int(real.sum())

    def stack(self, units: NDArray[np.int64], seeds: NDArray[np.void], slots: int, places: int) -> ClientStack:
        """Put units into a stack; in place of inputs it has the numbers of the records, and no labels.

        Args:
            units, seeds, slots, places: as for :meth:`fedamp.client.stacks.ClientStack.of`.
        """
        filled, sizes = np.zeros(slots, seeds.dtype), np.zeros(slots, np.int64)
        filled[: len(units)], sizes[: len(units)] = seeds, self._sizes[units]
        numbers, place = np.full((slots, places), self._zeros, np.int32), np.arange(places)
        real = place < self._sizes[units][:, None]
        numbers[: len(units)][real] = (self._first[units][:, None] + place)[real]
        return ClientStack(units, filled, PaddedRecords(numbers, np.zeros((slots, places, 0), np.int8), sizes))

    def like(self, stack: ClientStack) -> ClientStack:
        """Return a stack with records of zeros, in the shape and type of those that :meth:`gathered` returns."""
        room = stack.cohort.inputs.shape
        inputs, labels = (
            np.broadcast_to(np.zeros((), each.dtype), (*room, *each.shape[2:]))
            for each in (self._like.inputs, self._like.labels)
        )
        return ClientStack(stack.units, stack.seeds, PaddedRecords(inputs, labels, stack.cohort.sizes))

    def gathered(self, there: Sequence[Tensor]) -> list[Tensor]:
        """Replace the first two tensors of a stack on the device, the numbers of records, by inputs and labels."""
        numbers, _, *others = there
        taken = (each.index_select(0, numbers.flatten()).view(*numbers.shape, *each.shape[1:]) for each in self._held)
        return [*taken, *others]
