"""Local training of many clients at once: stacked parameters, padded records, one program for all."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp import rng
from fedamp.base.devices import is_gpu
from fedamp.client import perceptron
from fedamp.client.batch_order import BatchOrder, batch_order
from fedamp.client.optimizers import LocalOptimizer, is_plain, optimizer_of
from fedamp.client.stacks import MILD_RATE, aligned, why_alone
from fedamp.data import Cohort
from fedamp.federation.losses import CrossEntropy, Loss
from fedamp.federation.training import Client
from fedamp.models.generators import generators_from

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

    Clients train together under ``torch.func.vmap``; without autograd (:mod:`fedamp.client.perceptron`), or as one
    convolutional network (:mod:`fedamp.client.channels`), where that trains the model. The result is the same to
    floating-point tolerance. A stack of one client needs none of it: any model trains in one.

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
        config: Client,
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

    def train(
        self, start: dict[str, Tensor], cohort: Cohort, seeds: NDArray[np.void], arguments: Sequence[Tensor] = ()
    ) -> Trained:
        """Train every client of a stack. What a client gets follows from the shape of the stack, not from its mates,
        where its kernels keep to that (:func:`fedamp.client.stacks.why_alone`).

        Args:
            start: where all of them start: parameters by name.
            cohort: the clients' records.
            seeds: a seed for each client, from which its order of records follows.
            arguments: further arguments of ``forward``, of shape [clients, ...].
        """
        order = batch_order(self.config, cohort.sizes, seeds, cohort.inputs.shape[1])
        batches, clients = _Batches(cohort, order, self.device), len(cohort.sizes)
        if self.layers is not None:
            updates, losses = perceptron.descend(self.layers, start, batches.inputs, batches.places(), self.rate)
            return Trained(updates, losses.cpu().numpy(), (order.weights[0] > 0).sum(1))
        stacked = {name: value.expand(clients, *value.shape) for name, value in start.items()}
        arguments = [each.to(self.device) for each in arguments]
        if self.together is None and clients == 1:
            word = int(rng.client_words(seeds, "what the model draws", 1)[0, 0])
            with generators_from(word >> 1, is_gpu(self.device)):
                return self._train(self._stacked(self._alone, stacked, arguments), batches)
        together = self.together or torch.func.vmap(self.forward)
        return self._train(self._stacked(together, stacked, arguments), batches)

    def why_alone(
        self,
        start: dict[str, Tensor],
        like: Cohort,
        arguments: Callable[[NDArray[np.void]], Sequence[Tensor]],
        vocabulary: int | None,
    ) -> str:
        """Why clients cannot share such a stack; empty where they can.

        Args:
            start, like: as ``start`` and ``cohort`` of :meth:`train`; the records are not looked at.
            arguments: further arguments of ``forward``, of clients with these seeds.
            vocabulary: number of tokens; None where inputs are numbers.
        """
        few = copy.copy(self)
        few.rate = MILD_RATE
        few.config = self.config.model_copy(update={"steps": min(self.config.steps or 3, 3), "epochs": None})

        def train(cohort: Cohort, seeds: NDArray[np.void], kept: NDArray[np.int64]) -> dict[str, Tensor]:
            updates = few.train(start, cohort, seeds, arguments(seeds)).updates
            return {name: update[torch.from_numpy(kept).to(update.device)] for name, update in updates.items()}

        return why_alone(train, like, sum(value.numel() for value in start.values()), vocabulary)

    def _alone(self, parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
        mine = {name: value[0] for name, value in parameters.items()}
        return self.forward(mine, inputs[0], *(argument[0] for argument in arguments))[None]

    def _stacked(self, together: Forward, start: dict[str, Tensor], arguments: Sequence[Tensor]) -> Stacked:
        optimizer, low = optimizer_of(self.config), self.precision == "bfloat16"
        return Stacked(together, start, arguments, optimizer, self.rate, self.config.proximal, low)

    def _train(self, clients: Stacked, batches: "_Batches") -> Trained:
        """Steps down the mean loss of each batch."""
        losses = torch.zeros(len(batches.clients), dtype=torch.float64)
        for step in range(batches.steps):
            inputs, labels, weights = batches[step]
            outputs = clients.outputs(inputs)
            values = outputs.detach().float()
            if step == 0:
                losses = self.loss.sums(values, labels, weights).cpu()
            clients.descend(outputs, self.loss.gradients(values, labels, weights), (weights > 0).any(1))
        return Trained(clients.updates(), losses.numpy(), (batches.weights[0] > 0).sum(1).cpu().numpy())


class _Batches:
    """The records of every step, on the device."""

    def __init__(self, cohort: Cohort, order: BatchOrder, device: str) -> None:
        self.inputs = aligned(cohort.inputs).to(device)
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
