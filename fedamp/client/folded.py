"""Fully connected networks of many clients at once: clients folded into the batch, steps taken in the backward pass.

``torch.func.vmap`` runs any model, at a price for every operation that a small network pays many times over. Where
parameters only ever meet the batch in a linear layer, one batched product a layer does the same; and its backward pass
can subtract the gradient from the weights as it computes it (as in Lv et al. 2023, LOMO), so that no gradient is ever
stored. Half the memory traffic, twice the speed.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
                submodule._parameters[name] = stack

    @staticmethod
    def can_run(module: nn.Module) -> bool:
        """Whether all parameters are those of linear layers with a bias, each of one layer only."""
        owners = [submodule for submodule in module.modules() if submodule._parameters]
        linear = all(type(owner) is nn.Linear and owner.bias is not None for owner in owners)
        return linear and len(list(module.parameters())) == 2 * len(owners)


class Folded:
    """The clients' parameters during local training, as :class:`fedamp.client.training.Stacked` but plain SGD.

    As long as all clients hold the same parameters there is one copy of them: one product for the records of all
    clients, not one a client; the first step writes the stacks.

    Args:
        folded: the network.
        start: parameters by name, of shape [clients, *shape]; never written to.
        rate: learning rate.
    """

    def __init__(self, folded: FoldedModule, start: dict[str, Tensor], rate: float) -> None:
        self._folded, self._start = folded, start
        # A backward pass needs something that asks for a gradient; the parameters do not.
        anchor = torch.zeros((), device=next(iter(start.values())).device, requires_grad=True)
        self._values = {name: _Values.of(value, rate, anchor) for name, value in start.items()}
        self._anchor = anchor

    def outputs(self, inputs: Tensor) -> Tensor:
        """Outputs [clients, records, ...] for inputs [clients, records, ...]."""
        for name, stack in self._folded.stacks.items():
            stack.values = self._values[name]
        outputs: Tensor = self._folded.module(inputs.flatten(0, 1))
        return outputs.reshape(*inputs.shape[:2], *outputs.shape[1:])

    def descend(self, outputs: Tensor, output_gradients: Tensor, active: Tensor) -> None:
        """One gradient step; clients that are not active have output gradients of zero."""
        torch.autograd.grad((outputs * output_gradients).sum(), self._anchor)

    def updates(self) -> dict[str, Tensor]:
        """Trained minus start, by name. Ends the training: the memory is reused."""
        changes = {}
        for name, first in self._start.items():
            values = self._values[name]
            if values.shared:  # no step was taken
                changes[name] = torch.zeros_like(first, memory_format=torch.contiguous_format)
            else:
                change = values.tensor
                changes[name] = (change.mT if first.dim() == 3 else change.squeeze(1)).sub_(first)
        return changes


@dataclass
class _Values:
    """One parameter of all clients.

    Weights are transposed, [clients, in, out], and biases [clients, 1, out]: both products are fastest that way.

    Attributes:
        tensor: the values; without the axis of clients while they are ``shared``.
        shared: whether all clients still have the same.
        clients: how many there are.
        rate: learning rate.
        anchor: what asks for a gradient.
    """

    tensor: Tensor
    shared: bool
    clients: int
    rate: float
    anchor: Tensor

    @classmethod
    def of(cls, start: Tensor, rate: float, anchor: Tensor) -> "_Values":
        """From values of shape [clients, *shape], which are not written to."""
        turned = start.mT if start.dim() == 3 else start.unsqueeze(1)
        shared = len(start) > 0 and start.stride(0) == 0
        values = turned[0] if shared else turned
        return cls(values.clone(memory_format=torch.contiguous_format), shared, len(start), rate, anchor)

    def descend(self, gradients: Tensor) -> None:
        """One step, from gradients of shape [clients, ...]."""
        if self.shared:
            self.tensor, self.shared = torch.sub(self.tensor, gradients, alpha=self.rate), False
        else:
            self.tensor.sub_(gradients, alpha=self.rate)

    def descend_products(self, left: Tensor, right: Tensor) -> None:
        """One step, from gradients that are products of [clients, in, records] and [clients, records, out]."""
        if self.shared:
            every = self.tensor.expand(self.clients, *self.tensor.shape)
            self.tensor, self.shared = torch.baddbmm(every, left, right, alpha=-self.rate), False
        else:
            self.tensor.baddbmm_(left, right, alpha=-self.rate)


class _Stack(Tensor):
    """Stands in a module for a parameter of all clients; any use of it but ``linear`` is an error."""

    values: _Values  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Tensor:
        if func is not F.linear:
            raise NotImplementedError(f"stacked parameters cannot go through {func}")
        inputs, weight, bias = args
        output: Tensor = _LinearStep.apply(  # type: ignore[no-untyped-call]
            inputs, weight.values.anchor, weight.values, bias.values
        )
        return output


class _LinearStep(torch.autograd.Function):
    """A linear layer of every client; its backward pass takes the gradient step."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, weight: _Values, bias: _Values) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.weight, ctx.bias = weight, bias
        if weight.shared:
            return torch.addmm(bias.tensor, inputs, weight.tensor)
        return torch.baddbmm(bias.tensor, _by_client(inputs, weight), weight.tensor).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        (inputs,) = ctx.saved_tensors
        weight, bias = ctx.weight, ctx.bias
        each = _by_client(gradient, weight)
        downwards = None
        if ctx.needs_input_grad[0]:
            to_inputs = weight.tensor.mT
            downwards = gradient @ to_inputs if weight.shared else torch.bmm(each, to_inputs).flatten(0, 1)
        weight.descend_products(_by_client(inputs, weight).mT, each)
        bias.descend(each.sum(1, keepdim=True))
        return downwards, gradient.new_zeros(()), None, None


def _by_client(records: Tensor, values: _Values) -> Tensor:
    """[clients, records, features] from the records of all clients in one batch."""
    return records.view(values.clients, -1, records.shape[-1])
