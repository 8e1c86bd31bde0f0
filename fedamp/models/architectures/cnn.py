"""A small convolutional network with GroupNorm."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedamp.errors import ModelError
from fedamp.models.architecture import Architecture
from fedamp.models.units import Units

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class CNN(Architecture):
    """For every entry of ``channels`` a 3 x 3 convolution, GroupNorm, ReLU and 2 x 2 max pooling; then ``output``.

    Pooling stops where an image is one pixel wide. A node is the channels of one GroupNorm group: they share a mean and
    a variance, so they stay or go together.
    """

    channels: tuple[int, ...]
    groups: tuple[int, ...]  # of each GroupNorm

    def layers(self) -> tuple[str, ...]:
        numbers = range(len(self.channels))
        return (*(f"convolutions.{index}" for index in numbers), *(f"norms.{index}" for index in numbers), "output")

    def units(self) -> list[Units]:
        following = [*(f"convolutions.{index}" for index in range(1, len(self.channels))), "output"]
        owned = ("convolutions.{}.weight", "convolutions.{}.bias", "norms.{}.weight", "norms.{}.bias")
        return [
            Units(
                layer=f"convolutions.{index}",
                count=count,
                owned={**{name.format(index): 0 for name in owned}, f"{following[index]}.weight": 1},
                output=f"activations.{index}",
            )
            for index, count in enumerate(self.groups)
        ]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> CNN:
        groups = [len(kept.get(f"convolutions.{index}", range(count))) for index, count in enumerate(self.groups)]
        whole = zip(self.channels, self.groups, groups, strict=True)
        return CNN(tuple(width // count * left for width, count, left in whole), tuple(groups))

    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        from torch import nn

        from fedamp.models.layers import ToImage

        image = ToImage(input_shape, "cnn")
        for width, count in zip(self.channels, self.groups, strict=True):
            if width % count:
                raise ModelError(f"model.channels: {width} channels cannot be cut into model.groups = {count} groups")
        sizes = [image.channels, *self.channels]
        height, width, pools = image.height, image.width, []
        for _ in self.channels:
            shrink = 2 if min(height, width) > 1 else 1
            pools.append(nn.MaxPool2d(shrink))
            height, width = height // shrink, width // shrink
        return {
            "image": image,
            "convolutions": nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(sizes)),
            "norms": nn.ModuleList(nn.GroupNorm(*pair) for pair in zip(self.groups, self.channels, strict=True)),
            "activations": nn.ModuleList(nn.ReLU() for _ in self.channels),
            "pools": nn.ModuleList(pools),
            "output": nn.Linear(sizes[-1] * height * width, num_classes),
        }

    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        values = network.image(inputs)
        layers = zip(network.convolutions, network.norms, network.activations, network.pools, strict=True)
        for convolution, norm, activation, pool in layers:
            values = pool(activation(norm(convolution(values))))
        logits: Tensor = network.output(values.flatten(1))
        return logits
