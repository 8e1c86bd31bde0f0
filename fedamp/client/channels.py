"""Convolutional networks of many clients at once: the clients lie side by side in the channels.

``torch.func.vmap`` convolves in groups, too, but moves the clients between batch and channels for whatever comes
between two convolutions, and takes GroupNorm apart. Here they stay where they are: a convolution has as many times its
groups as there are clients, and so has a GroupNorm; what treats every channel by itself does not notice. ReLU and max
pooling are one operation (:mod:`fedamp.client.pooling`).
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedamp.client.pooling import ReluMaxPool
from fedamp.models.architectures.cnn import CNN
from fedamp.models.architectures.resnet import ResNet
from fedamp.models.registry import Network


class ChannelsOfClients:
    """A built-in convolutional network that runs with other parameters for each client.

    Args:
        module: a network that :meth:`can_run` accepts. It is copied.
    """

    @classmethod
    def of(cls, module: nn.Module, known: bool) -> "ChannelsOfClients | None":
        """A network that runs so, if a built-in (``known``) one can."""
        return cls(module) if known and cls.can_run(module) else None

    @staticmethod
    def can_run(module: nn.Module) -> bool:
        """Whether it is built of convolutions, GroupNorm, what treats every channel by itself, and one linear layer."""
        return isinstance(module, Network) and isinstance(module.architecture, CNN | ResNet)

    def __init__(self, module: nn.Module) -> None:
        self.takes_single_records = isinstance(module.architecture, CNN)  # others' kernels round them by their slot
        self._image = module.image
        self._network = copy.deepcopy(module)
        self._network.image = nn.Identity()
        if isinstance(module.architecture, CNN):
            _pool_fast(self._network)
        self._stacks: dict[str, _Stack] = {}
        for prefix, layer in self._network.named_modules():
            for name in [name for name, value in layer._parameters.items() if value is not None]:
                layer._parameters[name] = self._stacks[f"{prefix}.{name}"] = torch.empty(0).as_subclass(_Stack)

    def __call__(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Logits [clients, records, classes] for parameters [clients, *shape] and inputs [clients, records, ...]."""
        for name, stack in self._stacks.items():
            stack.values = parameters[name]
        images = self._image(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])  # type: ignore[operator]
        logits: Tensor = self._network(images.transpose(0, 1).flatten(1, 2))
        return logits


def _pool_fast(network: Any) -> None:
    for number, pool in enumerate(network.pools):
        if pool.kernel_size == 2:
            network.activations[number], network.pools[number] = nn.Identity(), ReluMaxPool()


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


_RUN: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.conv2d: _convolution,
    F.group_norm: _group_norm,
    F.linear: _linear,
}
