"""Fully connected networks of many clients at once: batched products in place, the backward pass written out.

``torch.func.vmap`` runs any model, but each of its operations costs a small network much. Here a gradient step is three
products a layer, and weights are stepped as their gradient is computed: none is stored (as in Lv et al. 2023, LOMO).

The first layer has an input X that never changes, and after steps with output gradients G_1, ..., G_t its weights are
W - rate (G_1 + ... + G_t)' X. So its outputs are X W' - rate X X' (G_1 + ... + G_t): the products X W' of all clients
are one large product, X X' is computed once, and weights are formed once, at the end. With fewer records than inputs
that is less arithmetic, and the largest matrix is not touched in every step.

Widths are filled up with zeros to multiples of 16: then each client's block begins at a multiple of 64 bytes, and
matrix products round alike in every slot (:mod:`fedamp.client.stacks`).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedamp.client.batches import Batch
from fedamp.models.architectures import MLP
from fedamp.models.networks import Network

_WIDTH = 16


def layers_of(module: nn.Module | None) -> tuple[str, ...] | None:
    """Names of the layers of a built-in network of linear layers with a ReLU between them; None for another one."""
    if isinstance(module, Network) and isinstance(module.architecture, MLP):
        return module.architecture.layers()
    return None


def descend(
    layers: Sequence[str], start: dict[str, Tensor], inputs: Tensor, batches: Sequence[Batch], rate: float
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradient descent on the weighted cross-entropy of every client.

    Args:
        layers: names of the linear layers, from the first on.
        start: the parameters that all clients start from, by name; never written to.
        inputs: float32 [clients, records, ...].
        batches: of the steps, in turn.

    Returns:
        Trained minus start, by name; and the sum of each client's cross-entropies over the first batch, before its
        first step: float64 [clients].
    """
    clients, losses = len(inputs), inputs.new_zeros(len(inputs), dtype=torch.float64)
    if not batches:
        return {name: value.new_zeros(clients, *value.shape) for name, value in start.items()}, losses
    inputs = inputs.flatten(2)
    kinds = [_First if inputs.shape[1] <= inputs.shape[2] else _Layer, *[_Layer] * (len(layers) - 1)]
    inputs = _filled(inputs, 2)
    classes = len(start[f"{layers[-1]}.bias"])
    stack = [
        kind(_stacked(start[f"{name}.weight"], clients), _stacked(start[f"{name}.bias"], clients), rate)
        for name, kind in zip(layers, kinds, strict=True)
    ]
    for number, batch in enumerate(batches):
        values = inputs if isinstance(stack[0], _First) else _rows(inputs, batch.records)
        for layer in stack[:-1]:
            values = layer.forward(values, batch.records).relu_()
        logits = stack[-1].logits(values, batch.records)
        if number == 0:
            losses = _losses(logits[:, :classes], batch)
        gradients = _filled(_logit_gradients(logits[:, :classes], batch), 1).mT
        for layer in reversed(stack[1:]):
            gradients = layer.backward(gradients)
        stack[0].step(gradients)
    updates = {}
    for name, layer in zip(layers, stack, strict=True):
        for kind, update in zip(("weight", "bias"), layer.updates(), strict=True):
            first = start[f"{name}.{kind}"]
            updates[f"{name}.{kind}"] = update[(slice(None), *map(slice, first.shape))]
    return updates, losses


