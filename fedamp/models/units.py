"""What a model says about itself so that it can be split or masked: which nodes can be left out, and what they own.

A *node* is the smallest thing that can be left out without touching anything else: a hidden unit, the channels of one
GroupNorm group, a residual block. A module declares its nodes with two methods, both optional:

    units_to_split() -> sequence of Units and Blocks
    smaller(kept: dict[str, tuple[int, ...]]) -> nn.Module

``smaller`` makes the dense network that has only the kept nodes of the named layers (all nodes of layers not named),
under the same parameter names. Without it the full network is trained under a mask: right, but no cheaper.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedamp.errors import ModelError

if TYPE_CHECKING:  # what can be split is known before torch is imported
    from torch import Tensor, nn

    Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]  # what is done to a submodule's output


def under(name: str, prefixes: Sequence[str]) -> bool:
    """Whether a dotted name is one of the prefixes or lies below one (``layer1.0`` below ``layer1``)."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def unknown(name: str, expected: Sequence[str]) -> str:
    """The end of an error line about a name that does not exist."""
    near = difflib.get_close_matches(name, expected, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{name!r} is unknown{hint}; expected: {', '.join(expected)}"


@dataclass(frozen=True)
class Units:
    """Nodes side by side in one hidden layer: each owns equally many consecutive entries of some parameters.

    Attributes:
        layer: the name a person uses, for example ``hidden.0``.
        count: number of nodes.
        owned: for every parameter that the nodes index, the dimension they index: the rows of the layer's own weight
            (0), its bias (0), the columns of the next layer's weight (1). The size of the dimension is a multiple of
            ``count``.
        output: the submodule whose output is what the nodes say to the rest of the network, after any normalisation and
            activation; a mask multiplies it.
        along: dimension of that output along which the nodes lie (dimension 0 is the batch).
    """

    layer: str
    count: int
    owned: Mapping[str, int]
    output: str
    along: int = 1

    @property
    def submodules(self) -> tuple[str, ...]:
        """The submodules whose outputs a mask multiplies."""
        return (self.output,)

    def to_deal(self, shared: Sequence[str]) -> list[int]:
        """The nodes that are not held by every submodel: none of a shared layer."""
        return [] if under(self.layer, shared) else list(range(self.count))

    def owners(self, name: str) -> list[int]:
        """The nodes that own something of a parameter."""
        return list(range(self.count)) if name in self.owned else []

    def entries(self, size: int, nodes: Sequence[int]) -> NDArray[np.int64]:
        """Which of ``size`` entries along an owned dimension belong to the nodes, in the order of the nodes."""
        per_node = size // self.count
        starts = np.asarray(nodes, dtype=np.int64) * per_node
        return (starts[:, None] + np.arange(per_node)).reshape(-1)

    def owned_by(self, name: str, shape: Sequence[int], kept: Tensor) -> Tensor:
        """Which coordinates of a parameter of this shape kept nodes own, by masks: bool [masks, count].

        Returns:
            Bool of a shape that broadcasts to [masks, *shape].
        """
        dimension = self.owned[name]
        along = [-1 if each == dimension else 1 for each in range(len(shape))]
        return kept.repeat_interleave(shape[dimension] // self.count, 1).view(len(kept), *along)

    def hooks(self, mask: Tensor) -> list[Hook]:
        """What multiplies the output of each submodule by the mask."""

        def times_nodes(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            shape = [1] * output.dim()
            if self.along >= output.dim() or output.shape[self.along] % self.count:
                raise ModelError(
                    f"layer {self.layer!r}: the output of {self.output!r} (shape {list(output.shape)}) does not hold "
                    f"{self.count} nodes along dimension {self.along}"
                )
            per_node = output.shape[self.along] // self.count
            shape[self.along] = -1
            return output * mask[:, None].expand(self.count, per_node).reshape(shape).to(output)

        return [times_nodes]


@dataclass(frozen=True)
class Blocks:
    """Nodes one after another: residual branches, whose output is added to what passes them by.

    Attributes:
        layer: the name a person uses, for example ``layer3``.
        branches: the submodules; each owns every parameter inside it, and leaving it out leaves the identity.
    """

    layer: str
    branches: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.branches)

    @property
    def submodules(self) -> tuple[str, ...]:
        """The submodules whose outputs a mask multiplies."""
        return self.branches

    def to_deal(self, shared: Sequence[str]) -> list[int]:
        """The nodes that are not held by every submodel: none of a shared layer, no shared block."""
        # "layer1.2" shares the block whose branch is "layer1.2.branch"
        blocks = enumerate(self.branches) if not under(self.layer, shared) else ()
        return [index for index, branch in blocks if not under(branch, shared)]

    def owners(self, name: str) -> list[int]:
        """The node in whose branch a parameter lies, if any."""
        return [index for index, branch in enumerate(self.branches) if under(name, [branch])]

    def owned_by(self, name: str, shape: Sequence[int], kept: Tensor) -> Tensor:
        """As of :class:`Units`: all coordinates or none."""
        return kept[:, self.owners(name)].all(1).view(-1, *[1] * len(shape))

    def hooks(self, mask: Tensor) -> list[Hook]:
        """What multiplies the output of each submodule by the mask."""

        def times(number: Tensor) -> Hook:
            return lambda module, arguments, output: output * number.to(output)

        return [times(mask[index]) for index in range(self.count)]


def most_submodels(declarations: Sequence[Units | Blocks], shared: Sequence[str] = ()) -> int:
    """The largest number of disjoint submodels; 0 where nothing can be split.

    Hidden layers must keep a node in every submodel, so the narrowest of them decides; residual blocks may be missing
    from a stage, so all of them count together.

    Args:
        shared: layers that every submodel holds, as in the scenario.
    """
    dealt = [(len(each.to_deal(shared)), each) for each in declarations]
    side_by_side = [count for count, each in dealt if isinstance(each, Units) and count]
    return min(side_by_side) if side_by_side else sum(count for count, _ in dealt)


def check_count(model: str, declarations: Sequence[Units | Blocks], shared: Sequence[str], count: int) -> None:
    """Refuse fewer than two submodels, or more than there are nodes.

    Raises:
        ModelError: one line that names the key.
    """
    most = most_submodels(declarations, shared)
    if not 2 <= count <= most:
        rest = " beside submodels.shared" if shared else ""
        raise ModelError(
            f"submodels.count: {count} submodels, but model {model} has {most} nodes to deal out"
            f"{rest} (of its narrowest hidden layer, or residual blocks that keep the shape)"
            + (f"; expected: 2 to {most}" if most >= 2 else "")
        )


def check_shared(model: str, shared: Collection[str], rest: str) -> None:
    """Refuse a shared part that would be charged and hold nothing.

    Raises:
        ModelError: one line that names the key.
    """
    if rest == "shared" and not shared:
        raise ModelError(
            f"submodels.rest: shared, but the nodes of model {model} own all of it, so that nothing is; expected: dealt"
        )


def declared(module: nn.Module) -> tuple[Units | Blocks, ...]:
    """What the module declares, checked against its parameters; empty where it declares nothing.

    Raises:
        ModelError: a declaration that names something that is not there, or does not fit.
    """
    method = getattr(module, "units_to_split", None)
    declarations: Sequence[Units | Blocks] = tuple(method()) if callable(method) else ()
    layers = [declaration.layer for declaration in declarations]
    for declaration in declarations:
        if layers.count(declaration.layer) > 1:
            raise ModelError(f"{_who(module)}: layer {declaration.layer!r} is declared twice")
        _check_submodules(module, declaration)
        if isinstance(declaration, Units):
            _check_owned(module, declaration)
    owned = [item for each in declarations if isinstance(each, Units) for item in each.owned.items()]
    for name, dimension in owned:
        if owned.count((name, dimension)) > 1:
            raise ModelError(f"{_who(module)}: two layers own dimension {dimension} of {name!r}")
    return tuple(declaration for declaration in declarations if declaration.count > 0)


def named_layers(module: nn.Module, layers: Sequence[str] = ()) -> tuple[Units | Blocks, ...]:
    """The declared layers of these names; all of them where no name is given.

    Raises:
        ModelError: a name that is not declared, or a module that declares nothing.
    """
    declarations = {declaration.layer: declaration for declaration in declared(module)}
    if not declarations:
        raise ModelError(
            f"model {type(module).__name__} declares no nodes that can be left out (method units_to_split), "
            "so it cannot be split or masked"
        )
    for layer in layers:
        if layer not in declarations:
            raise ModelError(f"submodels.layers: {unknown(layer, list(declarations))}")
    return tuple(each for layer, each in declarations.items() if not layers or layer in layers)


def _check_submodules(module: nn.Module, declaration: Units | Blocks) -> None:
    present = dict(module.named_modules())
    for name in declaration.submodules:
        if name not in present:
            raise ModelError(f"{_who(module)}: layer {declaration.layer!r} names submodule {name!r}, not there")


def _check_owned(module: nn.Module, units: Units) -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    for name, dimension in units.owned.items():
        where = f"{_who(module)}: layer {units.layer!r}"
        if name not in shapes:
            raise ModelError(f"{where} names parameter {name!r}, not there")
        if not 0 <= dimension < len(shapes[name]) or shapes[name][dimension] % units.count:
            raise ModelError(
                f"{where}: dimension {dimension} of {name!r} (shape {shapes[name]}) is no multiple of {units.count}"
            )


def _who(module: nn.Module) -> str:
    return f"{type(module).__name__}.units_to_split()"
