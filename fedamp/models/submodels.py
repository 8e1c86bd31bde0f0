"""What clients train: the whole model, a disjoint submodel of it, or all of it under a dropout mask."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedamp import rng
from fedamp.models.architectures import is_import_path
from fedamp.models.masks import Masks
from fedamp.models.registry import build
from fedamp.models.splits import Split, split
from fedamp.scenario import DisjointSubmodels, DropoutSubmodels, Model, Submodels

WHOLE = -1  # the number of the whole model among the submodels


class Piece:
    """A network that some clients train together: the whole model.

    Attributes:
        module: the network; its parameter values are arbitrary.
        shared: names of the parameters in the shared part; all others are in the split part.
        known: whether it is built in, so that it treats every record by itself and uses each layer once.
    """

    def __init__(self, module: nn.Module, shared: frozenset[str], known: bool) -> None:
        self.module, self.shared, self.known = module, shared, known

    @property
    def parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the parameters in the shared and in the split part, in the order of the module."""
        names = [name for name, _ in self.module.named_parameters()]
        return tuple(name for name in names if name in self.shared), tuple(
            name for name in names if name not in self.shared
        )

    def forward(self, parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
        """Logits [records, classes] of one client."""
        logits: Tensor = functional_call(self.module, parameters, (inputs,))
        return logits

    def arguments(self, seeds: NDArray[np.uint64]) -> list[Tensor]:
        """Further arguments of :meth:`forward`, of shape [clients, ...], drawn from each client's own seed."""
        return []

    def extract(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """This piece's part of the whole model's arrays."""
        return dict(arrays)

    def embed_add(self, total: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        """Add this piece's arrays to the whole model's, in place."""
        for name, array in part.items():
            total[name][...] += array


class DisjointPiece(Piece):
    """A disjoint submodel, as a network of its own."""

    def __init__(self, cut: Split, number: int, known: bool) -> None:
        super().__init__(cut.module(number), cut.shared, known)
        self._cut, self._number = cut, number

    def extract(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return self._cut.extract(arrays, self._number)

    def embed_add(self, total: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        self._cut.embed_add(total, part, self._number)


class MaskedPiece(Piece):
    """The whole model, under a mask for each client that keeps every node with probability ``keep``."""

    def __init__(self, masks: Masks, keep: float) -> None:
        super().__init__(masks.module, masks.shared, known=False)
        self._masks, self._keep = masks, keep

    def forward(self, parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
        return self._masks.call(parameters, inputs, *arguments)

    def arguments(self, seeds: NDArray[np.uint64]) -> list[Tensor]:
        kept = rng.uniforms(seeds, "dropout mask", self._masks.nodes) < self._keep
        return [torch.from_numpy(kept.astype(np.float32))]


class WholeModel:
    """Everybody trains the whole model.

    Attributes:
        shared: names of the parameters that every submodel touches.
    """

    shared: frozenset[str] = frozenset()

    def __init__(self, model: Model, input_shape: tuple[int, ...], num_classes: int) -> None:
        self._model = model
        self._shape = tuple(input_shape), num_classes
        self._known = not is_import_path(model.name)

    def at(self, round_: int) -> Split | None:
        """The cut into disjoint submodels of a round; None where there is none."""
        return None

    def piece(self, submodel: int, round_: int) -> Piece:
        """What the clients of a submodel train in a round; the same object as long as it is the same."""
        return self._whole

    @cached_property
    def _whole(self) -> Piece:
        return Piece(build(self._model, *self._shape), frozenset(), self._known)


class DroppedNodes(WholeModel):
    """Everybody trains the model under a mask of their own."""

    def __init__(
        self, model: Model, input_shape: tuple[int, ...], num_classes: int, submodels: DropoutSubmodels
    ) -> None:
        super().__init__(model, input_shape, num_classes)
        masks = Masks(build(model, *self._shape), submodels.layers)
        self.shared = masks.shared
        self._masked = MaskedPiece(masks, submodels.keep)

    def piece(self, submodel: int, round_: int) -> Piece:
        return self._masked


class DisjointNodes(WholeModel):
    """Everybody trains one of several submodels that have no node in common."""

    def __init__(
        self, model: Model, input_shape: tuple[int, ...], num_classes: int, submodels: DisjointSubmodels, seed: int
    ) -> None:
        super().__init__(model, input_shape, num_classes)
        self._submodels, self._seed = submodels, seed
        self._index = -1
        self.shared = self.at(1).shared

    def at(self, round_: int) -> Split:
        index = round_ if self._submodels.partition == "fresh" else 0
        if index != self._index:
            count, shared = self._submodels.count, self._submodels.shared
            self._cut = split(self._model, *self._shape, count, shared, self._seed, index)
            self._index, self._pieces = index, dict[int, Piece]()
        return self._cut

    def piece(self, submodel: int, round_: int) -> Piece:
        if submodel == WHOLE:
            return self._whole
        cut = self.at(round_)
        if submodel not in self._pieces:
            self._pieces[submodel] = DisjointPiece(cut, submodel, self._known)
        return self._pieces[submodel]


def cut_of(submodels: Submodels, model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> WholeModel:
    """How a scenario's model is cut: the one place that asks which scheme of submodels it has.

    Args:
        submodels, model: sections of the scenario.
        input_shape: shape of one record.
        num_classes: number of labels.
        seed: public seed of the partitions into disjoint submodels.

    Raises:
        ModelError: a model that cannot be built, or not be cut so.
    """
    match submodels:
        case DropoutSubmodels():
            return DroppedNodes(model, input_shape, num_classes, submodels)
        case DisjointSubmodels():
            return DisjointNodes(model, input_shape, num_classes, submodels, seed)
        case _:
            return WholeModel(model, input_shape, num_classes)
