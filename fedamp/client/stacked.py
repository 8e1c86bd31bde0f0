"""Any model for many clients at once, by ``torch.func.vmap`` over stacked parameters."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

# Logits [records, classes] of one client: forward(parameters, inputs [records, ...], *arguments of the client).
Forward = Callable[..., Tensor]


class Stacked:
    """The clients' parameters during local training.

    Args:
        together: logits [clients, records, classes] for parameters, inputs and arguments with an axis of clients.
        start: parameters by name, of shape [clients, *shape]; never written to.
        arguments: further arguments of ``together``.
        rate: learning rate.
        proximal: weight of the FedProx term (Li et al. 2020).
        bfloat16: whether matrix products may use bfloat16.
    """

    def __init__(
        self,
        together: Forward,
        start: dict[str, Tensor],
        arguments: Sequence[Tensor],
        rate: float,
        proximal: float,
        bfloat16: bool,
    ) -> None:
        self._together, self._start, self._arguments = together, start, arguments
        self._rate, self._proximal, self._bfloat16 = rate, proximal, bfloat16
        self._values = list(start.values())
        self._leaves: list[Tensor] = []
        self._untouched = True

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits [clients, records, classes] for inputs [clients, records, ...]."""
        self._leaves = [value.detach().requires_grad_() for value in self._values]
        low = torch.autocast(inputs.device.type, dtype=torch.bfloat16) if self._bfloat16 else nullcontext()
        with low:
            return self._together(dict(zip(self._start, self._leaves, strict=True)), inputs, *self._arguments)

    def descend(self, logits: Tensor, logit_gradients: Tensor, active: Tensor) -> None:
        """One gradient step for the clients that are active: bool of shape [clients]."""
        # Through a scalar: handing torch the logits' gradients makes it import its symbolic algebra, which takes longer
        # than many rounds.
        gradients = torch.autograd.grad((logits * logit_gradients).sum(), self._leaves, materialize_grads=True)
        if self._untouched:  # what clients start from is shared, and not ours to overwrite
            # Stacks lie in memory as their gradients do: whatever way round, the steps that follow are fast.
            stacks = [torch.empty_like(gradient) for gradient in gradients]
            for value, gradient, stack in zip(self._values, gradients, stacks, strict=True):
                torch.add(value, gradient, alpha=-self._rate, out=stack)
            self._values, self._untouched = stacks, False
            return
        if self._proximal:
            pull = active * (self._rate * self._proximal)
            for value, first in zip(self._values, self._start.values(), strict=True):
                value.lerp_(first, pull.view(-1, *[1] * (value.dim() - 1)).to(value.dtype))
        torch._foreach_add_(self._values, list(gradients), alpha=-self._rate)

    def updates(self) -> dict[str, Tensor]:
        """Trained minus start, by name. Ends the training: the memory is reused."""
        start = self._start.values()
        if self._untouched:
            changes = [torch.zeros_like(first, memory_format=torch.contiguous_format) for first in start]
        else:
            changes = [value.sub_(first) for value, first in zip(self._values, start, strict=True)]
        return dict(zip(self._start, changes, strict=True))
