"""Optimisers of local training, for the stacked parameters of many clients; their state ends with the round.

A further optimiser is a class here, a line in ``OPTIMIZERS``, and its name in ``Client.optimizer``.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from fedamp.federation.training import Client


class LocalOptimizer(ABC):
    """The direction of a client's next step, from its own gradients. A step is the learning rate times that.

    Attributes:
        rests_without_gradient: whether a client whose gradients are zero stays where it is.
    """

    def __init__(self, config: Client) -> None:
        self.config, self.rests_without_gradient = config, False

    @abstractmethod
    def directions(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        """The directions: like gradients and values, a stack [clients, *shape] for every parameter.

        Neither arguments nor earlier results are written to.
        """

    def decayed(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        """Gradients with those of the weight decay."""
        decay = self.config.weight_decay
        return list(torch._foreach_add(gradients, values, alpha=decay)) if decay else gradients


class Sgd(LocalOptimizer):
    """As ``torch.optim.SGD``: ``g = gradient + decay w; v = m v + g``, and v is the direction (at first, g)."""

    def __init__(self, config: Client) -> None:
        super().__init__(config)
        self._velocity: list[Tensor] = []
        self.rests_without_gradient = not (config.momentum or config.weight_decay)

    def directions(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        gradients = self.decayed(gradients, values)
        if self._velocity:
            gradients = list(torch._foreach_add(gradients, self._velocity, alpha=self.config.momentum))
        if self.config.momentum:
            self._velocity = gradients
        return gradients


class Adam(LocalOptimizer):
    """As ``torch.optim.Adam`` (Kingma, Ba 2015), with the decay in the gradient."""

    def __init__(self, config: Client) -> None:
        super().__init__(config)
        self._moments: list[tuple[Tensor, Tensor]] = []
        self._steps = 0

    def directions(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        gradients, betas = self.decayed(gradients, values), (self.config.beta1, self.config.beta2)
        if not self._moments:
            self._moments = [(torch.zeros_like(gradient), torch.zeros_like(gradient)) for gradient in gradients]
        self._steps += 1
        first, second = (1 - beta**self._steps for beta in betas)
        found = []
        for gradient, (mean, square) in zip(gradients, self._moments, strict=True):
            mean.lerp_(gradient, 1 - betas[0])
            square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
            found.append((mean / first).div_((square / second).sqrt_().add_(self.config.epsilon)))
        return found


OPTIMIZERS: dict[str, type[LocalOptimizer]] = {"sgd": Sgd, "adam": Adam}


def is_plain(config: Client, steps: Literal[1] | None = None) -> bool:
    """Whether every step is the learning rate times a gradient of the loss alone; the first one, if ``steps`` is 1."""
    momentum = config.momentum if steps is None else 0.0
    return config.optimizer == "sgd" and not (momentum or config.weight_decay or config.proximal)
