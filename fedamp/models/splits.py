"""Disjoint submodels: the nodes of a model are dealt out, and each submodel is a smaller dense network of its own.

Submodel j holds its nodes of *every* split layer, and everything else whole. What only its nodes own is the **split
group**: no coordinate of it belongs to two submodels (Dong, Chen, Özgür 2025, Algorithm 1). Layers named in ``shared``
are the **shared group** (section 3.2.2 there). The **rest** is what no node owns: biases and norms of layers that are
not split, the output's bias. Every submodel computes with it; it is in the shared group, or every coordinate of it is
dealt to one submodel, which alone may change it, or it is frozen.

**Nothing is rescaled.** A submodel computes what the full model computes with the other nodes left out. With one split
hidden layer the full model's logits are the sum of the submodels' logits (less the repeated output biases), so the full
model is more confident than its parts.

In a network with several split hidden layers, the weights between nodes of different submodels belong to none of them.
With a fixed partition they keep their initial values for ever, although the full model uses them; with a fresh
partition every round, all of them are trained in time.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedamp import rng
from fedamp.errors import ModelError, one_line
from fedamp.models.generators import generators_from
from fedamp.models.masks import Masks
from fedamp.models.registry import build
from fedamp.models.section import Model
from fedamp.models.units import Blocks, Units, check_count, check_shared, named_layers, under, unknown

Index = tuple[Any, ...]
Kept = dict[str, tuple[int, ...]]


def split(
    config: Model,
    input_shape: tuple[int, ...],
    num_classes: int,
    count: int,
    shared: tuple[str, ...] = (),
    seed: int = 0,
    partition_index: int = 0,
    rest: str = "shared",
) -> "Split":
    """Cut the model of a scenario into ``count`` disjoint submodels.

    Args:
        count: number of submodels, at least 2.
        shared: layers that every submodel holds whole, by name or prefix.
        seed: public seed of the partitions (the adversary may know it).
        partition_index: the round for a fresh partition each round; 0 for a fixed one.
        rest: what becomes of what no node owns: ``shared``, ``dealt`` or ``frozen``.

    Raises:
        ModelError: a model that declares nothing to split, more submodels than nodes, an unknown name in ``shared``, or
            nothing at all in a shared group.
    """
    module = _template(config.model_dump_json(), tuple(input_shape), num_classes)
    return Split(module, count, shared, seed, partition_index, rest)


class Split:
    """One partition of a module into disjoint submodels.

    Attributes:
        count: number of submodels.
        shared: names of the parameters in the shared clip group; those neither here nor frozen are in the split group.
        frozen: names of the parameters that nobody trains.
        own: for every submodel, which coordinates of the rest are dealt to it: bool, by name.
        kept: for every submodel, its nodes in each declared layer (including those that every submodel holds).
        full: the module.
        extractable: whether submodels are networks of their own, and not all of the model under a mask.
    """

    def __init__(
        self,
        module: nn.Module,
        count: int,
        shared: Sequence[str] = (),
        seed: int = 0,
        partition_index: int = 0,
        rest: str = "shared",
    ) -> None:
        self.count = count
        self.full = module
        self._declarations = named_layers(module)
        self._shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
        self.extractable = callable(getattr(module, "smaller", None))
        _check_names(module, shared, self._shapes)
        check_count(type(module).__name__, self._declarations, shared, count)
        self._dealt = {each.layer: each.to_deal(shared) for each in self._declarations}
        generator = rng.public_stream(seed, "submodel-partition", partition_index)
        self.kept = self._deal(generator)
        self._owners = {name: self._dealt_owners(name) for name in self._shapes}
        named = frozenset(name for name in self._shapes if under(name, shared))
        unowned = frozenset(name for name, owners in self._owners.items() if not owners) - named
        self.shared = named | unowned if rest == "shared" else named
        self.frozen = unowned if rest == "frozen" else frozenset[str]()
        check_shared(type(module).__name__, self.shared, rest)
        self.own = self._deal_rest([name for name in self._shapes if rest == "dealt" and name in unowned], generator)
        self._place = [self._indices(kept) for kept in self.kept]

    def module(self, j: int) -> nn.Module:
        """Submodel j as a network of its own (its parameter values are arbitrary).

        Raises:
            ModelError: the module's own ``smaller`` does not make a network of the extracted shapes.
        """
        if not self.extractable:
            return self._masks.fixed(self._masks.of(self.kept[j]))
        try:
            with generators_from(0):
                module: nn.Module = self.full.smaller(self.kept[j])  # type: ignore[operator]
        except Exception as error:  # whatever a person's own method raises
            raise ModelError(f"{type(self.full).__name__}.smaller() failed ({one_line(error)})") from error
        expected = {name: _extracted_shape(self._shapes[name], index) for name, index in self._place[j].items()}
        found = {name: tuple(value.shape) for name, value in module.named_parameters()}
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                raise ModelError(
                    f"{type(self.full).__name__}.smaller(): parameter {name!r} must have shape {expected.get(name)}, "
                    f"got {found.get(name)}"
                )
        return module

    def extract(self, parameters: Mapping[str, Any], j: int) -> dict[str, Any]:
        """Submodel j's part of arrays of the full model (numpy or torch); arrays that are not cut are not copied."""
        if not self.extractable:
            return dict(parameters)
        places = {name: index for name, index in self._place[j].items() if name in parameters}
        return {name: parameters[name][_like(parameters[name], index)] for name, index in places.items()}

    def silence(self, updates: Mapping[str, torch.Tensor], j: int) -> None:
        """Set to zero, in place, what is not submodel j's to change of updates [clients, ...] of its arrays."""
        if not self.extractable:
            self._masks.silence(updates, self._masks.of(self.kept[j])[None])
        for name, own in self.own[j].items():
            updates[name].masked_fill_(torch.from_numpy(~own).to(updates[name].device), 0.0)

    def embed_add(self, total: Mapping[str, Any], part: Mapping[str, Any], j: int) -> None:
        """Add submodel j's arrays to the full model's, in place, each coordinate where it belongs.

        Only coordinates that belong to submodel j can change, whatever ``part`` holds.
        """
        for name, index in self._place[j].items():
            if name in self.own[j]:
                (place,) = _like(total[name], (self.own[j][name],))
                total[name][place] += part[name][place]
            elif name not in self.frozen:
                place = _like(total[name], index)
                total[name][place] += part[name] if self.extractable else part[name][place]

    @cached_property
    def _masks(self) -> Masks:
        return Masks(self.full, rest="dealt")  # what becomes of the rest is said here, not there

    def _deal(self, generator: np.random.Generator) -> tuple[Kept, ...]:
        """Shuffle each layer's nodes and deal them out one by one, going on where the last layer stopped."""
        groups: list[Kept] = [{} for _ in range(self.count)]
        dealt_before = 0
        for each in self._declarations:
            nodes = self._dealt[each.layer]
            kept_by_all = set(range(each.count)) - set(nodes)
            order = generator.permutation(nodes)
            for j, kept in enumerate(groups):
                own = order[(j - dealt_before) % self.count :: self.count]
                kept[each.layer] = tuple(sorted(kept_by_all.union(map(int, own))))
            dealt_before += len(nodes)
        return tuple(groups)

    def _deal_rest(self, names: Sequence[str], generator: np.random.Generator) -> list[dict[str, NDArray[np.bool_]]]:
        """Deal out all coordinates of some parameters, as evenly as integers allow."""
        sizes = [math.prod(self._shapes[name]) for name in names]
        owners = generator.permutation(np.arange(sum(sizes)) % self.count)
        pieces = np.split(owners, np.cumsum(sizes)[:-1])
        by_name = {name: piece.reshape(self._shapes[name]) for name, piece in zip(names, pieces, strict=False)}
        return [{name: piece == j for name, piece in by_name.items()} for j in range(self.count)]

    def _dealt_owners(self, name: str) -> list[Units | Blocks]:
        """Declarations whose dealt nodes own something of a parameter."""
        return [each for each in self._declarations if set(each.owners(name)) & set(self._dealt[each.layer])]

    def _indices(self, kept: Kept) -> dict[str, Index]:
        """Where the parameters of a submodel lie in the full model; parameters in branches left out are missing."""
        result = {}
        for name, shape in self._shapes.items():
            owners = self._owners[name]
            if all(set(each.owners(name)) <= set(kept[each.layer]) for each in owners if isinstance(each, Blocks)):
                units = [each for each in owners if isinstance(each, Units)]
                dimensions = [each.owned[name] for each in units]
                entries = [
                    each.entries(shape[dimension], kept[each.layer])
                    for each, dimension in zip(units, dimensions, strict=True)
                ]
                result[name] = _index(shape, dict(zip(dimensions, entries, strict=True)))
        return result


