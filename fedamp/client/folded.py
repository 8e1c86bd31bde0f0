"""Fully connected networks of many clients at once: clients folded into the batch, steps taken in the backward pass.

``torch.func.vmap`` runs any model, at a price for every operation that a small network pays many times over. Where
parameters only ever meet the batch in a linear layer, one batched product a layer does the same; and its backward pass
can subtract the gradient from the weights as it computes it (as in Lv et al. 2023, LOMO), so that no gradient is ever
stored. Half the memory traffic, twice the speed.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FoldedModule:
    """A network that runs with other parameters for each client.

    The records of all clients go through the module as one batch, so nothing in it may look across records, and each
    layer is used once: for modules that are known, not for a person's own.

    Args:
        module: a network all of whose parameters are weights and biases of linear layers. It is copied.

    Raises:
        ValueError: a module with other parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        if not self.can_run(module):
            raise ValueError(f"module must have parameters in linear layers only, got {type(module).__name__}")
        self.module = copy.deepcopy(module)
        self.stacks: dict[str, _Stack] = {}
        for prefix, submodule in self.module.named_modules():
            for name in list(submodule._parameters):
                stack = torch.empty(0).as_subclass(_Stack)
                self.stacks[f"{prefix}.{name}" if prefix else name] = stack
                submodule._parameters[name] = stack  # type: ignore[assignment]

    @staticmethod
    def can_run(module: nn.Module) -> bool:
        """Whether all parameters are those of linear layers with a bias, each of one layer only."""
        owners = [submodule for submodule in module.modules() if submodule._parameters]
        linear = all(type(owner) is nn.Linear and owner.bias is not None for owner in owners)
        return linear and len(list(module.parameters())) == 2 * len(owners)


class Folded:
    """The clients' parameters during local training, as :class:`fedamp.client.stacked.Stacked` but without FedProx.

    Args:
        folded: the network.
        start: parameters by name, of shape [clients, *shape]; never written to.
        rate: learning rate.
    """

    def __init__(self, folded: FoldedModule, start: dict[str, Tensor], rate: float) -> None:
        self._folded, self._start = folded, start
        # Weights transposed, as [clients, in, out]: both products are fastest that way.
        self._values = {
            name: (value.mT if value.dim() == 3 else value.unsqueeze(1)).clone(memory_format=torch.contiguous_format)
            for name, value in start.items()
        }
        self._rate = rate
        # A backward pass needs something that asks for a gradient; the parameters do not.
        self._anchor = torch.zeros((), device=next(iter(start.values())).device, requires_grad=True)

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits [clients, records, classes] for inputs [clients, records, ...]."""
        for name, stack in self._folded.stacks.items():
            stack.clients, stack.anchor, stack.rate = self._values[name], self._anchor, self._rate
        logits: Tensor = self._folded.module(inputs.flatten(0, 1))
        return logits.unflatten(0, inputs.shape[:2])

    def descend(self, logits: Tensor, logit_gradients: Tensor, active: Tensor) -> None:
        """One gradient step; clients that are not active have logit gradients of zero."""
        torch.autograd.grad((logits * logit_gradients).sum(), self._anchor)

    def updates(self) -> dict[str, Tensor]:
        """Trained minus start, by name. Ends the training: the memory is reused."""
        changes = {}
        for name, first in self._start.items():
            value = self._values[name]
            changes[name] = (value.mT if first.dim() == 3 else value.squeeze(1)).sub_(first)
        return changes


class _Stack(Tensor):
    """Stands in a module for the parameters of all clients; any use of it but ``linear`` is an error."""

    clients: Tensor  # type: ignore[assignment]
    anchor: Tensor
    rate: float

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Tensor:
        if func is not F.linear:
            raise NotImplementedError(f"stacked parameters cannot go through {func}")
        inputs, weight, bias = args
        each = inputs.view(len(weight.clients), -1, inputs.shape[-1])
        output: Tensor = _LinearStep.apply(each, weight.clients, bias.clients, weight.anchor, weight.rate)
        return output.flatten(0, 1)


class _LinearStep(torch.autograd.Function):
    """A linear layer of every client; its backward pass takes the gradient step."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, anchor: Tensor, rate: float
    ) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.weight, ctx.bias, ctx.rate = weight, bias, rate
        return torch.baddbmm(bias, inputs, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, Tensor, None]:  # type: ignore[override]
        (inputs,) = ctx.saved_tensors
        downwards = torch.bmm(gradient, ctx.weight.mT) if ctx.needs_input_grad[0] else None
        ctx.weight.baddbmm_(inputs.mT, gradient, alpha=-ctx.rate)
        ctx.bias.sub_(gradient.sum(1, keepdim=True), alpha=ctx.rate)
        return downwards, None, None, gradient.new_zeros(()), None
