"""Fully connected networks: logistic regression is the one without hidden layers."""

import itertools
import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from fedamp.models.units import Units


class MLP(nn.Module):
    """Layers ``hidden.0``, ``hidden.1``, ..., each followed by a ReLU, and ``output``. Inputs are flattened.

    Its nodes are the hidden units. A unit owns its row of the layer's weight, its bias, and its column of the next
    layer's weight.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        self.input_shape, self.num_classes, self.widths = tuple(input_shape), num_classes, tuple(hidden)
        sizes = [math.prod(input_shape), *hidden]
        self.hidden = nn.ModuleList(nn.Linear(into, out) for into, out in itertools.pairwise(sizes))
        self.activations = nn.ModuleList(nn.ReLU() for _ in hidden)
        self.output = nn.Linear(sizes[-1], num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        values = inputs.flatten(1)
        for layer, activation in zip(self.hidden, self.activations, strict=True):
            values = activation(layer(values))
        return self.output(values)

    def units_to_split(self) -> list[Units]:
        following = [f"hidden.{index}" for index in range(1, len(self.widths))] + ["output"]
        return [
            Units(
                layer=f"hidden.{index}",
                count=width,
                owned={f"hidden.{index}.weight": 0, f"hidden.{index}.bias": 0, f"{following[index]}.weight": 1},
                output=f"activations.{index}",
            )
            for index, width in enumerate(self.widths)
        ]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> "MLP":
        widths = [len(kept.get(f"hidden.{index}", range(width))) for index, width in enumerate(self.widths)]
        return MLP(self.input_shape, self.num_classes, widths)
