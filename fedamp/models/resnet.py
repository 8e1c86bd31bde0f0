"""Residual networks with GroupNorm in place of batch norm (He et al. 2016; Wu and He 2018)."""

import copy
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from fedamp.errors import ModelError
from fedamp.models.cnn import ToImage
from fedamp.models.units import Blocks

_LARGE_IMAGE = 64  # above this many pixels a side: the 7 x 7 stem with max pooling, below: a 3 x 3 stem


class Block(nn.Module):
    """``relu(x + branch(x))``, or ``relu(shortcut(x) + branch(x))`` where the shape changes.

    What comes in is never negative (it left a ReLU), so a block without its branch is exactly the identity.
    """

    def __init__(self, branch: nn.Sequential, shortcut: nn.Sequential | None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut if shortcut is not None else nn.Identity()
        self.activation = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.activation(self.shortcut(inputs) + self.branch(inputs))


class ResNet(nn.Module):
    """``stem``, the stages ``layer1``, ``layer2``, ... of residual blocks, the mean over all pixels, and ``output``.

    A node is a residual block that keeps the shape. Blocks that change it (the first of a stage, as a rule) cannot be
    left out: they are shared, like stem and output.

    Args:
        depths: number of blocks of every stage. From the second stage on, the first block halves the image.
        widths: channels of every stage (before the fourfold expansion of bottleneck blocks).
        bottleneck: blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions in place of two of 3 x 3.
        groups: groups of each GroupNorm; every width must be a multiple of it.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        depths: Sequence[int],
        widths: Sequence[int],
        bottleneck: bool,
        groups: int,
    ) -> None:
        super().__init__()
        for width in widths:
            if width % groups:
                raise ModelError(f"model.groups: {width} channels cannot be cut into {groups} groups")
        self.image = ToImage(tuple(input_shape), "resnet")
        self.stem = _stem(self.image, widths[0], groups)
        self.stages = [f"layer{index + 1}" for index in range(len(depths))]
        into = widths[0]
        for index, (stage, depth, width) in enumerate(zip(self.stages, depths, widths, strict=True)):
            blocks = nn.Sequential()
            for position in range(depth):
                stride = 2 if index > 0 and position == 0 else 1
                blocks.append(_block(into, width, stride, bottleneck, groups))
                into = width * (4 if bottleneck else 1)
            self.add_module(stage, blocks)
        self.output = nn.Linear(into, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        values = self.stem(self.image(inputs))
        for stage in self.stages:
            values = self.get_submodule(stage)(values)
        return self.output(values.mean((2, 3)))

    def units_to_split(self) -> list[Blocks]:
        return [Blocks(stage, self._branches(stage)) for stage in self.stages]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> "ResNet":
        result = copy.deepcopy(self)
        for stage in self.stages:
            branches = self._branches(stage)
            left_out = set(range(len(branches))) - set(kept.get(stage, range(len(branches))))
            for index in left_out:
                # deleting by name: the names of the others stay what they are in the full model
                delattr(result.get_submodule(stage), branches[index].split(".")[1])
        return result

    def _branches(self, stage: str) -> tuple[str, ...]:
        blocks = self.get_submodule(stage).named_children()
        return tuple(f"{stage}.{name}.branch" for name, block in blocks if isinstance(block.shortcut, nn.Identity))


def _stem(image: ToImage, width: int, groups: int) -> nn.Sequential:
    large = min(image.height, image.width) > _LARGE_IMAGE
    stem = nn.Sequential()
    kernel, stride = (7, 2) if large else (3, 1)
    stem.add_module("conv", nn.Conv2d(image.channels, width, kernel, stride, kernel // 2, bias=False))
    stem.add_module("norm", nn.GroupNorm(groups, width))
    stem.add_module("relu", nn.ReLU())
    if large:
        stem.add_module("pool", nn.MaxPool2d(3, 2, 1))
    return stem


def _block(into: int, width: int, stride: int, bottleneck: bool, groups: int) -> Block:
    out = width * (4 if bottleneck else 1)
    kernels = ((1, width, 1), (3, width, stride), (1, out, 1)) if bottleneck else ((3, width, stride), (3, out, 1))
    branch = nn.Sequential()
    channels = into
    for number, (kernel, size, step) in enumerate(kernels, start=1):
        if number > 1:
            branch.add_module(f"relu{number - 1}", nn.ReLU())
        branch.add_module(f"conv{number}", nn.Conv2d(channels, size, kernel, step, kernel // 2, bias=False))
        branch.add_module(f"norm{number}", nn.GroupNorm(groups, size))
        channels = size
    if stride == 1 and into == out:
        return Block(branch, None)
    shortcut = nn.Sequential()
    shortcut.add_module("conv", nn.Conv2d(into, out, 1, stride, bias=False))
    shortcut.add_module("norm", nn.GroupNorm(groups, out))
    return Block(branch, shortcut)
