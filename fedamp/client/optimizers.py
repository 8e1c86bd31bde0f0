"""Optimisers of local training, for the stacked parameters of many clients; their state ends with the round.

A further optimiser is a class here, a line in ``OPTIMIZERS``, and its name in ``Client.optimizer``.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fedamp.federation.training import Client

# From gradients and parameters, stacks [clients, *shape], to the directions of a step, which is the learning rate times
# the direction. Neither arguments nor earlier results are written to.
Directions = Callable[[list[Tensor], list[Tensor]], list[Tensor]]


class Sgd:
    """As ``torch.optim.SGD``: ``g = gradient + decay w; v = m v + g``, and v is the direction (at first, g)."""

    def __init__(self, config: Client) -> None:
        self._momentum, self._decay = config.momentum, config.weight_decay
        self._velocity: list[Tensor] = []

    def __call__(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        gradients = _decayed(gradients, values, self._decay)
        if self._velocity:
            gradients = list(torch._foreach_add(gradients, self._velocity, alpha=self._momentum))
        if self._momentum:
            self._velocity = gradients
        return gradients


class Adam:
    """As ``torch.optim.Adam`` (Kingma, Ba 2015), with the decay in the gradient."""

    def __init__(self, config: Client) -> None:
        self._config, self._steps = config, 0
        self._moments: list[tuple[Tensor, Tensor]] = []

    def __call__(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        gradients, betas = (
            _decayed(gradients, values, self._config.weight_decay),
            (self._config.beta1, self._config.beta2),
        )
        if not self._moments:
            self._moments = [(torch.zeros_like(gradient), torch.zeros_like(gradient)) for gradient in gradients]
        self._steps += 1
        first, second = (1 - beta**self._steps for beta in betas)
        directions = []
        for gradient, (mean, square) in zip(gradients, self._moments, strict=True):
            mean.lerp_(gradient, 1 - betas[0])
            square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
            directions.append((mean / first).div_((square / second).sqrt_().add_(self._config.epsilon)))
        return directions


def _decayed(gradients: list[Tensor], values: list[Tensor], decay: float) -> list[Tensor]:
    return list(torch._foreach_add(gradients, values, alpha=decay)) if decay else gradients


OPTIMIZERS: dict[str, Callable[[Client], Directions]] = {"sgd": Sgd, "adam": Adam}


def is_plain(config: Client, steps: Literal[1] | None = None) -> bool:
    """Whether every step is the learning rate times a gradient of the loss alone; the first one, if ``steps`` is 1."""
    momentum = config.momentum if steps is None else 0.0
    return config.optimizer == "sgd" and not (momentum or config.weight_decay or config.proximal)
