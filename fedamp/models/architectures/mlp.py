"""Fully connected networks: logistic regression is the one without hidden layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedamp.models.architecture import Architecture
from fedamp.models.units import Units

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class MLP(Architecture):
    """Layers ``hidden.0``, ``hidden.1``, ..., each followed by a ReLU, and ``output``. Inputs are flattened.

    A node is a unit: its row of the layer's weight, its bias, and its column of the next layer's weight.
    """

    widths: tuple[int, ...]

    def layers(self) -> tuple[str, ...]:
        return (*(f"hidden.{index}" for index in range(len(self.widths))), "output")

    def units(self) -> list[Units]:
        return [
            Units(
                layer=layer,
                count=width,
                owned={f"{layer}.weight": 0, f"{layer}.bias": 0, f"{following}.weight": 1},
                output=f"activations.{index}",
            )
            for index, ((layer, following), width) in enumerate(
                zip(itertools.pairwise(self.layers()), self.widths, strict=True)
            )
        ]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> MLP:
        layers = zip(self.layers(), self.widths, strict=False)
        return MLP(tuple(len(kept.get(layer, range(width))) for layer, width in layers))

    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        from torch import nn

        sizes = [math.prod(input_shape), *self.widths]
        return {
            "hidden": nn.ModuleList(nn.Linear(into, out) for into, out in itertools.pairwise(sizes)),
            "activations": nn.ModuleList(nn.ReLU() for _ in self.widths),
            "output": nn.Linear(sizes[-1], num_classes),
        }

    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        values = inputs.flatten(1)
        for layer, activation in zip(network.hidden, network.activations, strict=True):
            values = activation(layer(values))
        logits: Tensor = network.output(values)
        return logits
