"""Evaluate a model on a public test set: its loss and metrics.

Only records that the scenario declares public are used here; scores on people's own records cost privacy and have noise
(``fedamp/extensions/evaluation``). The journal evaluates the released model of a round with a :class:`PublicTest`.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call

from fedamp.base.arrays import Arrays
from fedamp.base.devices import is_gpu, one_thread
from fedamp.federation.losses import CrossEntropy, Loss
from fedamp.models.custom import generators_from
from fedamp.models.networks import Network

# Multiplications below which one thread is faster: others start slowly, on cores that train.
_ONE_THREAD = 100_000_000


class ModelEvaluation(NamedTuple):
    """Loss and metrics of a model on some records.

    Attributes:
        loss: mean over the records; nan or inf like the model's outputs.
        metrics: by name; the first one leads.
    """

    loss: float
    metrics: dict[str, float]

    @property
    def score(self) -> float:
        """Leading metric: at most 1, and more is better."""
        return next(iter(self.metrics.values()))


PublicRecords = tuple[NDArray[Any], NDArray[Any]]
"""Inputs [records, *input_shape] and labels [records, ...]."""


@dataclass(frozen=True)
class PublicTest:
    """Evaluator of models on the public records of a scenario.

    Attributes:
        module: the architecture.
        loss: of the scenario; it names the metrics.
        device: torch's name of the device.
        batch: records in one forward pass.
        test, validation: to test the model, and to choose between settings; both may be empty.
    """

    module: nn.Module
    loss: Loss
    device: str
    batch: int
    test: PublicRecords
    validation: PublicRecords

    def __call__(self, parameters: Arrays, records: PublicRecords | None = None) -> ModelEvaluation:
        """Compute loss and metrics of a model on public records; default: the test set."""
        inputs, labels = records or self.test
        return evaluate(self.module, parameters, inputs, labels, self.device, self.batch, self.loss)

    def validation_score(self, parameters: Arrays) -> float | None:
        """Compute the leading metric on the validation records; None without such records."""
        return self(parameters, self.validation).score if len(self.validation[1]) else None


def evaluate(
    module: nn.Module,
    parameters: Mapping[str, NDArray[np.float32]],
    inputs: NDArray[Any],
    labels: NDArray[Any],
    device: str = "cpu",
    batch: int = 1024,
    loss: Loss | None = None,
) -> ModelEvaluation:
    """Compute the mean loss and the metrics of a model on records.

    Args:
        module: the architecture; its own parameter values are neither used nor changed.
        parameters: the values to evaluate, by name.
        inputs: shape [records, *input_shape].
        labels: shape [records, ...], as the loss takes them.
        device: torch's name of the device.
        batch: records in one forward pass; fixed, so that the result depends on nothing else.
        loss: default: cross-entropy.
    """
    loss = loss or CrossEntropy()
    # Code of other people gets copies: what it changes in place must not change the test set or the released model.
    is_known = isinstance(module, Network) and loss.is_known
    take = torch.as_tensor if is_known else torch.tensor
    tensors = {name: take(value, device=device) for name, value in parameters.items()}
    module = module.to(device)
    training = module.training
    module.eval()
    total, tally = 0.0, dict[str, Any]()
    multiplications = sum(value.size for value in parameters.values()) * len(labels)
    threads = nullcontext() if multiplications > _ONE_THREAD else one_thread()
    draws = nullcontext() if is_known else generators_from(0, is_gpu(device))  # a custom model may draw here, too
    with threads, torch.no_grad(), draws:
        for start in range(0, len(labels), batch):
            targets, records = (take(each[start : start + batch], device=device) for each in (labels, inputs))
            values = tensors if is_known else {name: value.clone() for name, value in tensors.items()}
            outputs = functional_call(module, values, (records,))
            each = loss.each(loss.exact_outputs(outputs), targets if is_known else targets.clone())
            total += float(each.double().sum())
            found = loss.tally(outputs, targets)
            tally = {name: tally[name] + value if name in tally else value for name, value in found.items()}
    module.train(training)
    return ModelEvaluation(total / len(labels), loss.metrics(tally))