def outputs(layers: Sequence[str], parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The same networks with autograd, for any loss and optimiser: outputs [clients, records, outputs].

    For parameters [clients, *shape] by name, and inputs [clients, records, ...].
    """
    values = _filled(inputs.flatten(2), 2)
    for name in layers:
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        values = values if name == layers[0] else values.relu()
        values = torch.baddbmm(_filled(bias, 1).unsqueeze(1), values, _filled(_filled(weight, 1), 2).mT)
    return values[..., : parameters[f"{layers[-1]}.bias"].shape[1]]


def _filled(tensor: Tensor, axis: int) -> Tensor:
    """With zeros up to the next multiple of 16 along an axis."""
    missing = -tensor.shape[axis] % _WIDTH
    return nn.functional.pad(tensor, [0, 0] * (tensor.dim() - 1 - axis) + [0, missing]) if missing else tensor


def _stacked(parameter: Tensor, clients: int) -> Tensor:
    for axis in range(parameter.dim()):
        parameter = _filled(parameter, axis)
    return parameter.expand(clients, *parameter.shape)


class _Layer:
    """A linear layer of all clients, from weight [clients, out, in] and bias [clients, out] on."""

    def __init__(self, weight: Tensor, bias: Tensor, rate: float) -> None:
        self._start = weight, bias.unsqueeze(1)
        self._weight, self._bias = self._start
        self._rate = rate
        self._inputs = weight  # of the last forward pass

    def forward(self, inputs: Tensor, records: Tensor | None) -> Tensor:
        """[clients, batch, out] from [clients, batch, in], in new memory."""
        self._inputs = inputs
        return _linear(inputs, self._weight, self._bias)

    def logits(self, inputs: Tensor, records: Tensor | None) -> Tensor:
        """As [clients, out, batch]: operations over a short last axis are several times slower."""
        self._inputs = inputs
        return torch.baddbmm(self._bias.mT, self._weight, inputs.mT)

    def backward(self, gradients: Tensor) -> Tensor:
        """Takes the step, and returns the gradient of the inputs of the ReLU below."""
        below = torch.bmm(gradients, self._weight)
        torch.ops.aten.threshold_backward.grad_input(below, self._inputs, 0, grad_input=below)
        self.step(gradients)
        return below

    def step(self, gradients: Tensor) -> None:
        """One step, from the gradients of :meth:`forward`'s outputs."""
        if self._weight is self._start[0]:  # all clients share the start: it must not be overwritten
            self._weight = torch.baddbmm(self._weight, gradients.mT, self._inputs, alpha=-self._rate)
            self._bias = self._bias - gradients.sum(1, keepdim=True).mul_(self._rate)
        else:
            self._weight.baddbmm_(gradients.mT, self._inputs, alpha=-self._rate)
            self._bias.sub_(gradients.sum(1, keepdim=True), alpha=self._rate)

    def updates(self) -> tuple[Tensor, Tensor]:
        """Trained minus start, weight and bias. Ends the training: the memory is reused."""
        return self._weight.sub_(self._start[0]), self._bias.sub_(self._start[1]).squeeze(1)


class _First(_Layer):
    """The first layer, by its outputs (top of this file). All passes get the same inputs, [clients, records, in]."""

    _before: Tensor  # outputs at the start, for all records
    _products: Tensor | None = None  # -rate (X X' + 1), the one being for the bias
    _sum: Tensor | None = None  # of all steps' gradients, by record

    def logits(self, inputs: Tensor, records: Tensor | None) -> Tensor:
        return self.forward(inputs, records).mT.contiguous()

    def forward(self, inputs: Tensor, records: Tensor | None) -> Tensor:
        self._records = records
        if self._sum is None:
            self._inputs, self._before = inputs, _linear(inputs, self._weight, self._bias)
            return self._before.clone() if records is None else _rows(self._before, records)
        if self._products is None:
            self._products = torch.bmm(inputs, inputs.mT).add_(1).mul_(-self._rate)
        return torch.baddbmm(_rows(self._before, records), _rows(self._products, records), self._sum)

    def step(self, gradients: Tensor) -> None:
        if self._records is not None:
            into = torch.zeros_like(self._before) if self._sum is None else self._sum
            self._sum = into.scatter_add_(1, self._records.unsqueeze(2).expand_as(gradients), gradients)
        else:
            self._sum = gradients if self._sum is None else self._sum.add_(gradients)

    def updates(self) -> tuple[Tensor, Tensor]:
        assert self._sum is not None
        self._sum.mul_(-self._rate)
        return torch.bmm(self._sum.mT, self._inputs), self._sum.sum(1)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if len(weight) == 1 or weight.stride(0) == 0:  # the same for all clients: one product
        return nn.functional.linear(inputs, weight[0], bias[0, 0])
    return torch.baddbmm(bias, inputs, weight.mT)


def _rows(values: Tensor, records: Tensor | None) -> Tensor:
    """Those records' rows, [clients, batch, n] of [clients, records, n]."""
    if records is None:
        return values
    return values.gather(1, records.unsqueeze(2).expand(-1, -1, values.shape[2]))


def _losses(logits: Tensor, batch: Batch) -> Tensor:
    """Sum of each client's cross-entropies, of records with a weight: float64 [clients]."""
    picked = torch.log_softmax(logits, 1).gather(1, batch.labels.unsqueeze(1)).squeeze(1)
    return -torch.where(batch.weights > 0, picked, 0.0).double().sum(1)


def _logit_gradients(logits: Tensor, batch: Batch) -> Tensor:
    """Gradients of the weighted cross-entropy: (softmax - one hot) * weight, as logits [clients, classes, batch]."""
    weights = batch.weights.unsqueeze(1)
    return torch.softmax(logits, 1).mul_(weights).scatter_add_(1, batch.labels.unsqueeze(1), -weights)
