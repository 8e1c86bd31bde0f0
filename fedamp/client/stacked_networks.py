"""Networks of all clients of a stack at once: what is faster than ``torch.func.vmap``, and that itself.

:func:`stacked` knows two kinds of built-in networks. Results are those of any other way to floating-point tolerance.

**Convolutional networks** run with the clients side by side in the channels. ``vmap`` convolves in groups, too, but
moves the clients between batch and channels for every operation between two convolutions, and takes GroupNorm apart.
Here they stay where they are: a convolution has as many times its groups as there are clients, and so has a GroupNorm;
operations on single channels need no change. ReLU and max pooling are one operation: torch takes longer for the two
than for a convolution before them.

**Fully connected networks** run as batched products. With plain gradient descent the backward pass is written out,
three products a layer. Weights are stepped as their gradient is computed, so no gradient is stored (as in Lv et al.
2023, LOMO). The first layer has an input X that never changes. After steps with output gradients G_1, ..., G_t its
weights are W - rate (G_1 + ... + G_t)' X, so its outputs are X W' - rate X X' (G_1 + ... + G_t). The products X W' of
all clients are one large product. X X' is computed once, and weights are formed once, at the end. With fewer records
than inputs that is less arithmetic, and the largest matrix is not touched in every step. Widths are filled up with
zeros to multiples of 16: then each client's block begins at a multiple of 64 bytes, and matrix products round alike in
every slot (:mod:`fedamp.client.stacks`).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._decomp import decompositions, get_decompositions
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedamp.base.devices import any_order, is_gpu
from fedamp.base.start import compiled
from fedamp.client.stacks import StackBatch
from fedamp.models.architectures import CNN, MLP, ResNet
from fedamp.models.networks import Network

_WIDTH = 16


def stacked(module: nn.Module | None, device: str) -> "FullyConnected | Convolutional | None":
    """Return a built-in network that runs with other parameters for each client, faster than under ``vmap``.

    Args:
        module: the network; None: unknown code of others.
        device: torch's name of the device.

    Returns:
        A callable from parameters [clients, *shape] by name and inputs [clients, records, ...] to outputs [clients,
        records, outputs]; None for other networks. Its ``places`` is the step of the places for records in its stacks
        (None: powers of two), ``least`` the fewest places that it takes.
    """
    if layers := layers_of(module):
        return FullyConnected(layers, device)
    if isinstance(module, Network) and isinstance(module.architecture, CNN | ResNet):
        return Convolutional(module)
    return None


def layers_of(module: nn.Module | None) -> tuple[str, ...] | None:
    """Name the layers of a built-in network of linear layers with a ReLU between them; None for another network."""
    if isinstance(module, Network) and isinstance(module.architecture, MLP):
        return module.architecture.layers()
    return None


def for_all_clients(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run ``forward`` of all clients at once under ``vmap``: every argument gets a first axis of clients.

    Fused layers that ``vmap`` cannot stack (recurrent ones, attention) run as single operations instead.
    """
    together = torch.func.vmap(forward)

    def of_all(*arguments: Any) -> Tensor:
        with _Unfused(), sdpa_kernel(SDPBackend.MATH):
            return together(*arguments)

    return of_all


