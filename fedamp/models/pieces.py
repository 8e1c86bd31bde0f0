"""Cut a model into the networks that clients train: the whole model, dropout masks of it, or disjoint submodels.

Disjoint submodels partition the nodes of a model, and each is a smaller dense network. Submodel j holds its nodes of
*every* split layer, and everything else whole. What only its nodes own is the **split group**: no coordinate of it
belongs to two submodels (Dong, Chen, Özgür 2025, Algorithm 1). Layers named in ``shared`` are the **shared group**
(section 3.2.2 there). The **rest** is what no node owns: biases and norms of layers that are not split, the output's
bias. Every submodel computes with it; it is in the shared group, or every coordinate of it is given to one submodel,
which alone may change it, or it is frozen.

**Nothing is rescaled.** With one split hidden layer the full model's logits are the sum of the submodels' (less the
repeated output biases). With several, weights between nodes of different submodels belong to none. A fixed partition
keeps their initial values, although the full model uses them; a fresh partition every round trains all in time.

The section ``submodels`` (:mod:`fedamp.federation.submodels`) makes the pieces. Clients train them
(:mod:`fedamp.client.worker`), and the server cuts and adds up arrays by them (:mod:`fedamp.strategies.aggregation`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy import void
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedamp import rng
from fedamp.errors import ModelError, one_line
from fedamp.models.custom import generators_from, is_import_path
from fedamp.models.embeddings import tables, takes_rows, touched, with_rows
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import build, is_random
from fedamp.models.pretrained import matching
from fedamp.models.units import Blocks, Units, check_count, check_shared, hidden_layers, under, unknown

# (submodel, round) -> what clients train; the same object as long as it is the same piece.
Pieces = Callable[[int, int], "Piece"]


class Piece:
    """A network that some clients train together: here, the whole model.

    Args:
        module: the network.
        shared: names of the parameters in the shared part.
        known: whether it is built in.
        random: whether its forward pass draws random numbers in training.

    Attributes:
        module: the network; its parameter values are arbitrary.
        shared: names of the parameters in the shared part; those neither here nor frozen are in the split part.
        frozen: names of the parameters of which no update tells: nobody trains them, or they are ``local``.
        local: names of the parameters that stay with their client.
        tables: embeddings of which a client may train the rows that it touches alone (:mod:`fedamp.models.embeddings`).
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
        """Make the piece of all of a scenario's model."""
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
        """Names of the parameters in the shared and in the split part, in the module's order, without frozen ones."""
        names = [name for name, _ in self.module.named_parameters() if name not in self.frozen]
        shared = tuple(name for name in names if name in self.shared)
        return shared, tuple(name for name in names if name not in self.shared)

    def forward(self, parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
        """Compute logits [records, classes] of one client.

        Args:
            parameters: of the client, by name.
            inputs: [records, *input_shape].
            arguments: of the client, from :meth:`arguments` or :meth:`row_inputs`.
        """
        with with_rows(self.module, self.tables, arguments[0]) if arguments else nullcontext():
            logits: Tensor = functional_call(self.module, parameters, (inputs,))
        return logits

    def forward_in(self, kind: torch.dtype, inputs: Tensor) -> Callable[..., Tensor] | None:
        """Return :meth:`forward` for numbers of another type; None where the model's code does not compute in it.

        The module's constants are cast once, here. Parameters, inputs and arguments have the type when it is called.

        Args:
            kind: the type.
            inputs: to try, [1, *input_shape], on the module's device; their values do not count.
        """
        cast = {name: each.to(kind) for name, each in self.module.named_buffers() if each.is_floating_point()}

        def forward(parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
            return self.forward(cast | parameters, inputs, *arguments)

        tried = torch.zeros_like(inputs, dtype=kind if inputs.is_floating_point() else None)
        mine = [each[0].to(tried) for each in self.arguments(np.zeros(1, f"V{rng.SEED_BYTES}"))]
        try:
            with generators_from(0, inputs.is_cuda), torch.no_grad():
                forward({name: each.to(kind) for name, each in self.module.named_parameters()}, tried, *mine)
        except Exception:  # a custom model may raise anything
            return None
        return forward

    def arguments(self, seeds: NDArray[void]) -> list[Tensor]:
        """Draw further arguments of :meth:`forward`, of shape [clients, ...], from each client's own seed."""
        return []

    def row_inputs(
        self, start: Mapping[str, Tensor], inputs: Tensor, seeds: NDArray[void], decays: bool
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return arguments of :meth:`forward`, and values from which clients start in place of ``start``.

        Those are the clients' own rows of tables, where they are few, and where other rows stay as they are.

        Args:
            start: the parameters that all start from, by name.
            inputs: [clients, records, *input_shape], on the same device.
            seeds: 32 secret bytes for each client.
            decays: whether weight decay would move the other rows.

        Returns:
            Tensors [clients, ...]; and [clients, places, numbers] by the table's name.
        """
        places = math.prod(inputs.shape[1:])
        if decays or not self.tables or any(2 * places > len(start[name]) for name in self.tables):
            return self.arguments(seeds), {}
        rows = touched(inputs, places)
        return [rows], {name: start[name][rows] for name in self.tables}

    def owned(self, updates: dict[str, Tensor], seeds: NDArray[void]) -> dict[str, Tensor]:
        """Return the updates [clients, ...], zero outside what these clients may change, without frozen ones.

        Charges for hidden submodels rest on this: what a submodel does not own is zero, however it was trained.

        Args:
            updates: by parameter name; they may be overwritten.
            seeds: 32 secret bytes for each client, which decide its mask.
        """
        return {name: update for name, update in updates.items() if name not in self.frozen}

    def extract(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return this piece's part of the whole model's arrays (numpy or torch); it may share their memory."""
        return dict(arrays)

    def embed_add(self, total: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        """Add this piece's arrays to the whole model's, in place, each coordinate where it belongs."""
        for name, array in part.items():
            total[name][...] += array


def check_embedding(piece: Piece, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a piece that adds a number of its part to the model twice, or another number.

    A unit's part is clipped before it is added, so what is added must not be longer.

    Args:
        piece: of the model.
        arrays: the whole model's, by name; their values do not count.

    Raises:
        ModelError: it adds something else than each number of its part at one place, or nowhere.
    """
    draws, part = rng.public_stream(0, "embedding of a piece"), dict[str, NDArray[np.float64]]()
    for name, array in piece.extract(arrays).items():
        if name not in piece.frozen:
            part[name] = draws.random(array.shape)
    total = {name: np.zeros(array.shape) for name, array in arrays.items() if name not in piece.frozen}
    piece.embed_add(total, part)
    added = np.concatenate([array[array != 0] for array in total.values()])
    given = np.concatenate([array.ravel() for array in part.values()])
    if len(np.unique(added)) < len(added) or not np.isin(added, given).all():
        raise ModelError(
            f"submodels: embed_add of {type(piece).__name__} adds a number twice, or another one than is in the part; "
            "expected: each number of the clipped part at one place of the model, or at none"
        )


def local_names(module: nn.Module, patterns: Sequence[str]) -> frozenset[str]:
    """Find the parameters that stay with their client.

    Args:
        module: the model.
        patterns: of names (``model.local``).

    Raises:
        ModelError: a pattern matches none, or all parameters are local.
    """
    names = [name for name, _ in module.named_parameters()]
    found = matching(names, patterns, "model.local")
    if len(found) == len(names):
        raise ModelError("model.local covers every parameter; leave at least one shared")
    return found


class MaskedPiece(Piece):
    """The whole model, under a mask for each client that keeps every node with probability ``keep``.

    Args:
        masks: of the model.
        keep: the probability.
        random: whether its forward pass draws random numbers in training.
    """

    owns_all = False

    def __init__(self, masks: Masks, keep: float, random: bool = False) -> None:
        super().__init__(masks.module, masks.shared, known=False, random=random)
        self.frozen, self._masks, self._keep = masks.frozen, masks, keep

    def forward(self, parameters: dict[str, Tensor], inputs: Tensor, *arguments: Tensor) -> Tensor:
        """Compute logits [records, classes] of one client under its mask."""
        return self._masks.call(parameters, inputs, *arguments)

    def arguments(self, seeds: NDArray[void]) -> list[Tensor]:
        """Draw each client's mask, float32 [clients, nodes]."""
        return [self._kept(seeds, "dropout mask", self._masks.nodes).float()]

    def owned(self, updates: dict[str, Tensor], seeds: NDArray[void]) -> dict[str, Tensor]:
        """Silence what dropped nodes own, and give each client its own part of the rest."""
        self._masks.silence(updates, self._kept(seeds, "dropout mask", self._masks.nodes))
        partitioned = [updates[name] for name in self._masks.partitioned]
        sizes = [update.shape[1:].numel() for update in partitioned]
        kept = self._kept(seeds, "dropout rest", sum(sizes))
        for update, own in zip(partitioned, torch.split(kept, sizes, 1), strict=True):
            update.masked_fill_(~own.view(update.shape).to(update.device), 0.0)
        return super().owned(updates, seeds)

    def _kept(self, seeds: NDArray[void], purpose: str, count: int) -> Tensor:
        """Draw which of ``count`` nodes each client keeps: bool [clients, count]."""
        return torch.from_numpy(rng.happens(rng.client_words(seeds, purpose, count), self._keep))


Index = tuple[Any, ...]
Kept = dict[str, tuple[int, ...]]
Owned = dict[str, NDArray[np.bool_]]


class Split:
    """One partition of a module into disjoint submodels.

    Args:
        module: the full network, which declares its nodes.
        count: number of submodels, at least 2.
        shared: layers that every submodel holds whole, by name or prefix.
        seed: public seed of the partitions (the adversary may know it).
        partition_index: the round for a fresh partition each round; 0 for a fixed one.
        rest: treatment of the parameters that no node owns: ``shared``, ``partitioned`` or ``frozen``.

    Attributes:
        shapes: of all parameters, by name.
        owners: declarations of nodes that own something of a parameter, by its name.
        shared: names of the parameters in the shared clip group; those neither here nor frozen are in the split group.
        frozen: names of the parameters that no client trains.
        own: for every submodel, which coordinates of the rest are its: bool, by name.
        kept: for every submodel, its nodes in each declared layer (including those that every submodel holds).
        extractable: whether submodels are smaller networks; else each is the full model under a mask.

    Raises:
        ModelError: no nodes, fewer than submodels, an unknown name in ``shared``, or an empty shared group.
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
        self.count, self.full = count, module
        self.declarations = hidden_layers(module)
        self.shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
        self.extractable = callable(getattr(module, "smaller", None))
        layers = {name.rsplit(".", depth)[0] for name in self.shapes for depth in range(1, name.count(".") + 1)}
        for name in shared:
            if name not in layers and name not in self.shapes:
                top = {name for name in layers if name.count(".") <= 1}
                raise ModelError(f"submodels.shared: {unknown(name, sorted(top))}")
        check_count(type(module).__name__, self.declarations, shared, count)
        nodes = {each.layer: list(each.split_nodes(shared)) for each in self.declarations}
        generator = rng.public_stream(seed, "submodel-partition", partition_index)
        self.kept = self._partition(nodes, generator)
        self.owners = {
            name: [each for each in self.declarations if set(each.owners(name)) & set(nodes[each.layer])]
            for name in self.shapes
        }
        named = frozenset(name for name in self.shapes if under(name, shared))
        unowned = frozenset(name for name, owners in self.owners.items() if not owners) - named
        self.shared = named | unowned if rest == "shared" else named
        self.frozen = unowned if rest == "frozen" else frozenset[str]()
        check_shared(type(module).__name__, self.shared, rest)
        partitioned = [name for name in self.shapes if rest == "partitioned" and name in unowned]
        self.own = self._partition_rest(partitioned, generator)

    def piece(self, number: int, known: bool = False, random: bool = False) -> "DisjointPiece":
        """Make the piece of a submodel.

        Args:
            number: of the submodel, from 0.
            known: whether the model is built in.
            random: whether its forward pass draws random numbers in training.
        """
        return DisjointPiece(self, number, known, random)

    @cached_property
    def masks(self) -> Masks:
        """Masks of the full model, for one that makes no smaller networks."""
        return Masks(self.full, rest="partitioned")  # the split itself decides about the rest

    def _partition(self, nodes: Mapping[str, list[int]], generator: np.random.Generator) -> tuple[Kept, ...]:
        """Shuffle each layer's nodes and hand them out one by one, starting where the last layer stopped."""
        groups: list[Kept] = [{} for _ in range(self.count)]
        before = 0
        for each in self.declarations:
            kept_by_all = set(range(each.count)) - set(nodes[each.layer])
            order = generator.permutation(nodes[each.layer])
            for j, kept in enumerate(groups):
                own = order[(j - before) % self.count :: self.count]
                kept[each.layer] = tuple(sorted(kept_by_all.union(map(int, own))))
            before += len(order)
        return tuple(groups)

    def _partition_rest(self, names: Sequence[str], generator: np.random.Generator) -> list[Owned]:
        """Deal all coordinates of some parameters, as evenly as integers allow."""
        sizes = [math.prod(self.shapes[name]) for name in names]
        owners = generator.permutation(np.arange(sum(sizes)) % self.count)
        parts = zip(names, np.split(owners, np.cumsum(sizes)[:-1]), strict=False)
        by_name = {name: part.reshape(self.shapes[name]) for name, part in parts}
        return [{name: part == j for name, part in by_name.items()} for j in range(self.count)]


class DisjointPiece(Piece):
    """A submodel of a split, as a smaller network; of a module without ``smaller``, the full one under a mask.

    Args:
        cut: the split.
        number: of the submodel, from 0.
        known: whether the model is built in.
        random: whether its forward pass draws random numbers in training.
    """

    def __init__(self, cut: Split, number: int, known: bool, random: bool) -> None:
        self._cut, self._kept, self._own = cut, cut.kept[number], cut.own[number]
        self.shared, self.frozen, self.known, self.random = cut.shared, cut.frozen, known, random
        self.owns_all = cut.extractable and not cut.frozen and not self._own
        self._places = {name: self._place(name) for name in cut.shapes if self._holds(name)}

    @cached_property
    def module(self) -> nn.Module:  # type: ignore[override]  # made when trained: a server only cuts arrays
        """Network of the submodel, made when it is trained: a server only cuts arrays.

        Raises:
            ModelError: ``smaller`` does not make one of the extracted shapes.
        """
        full, masks = self._cut.full, self._cut.masks if not self._cut.extractable else None
        if masks:
            return masks.fixed(masks.of(self._kept))
        try:
            with generators_from(0):
                module: nn.Module = full.smaller(self._kept)  # type: ignore[operator]
        except Exception as error:  # a custom method may raise anything
            raise ModelError(f"{type(full).__name__}.smaller() failed ({one_line(error)})") from error
        expected = {name: _extracted_shape(self._cut.shapes[name], index) for name, index in self._places.items()}
        found = {name: tuple(value.shape) for name, value in module.named_parameters()}
        for name in sorted(expected.keys() | found.keys()):
            must, got = expected.get(name), found.get(name)
            if must != got:
                who = f"{type(full).__name__}.smaller()"
                raise ModelError(f"{who}: parameter {name!r} must have shape {must}, got {got}")
        return module

    def owned(self, updates: dict[str, Tensor], seeds: NDArray[np.void]) -> dict[str, Tensor]:
        """Silence what other submodels' nodes own, where the full model trained, and the others' part of the rest."""
        if not self._cut.extractable:
            self._cut.masks.silence(updates, self._cut.masks.of(self._kept)[None])
        for name, own in self._own.items():
            updates[name].masked_fill_(torch.from_numpy(~own).to(updates[name].device), 0.0)
        return super().owned(updates, seeds)

    def extract(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Cut this submodel's part out of the whole model's arrays."""
        if not self._cut.extractable:
            return dict(arrays)
        return {
            name: arrays[name][_index_like(arrays[name], at)] for name, at in self._places.items() if name in arrays
        }

    def embed_add(self, total: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        """Add this submodel's arrays to the whole model's, in place.

        Only this submodel's coordinates can change, for any ``part``.
        """
        for name, index in self._places.items():
            if name in self._own:
                (place,) = _index_like(total[name], (self._own[name],))
                total[name][place] += part[name][place]
            elif name not in self.frozen:
                place = _index_like(total[name], index)
                total[name][place] += part[name] if self._cut.extractable else part[name][place]

    def _holds(self, name: str) -> bool:
        """Say whether a parameter is in the submodel: not where it lies in a branch that is left out."""
        blocks = [each for each in self._cut.owners[name] if isinstance(each, Blocks)]
        return all(set(each.owners(name)) <= set(self._kept[each.layer]) for each in blocks)

    def _place(self, name: str) -> Index:
        """Return an index of the submodel's part of a parameter: an axis each, up to the last one that is cut."""
        shape, units = self._cut.shapes[name], [each for each in self._cut.owners[name] if isinstance(each, Units)]
        if not units:
            return ()
        cuts = {each.owned[name]: each.entries(shape[each.owned[name]], self._kept[each.layer]) for each in units}
        first, last = min(cuts), max(cuts)
        between = [cuts.get(dimension, np.arange(shape[dimension])) for dimension in range(first, last + 1)]
        return (slice(None),) * first + np.ix_(*between)


def _index_like(array: Any, index: Index) -> Index:
    """Return the index for arrays of this kind: on a tensor's device."""
    if not isinstance(array, Tensor):
        return index
    return tuple(torch.from_numpy(each).to(array.device) if isinstance(each, np.ndarray) else each for each in index)


def _extracted_shape(shape: tuple[int, ...], index: Index) -> tuple[int, ...]:
    """Compute the shape of a parameter that an index cuts."""
    cut = [each.size if isinstance(each, np.ndarray) else size for each, size in zip(index, shape, strict=False)]
    return (*cut, *shape[len(cut) :])
