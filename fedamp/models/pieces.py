"""The networks that clients train: the whole model, or all of it under dropout masks; ``splits`` has disjoint ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from numpy import void
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedamp import rng
from fedamp.errors import ModelError
from fedamp.models.architectures import is_import_path
from fedamp.models.frozen import matching
from fedamp.models.masks import Masks
from fedamp.models.networks import build, is_random
from fedamp.models.section import Model
from fedamp.models.tables import tables, takes_rows, touched, with_rows

# (submodel, round) -> what clients train; the same object as long as it is the same piece.
Pieces = Callable[[int, int], "Piece"]


class Piece:
    """A network that some clients train together: the whole model.

    Attributes:
        module: the network; its parameter values are arbitrary.
        shared: names of the parameters in the shared part; those neither here nor frozen are in the split part.
        frozen: names of the parameters of which no update tells: nobody trains them, or they are ``local``.
        local: names of the parameters that stay with their client.
        tables: embeddings of which a client may train the rows that it touches alone (:mod:`fedamp.models.tables`).
        known: whether it is built in, so that it treats every record by itself and uses each layer once.
        random: whether its forward pass draws random numbers in training: then each unit needs its own stream.
        owns_all: whether clients that train this piece may change every parameter of it.
    """

    frozen: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    tables: Mapping[str, str] = MappingProxyType({})
    owns_all = True

    def __init__(self, module: nn.Module, shared: frozenset[str], known: bool, random: bool = False) -> None:
        self.module, self.shared, self.known, self.random = module, shared, known, random

    @classmethod
    def whole(cls, model: Model, input_shape: tuple[int, ...], num_classes: int) -> "Piece":
        """All of a scenario's model."""
        module = build(model, input_shape, num_classes)
        known = not (is_import_path(model.name) or model.local)  # the fast ways have one start for all clients
        piece = cls(module, frozenset(), known, is_random(module, model, input_shape))
        piece.local = local_names(module, model.local)
        piece.frozen = piece.local
        if model.vocabulary is not None:
            found = {name: path for name, path in tables(module).items() if name not in piece.local}
            piece.tables = found if found and takes_rows(module, found, input_shape, model.vocabulary) else {}
        return piece

    @cached_property
    def parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the parameters in the shared and in the split part, in the order of the module."""
        names = [name for name, _ in self.module.named_parameters() if name not in self.frozen]
        shared = tuple(name for name in names if name in self.shared)
        return shared, tuple(name for name in names if name not in self.shared)

    def forward(self, parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
        """Logits [records, classes] of one client."""
        with with_rows(self.module, self.tables, arguments[0]) if arguments else nullcontext():
            logits: Tensor = functional_call(self.module, parameters, (inputs,))
        return logits

    def arguments(self, seeds: NDArray[void]) -> list[Tensor]:
        """Further arguments of :meth:`forward`, of shape [clients, ...], drawn from each client's own seed."""
        return []

    def further(
        self, start: Mapping[str, Tensor], inputs: NDArray[Any], seeds: NDArray[void], decays: bool
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Arguments of :meth:`forward`, and what clients start from in place of ``start``: of tables, their own rows,
        where these are few, and others stay as they are (``decays`` False). Inputs: [clients, records, *input_shape].
        """
        places = math.prod(inputs.shape[1:])
        if decays or not self.tables or any(2 * places > len(start[name]) for name in self.tables):
            return self.arguments(seeds), {}
        rows = touched(torch.from_numpy(inputs), places).to(next(iter(start.values())).device)
        return [rows], {name: start[name][rows] for name in self.tables}

    def owned(self, updates: dict[str, Tensor], seeds: NDArray[void]) -> dict[str, Tensor]:
        """The updates [clients, ...], zero outside what these clients may change. May overwrite them.

        Charges for hidden submodels rest on this: what a submodel does not own is zero, however it was trained.
        """
        return {name: update for name, update in updates.items() if name not in self.frozen}

    def extract(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """This piece's part of the whole model's arrays (numpy or torch); arrays that are not cut are not copied."""
        return dict(arrays)

    def embed_add(self, total: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        """Add this piece's arrays to the whole model's, in place, each coordinate where it belongs."""
        for name, array in part.items():
            total[name][...] += array


def local_names(module: nn.Module, patterns: Sequence[str]) -> frozenset[str]:
    """The parameters that stay with their client; ModelError where a pattern matches none, or nothing is left."""
    names = [name for name, _ in module.named_parameters()]
    found = matching(names, patterns, "model.local")
    if len(found) == len(names):
        raise ModelError("model.local: all parameters are local, so that nothing is released; expected: some others")
    return found


class MaskedPiece(Piece):
    """The whole model, under a mask for each client that keeps every node with probability ``keep``."""

    owns_all = False

    def __init__(self, masks: Masks, keep: float, random: bool = False) -> None:
        super().__init__(masks.module, masks.shared, known=False, random=random)
        self.frozen, self._masks, self._keep = masks.frozen, masks, keep

    def forward(self, parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
        return self._masks.call(parameters, inputs, *arguments)

    def arguments(self, seeds: NDArray[void]) -> list[Tensor]:
        return [self._kept(seeds, "dropout mask", self._masks.nodes).float()]

    def owned(self, updates: dict[str, Tensor], seeds: NDArray[void]) -> dict[str, Tensor]:
        self._masks.silence(updates, self._kept(seeds, "dropout mask", self._masks.nodes))
        dealt = [updates[name] for name in self._masks.dealt]
        sizes = [update.shape[1:].numel() for update in dealt]
        kept = self._kept(seeds, "dropout rest", sum(sizes))
        for update, own in zip(dealt, torch.split(kept, sizes, 1), strict=True):
            update.masked_fill_(~own.view(update.shape).to(update.device), 0.0)
        return super().owned(updates, seeds)

    def _kept(self, seeds: NDArray[void], purpose: str, count: int) -> Tensor:
        """Which of ``count`` nodes each client keeps: bool [clients, count]."""
        return torch.from_numpy(rng.happens(rng.client_words(seeds, purpose, count), self._keep))