@lru_cache(maxsize=4)
def _template(config: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The full model, kept because a fresh partition is made every round; nobody changes it."""
    return build(Model.model_validate_json(config), input_shape, num_classes)


def _check_names(module: nn.Module, shared: Sequence[str], parameters: Mapping[str, Any]) -> None:
    layers = {name.rsplit(".", depth)[0] for name in parameters for depth in range(1, name.count(".") + 1)}
    for name in shared:
        if name not in layers and name not in parameters:
            top = {name for name in layers if name.count(".") <= 1}
            raise ModelError(f"submodels.shared: {unknown(name, sorted(top))}")


def _index(shape: tuple[int, ...], cuts: Mapping[int, NDArray[np.int64]]) -> Index:
    """An index (one axis each, dimensions after the last cut left whole) that selects the cut part of an array."""
    if not cuts:
        return ()
    first, last = min(cuts), max(cuts)
    between = [cuts.get(dimension, np.arange(shape[dimension])) for dimension in range(first, last + 1)]
    return (slice(None),) * first + np.ix_(*between)


def _like(array: Any, index: Index) -> Index:
    if isinstance(array, torch.Tensor):
        return tuple(
            torch.from_numpy(each).to(array.device) if isinstance(each, np.ndarray) else each for each in index
        )
    return index


def _extracted_shape(shape: tuple[int, ...], index: Index) -> tuple[int, ...]:
    cut = [each.size if isinstance(each, np.ndarray) else size for each, size in zip(index, shape, strict=False)]
    return (*cut, *shape[len(cut) :])