class FullyConnected:
    """Runs linear layers with a ReLU between them, for all clients as batched products.

    Args:
        layers: their names, from the first on.
        device: torch's name of the device.

    Attributes:
        least: fewest places for records in a stack; with a single one, products often round by slot.
        places: step of the places for records; None on a GPU: powers of two.
    """

    least = 2  # products of single rows often round by their place in memory

    def __init__(self, layers: Sequence[str], device: str) -> None:
        # Blocks of so many rows begin at a multiple of 64 bytes in every slot, if rows have 16 numbers or more.
        self.layers, self.places = layers, None if is_gpu(device) else 4

    def __call__(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return outputs [clients, records, outputs] with autograd, for any loss and optimiser."""
        values = _fill_axis(inputs.flatten(2), 2)
        for name in self.layers:
            weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
            values = values if name == self.layers[0] else values.relu()
            values = torch.baddbmm(_fill_axis(bias, 1).unsqueeze(1), values, _fill_axis(_fill_axis(weight, 1), 2).mT)
        return values[..., : parameters[f"{self.layers[-1]}.bias"].shape[1]]

    def descend(
        self, start: dict[str, Tensor], inputs: Tensor, batches: Sequence[StackBatch], rate: float | Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Descend the gradient of every client's weighted cross-entropy, with a backward pass that is written out.

        Args:
            start: the parameters that all clients start from, by name; never written to.
            inputs: float32 [clients, records, ...].
            batches: of the steps, in turn; their labels are classes, int64.
            rate: learning rate; as a tensor it is an input of a recorded program.

        Returns:
            Trained minus start, by name; and the sum of each client's cross-entropies over the first batch, before its
            first
            step: float64 [clients].
        """
        clients, losses = len(inputs), inputs.new_zeros(len(inputs), dtype=torch.float64)
        if not batches:
            return {name: value.new_zeros(clients, *value.shape) for name, value in start.items()}, losses
        inputs = inputs.flatten(2)
        kinds = [_First if inputs.shape[1] <= inputs.shape[2] else _Layer, *[_Layer] * (len(self.layers) - 1)]
        inputs = _fill_axis(inputs, 2)
        classes, factor = len(start[f"{self.layers[-1]}.bias"]), 1.0 if isinstance(rate, Tensor) else rate
        stack = [
            kind(
                _stack_parameter(start[f"{name}.weight"], clients),
                _stack_parameter(start[f"{name}.bias"], clients),
                factor,
            )
            for name, kind in zip(self.layers, kinds, strict=True)
        ]
        for number, batch in enumerate(batches):
            values = inputs if isinstance(stack[0], _First) else _rows_of(inputs, batch.records)
            for layer in stack[:-1]:
                values = layer.forward(values, batch.records).relu_()
            logits = stack[-1].logits(values, batch.records)
            if number == 0:
                losses = _summed_losses(logits[:, :classes], batch)
            gradients = _logit_gradients(logits[:, :classes], batch).mT
            gradients = gradients.mul_(rate) if isinstance(rate, Tensor) else gradients
            for layer in reversed(stack[1:]):
                gradients = layer.backward(gradients)
            stack[0].step(gradients)
        updates = {}
        for name, layer in zip(self.layers, stack, strict=True):
            for kind, update in zip(("weight", "bias"), layer.updates(), strict=True):
                first = start[f"{name}.{kind}"]
                updates[f"{name}.{kind}"] = update[(slice(None), *map(slice, first.shape))]
        return updates, losses


def _fill_axis(tensor: Tensor, axis: int) -> Tensor:
    """Fill an axis with zeros up to the next multiple of 16, so that each client's block lies alike in memory."""
    missing = -tensor.shape[axis] % _WIDTH
    return nn.functional.pad(tensor, [0, 0] * (tensor.dim() - 1 - axis) + [0, missing]) if missing else tensor


def _stack_parameter(parameter: Tensor, clients: int) -> Tensor:
    """Fill a parameter to multiples of 16 and expand it to [clients, *filled]; the clients share its memory."""
    for axis in range(parameter.dim()):
        parameter = _fill_axis(parameter, axis)
    return parameter.expand(clients, *parameter.shape)


class _Layer:
    """Trains a linear layer of all clients by hand, from weight [clients, out, in] and bias [clients, out] on.

    Each forward pass is followed by one :meth:`backward` or :meth:`step`, which takes the gradient step at once.
    """

    def __init__(self, weight: Tensor, bias: Tensor, rate: float) -> None:
        self._start = weight, bias.unsqueeze(1)
        self._weight, self._bias = self._start
        self._rate = rate
        self._inputs = weight  # of the last forward pass

    def forward(self, inputs: Tensor, records: Tensor | None) -> Tensor:
        """Compute outputs [clients, batch, out] from inputs [clients, batch, in], in new memory."""
        self._inputs = inputs
        return _batched_linear(inputs, self._weight, self._bias)

    def logits(self, inputs: Tensor, records: Tensor | None) -> Tensor:
        """Compute outputs as [clients, out, batch]: operations over a short last axis are several times slower."""
        self._inputs = inputs
        return torch.baddbmm(self._bias.mT, self._weight, inputs.mT)

    def backward(self, gradients: Tensor) -> Tensor:
        """Take the step, and return the gradient of the inputs of the ReLU below, [clients, batch, in]."""
        below = torch.bmm(gradients, self._weight)
        torch.ops.aten.threshold_backward.grad_input(below, self._inputs, 0, grad_input=below)
        self.step(gradients)
        return below

    def step(self, gradients: Tensor) -> None:
        """Take one step, from the gradients [clients, batch, out] of :meth:`forward`'s outputs."""
        if self._weight is self._start[0]:  # all clients share the start: it must not be overwritten
            self._weight = torch.baddbmm(self._weight, gradients.mT, self._inputs, alpha=-self._rate)
            self._bias = self._bias - gradients.sum(1, keepdim=True).mul_(self._rate)
        else:
            self._weight.baddbmm_(gradients.mT, self._inputs, alpha=-self._rate)
            self._bias.sub_(gradients.sum(1, keepdim=True), alpha=self._rate)

    def updates(self) -> tuple[Tensor, Tensor]:
        """Return trained minus start, weight and bias. This ends the training: the memory is reused."""
        return self._weight.sub_(self._start[0]), self._bias.sub_(self._start[1]).squeeze(1)


class _First(_Layer):
    """Trains the first layer by its outputs instead of its weights (top of this file).

    All passes get the same inputs, [clients, records, in], so the weights are formed once, in :meth:`updates`.
    """

    _before: Tensor  # outputs at the start, for all records
    _products: Tensor | None = None  # -rate (X X' + 1), the one being for the bias
    _sum: Tensor | None = None  # of all steps' gradients, by record

    def logits(self, inputs: Tensor, records: Tensor | None) -> Tensor:
        """Compute outputs as [clients, out, batch], where the first layer is the only one."""
        return self.forward(inputs, records).mT.contiguous()

    def forward(self, inputs: Tensor, records: Tensor | None) -> Tensor:
        """Compute outputs [clients, records, out] from those at the start and the gradients of all steps so far."""
        self._records = records
        if self._sum is None:
            self._inputs, self._before = inputs, _batched_linear(inputs, self._weight, self._bias)
            return self._before.clone() if records is None else _rows_of(self._before, records)
        if self._products is None:
            self._products = torch.bmm(inputs, inputs.mT).add_(1).mul_(-self._rate)
        return torch.baddbmm(_rows_of(self._before, records), _rows_of(self._products, records), self._sum)

    def step(self, gradients: Tensor) -> None:
        """Add the gradients [clients, batch, out] of a step to those of their records."""
        if self._records is not None:
            into = torch.zeros_like(self._before) if self._sum is None else self._sum
            with any_order():  # what comes to a place more than once is zero, of padding
                self._sum = into.scatter_add_(1, self._records.unsqueeze(2).expand_as(gradients), gradients)
        else:
            self._sum = gradients if self._sum is None else self._sum.add_(gradients)

    def updates(self) -> tuple[Tensor, Tensor]:
        """Form the update of weight and bias from all steps' gradients, once."""
        assert self._sum is not None
        self._sum.mul_(-self._rate)
        return torch.bmm(self._sum.mT, self._inputs), self._sum.sum(1)


def _batched_linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear layer to inputs [clients, batch, in]; one product where all clients still share the weights."""
    if len(weight) == 1 or weight.stride(0) == 0:  # the same for all clients: one product
        return nn.functional.linear(inputs, weight[0], bias[0, 0])
    return torch.baddbmm(bias, inputs, weight.mT)


def _rows_of(values: Tensor, records: Tensor | None) -> Tensor:
    """Take the rows of some records, [clients, batch, n] of [clients, records, n]; None: all."""
    if records is None:
        return values
    return values.gather(1, records.unsqueeze(2).expand(-1, -1, values.shape[2]))


def _summed_losses(logits: Tensor, batch: StackBatch) -> Tensor:
    """Add up each client's cross-entropies, over records with a weight: float64 [clients]."""
    picked = torch.log_softmax(logits, 1).gather(1, batch.labels.unsqueeze(1)).squeeze(1)
    return -torch.where(batch.weights > 0, picked, 0.0).double().sum(1)


def _logit_gradients(logits: Tensor, batch: StackBatch) -> Tensor:
    """Compute gradients (softmax - one hot) * weight of the cross-entropy, [clients, filled classes, batch]."""
    clients, classes, records = logits.shape
    weights = batch.weights.unsqueeze(1)
    gradients = logits.new_zeros(clients, classes + -classes % _WIDTH, records)
    torch.mul(torch.softmax(logits, 1), weights, out=gradients[:, :classes])
    with any_order():  # each place gets one number
        return gradients.scatter_add_(1, batch.labels.unsqueeze(1), -weights)


class Convolutional:
    """Runs convolutions, GroupNorm and operations on single channels with the clients side by side in the channels.

    It holds a copy of the network whose parameters are placeholders; each call puts the clients' values behind them.

    Args:
        module: a built-in convolutional or residual network.

    Attributes:
        places: step of the places for records in a stack.
        least: fewest places for records; kernels of residual networks round a single record by its slot.
    """

    places = 2

    def __init__(self, module: Network) -> None:
        self.least = 1 if isinstance(module.architecture, CNN) else 2  # others' kernels round single records by slot
        self._image = module.image
        network: Any = copy.deepcopy(module)
        network.image = nn.Identity()
        if isinstance(module.architecture, CNN):
            for number, pool in enumerate(network.pools):
                if pool.kernel_size == 2:
                    network.activations[number], network.pools[number] = nn.Identity(), ReluMaxPool()
        self._network, self._stacks = network, dict[str, _Stack]()
        for prefix, layer in network.named_modules():
            for name in [name for name, value in layer._parameters.items() if value is not None]:
                layer._parameters[name] = self._stacks[f"{prefix}.{name}"] = torch.empty(0).as_subclass(_Stack)

    def __call__(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Compute logits [clients, records, classes] of all clients.

        Args:
            parameters: [clients, *shape] by name.
            inputs: [clients, records, ...].
        """
        for name, stack in self._stacks.items():
            stack.values = parameters[name]
        images = self._image(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])  # type: ignore[operator]
        logits: Tensor = self._network(images.transpose(0, 1).flatten(1, 2))
        for stack in self._stacks.values():
            del stack.values  # else its memory would be taken until the next stack's is
        return logits


class _Stack(Tensor):
    """Stands in a module for a parameter of all clients.

    Torch's functions that take it are replaced by their grouped forms; any other function is refused
    (``NotImplementedError``), so no operation can mix clients unnoticed.
    """

    values: Tensor  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Tensor:
        run = _RUN.get(func)
        if run is None:
            raise NotImplementedError(f"stacked parameters cannot go through {func}")
        return run(*args, **(kwargs or {}))


def _grouped_convolution(
    inputs: Tensor, weight: _Stack, bias: _Stack | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """Convolve inputs [records, clients * channels, ...] with as many times the groups as there are clients."""
    biases = None if bias is None else bias.values.flatten()
    groups *= len(weight.values)
    return F.conv2d(inputs, weight.values.flatten(0, 1), biases, stride, padding, dilation, groups)


def _group_norm(inputs: Tensor, groups: int, weight: _Stack, bias: _Stack, eps: float) -> Tensor:
    """Normalise groups of channels, each client's apart."""
    return F.group_norm(inputs, groups * len(weight.values), weight.values.flatten(), bias.values.flatten(), eps)


def _linear_of_all(inputs: Tensor, weight: _Stack, bias: _Stack) -> Tensor:
    """Apply each client's linear layer to its part of the channels; returns [clients, records, outputs]."""
    by_client = inputs.view(len(inputs), len(weight.values), -1).transpose(0, 1)
    return torch.baddbmm(bias.values.unsqueeze(1), by_client, weight.values.mT)


_RUN: dict[Any, Callable[..., Tensor]] = {
    F.conv2d: _grouped_convolution,
    F.group_norm: _group_norm,
    F.linear: _linear_of_all,
}


class ReluMaxPool(nn.Module):
    """Computes ``max_pool2d(relu(inputs), 2)``, values and gradients to the bit; a NaN stays one, without gradient."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Pool images [..., height, width]; compiled on a CPU for float32, else by torch."""
        if inputs.device.type != "cpu" or inputs.dtype != torch.float32:
            return F.max_pool2d(F.relu(inputs), 2)
        pooled: Tensor = _ReluMaxPool.apply(inputs)  # type: ignore[no-untyped-call]
        return pooled


class _ReluMaxPool(torch.autograd.Function):
    """Gives the compiled kernels on a CPU to autograd."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        """Pool images, and keep them for the backward pass."""
        pooled = inputs.new_empty(*inputs.shape[:-2], inputs.shape[-2] // 2, inputs.shape[-1] // 2)
        # As arrays they cost no dispatch in the backward pass. Without detach the result would hold itself for ever.
        ctx.images = _images_of(inputs.detach().contiguous()), _images_of(pooled.detach())
        _relu_max_pool()(*ctx.images)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> Tensor:
        """Hand each gradient to the pixel that it came from; an odd last row or column gets zeros."""
        (inputs, pooled), ctx.images = ctx.images, ()  # else their memory would be taken until the next step's is
        size = (*gradients.shape[:-2], *inputs.shape[-2:])
        covered = all(each % 2 == 0 for each in size[-2:])
        found = gradients.new_empty(size) if covered else gradients.new_zeros(size)
        _relu_max_pool_backward()(_images_of(gradients.contiguous()), inputs, pooled, _images_of(found))
        return found


def _images_of(stack: Tensor) -> Any:
    """View a contiguous tensor without gradients as NumPy images [images, height, width] that share its memory."""
    return stack.numpy().reshape(-1, *stack.shape[-2:])  # each view by torch would be a dispatch


@compiled(nogil=True)
def _relu_max_pool(inputs: Any, pooled: Any) -> None:
    """Write the largest of each square of four pixels to ``pooled``, at least zero; NaN where one of them is.

    Both arrays are float32 [images, height, width].
    """
    zero = np.float32(0)
    for image in range(len(pooled)):
        for row in range(pooled.shape[1]):
            into, top, bottom = pooled[image, row], inputs[image, 2 * row], inputs[image, 2 * row + 1]
            for place in range(into.size):
                most = top[2 * place]
                for value in (top[2 * place + 1], bottom[2 * place], bottom[2 * place + 1]):
                    most = value if value > most or value != value else most
                into[place] = zero if most <= zero else most


@compiled(nogil=True)
def _relu_max_pool_backward(gradients: Any, inputs: Any, pooled: Any, found: Any) -> None:
    """Give each gradient to the first of the four pixels that is the largest, if that one is above zero; else zeros."""
    zero = np.float32(0)
    for image in range(len(pooled)):
        for row in range(pooled.shape[1]):
            largest, back = pooled[image, row], gradients[image, row]
            top, bottom = inputs[image, 2 * row], inputs[image, 2 * row + 1]
            top_found, bottom_found = found[image, 2 * row], found[image, 2 * row + 1]
            for place in range(largest.size):
                most = largest[place]
                left = back[place] if most > zero else zero
                hit = top[2 * place] == most
                top_found[2 * place] = left if hit else zero
                left = zero if hit else left
                hit = top[2 * place + 1] == most
                top_found[2 * place + 1] = left if hit else zero
                left = zero if hit else left
                hit = bottom[2 * place] == most
                bottom_found[2 * place] = left if hit else zero
                bottom_found[2 * place + 1] = zero if hit else left


# Layers that vmap cannot stack by itself: recurrent ones, and fused attention. Torch has the same layers in operations
# that it can stack; inside of a stack they take the place of the fused ones. Embeddings with padding stack wrongly.
_TORCH: Any = decompositions  # private to torch, and without types; a test compares what it gives


def _decomposed_lstm(
    inputs: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], biased: bool, layers: int, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Torch's own decomposition of ``torch.lstm`` without the kernel of the CPU, which cannot be stacked."""
    grouped = _TORCH.gather_params(weights, biased, states[0].size(2) != states[1].size(2))
    first = list(zip(*states, strict=True))
    layer = _TORCH.one_layer_lstm
    answers, last = _TORCH._rnn_helper(inputs, first, grouped, biased, layers, *others, layer)
    hidden, cells = zip(*last, strict=True)
    return answers, torch.stack(hidden), torch.stack(cells)


def _stacked_embedding(
    indices: Tensor, weight: Tensor, padding_idx: int | None = None, *others: Any, **named: Any
) -> Tensor:
    """Look up rows as torch does, without a gradient for the row of padding: of every client, not of the first alone.

    Torch hands the number of that row on to one table of all clients' rows, where it is the first client's.
    """
    rows = F.embedding(indices, weight, None, *others, **named)
    if padding_idx is None:
        return rows
    return torch.where((indices == padding_idx % len(weight))[..., None], rows.detach(), rows)


_SAME = {torch.gru: torch.ops.aten.gru.input, torch.rnn_tanh: torch.ops.aten.rnn_tanh.input}
_SAME |= {torch.rnn_relu: torch.ops.aten.rnn_relu.input}
_FOUND = get_decompositions(list(_SAME.values()))
_UNFUSED: dict[Any, Callable[..., Any]] = {torch.lstm: _decomposed_lstm, F.embedding: _stacked_embedding}
_UNFUSED |= {fused: _FOUND[same] for fused, same in _SAME.items()}
# On a GPU, recurrent layers ask where their weights lie, to move them together. In a stack they have no place; the same
# answer for all means that they stay.
_UNFUSED[Tensor.data_ptr] = lambda tensor: 0


class _Unfused(TorchFunctionMode):
    """Replaces fused layers by operations that ``vmap`` can stack, while the context lasts."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _UNFUSED.get(function, function)(*args, **(kwargs or {}))
