"""Residual networks with GroupNorm in place of batch norm (He et al. 2016; Wu and He 2018)."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedamp.errors import ModelError
from fedamp.models.architecture import Architecture
from fedamp.models.units import Blocks

if TYPE_CHECKING:
    from torch import Tensor, nn

_LARGE_IMAGE = 64  # above this many pixels a side: the 7 x 7 stem with max pooling, below: a 3 x 3 stem


@dataclass(frozen=True)
class ResNet(Architecture):
    """``stem``, the stages ``layer1``, ``layer2``, ... of residual blocks, the mean over all pixels, and ``output``.

    A node is a residual block that keeps the shape. Other blocks (most first ones of a stage) are shared, like stem and
    output.
    """

    depths: tuple[int, ...]  # blocks of every stage; from the second stage on, the first block halves the image
    widths: tuple[int, ...]  # channels of every stage (before the fourfold expansion of bottleneck blocks)
    bottleneck: bool  # blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions in place of two of 3 x 3
    groups: int  # of each GroupNorm; every width must be a multiple of it
    left_out: frozenset[str] = frozenset()  # blocks that a smaller network lacks, such as ``layer1.2``

    def layers(self) -> tuple[str, ...]:
        stages = [each.layer for each in self.units() if each.count]
        return ("stem", *stages, *itertools.chain(*self._blocks()), "output")

    def units(self) -> list[Blocks]:
        return [
            Blocks(f"layer{number}", tuple(f"{block}.branch" for block in stage if not self._changes_shape(block)))
            for number, stage in enumerate(self._blocks(), 1)
        ]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> ResNet:
        left_out = {
            branch.removesuffix(".branch")
            for stage in self.units()
            for index, branch in enumerate(stage.branches)
            if index not in kept.get(stage.layer, range(stage.count))
        }
        return replace(self, left_out=self.left_out | left_out)

    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        from torch import nn

        from fedamp.models.layers import ToImage

        for width in self.widths:
            if width % self.groups:
                raise ModelError(f"model.groups: {width} channels cannot be cut into {self.groups} groups")
        image = ToImage(input_shape, "resnet")
        modules: dict[str, nn.Module] = {"image": image, "stem": self._stem(image)}
        into = self.widths[0]
        for number, (depth, width) in enumerate(zip(self.depths, self.widths, strict=True), 1):
            blocks: OrderedDict[str, nn.Module] = OrderedDict()
            for position in range(depth):
                if f"layer{number}.{position}" not in self.left_out:
                    stride = 2 if number > 1 and position == 0 else 1
                    blocks[str(position)] = self._block(into, width, stride)
                into = width * (4 if self.bottleneck else 1)
            modules[f"layer{number}"] = nn.Sequential(blocks)
        modules["output"] = nn.Linear(into, num_classes)
        return modules

    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        values = network.stem(network.image(inputs))
        for number in range(1, len(self.depths) + 1):
            values = getattr(network, f"layer{number}")(values)
        logits: Tensor = network.output(values.mean((2, 3)))
        return logits

    def _blocks(self) -> list[list[str]]:
        """Names of the blocks of every stage."""
        stages = [[f"layer{number}.{block}" for block in range(depth)] for number, depth in enumerate(self.depths, 1)]
        return [[block for block in stage if block not in self.left_out] for stage in stages]

    def _changes_shape(self, block: str) -> bool:
        stage, _, position = block.partition(".")
        return position == "0" and (self.bottleneck or stage != "layer1")

    def _stem(self, image: Any) -> nn.Sequential:
        from torch import nn

        large, width = min(image.height, image.width) > _LARGE_IMAGE, self.widths[0]
        kernel, stride = (7, 2) if large else (3, 1)
        layers: dict[str, nn.Module] = {
            "conv": nn.Conv2d(image.channels, width, kernel, stride, kernel // 2, bias=False),
            "norm": nn.GroupNorm(self.groups, width),
            "relu": nn.ReLU(),
        }
        if large:
            layers["pool"] = nn.MaxPool2d(3, 2, 1)
        return nn.Sequential(OrderedDict(layers))

    def _block(self, into: int, width: int, stride: int) -> nn.Module:
        from torch import nn

        from fedamp.models.layers import Residual

        out = width * (4 if self.bottleneck else 1)
        basic, bottleneck = ((3, width, stride), (3, out, 1)), ((1, width, 1), (3, width, stride), (1, out, 1))
        branch, channels = nn.Sequential(), into
        for number, (kernel, size, step) in enumerate(bottleneck if self.bottleneck else basic, 1):
            if number > 1:
                branch.add_module(f"relu{number - 1}", nn.ReLU())
            branch.add_module(f"conv{number}", nn.Conv2d(channels, size, kernel, step, kernel // 2, bias=False))
            branch.add_module(f"norm{number}", nn.GroupNorm(self.groups, size))
            channels = size
        if stride == 1 and into == out:
            return Residual(branch)
        convolution = nn.Conv2d(into, out, 1, stride, bias=False)
        return Residual(branch, nn.Sequential(OrderedDict(conv=convolution, norm=nn.GroupNorm(self.groups, out))))
