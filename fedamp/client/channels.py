"""Convolutional networks of many clients at once: the clients lie side by side in the channels.

``torch.func.vmap`` convolves in groups, too, but moves the clients between batch and channels for every operation
between two convolutions, and takes GroupNorm apart. Here they stay where they are: a convolution has as many times its
groups as there are clients, and so has a GroupNorm; operations on single channels need no change. ReLU and max pooling
are one operation: torch takes longer for the two than for a convolution before them.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedamp.client import kernels
from fedamp.models.architectures import CNN, ResNet
from fedamp.models.networks import Network


class ChannelsOfClients:
    """A built-in convolutional network that runs with other parameters for each client."""

    @classmethod
    def of(cls, module: nn.Module | None) -> "ChannelsOfClients | None":
        """A copy of a network that can run so, built of convolutions, GroupNorm and operations on single channels."""
        return cls(module) if isinstance(module, Network) and isinstance(module.architecture, CNN | ResNet) else None

    def __init__(self, module: Network) -> None:
        self.takes_single_records = isinstance(module.architecture, CNN)  # others' kernels round them by their slot
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
        """Logits [clients, records, classes] for parameters [clients, *shape] and inputs [clients, records, ...]."""
        for name, stack in self._stacks.items():
            stack.values = parameters[name]
        images = self._image(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])  # type: ignore[operator]
        logits: Tensor = self._network(images.transpose(0, 1).flatten(1, 2))
        return logits


class _Stack(Tensor):
    """Stands in a module for a parameter of all clients."""

    values: Tensor  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Tensor:
        run = _RUN.get(func)
        if run is None:
            raise NotImplementedError(f"stacked parameters cannot go through {func}")
        return run(*args, **(kwargs or {}))


def _convolution(
    inputs: Tensor, weight: _Stack, bias: _Stack | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    biases = None if bias is None else bias.values.flatten()
    groups *= len(weight.values)
    return F.conv2d(inputs, weight.values.flatten(0, 1), biases, stride, padding, dilation, groups)


def _group_norm(inputs: Tensor, groups: int, weight: _Stack, bias: _Stack, eps: float) -> Tensor:
    return F.group_norm(inputs, groups * len(weight.values), weight.values.flatten(), bias.values.flatten(), eps)


def _linear(inputs: Tensor, weight: _Stack, bias: _Stack) -> Tensor:
    by_client = inputs.view(len(inputs), len(weight.values), -1).transpose(0, 1)
    return torch.baddbmm(bias.values.unsqueeze(1), by_client, weight.values.mT)


_RUN: dict[Any, Callable[..., Tensor]] = {F.conv2d: _convolution, F.group_norm: _group_norm, F.linear: _linear}


class ReluMaxPool(nn.Module):
    """``max_pool2d(relu(inputs), 2)``, values and gradients to the bit. A NaN stays one, without a gradient."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.device.type != "cpu" or inputs.dtype != torch.float32:
            return F.max_pool2d(F.relu(inputs), 2)
        pooled: Tensor = _ReluMaxPool.apply(inputs)  # type: ignore[no-untyped-call]
        return pooled


class _ReluMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        pooled = inputs.new_empty(*inputs.shape[:-2], inputs.shape[-2] // 2, inputs.shape[-1] // 2)
        inputs = inputs.contiguous()
        kernels.relu_max_pool(_images(inputs), _images(pooled))
        ctx.save_for_backward(inputs, pooled)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> Tensor:
        inputs, pooled = ctx.saved_tensors
        covered = all(size % 2 == 0 for size in inputs.shape[-2:])
        found = torch.empty_like(inputs) if covered else torch.zeros_like(inputs)
        kernels.relu_max_pool_backward(*map(_images, (gradients.contiguous(), inputs, pooled, found)))
        return found


def _images(stack: Tensor) -> Any:
    return stack.detach().flatten(0, -3).numpy()
