"""The built-in models, described without torch: a scenario is validated, and its cost computed, before torch is there.

A file of this package adds one (or a few) by registering what makes its description from the scenario's model section:

    @architectures.register("mlp")
    def mlp(config: Model) -> Architecture: ...
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fedamp.base.registry import Registry
from fedamp.errors import ModelError
from fedamp.models.section import Model
from fedamp.models.units import Blocks, Units, check_count, under, unknown

if TYPE_CHECKING:
    from torch import Tensor, nn


class Architecture(ABC):
    """A network that has no parameters yet. Torch is imported by :meth:`modules` at the earliest.

    Attributes:
        takes_tokens: whether inputs are tokens, not numbers.
    """

    takes_tokens: ClassVar[bool] = False

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
        """Outputs [batch, outputs] for inputs [batch, *input_shape] (of tokens: [batch, length, outputs]);
        ``network`` has the submodules as attributes.
        """


architectures: Registry[Callable[[Model], Architecture]] = Registry(__name__)


def is_import_path(name: str) -> bool:
    """Whether a model name is of the form ``package.module:name``: a model of one's own."""
    return ":" in name


def import_own(name: str, folder: str | None) -> Any:
    """What ``package.module:name`` stands for, in a package that is installed or a module in a folder.

    Raises:
        Exception: whatever a foreign module raises while it is imported.
    """
    path, _, attribute = name.partition(":")
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)  # behind what is installed, which it must not hide
    return getattr(importlib.import_module(path), attribute)


def architecture_of(config: Model) -> Architecture:
    """The description of a built-in model.

    Raises:
        ValueError: a name that is not registered, or a vocabulary where inputs are numbers, or none where tokens.
    """
    known = architectures.all()
    if config.name not in known:
        raise ValueError(f"model.name {unknown(config.name, [*sorted(known), 'package.module:name'])}")
    found = known[config.name](config)
    if found.takes_tokens != (config.vocabulary is not None):
        wrong = "is required" if found.takes_tokens else "must be left out"
        inputs = "tokens" if found.takes_tokens else "numbers"
        raise ValueError(f"model.vocabulary {wrong} with model {config.name}, whose inputs are {inputs}")
    return found


def check_masked(config: Model, layers: Sequence[str]) -> None:
    """Refuse layers that a built-in model does not have.

    Raises:
        ModelError: one line that names the key.
    """
    masked = [each.layer for each in architecture_of(config).units() if each.count]
    if not masked:
        raise ModelError(f"submodels.scheme dropout: model {config.name} has no hidden layer to mask")
    for name in layers:
        if name not in masked:
            raise ModelError(f"submodels.layers: {unknown(name, masked)}")


def check_split(config: Model, count: int, shared: Sequence[str]) -> None:
    """Refuse what a built-in model cannot be split into.

    Raises:
        ModelError: an unknown layer, or more submodels than there are nodes; one line that names the key.
    """
    architecture = architecture_of(config)
    layers = architecture.layers()
    for name in shared:
        if not any(under(layer, [name]) or under(name, [layer]) for layer in layers):
            raise ModelError(f"submodels.shared: {unknown(name, layers)}")
    check_count(config.name, architecture.units(), shared, count)
