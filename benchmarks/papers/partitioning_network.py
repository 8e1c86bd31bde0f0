"""The residual network of Table 1 of Dong, Chen, Özgür 2025, in small, and how it is trained without privacy."""

import copy
import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.training import Labelled
from fedamp.models.masks import Masks
from fedamp.models.units import Blocks

CLASSES = 10
WIDTH, BLOCKS, SCALE = 16, 12, 0.1
WHOLE = (0, 1, 10, 11)  # blocks that are in every submodel
SHARED = ["stem", "output", *(f"blocks.{index}" for index in WHOLE)]


class Residual(nn.Module):
    """A residual network on flat images: ``stem``, blocks ``x + branch(x)`` of one hidden layer, ``output``.

    Convolutions would be nearer to the paper, and take an hour of two cores where this takes minutes.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Linear(math.prod(input_shape), WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.output = nn.Linear(WIDTH, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.blocks(self.stem(inputs.flatten(1)))))

    def units_to_split(self) -> list[Blocks]:
        return [Blocks("blocks", tuple(f"blocks.{name}.branch" for name, _ in self.blocks.named_children()))]

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> nn.Module:
        result = copy.deepcopy(self)
        for index in set(range(BLOCKS)) - set(kept.get("blocks", range(BLOCKS))):
            delattr(result.blocks, str(index))  # by name: the others keep theirs
        return result


class Block(nn.Module):
    """``x + branch(x)``: without its branch it is the identity."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.branch = nn.Sequential(nn.LayerNorm(WIDTH), first, nn.ReLU(), second)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + SCALE * self.branch(inputs)


def pre_train(public: Labelled, checked: Labelled, seed: int) -> tuple[dict[str, NDArray[np.float32]], float]:
    """Without privacy, until 70 % of the records to check it on (all ten classes) are right.

    Blocks that will be split are left out at random (stochastic depth), so that the others do not rely on them.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = Residual(public[0].shape[1:], CLASSES)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    records, targets = (torch.from_numpy(part) for part in public)
    masks, parameters = Masks(module), dict(module.named_parameters())
    accuracy = 0.0
    for step in range(5000):
        batch = torch.randint(len(records), (128,))
        kept = (torch.rand(BLOCKS) < torch.rand(1)).float()
        kept[list(WHOLE)] = 1
        loss = nn.functional.cross_entropy(masks.call(parameters, records[batch], kept), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            with torch.no_grad():
                accuracy = (module(torch.from_numpy(checked[0])).argmax(1).numpy() == checked[1]).mean()
            if accuracy >= 0.7:
                break
    return {name: value.detach().numpy() for name, value in module.named_parameters()}, float(accuracy)
