"""Describe the built-in models by name, as plans and costs need them: torch loads where one gets parameters.

A further model is a class and a line in ``ARCHITECTURES``. :mod:`fedamp.models.networks` makes modules of them;
:mod:`fedamp.federation.submodels` asks here whether a model can be split.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fedamp.errors import ModelError
from fedamp.models.model import Model
from fedamp.models.units import Blocks, Units, check_count, under, unknown

if TYPE_CHECKING:
    from torch import Tensor, nn


class Architecture(ABC):
    """A network that has no parameters yet. Torch is imported by :meth:`modules` at the earliest.

    Subclasses are frozen dataclasses, whose fields are the sizes.

    Attributes:
        takes_tokens: inputs are tokens, not numbers.
    """

    takes_tokens: ClassVar[bool] = False

    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """Name the layers, for ``submodels.shared``; names below a layer are accepted too."""

    def units(self) -> Sequence[Units | Blocks]:
        """Declare nodes that can be left out, by layer; empty: the model cannot be split or masked."""
        return ()

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> Self:
        """Return the architecture that has only the kept nodes of the named layers, and all nodes of the others.

        Args:
            kept: numbers of the kept nodes, ascending, by layer.
        """
        return self

    @abstractmethod
    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        """Make the submodules by name, with initial values from torch's generator.

        Args:
            input_shape: of one record.
            num_classes: outputs for every record, or every token.

        Raises:
            ModelError: sizes do not fit together, or inputs do not have this shape.
        """

    @abstractmethod
    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        """Compute outputs [batch, outputs] (tokens: [batch, length, outputs]).

        Args:
            network: has the submodules as attributes.
            inputs: [batch, *input_shape]; float32, or int64 for tokens.
        """


@dataclass(frozen=True)
class MLP(Architecture):
    """Layers ``hidden.0``, ``hidden.1``, ..., each followed by a ReLU, and ``output``. Inputs are flattened.

    A node is a unit: its row of the layer's weight, its bias, and its column of the next layer's weight.

    Attributes:
        widths: units of every hidden layer; empty: logistic regression.
    """

    widths: tuple[int, ...]

    def layers(self) -> tuple[str, ...]:
        """Name the hidden layers and the output."""
        return (*(f"hidden.{index}" for index in range(len(self.widths))), "output")

    def units(self) -> list[Units]:
        """Declare each hidden unit as a node."""
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
        """Return the network of the kept hidden units."""
        layers = zip(self.layers(), self.widths, strict=False)
        return MLP(tuple(len(kept.get(layer, range(width))) for layer, width in layers))

    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        """Make a linear layer and a ReLU for each width, and the output."""
        from torch import nn

        sizes = [math.prod(input_shape), *self.widths]
        return {
            "hidden": nn.ModuleList(nn.Linear(into, out) for into, out in itertools.pairwise(sizes)),
            "activations": nn.ModuleList(nn.ReLU() for _ in self.widths),
            "output": nn.Linear(sizes[-1], num_classes),
        }

    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        """Compute logits [batch, classes]."""
        values = inputs.flatten(1)
        for layer, activation in zip(network.hidden, network.activations, strict=True):
            values = activation(layer(values))
        logits: Tensor = network.output(values)
        return logits


@dataclass(frozen=True)
class CNN(Architecture):
    """A network with, for every entry of ``channels``, a 3 x 3 convolution, GroupNorm, ReLU and 2 x 2 max pooling.

    ``output`` follows. Pooling stops where an image is one pixel wide. A node is the channels of one GroupNorm group:
    they share a mean and a variance, so they stay or go together.

    Attributes:
        channels: of every convolution, each a multiple of its groups.
        groups: of each GroupNorm.
    """

    channels: tuple[int, ...]
    groups: tuple[int, ...]

    def layers(self) -> tuple[str, ...]:
        """Name the convolutions, the norms and the output."""
        numbers = range(len(self.channels))
        return (*(f"convolutions.{index}" for index in numbers), *(f"norms.{index}" for index in numbers), "output")

    def units(self) -> list[Units]:
        """Declare each GroupNorm group as a node, with its part of the following layer."""
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
        """Return the network of the kept groups; a group keeps its number of channels."""
        groups = [len(kept.get(f"convolutions.{index}", range(count))) for index, count in enumerate(self.groups)]
        whole = zip(self.channels, self.groups, groups, strict=True)
        return CNN(tuple(width // count * left for width, count, left in whole), tuple(groups))

    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        """Make the layers for images of a shape."""
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
        """Compute logits [batch, classes]."""
        values = network.image(inputs)
        layers = zip(network.convolutions, network.norms, network.activations, network.pools, strict=True)
        for convolution, norm, activation, pool in layers:
            values = pool(activation(norm(convolution(values))))
        logits: Tensor = network.output(values.flatten(1))
        return logits


@dataclass(frozen=True)
class Recurrent(Architecture):
    """A character model: embedding -> LSTMs recurrent.0, recurrent.1, ... -> output [batch, length, outputs].

    It declares no nodes, so it cannot be split or masked.

    Attributes:
        vocabulary: number of tokens.
        embedding: numbers that stand for a token.
        widths: of the state of each LSTM.
    """

    vocabulary: int
    embedding: int
    widths: tuple[int, ...]
    takes_tokens: ClassVar[bool] = True

    def layers(self) -> tuple[str, ...]:
        """Name the embedding, the LSTMs and the output."""
        return ("embedding", *(f"recurrent.{index}" for index in range(len(self.widths))), "output")

    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        """Make the layers for sequences of tokens."""
        from torch import nn

        from fedamp.models.layers import LSTM

        if len(input_shape) != 1:
            raise ModelError(f"model lstm needs sequences of tokens, [length], got input shape {list(input_shape)}")
        sizes = [self.embedding, *self.widths]
        return {
            "embedding": nn.Embedding(self.vocabulary, self.embedding),
            "recurrent": nn.ModuleList(LSTM(into, out) for into, out in itertools.pairwise(sizes)),
            "output": nn.Linear(sizes[-1], num_classes),
        }

    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        """Compute logits [batch, length, outputs], each from the tokens up to its place."""
        values = network.embedding(inputs)
        for layer in network.recurrent:
            values = layer(values)
        logits: Tensor = network.output(values)
        return logits


_LARGE_IMAGE = 64  # above this many pixels a side: the 7 x 7 stem with max pooling, below: a 3 x 3 stem


@dataclass(frozen=True)
class ResNet(Architecture):
    """A residual network with GroupNorm in place of batch norm (He et al. 2016; Wu and He 2018).

    ``stem``, the stages ``layer1``, ``layer2``, ... of residual blocks, the mean over all pixels, and ``output``.

    A node is a residual block that keeps the shape. Other blocks (most first ones of a stage) are shared, like stem and
    output.

    Attributes:
        depths: blocks of every stage; from the second stage on, the first block halves the image.
        widths: channels of every stage (before the fourfold expansion of bottleneck blocks).
        bottleneck: blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions in place of two of 3 x 3.
        groups: of each GroupNorm; every width must be a multiple of it.
        left_out: blocks that a smaller network lacks, such as ``layer1.2``.
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    bottleneck: bool
    groups: int
    left_out: frozenset[str] = frozenset()

    def layers(self) -> tuple[str, ...]:
        """Name the stem, the stages that have nodes, all blocks, and the output."""
        stages = [each.layer for each in self.units() if each.count]
        return ("stem", *stages, *itertools.chain(*self._blocks()), "output")

    def units(self) -> list[Blocks]:
        """Declare the residual branches of the blocks that keep the shape, stage by stage."""
        return [
            Blocks(f"layer{number}", tuple(f"{block}.branch" for block in stage if not self._changes_shape(block)))
            for number, stage in enumerate(self._blocks(), 1)
        ]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> ResNet:
        """Return the network without the blocks that are not kept; names of the others stay."""
        left_out = {
            branch.removesuffix(".branch")
            for stage in self.units()
            for index, branch in enumerate(stage.branches)
            if index not in kept.get(stage.layer, range(stage.count))
        }
        return replace(self, left_out=self.left_out | left_out)

    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        """Make the stem, the stages and the output for images of a shape."""
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
        """Compute logits [batch, classes]."""
        values = network.stem(network.image(inputs))
        for number in range(1, len(self.depths) + 1):
            values = getattr(network, f"layer{number}")(values)
        logits: Tensor = network.output(values.mean((2, 3)))
        return logits

    def _blocks(self) -> list[list[str]]:
        """Name the blocks of every stage."""
        stages = [[f"layer{number}.{block}" for block in range(depth)] for number, depth in enumerate(self.depths, 1)]
        return [[block for block in stage if block not in self.left_out] for stage in stages]

    def _changes_shape(self, block: str) -> bool:
        """Say whether a block changes channels or the size of the image, so that it cannot be left out."""
        stage, _, position = block.partition(".")
        return position == "0" and (self.bottleneck or stage != "layer1")

    def _stem(self, image: Any) -> nn.Sequential:
        """Make the first convolution: 7 x 7 with pooling for images above 64 pixels a side, else 3 x 3."""
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
        """Make a residual block, with a convolution in its shortcut where the shape changes."""
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


