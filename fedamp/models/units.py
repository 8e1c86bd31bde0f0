"""Declare how a model can be split or masked: which nodes can be left out, and what they own.

A *node* is the smallest thing that can be left out: a hidden unit, the channels of one GroupNorm group, a residual
block. A module declares its nodes by ``units_to_split() -> sequence of Units and Blocks``. An optional ``smaller(kept:
dict[str, tuple[int, ...]]) -> nn.Module`` makes the dense network with only the kept nodes of the named layers, under
the same parameter names. Without it the full network trains under a mask: correct, but no cheaper.

Plans check counts here before torch is imported; :mod:`fedamp.models.masks` and :mod:`fedamp.models.pieces` use the
declarations, and :func:`fedamp.models.inspection.prove_silence` tests them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedamp.errors import ModelError

if TYPE_CHECKING:  # plans need declarations, and are made before torch is imported
    from torch import Tensor, nn

    Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]  # changes a submodule's output


def under(name: str, prefixes: Sequence[str]) -> bool:
    """Say whether a dotted name is one of the prefixes or lies below one.

    >>> under("layer1.0", ["layer1"]), under("layer10", ["layer1"])
    (True, False)
    """
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def unknown(name: str, expected: Sequence[str]) -> str:
    """Return the end of an error line about a name that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name, expected, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{name!r} is unknown{hint}; expected: {', '.join(expected)}"


