"""The built-in models, described without torch: a scenario is validated, and its cost computed, before torch is there.

A file of this package adds one (or a few) by registering what makes its description from the scenario's model section:

    @architectures.register("mlp")
    def mlp(config: Model) -> Architecture: ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from fedamp.models.units import Blocks, Units, nodes_to_deal, under, unknown
from fedamp.registry import Registry
from fedamp.scenario import DisjointSubmodels, DropoutSubmodels, Model, Submodels

if TYPE_CHECKING:
    from torch import Tensor, nn


class Architecture(ABC):
    """A network that has no parameters yet. Torch is imported by :meth:`modules` at the earliest."""

    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """Names of layers, for ``submodels.shared``; everything below a layer is accepted too."""

    @abstractmethod
    def units(self) -> Sequence[Units | Blocks]:
        """Nodes that can be left out, by layer; empty where nothing can be split or masked."""

    @abstractmethod
    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> Self:
        """The architecture that has only the kept nodes of the named layers, and all nodes of the others."""

    @abstractmethod
    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        """The submodules by name, with initial values from torch's generator.

        Raises:
            ModelError: inputs of another shape than the network takes, or sizes that do not go together.
        """

    @abstractmethod
    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        """Logits [batch, classes] for inputs [batch, *input_shape]; ``network`` has the submodules as attributes."""


architectures: Registry[Callable[[Model], Architecture]] = Registry(__name__)


def is_import_path(name: str) -> bool:
    """Whether a model name is of the form ``package.module:name``: a model of one's own."""
    return ":" in name


def architecture_of(config: Model) -> Architecture:
    """The description of a built-in model.

    Raises:
        ValueError: a name that is not registered.
    """
    known = architectures.all()
    if config.name not in known:
        raise ValueError(f"model.name {unknown(config.name, [*sorted(known), 'package.module:name'])}")
    return known[config.name](config)


def most_submodels(architecture: Architecture, shared: Sequence[str] = ()) -> int:
    """The largest number of disjoint submodels; 0 where nothing can be split.

    Hidden layers must keep a node in every submodel, so the narrowest of them decides; residual blocks may be missing
    from a stage, so all of them count together.

    Args:
        shared: layers that every submodel holds, as in the scenario.
    """
    dealt = [(len(nodes_to_deal(each, shared)), each) for each in architecture.units()]
    side_by_side = [count for count, each in dealt if isinstance(each, Units) and count]
    return min(side_by_side) if side_by_side else sum(count for count, _ in dealt)


def check_submodels(config: Model, submodels: Submodels) -> None:
    """Refuse what a built-in model cannot be cut into; a model of one's own is asked when it is built.

    Raises:
        ValueError: an unknown model or layer, or more submodels than there are nodes; one line that names the key.
    """
    if is_import_path(config.name):
        return
    architecture = architecture_of(config)
    match submodels:
        case DropoutSubmodels(layers=layers):
            _check_masked(config.name, architecture, layers)
        case DisjointSubmodels(count=count, shared=shared):
            _check_split(config.name, architecture, count, shared)


def _check_masked(model: str, architecture: Architecture, layers: Sequence[str]) -> None:
    masked = [each.layer for each in architecture.units() if each.count]
    if not masked:
        raise ValueError(f"submodels.scheme dropout: model {model} has no hidden layer to mask")
    for name in layers:
        if name not in masked:
            raise ValueError(f"submodels.layers: {unknown(name, masked)}")


def _check_split(model: str, architecture: Architecture, count: int, shared: Sequence[str]) -> None:
    layers = architecture.layers()
    for name in shared:
        if not any(under(layer, [name]) or under(name, [layer]) for layer in layers):
            raise ValueError(f"submodels.shared: {unknown(name, layers)}")
    most = most_submodels(architecture, shared)
    if count > most:
        rest = " beside submodels.shared" if shared else ""
        raise ValueError(
            f"submodels.count: {count} submodels, but model {model} has {most} nodes to deal out"
            f"{rest} (of its narrowest hidden layer, or residual blocks that keep the shape)"
        )
