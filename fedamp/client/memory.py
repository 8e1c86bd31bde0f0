"""How many clients train stacked together, and the memory that they take (no torch here).

The number follows from the task and the kind of device alone: on machines of any size the results are the same.
"""

import math

import numpy as np

from fedamp.data import Dataset
from fedamp.devices import is_gpu

# Stacked float32 numbers a batch aims at: on a CPU a dozen clients even of a residual network (128 MB a worker); a GPU
# is slow on small batches.
_CPU_NUMBERS = 1 << 25
_GPU_NUMBERS = 1 << 29

# What a process takes of a GPU before its first tensor; and how many times its stacked numbers a batch holds at most:
# gradients, what optimisers remember, what clipping makes (measured in tests/client/test_device.py).
_CONTEXT_BYTES = 1 << 30
_COPIES = 4

_CLIENTS_LOOKED_AT = 1000


def numbers_of_a_client(parameters: int, kept_per_record: int, dataset: Dataset) -> int:
    """Stacked float32 numbers for a client: its model and where that goes, its records and what a pass keeps of them.

    Args:
        parameters: numbers in the model.
        kept_per_record: numbers that a forward pass keeps for the backward pass
            (:func:`fedamp.models.cost.kept_per_record`).
        dataset: by records where the unit is a sample; the largest of its first clients counts.
    """
    clients = np.arange(min(dataset.num_clients, _CLIENTS_LOOKED_AT)) if dataset.hosted is None else dataset.hosted
    records = int(dataset.sizes(clients[:_CLIENTS_LOOKED_AT]).max(initial=1))
    return 2 * parameters + records * (kept_per_record + math.prod(dataset.input_shape))


def numbers_of_a_record(kept_per_record: int, dataset: Dataset) -> int:
    """The same where records take single steps: no gradient of one is ever formed (:mod:`fedamp.client.records`).

    What a pass keeps, its derivatives, and both as float64, which clipping needs.
    """
    return numbers_of_a_client(0, 4 * kept_per_record, dataset)


def clients_per_batch(numbers: int, device: str = "cpu") -> int:
    """The size of the batches in which clients train, at least 1.

    Args:
        numbers: of a client (:func:`numbers_of_a_client`).
        device: of this kind; any two of them get the same answer.
    """
    return max(1, (_GPU_NUMBERS if is_gpu(device) else _CPU_NUMBERS) // numbers)


def bytes_of_a_worker(numbers: int) -> int:
    """Memory of a GPU for a worker whose largest batch has so many stacked float32 numbers: an upper estimate."""
    return _CONTEXT_BYTES + 4 * _COPIES * numbers
