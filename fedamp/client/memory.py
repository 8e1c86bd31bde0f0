"""How many clients train stacked together. It follows from the task, not from the machine's size (no torch here)."""

import math

import numpy as np

from fedamp.data import Dataset

# Stacked float32 numbers a batch aims at: on a CPU a dozen clients even of a residual network (128 MB a worker); a GPU
# is slow on small batches.
_CPU_NUMBERS = 1 << 25
_GPU_NUMBERS = 1 << 29

_CLIENTS_LOOKED_AT = 1000


def clients_per_batch(parameters: int, kept_per_record: int, dataset: Dataset, device: str = "cpu") -> int:
    """The size of the batches in which clients train, at least 1.

    Args:
        parameters: numbers in the model.
        kept_per_record: numbers that a forward pass keeps for the backward pass
            (:func:`fedamp.models.cost.kept_per_record`).
        dataset: by records where the unit is a sample; the largest of its first clients counts.
        device: torch's name of the device. Two machines with the same kind of device get the same answer, and so the
            same results.
    """
    numbers = _GPU_NUMBERS if device.startswith("cuda") else _CPU_NUMBERS
    clients = np.arange(min(dataset.num_clients, _CLIENTS_LOOKED_AT)) if dataset.hosted is None else dataset.hosted
    records = int(dataset.sizes(clients[:_CLIENTS_LOOKED_AT]).max(initial=1))
    of_a_client = 2 * parameters + records * (kept_per_record + math.prod(dataset.input_shape))
    return max(1, numbers // of_a_client)
