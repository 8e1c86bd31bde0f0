"""How many clients train stacked together. It follows from the task, not from the machine's size (no torch here)."""

import math

import numpy as np

from fedamp.data import Dataset

# Stacked float32 numbers a batch aims at: on a CPU it should stay near the caches; a GPU is slow on small batches.
_CPU_NUMBERS = 1 << 20
_GPU_NUMBERS = 1 << 28

# What a model holds for every number of its input while it trains, as a rule of thumb: convolutions hold tens.
_PER_INPUT = 16

_CLIENTS_LOOKED_AT = 1000


def clients_per_batch(parameters: int, dataset: Dataset, device: str = "cpu") -> int:
    """The size of the batches in which clients train, at least 1.

    Args:
        parameters: numbers in the model.
        dataset: by records where the unit is a sample; the largest of its first clients counts.
        device: torch's name of the device. Two machines with the same kind of device get the same answer, and so the
            same results.
    """
    numbers = _GPU_NUMBERS if device.startswith("cuda") else _CPU_NUMBERS
    clients = np.arange(min(dataset.num_clients, _CLIENTS_LOOKED_AT)) if dataset.hosted is None else dataset.hosted
    records = int(dataset.sizes(clients[:_CLIENTS_LOOKED_AT]).max(initial=1))
    of_a_client = 2 * parameters + _PER_INPUT * records * math.prod(dataset.input_shape)
    return max(1, numbers // of_a_client)
