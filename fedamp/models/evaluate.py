"""Accuracy and loss of a model on a public test set."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

# Multiplications below which one thread is faster: others have to be woken, and wait for work on cores that train.
_ONE_THREAD = 100_000_000


def evaluate(
    module: nn.Module,
    parameters: Mapping[str, NDArray[np.float32]],
    inputs: NDArray[np.float32],
    labels: NDArray[np.int64],
    device: str = "cpu",
    batch: int = 1024,
) -> tuple[float, float]:
    """Share of records classified right, and mean cross-entropy in nats.

    Args:
        module: gives the architecture; its own parameter values are not used, and it is left as it was.
        parameters: the values to evaluate, by name.
        inputs: shape [records, *input_shape].
        labels: shape [records].
        batch: records in one forward pass; fixed, so that the result does not depend on anything else.

    Returns:
        (accuracy in [0, 1], loss); the loss is nan or inf where the model is.
    """
    tensors = {name: torch.as_tensor(value, device=device) for name, value in parameters.items()}
    module = module.to(device)
    training = module.training
    module.eval()
    right, loss = 0, 0.0
    with torch.no_grad(), _as_many_threads_as_pay(sum(value.size for value in parameters.values()) * len(labels)):
        for start in range(0, len(labels), batch):
            targets = torch.as_tensor(labels[start : start + batch], device=device)
            logits = functional_call(module, tensors, (torch.as_tensor(inputs[start : start + batch], device=device),))
            right += int((logits.argmax(dim=1) == targets).sum())
            loss += float(cross_entropy(logits.double(), targets, reduction="sum"))
    module.train(training)
    return right / len(labels), loss / len(labels)


@contextmanager
def _as_many_threads_as_pay(multiplications: int) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if multiplications > _ONE_THREAD else 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