ARCHITECTURES: dict[str, Callable[[Model], Architecture]] = {
    "logistic": lambda model: MLP(()),
    "mlp": lambda model: MLP(model.hidden),
    "cnn": lambda model: CNN(model.channels, (model.groups,) * len(model.channels)),
    "lstm": lambda model: Recurrent(model.vocabulary or 0, model.embedding, model.hidden),
    "resnet20": lambda model: ResNet((3, 3, 3), (16, 32, 64), False, model.groups),
    "resnet18": lambda model: ResNet((2, 2, 2, 2), (64, 128, 256, 512), False, model.groups),
    "resnet101": lambda model: ResNet((3, 4, 23, 3), (64, 128, 256, 512), True, model.groups),
}


def architecture_of(config: Model) -> Architecture:
    """Return a built-in model.

    Args:
        config: the scenario's ``model`` section.

    Raises:
        ValueError: an unknown name, a vocabulary for a model of numbers, or none for a model of tokens.
    """
    if config.name not in ARCHITECTURES:
        raise ValueError(f"model.name {unknown(config.name, [*sorted(ARCHITECTURES), 'package.module:name'])}")
    found = ARCHITECTURES[config.name](config)
    if found.takes_tokens != (config.vocabulary is not None):
        wrong, inputs = ("is required", "tokens") if found.takes_tokens else ("must be left out", "numbers")
        raise ValueError(f"model.vocabulary {wrong} with model {config.name}, whose inputs are {inputs}")
    return found


def check_masked(config: Model) -> None:
    """Refuse to mask a built-in model that has nothing to mask.

    Raises:
        ModelError: it has no hidden layer with nodes.
    """
    if not any(each.count for each in architecture_of(config).units()):
        raise ModelError(f"submodels.scheme dropout: model {config.name} has no hidden layer to mask")


def check_split(config: Model, count: int, shared: Sequence[str]) -> None:
    """Refuse to split a built-in model in this way, before torch is loaded.

    Args:
        config: the scenario's ``model`` section.
        count: number of submodels.
        shared: names of layers that every submodel holds whole.

    Raises:
        ModelError: an unknown layer, or more submodels than nodes.
    """
    architecture = architecture_of(config)
    layers = architecture.layers()
    for name in shared:
        if not any(under(layer, [name]) or under(name, [layer]) for layer in layers):
            raise ModelError(f"submodels.shared: {unknown(name, layers)}")
    check_count(config.name, architecture.units(), shared, count)