@dataclass(frozen=True)
class Units:
    """Nodes side by side in one hidden layer: each owns equally many consecutive entries of some parameters.

    Attributes:
        layer: its name in a scenario, for example ``hidden.0``.
        count: number of nodes.
        owned: for every parameter that the nodes index, the dimension they index: the rows of the layer's own weight
            (0), its bias (0), the columns of the next layer's weight (1). Its size is a multiple of ``count``.
        output: the submodule through whose output alone the nodes reach the rest of the network, after any
            normalisation and activation; a mask multiplies it.
        along: dimension of that output along which the nodes lie (dimension 0 is the batch; -1 the last).

    >>> Units("hidden.0", 2, {"hidden.0.weight": 0}, "activations.0").entries(6, [1]).tolist()
    [3, 4, 5]
    """

    layer: str
    count: int
    owned: Mapping[str, int]
    output: str
    along: int = 1

    @property
    def submodules(self) -> tuple[str, ...]:
        """Names of the submodules whose outputs a mask multiplies."""
        return (self.output,)

    def split_nodes(self, shared: Sequence[str]) -> range:
        """Return the nodes that are partitioned: none of a layer that every submodel holds."""
        return range(0 if under(self.layer, shared) else self.count)

    def owners(self, name: str) -> list[int]:
        """Return the nodes that own something of a parameter."""
        return list(range(self.count)) if name in self.owned else []

    def entries(self, size: int, nodes: Sequence[int]) -> NDArray[np.int64]:
        """Return the entries along an owned dimension that belong to some nodes.

        Args:
            size: of the dimension.
            nodes: their numbers; the entries come in this order.

        Returns:
            int64 [entries].
        """
        per_node = size // self.count
        return (np.asarray(nodes, dtype=np.int64)[:, None] * per_node + np.arange(per_node)).reshape(-1)

    def owned_by(self, name: str, shape: Sequence[int], kept: Tensor) -> Tensor:
        """Say which coordinates of a parameter the kept nodes own.

        Args:
            name: of the parameter.
            shape: of the parameter.
            kept: bool [masks, count].

        Returns:
            bool, broadcasts to [masks, *shape].
        """
        dimension = self.owned[name]
        along = [-1 if each == dimension else 1 for each in range(len(shape))]
        return kept.repeat_interleave(shape[dimension] // self.count, 1).view(len(kept), *along)

    def hooks(self, mask: Tensor) -> list[Hook]:
        """Return a hook for each submodule, which multiplies its output by a mask [count].

        The hook raises ModelError where the output does not hold the declared nodes.
        """

        def times_nodes(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            along = self.along + output.dim() if self.along < 0 else self.along
            if along >= output.dim() or output.shape[along] % self.count:
                raise ModelError(
                    f"layer {self.layer!r}: the output of {self.output!r} (shape {list(output.shape)}) does not hold "
                    f"{self.count} nodes along dimension {self.along}"
                )
            shape = [-1 if each == along else 1 for each in range(output.dim())]
            per_node = output.shape[along] // self.count
            return output * mask[:, None].expand(self.count, per_node).reshape(shape).to(output)

        return [times_nodes]


@dataclass(frozen=True)
class Blocks:
    """Nodes one after another: residual branches, whose output is added to the block's input.

    Attributes:
        layer: its name in a scenario, for example ``layer3``.
        branches: names of submodules; each owns all parameters inside it, and without it the block is the identity.
    """

    layer: str
    branches: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.branches)

    @property
    def submodules(self) -> tuple[str, ...]:
        """Names of the submodules whose outputs a mask multiplies."""
        return self.branches

    def split_nodes(self, shared: Sequence[str]) -> list[int]:
        """Return the nodes that are partitioned.

        A name such as ``layer1.2`` in ``shared`` is the block whose branch is ``layer1.2.branch``.
        """
        blocks = enumerate(self.branches) if not under(self.layer, shared) else ()
        return [index for index, branch in blocks if not under(branch, shared)]

    def owners(self, name: str) -> list[int]:
        """Return the branches that a parameter lies in: one or none."""
        return [index for index, branch in enumerate(self.branches) if under(name, [branch])]

    def owned_by(self, name: str, shape: Sequence[int], kept: Tensor) -> Tensor:
        """Say whether the kept nodes own a parameter: all coordinates or none; see :meth:`Units.owned_by`."""
        return kept[:, self.owners(name)].all(1).view(-1, *[1] * len(shape))

    def hooks(self, mask: Tensor) -> list[Hook]:
        """Return a hook for each branch, which multiplies its output by its number of a mask [count]."""

        def times(number: Tensor) -> Hook:
            return lambda module, arguments, output: output * number.to(output)

        return [times(number) for number in mask]


def most_submodels(declarations: Sequence[Units | Blocks], shared: Sequence[str] = ()) -> int:
    """Return the largest number of disjoint submodels beside ``shared`` layers; 0 where nothing can be split.

    The narrowest hidden layer decides: each submodel keeps a node of it. Residual blocks of all stages count together.
    """
    counts = [(len(each.split_nodes(shared)), each) for each in declarations]
    side_by_side = [count for count, each in counts if isinstance(each, Units) and count]
    return min(side_by_side) if side_by_side else sum(count for count, _ in counts)


def check_count(model: str, declarations: Sequence[Units | Blocks], shared: Sequence[str], count: int) -> None:
    """Refuse fewer than two submodels, or more than there are nodes.

    Raises:
        ModelError: it names the accepted numbers.
    """
    most = most_submodels(declarations, shared)
    if not 2 <= count <= most:
        rest = " beside submodels.shared" if shared else ""
        raise ModelError(
            f"submodels.count: {count} submodels, but model {model} has {most} nodes to partition"
            f"{rest} (of its narrowest hidden layer, or residual blocks that keep the shape)"
            + (f"; expected: 2 to {most}" if most >= 2 else "")
        )


def check_shared(model: str, shared: Collection[str], rest: str) -> None:
    """Refuse a shared part that would be charged and hold nothing.

    Raises:
        ModelError: ``rest`` is ``shared``, and nodes own every parameter.
    """
    if rest == "shared" and not shared:
        raise ModelError(
            f"submodels.unowned: shared, but the nodes of model {model} own every parameter, so nothing is shared; "
            "expected: partitioned"
        )


def declared(module: nn.Module) -> tuple[Units | Blocks, ...]:
    """Return the declarations of a module, if any, without layers of no nodes.

    Raises:
        ModelError: a declaration names what does not exist, or does not fit the parameters.
    """
    method = getattr(module, "units_to_split", None)
    declarations: Sequence[Units | Blocks] = tuple(method()) if callable(method) else ()
    who, layers = f"{type(module).__name__}.units_to_split()", [each.layer for each in declarations]
    submodules = dict(module.named_modules())
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    taken: set[tuple[str, int]] = set()
    for each in declarations:
        where = f"{who}: layer {each.layer!r}"
        if layers.count(each.layer) > 1:
            raise ModelError(f"{where} is declared twice")
        for name in each.submodules:
            if name not in submodules:
                raise ModelError(f"{where} names submodule {name!r}, not there")
        for name, dimension in each.owned.items() if isinstance(each, Units) else ():
            if name not in shapes:
                raise ModelError(f"{where} names parameter {name!r}, not there")
            if not 0 <= dimension < len(shapes[name]) or shapes[name][dimension] % each.count:
                raise ModelError(
                    f"{where}: dimension {dimension} of {name!r} (shape {shapes[name]}) is not "
                    f"a multiple of {each.count}"
                )
            if (name, dimension) in taken:
                raise ModelError(f"{who}: two layers own dimension {dimension} of {name!r}")
            taken.add((name, dimension))
    return tuple(each for each in declarations if each.count > 0)


def hidden_layers(module: nn.Module) -> tuple[Units | Blocks, ...]:
    """Return the declared layers of a module that is to be split or masked.

    Raises:
        ModelError: there is none; or as :func:`declared`.
    """
    declarations = declared(module)
    if not declarations:
        raise ModelError(
            f"model {type(module).__name__} declares no nodes that can be left out (method units_to_split), "
            "so it cannot be split or masked"
        )
    return tuple(declarations)
