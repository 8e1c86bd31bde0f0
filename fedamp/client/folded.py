"""Fully connected networks of many clients in one call: clients folded into the batch, weights stacked.

``torch.func.vmap`` runs any model, at a price for every operation that a small network pays many times over. Where
stacked parameters only ever meet the batch in ``linear``, one batched product a layer does the same.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Folded:
    """Runs the same network with other parameters for each client.

    The records of all clients go through the module as one batch, so nothing in it may look across records: use it for
    modules that are known, not for a person's own.

    Args:
        module: a network all of whose parameters are weights and biases of linear layers. It is copied.

    Raises:
        ValueError: a module with other parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        if not self.can_run(module):
            raise ValueError(f"module must have parameters in linear layers only, got {type(module).__name__}")
        self._module = copy.deepcopy(module)
        self._stacks: dict[str, _Stack] = {}
        for prefix, submodule in self._module.named_modules():
            for name in list(submodule._parameters):
                if submodule._parameters[name] is not None:
                    stack = torch.empty(0).as_subclass(_Stack)
                    self._stacks[f"{prefix}.{name}" if prefix else name] = stack
                    submodule._parameters[name] = stack  # type: ignore[assignment]

    @staticmethod
    def can_run(module: nn.Module) -> bool:
        """Whether all parameters are those of linear layers, each of one layer only."""
        owners = [submodule for submodule in module.modules() if any(True for _ in submodule.parameters(False))]
        names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        return all(type(owner) is nn.Linear for owner in owners) and len(names) == len(dict(module.named_parameters()))

    def __call__(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Logits [clients, records, classes] for parameters [clients, *shape] and inputs [clients, records, ...]."""
        for name, value in parameters.items():
            self._stacks[name].clients = value
        logits: Tensor = self._module(inputs.flatten(0, 1))
        return logits.unflatten(0, inputs.shape[:2])


class _Stack(Tensor):
    """Stands in a module for the parameters of all clients; any use of it but ``linear`` is an error."""

    clients: Tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Tensor:
        if func is not F.linear:
            raise NotImplementedError(f"stacked parameters cannot go through {func}")
        return _linear(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: _Stack, bias: _Stack | None = None) -> Tensor:
    each = input.view(len(weight.clients), -1, input.shape[-1])
    if bias is None:
        output = torch.bmm(each, weight.clients.mT)
    else:
        output = torch.baddbmm(bias.clients.unsqueeze(1), each, weight.clients.mT)
    return output.flatten(0, 1)
