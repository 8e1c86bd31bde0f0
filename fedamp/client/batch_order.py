"""In which order a client's records are used: full batches, or shuffled minibatches, steps or epochs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedamp import rng, scenario

_LAST = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class BatchOrder:
    """The gradient steps of some clients, side by side.

    Attributes:
        records: int64 of shape [steps, clients, batch], places in the client's records; None: all of them, each step.
        weights: float32 of shape [steps, clients, batch], one over the number of records in the batch, zero where it
            is padded. A client that has done all its steps has weight zero throughout. With full batches, all steps
            of a client are alike, and the first axis has length one where nobody is done before the others.
        steps: number of steps of the client with most.
    """

    records: NDArray[np.int64] | None
    weights: NDArray[np.float32]
    steps: int


def batch_order(config: scenario.Client, sizes: NDArray[np.int64], seeds: NDArray[np.void]) -> BatchOrder:
    """The steps of clients with these numbers of records.

    An epoch is a random order of the client's records, cut into batches, of which the last may be smaller; ``steps``
    counts batches over as many epochs as it takes. Where the scenario gives neither steps nor epochs, it is one epoch.
    A client's order depends on its own size and seed only. A client without records has no steps.
    """
    longest = int(sizes.max(initial=0))
    batch = longest if config.batch_size == "full" else min(config.batch_size, longest)
    if batch == 0:
        return BatchOrder(None, np.zeros((1, len(sizes), 0), dtype=np.float32), 0)
    per_epoch = -(-sizes // batch)
    steps = np.where(sizes > 0, config.steps, 0) if config.steps else per_epoch * (config.epochs or 1)
    count = int(steps.max())
    if batch == longest:
        real = np.arange(batch) < sizes[:, None]
        weights = (real / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        return BatchOrder(None, weights[None], count)
    step = np.arange(count)[:, None]
    epoch, place = np.divmod(step, np.maximum(per_epoch, 1))
    places = place[:, :, None] * batch + np.arange(batch)
    real = (places < sizes[:, None]) & (step < steps)[:, :, None]
    in_batch = np.maximum(real.sum(2, keepdims=True), 1)
    orders = _orders(sizes, seeds, int(epoch.max()) + 1, longest)
    clients = np.arange(len(sizes))[:, None]
    records = orders[epoch[:, :, None], clients, np.minimum(places, longest - 1)]
    return BatchOrder(records, (real / in_batch).astype(np.float32), count)


def _orders(sizes: NDArray[np.int64], seeds: NDArray[np.void], epochs: int, longest: int) -> NDArray[np.int64]:
    """A permutation of each client's records for each epoch, shape [epochs, clients, longest]; padding comes last."""
    padding = np.arange(longest) >= sizes[:, None]
    orders = []
    for epoch in range(epochs):
        keys = rng.client_words(seeds, f"batch order of epoch {epoch}", longest)
        orders.append(np.argsort(np.where(padding, _LAST, keys), axis=1, kind="stable"))
    return np.stack(orders)
