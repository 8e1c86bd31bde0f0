"""The batches of local training: full ones, or shuffled minibatches, steps or epochs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.client.stacks import aligned
from fedamp.data import Cohort
from fedamp.federation.training import LocalTraining

_LAST = np.uint64(2**64 - 1)


def batch_order(
    config: LocalTraining, sizes: NDArray[np.int64], seeds: NDArray[np.void], places: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.float32], int]:
    """The gradient steps of clients with these numbers of records, at most ``places``, side by side.

    An epoch is a random order of the client's records, cut into batches, of which the last may be smaller; ``steps``
    counts batches over as many epochs as needed. Default: one epoch. A client's order depends on its own size and seed
    only, and its shape on ``places``. A client without records has no steps.

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
class Batch:
    """The records of one gradient step."""

    records: Tensor | None  # int64 [clients, batch], places in the clients' records; None: all of them
    labels: Tensor  # [clients, batch, ...]
    weights: Tensor  # float32 [clients, batch], of each record in its client's loss


class Batches:
    """The batches of a stack of clients, on a device.

    ``inputs`` are of all records, [clients, places, ...]; ``counts`` [clients] of those in each client's first batch;
    ``steps`` is how many batches there are.
    """

    def __init__(self, config: LocalTraining, cohort: Cohort, seeds: NDArray[np.void], device: str) -> None:
        records, weights, self.steps = batch_order(config, cohort.sizes, seeds, cohort.inputs.shape[1])
        self.inputs, self._labels = aligned(cohort.inputs).to(device), torch.from_numpy(cohort.labels).to(device)
        self._weights, self.counts = torch.from_numpy(weights).to(device), (weights[0] > 0).sum(1)
        self._records = None if records is None else torch.from_numpy(records).to(device)
        self._clients = torch.arange(len(cohort.sizes), device=device)[:, None]

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.steps):
            if self._records is None:
                yield Batch(None, self._labels, self._weights[0])
            else:
                records = self._records[step]
                yield Batch(records, self._labels[self._clients, records], self._weights[step])

    def inputs_of(self, batch: Batch) -> Tensor:
        """The inputs of a batch, [clients, batch, ...]."""
        return self.inputs if batch.records is None else self.inputs[self._clients, batch.records]
