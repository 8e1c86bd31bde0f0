"""In which order a client's records are used: full batches, or shuffled minibatches, steps or epochs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.federation.training import Client

_LAST = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class BatchOrder:
    """The gradient steps of some clients, side by side.

    Attributes:
        records: int64 of shape [steps, clients, batch], places in the client's records; None: all of them, each step.
        weights: float32 of shape [steps, clients, batch], one over the number of records in the batch, zero where it
            is padded. A client that has done all its steps has weight zero throughout. With full batches, all steps
            of a client are alike, and the first axis has length one where nobody is done before the others.
        steps: number of steps of a client that has as many records as there are places.
    """

    records: NDArray[np.int64] | None
    weights: NDArray[np.float32]
    steps: int


def batch_order(config: Client, sizes: NDArray[np.int64], seeds: NDArray[np.void], places: int) -> BatchOrder:
    """The steps of clients with these numbers of records, at most ``places``.

    An epoch is a random order of the client's records, cut into batches, of which the last may be smaller; ``steps``
    counts batches over as many epochs as it takes. Where the scenario gives neither steps nor epochs, it is one epoch.
    A client's order depends on its own size and seed only, and its shape on ``places``. A client without records has no
    steps.
    """
    batch = places if config.batch_size == "full" else min(config.batch_size, places)
    if batch == 0:
        return BatchOrder(None, np.zeros((1, len(sizes), 0), dtype=np.float32), 0)
    most, epochs = -(-places // batch), config.epochs or 1
    per_epoch = np.where(sizes > 0, -(-sizes // batch), most)
    steps = np.where(sizes > 0, config.steps or per_epoch * epochs, 0)
    count = config.steps or most * epochs
    if batch == places:
        real = np.arange(batch) < sizes[:, None]
        weights = (real / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        return BatchOrder(None, weights[None], count)
    step = np.arange(count)[:, None]
    epoch, place = np.divmod(step, per_epoch)
    taken = place[:, :, None] * batch + np.arange(batch)
    real = (taken < sizes[:, None]) & (step < steps)[:, :, None]
    in_batch = np.maximum(real.sum(2, keepdims=True), 1)
    orders = _orders(sizes, seeds, int(epoch.max()) + 1, places)
    clients = np.arange(len(sizes))[:, None]
    records = orders[epoch[:, :, None], clients, np.minimum(taken, places - 1)]
    return BatchOrder(records, (real / in_batch).astype(np.float32), count)


def _orders(sizes: NDArray[np.int64], seeds: NDArray[np.void], epochs: int, places: int) -> NDArray[np.int64]:
    """A permutation of each client's records for each epoch, shape [epochs, clients, places]; padding comes last."""
    padding = np.arange(places) >= sizes[:, None]
    orders = []
    for epoch in range(epochs):
        keys = rng.client_words(seeds, f"batch order of epoch {epoch}", places)
        orders.append(np.argsort(np.where(padding, _LAST, keys), axis=1, kind="stable"))
    return np.stack(orders)
