"""A small convolutional network with GroupNorm, and what all image models need to know about their input."""

import itertools
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from fedamp.errors import ModelError
from fedamp.models.units import Units

_MOST_CHANNELS = 4  # a last dimension up to this, under a larger first one, is read as channels


class ToImage(nn.Module):
    """Inputs as images [batch, channels, height, width].

    Accepts records of shape [height, width], [channels, height, width], or [height, width, channels] (read so where the
    last dimension is at most 4 and the first is larger).
    """

    def __init__(self, input_shape: tuple[int, ...], model: str) -> None:
        super().__init__()
        if len(input_shape) not in (2, 3):
            raise ModelError(
                f"model {model} needs images: [height, width], [channels, height, width] or [height, width, channels], "
                f"got input shape {list(input_shape)} (data.shape can give one)"
            )
        self.flat = len(input_shape) == 2
        self.channels_last = not self.flat and input_shape[2] <= _MOST_CHANNELS < input_shape[0]
        size = (1, *input_shape) if self.flat else input_shape
        self.channels, self.height, self.width = (size[2], size[0], size[1]) if self.channels_last else size

    def forward(self, inputs: Tensor) -> Tensor:
        if self.flat:
            return inputs.unsqueeze(1)
        return inputs.permute(0, 3, 1, 2) if self.channels_last else inputs


class CNN(nn.Module):
    """For every entry of ``channels`` a 3 x 3 convolution, GroupNorm, ReLU and 2 x 2 max pooling; then ``output``.

    Layers are named ``convolutions.0``, ``norms.0``, ..., ``output``. Pooling stops where an image is one pixel wide. A
    node is the channels of one GroupNorm group: they share a mean and a variance, so they stay or go together.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, channels: Sequence[int], groups: Sequence[int]
    ) -> None:
        super().__init__()
        self.input_shape, self.num_classes = tuple(input_shape), num_classes
        self.channels, self.groups = tuple(channels), tuple(groups)
        self.image = ToImage(self.input_shape, "cnn")
        for width, count in zip(self.channels, self.groups, strict=True):
            if width % count:
                raise ModelError(f"model.channels: {width} channels cannot be cut into model.groups = {count} groups")
        sizes = [self.image.channels, *self.channels]
        self.convolutions = nn.ModuleList(nn.Conv2d(into, out, 3, padding=1) for into, out in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.GroupNorm(*pair) for pair in zip(self.groups, self.channels, strict=True))
        self.activations = nn.ModuleList(nn.ReLU() for _ in self.channels)
        height, width = self.image.height, self.image.width
        self.pools = nn.ModuleList()
        for _ in self.channels:
            shrink = 2 if min(height, width) > 1 else 1
            self.pools.append(nn.MaxPool2d(shrink))
            height, width = height // shrink, width // shrink
        self.output = nn.Linear(sizes[-1] * height * width, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        values = self.image(inputs)
        for convolution, norm, activation, pool in zip(
            self.convolutions, self.norms, self.activations, self.pools, strict=True
        ):
            values = pool(activation(norm(convolution(values))))
        return self.output(values.flatten(1))

    def units_to_split(self) -> list[Units]:
        last = len(self.channels) - 1
        return [
            Units(
                layer=f"convolutions.{index}",
                count=count,
                owned={
                    f"convolutions.{index}.weight": 0,
                    f"convolutions.{index}.bias": 0,
                    f"norms.{index}.weight": 0,
                    f"norms.{index}.bias": 0,
                    ("output.weight" if index == last else f"convolutions.{index + 1}.weight"): 1,
                },
                output=f"activations.{index}",
            )
            for index, count in enumerate(self.groups)
        ]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> "CNN":
        groups = [len(kept.get(f"convolutions.{index}", range(count))) for index, count in enumerate(self.groups)]
        sizes = [width // count for width, count in zip(self.channels, self.groups, strict=True)]
        channels = [size * count for size, count in zip(sizes, groups, strict=True)]
        return CNN(self.input_shape, self.num_classes, channels, groups)
