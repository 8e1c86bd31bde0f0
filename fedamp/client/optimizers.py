"""Optimisers of local training, for the stacked parameters of many clients; what they remember ends with the round."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedamp.federation.training import Client


class LocalOptimizer(ABC):
    """Which way clients go from where they are, each by its own gradients. A step is the learning rate times that.

    Attributes:
        scheme: its name in ``client.optimizer``.
        rests_without_gradient: whether a client whose gradients are zero stays where it is.
    """

    scheme: ClassVar[str]
    rests_without_gradient: bool

    @abstractmethod
    def directions(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        """What is subtracted, times the learning rate; nothing that is given, nor what was given back, is written to.

        Gradients and values are of shape [clients, *shape], one for every parameter.
        """


class Sgd(LocalOptimizer):
    """As ``torch.optim.SGD``: ``g = gradient + decay w; v = m v + g``, and v is the direction (at first, g)."""

    scheme = "sgd"

    def __init__(self, config: Client) -> None:
        self._momentum, self._decay = config.momentum, config.weight_decay
        self._velocity: list[Tensor] = []
        self.rests_without_gradient = not (self._momentum or self._decay)

    def directions(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        if self._decay:
            gradients = list(torch._foreach_add(gradients, values, alpha=self._decay))
        if self._velocity:
            gradients = list(torch._foreach_add(gradients, self._velocity, alpha=self._momentum))
        if self._momentum:
            self._velocity = gradients
        return gradients


class Adam(LocalOptimizer):
    """As ``torch.optim.Adam`` (Kingma, Ba 2015), with the decay in the gradient."""

    scheme, rests_without_gradient = "adam", False

    def __init__(self, config: Client) -> None:
        self._betas, self._epsilon, self._decay = (config.beta1, config.beta2), config.epsilon, config.weight_decay
        self._first: list[Tensor] = []
        self._second: list[Tensor] = []
        self._steps = 0

    def directions(self, gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        if self._decay:
            gradients = list(torch._foreach_add(gradients, values, alpha=self._decay))
        if not self._first:
            self._first, self._second = ([torch.zeros_like(gradient) for gradient in gradients] for _ in range(2))
        self._steps += 1
        first, second = (1 - beta**self._steps for beta in self._betas)
        ways = []
        for gradient, mean, square in zip(gradients, self._first, self._second, strict=True):
            mean.lerp_(gradient, 1 - self._betas[0])
            square.mul_(self._betas[1]).addcmul_(gradient, gradient, value=1 - self._betas[1])
            ways.append((mean / first).div_((square / second).sqrt_().add_(self._epsilon)))
        return ways


OPTIMIZERS: dict[str, type[Sgd] | type[Adam]] = {each.scheme: each for each in (Sgd, Adam)}


def optimizer_of(config: Client) -> LocalOptimizer:
    """A fresh optimiser, as a ``client`` section names it."""
    return OPTIMIZERS[config.optimizer](config)


def is_plain(config: Client, steps: Literal[1] | None = None) -> bool:
    """Whether every step is the learning rate times a gradient of the loss alone; the first one, if ``steps`` is 1."""
    momentum = config.momentum if steps is None else 0.0
    return config.optimizer == "sgd" and not (momentum or config.weight_decay or config.proximal)
