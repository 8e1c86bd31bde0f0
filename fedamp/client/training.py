"""Local training of many clients at once: stacked parameters, padded records, one program for all."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng, scenario
from fedamp.client import perceptron
from fedamp.client.batch_order import BatchOrder, batch_order
from fedamp.client.optimizers import LocalOptimizer, is_plain, optimizer_of
from fedamp.data import Cohort
from fedamp.devices import is_gpu
from fedamp.losses import CrossEntropy, Loss
from fedamp.models.generators import generators_from

log = logging.getLogger("fedamp.client")

# Outputs [records, ...] of one client: forward(parameters, inputs [records, ...], *arguments of the client).
Forward = Callable[..., Tensor]


@dataclass(frozen=True)
class Trained:
    """What local training gave.

    Attributes:
        updates: float32 of shape [clients, *shape] by parameter name: trained minus where it started.
        losses: float64 of shape [clients]; the sum over the records of the first batch of their loss, before training.
        records: int64 of shape [clients], how many records these were.
    """

    updates: dict[str, Tensor]
    losses: NDArray[np.float64]
    records: NDArray[np.int64]


class Stacked:
    """The clients' parameters during local training.

    Args:
        together: outputs [clients, records, ...] for parameters, inputs and arguments with an axis of clients.
        start: parameters by name, of shape [clients, *shape]; never written to.
        arguments: further arguments of ``together``.
        optimizer: which way a step goes; fresh.
        rate: learning rate.
        proximal: weight of the FedProx term (Li et al. 2020).
        bfloat16: whether matrix products may use bfloat16.
    """

    def __init__(
        self,
        together: Forward,
        start: dict[str, Tensor],
        arguments: Sequence[Tensor],
        optimizer: LocalOptimizer,
        rate: float,
        proximal: float,
        bfloat16: bool,
    ) -> None:
        self._together, self._start, self._arguments = together, start, arguments
        self._optimizer, self._rate, self._proximal, self._bfloat16 = optimizer, rate, proximal, bfloat16
        self._values = list(start.values())
        self._leaves: list[Tensor] = []
        self._untouched = True

    def outputs(self, inputs: Tensor) -> Tensor:
        """Outputs [clients, records, ...] for inputs [clients, records, ...]."""
        self._leaves = [value.detach().requires_grad_() for value in self._values]
        low = torch.autocast(inputs.device.type, dtype=torch.bfloat16) if self._bfloat16 else nullcontext()
        with low:
            return self._together(dict(zip(self._start, self._leaves, strict=True)), inputs, *self._arguments)

    def descend(self, outputs: Tensor, output_gradients: Tensor, active: Tensor) -> None:
        """One step for the clients that are active: bool of shape [clients]."""
        # Through a scalar: handing torch the outputs' gradients makes it import its symbolic algebra, which takes
        # longer than many rounds.
        scalar = (outputs * output_gradients).sum()
        gradients = list(torch.autograd.grad(scalar, self._leaves, materialize_grads=True))
        if self._proximal:
            away = torch._foreach_sub(self._values, list(self._start.values()))
            gradients = list(torch._foreach_add(gradients, away, alpha=self._proximal))
        gradients = self._optimizer.directions(gradients, self._values)
        if self._proximal or not self._optimizer.rests_without_gradient:
            gradients = [gradient * active.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]
        if self._untouched:  # what clients start from is shared, and not ours to overwrite
            # Stacks lie in memory as their gradients do: whatever way round, the steps that follow are fast.
            stacks = [torch.empty_like(gradient) for gradient in gradients]
            for value, gradient, stack in zip(self._values, gradients, stacks, strict=True):
                torch.add(value, gradient, alpha=-self._rate, out=stack)
            self._values, self._untouched = stacks, False
            return
        torch._foreach_add_(self._values, gradients, alpha=-self._rate)

    def updates(self) -> dict[str, Tensor]:
        """Trained minus start, by name. Ends the training: the memory is reused."""
        start = self._start.values()
        if self._untouched:
            changes = [torch.zeros_like(first, memory_format=torch.contiguous_format) for first in start]
        else:
            changes = [value.sub_(first) for value, first in zip(self._values, start, strict=True)]
        return dict(zip(self._start, changes, strict=True))


class Trainer:
    """Trains clients whose models have the same architecture.

    Clients train together under ``torch.func.vmap``; where that cannot run the model, one after the other; without
    autograd (:mod:`fedamp.client.perceptron`), or as one convolutional network (:mod:`fedamp.client.channels`), where
    that trains the model. The result is the same to floating-point tolerance.

    Args:
        forward: the model. It must treat records independently.
        config: the scenario's client section.
        loss: what is minimised.
        rate: learning rate; left out: that of the first round.
        device: torch's name of the device.
        precision: ``float32``; ``tf32`` and ``bfloat16`` are for GPUs.
        layers: of a model that is fully connected (:func:`fedamp.client.perceptron.layers_of`).
        together: the model of all clients at once, a faster way where it has one.
    """

    def __init__(
        self,
        forward: Forward,
        config: scenario.Client,
        device: str = "cpu",
        precision: str = "float32",
        layers: Sequence[str] | None = None,
        together: Forward | None = None,
        loss: Loss | None = None,
        rate: float | None = None,
    ) -> None:
        self.forward, self.config, self.device, self.precision = forward, config, device, precision
        self.loss = loss or CrossEntropy()
        self.rate = config.learning_rate_in(1) if rate is None else rate
        plain = is_plain(config) and type(self.loss) is CrossEntropy and precision != "bfloat16"
        self.layers, self.together = layers if plain else None, together
        self.stacks = True

    def train(
        self, start: dict[str, Tensor], cohort: Cohort, seeds: NDArray[np.void], arguments: Sequence[Tensor] = ()
    ) -> Trained:
        """Train every client of a cohort from where it starts.

        Args:
            start: parameters by name, of shape [clients, *shape]; a view that repeats shared ones is enough.
            cohort: the clients' records.
            seeds: a seed for each client, from which its order of records follows.
            arguments: further arguments of ``forward``, of shape [clients, ...].
        """
        arguments = [argument.to(self.device) for argument in arguments]
        if self.layers is not None:
            return self._without_autograd(self.layers, start, cohort, seeds)
        if self.together is not None:
            return self._train(self._stacked(self.together, start, arguments), cohort, seeds)
        if self.stacks:
            try:
                return self._train(self._stacked(torch.func.vmap(self.forward), start, arguments), cohort, seeds)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError, NotImplementedError) as error:
                trained = self._one_by_one(start, cohort, seeds, arguments)
                self.stacks = False
                log.info("clients train one by one: the model cannot run under torch.func.vmap (%s)", error)
                return trained
        return self._one_by_one(start, cohort, seeds, arguments)

    def _one_by_one(
        self, start: dict[str, Tensor], cohort: Cohort, seeds: NDArray[np.void], arguments: Sequence[Tensor]
    ) -> Trained:
        def alone(parameters: dict[str, Tensor], inputs: Tensor, *others: Tensor) -> Tensor:
            mine = {name: value[0] for name, value in parameters.items()}
            return self.forward(mine, inputs[0], *(other[0] for other in others))[None]

        each = []
        words = rng.client_words(seeds, "what the model draws", 1)[:, 0].tolist()
        for client, size in enumerate(cohort.sizes):
            one = slice(client, client + 1)
            own = Cohort(cohort.inputs[one, :size], cohort.labels[one, :size], cohort.sizes[one])
            first = {name: value[one] for name, value in start.items()}
            with generators_from(words[client] >> 1, is_gpu(self.device)):
                stacked = self._stacked(alone, first, [other[one] for other in arguments])
                each.append(self._train(stacked, own, seeds[one]))
        updates = {name: torch.cat([one.updates[name] for one in each]) for name in start}
        losses, records = (np.concatenate([getattr(one, name) for one in each]) for name in ("losses", "records"))
        return Trained(updates, losses, records)

    def _stacked(self, together: Forward, start: dict[str, Tensor], arguments: Sequence[Tensor]) -> Stacked:
        optimizer, low = optimizer_of(self.config), self.precision == "bfloat16"
        return Stacked(together, start, arguments, optimizer, self.rate, self.config.proximal, low)

    def _without_autograd(
        self, layers: Sequence[str], start: dict[str, Tensor], cohort: Cohort, seeds: NDArray[np.void]
    ) -> Trained:
        order = batch_order(self.config, cohort.sizes, seeds)
        batches = _Batches(cohort, order, self.device)
        updates, losses = perceptron.descend(layers, start, batches.inputs, batches.places(), self.rate)
        return Trained(updates, losses.cpu().numpy(), (order.weights[0] > 0).sum(1))

    def _train(self, clients: Stacked, cohort: Cohort, seeds: NDArray[np.void]) -> Trained:
        """Steps down the mean loss of each batch."""
        order = batch_order(self.config, cohort.sizes, seeds)
        batches = _Batches(cohort, order, self.device)
        losses = torch.zeros(len(cohort.sizes), dtype=torch.float64)
        for step in range(order.steps):
            inputs, labels, weights = batches[step]
            outputs = clients.outputs(inputs)
            values = outputs.detach().float()
            if step == 0:
                losses = self.loss.sums(values, labels, weights).cpu()
            clients.descend(outputs, self.loss.gradients(values, labels, weights), (weights > 0).any(1))
        return Trained(clients.updates(), losses.numpy(), (order.weights[0] > 0).sum(1))


class _Batches:
    """The records of every step, on the device."""

    def __init__(self, cohort: Cohort, order: BatchOrder, device: str) -> None:
        self.inputs = torch.from_numpy(cohort.inputs).to(device)
        self.labels = torch.from_numpy(cohort.labels).to(device)
        self.weights = torch.from_numpy(order.weights).to(device)
        self.records = None if order.records is None else torch.from_numpy(order.records).to(device)
        self.clients = torch.arange(len(cohort.sizes), device=device)[:, None]
        self.steps = order.steps

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        if self.records is None:
            return self.inputs, self.labels, self.weights[0]
        records = self.records[step]
        return self.inputs[self.clients, records], self.labels[self.clients, records], self.weights[step]

    def places(self) -> list[perceptron.Batch]:
        """The same without the inputs."""
        if self.records is None:
            return [perceptron.Batch(None, self.labels, self.weights[0])] * self.steps
        return [
            perceptron.Batch(records, self.labels.gather(1, records), weights)
            for records, weights in zip(self.records, self.weights, strict=True)
        ]


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """Inside, a GPU rounds to tf32 only where the scenario asks for it (torch by default lets convolutions do so)."""
    if not is_gpu(device):
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
