"""The built-in models by name. A further one is a class in a file of this package, and a line in ``ARCHITECTURES``."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedamp.base import given
from fedamp.errors import ModelError
from fedamp.models import own_modules
from fedamp.models.architecture import Architecture
from fedamp.models.architectures.cnn import CNN
from fedamp.models.architectures.mlp import MLP
from fedamp.models.architectures.recurrent import Recurrent
from fedamp.models.architectures.resnet import ResNet
from fedamp.models.section import Model
from fedamp.models.units import check_count, under, unknown

ARCHITECTURES: dict[str, Callable[[Model], Architecture]] = {
    "logistic": lambda model: MLP(()),
    "mlp": lambda model: MLP(model.hidden),
    "cnn": lambda model: CNN(model.channels, (model.groups,) * len(model.channels)),
    "lstm": lambda model: Recurrent(model.vocabulary or 0, model.embedding, model.hidden),
    "resnet20": lambda model: ResNet((3, 3, 3), (16, 32, 64), False, model.groups),
    "resnet18": lambda model: ResNet((2, 2, 2, 2), (64, 128, 256, 512), False, model.groups),
    "resnet101": lambda model: ResNet((3, 4, 23, 3), (64, 128, 256, 512), True, model.groups),
}


def is_import_path(name: str) -> bool:
    """Whether a name is of the form ``package.module:name``, or ``given:...``: a custom model or loss."""
    return ":" in name


def is_there(name: str, folder: str | None) -> bool:
    """Whether the module of ``package.module:name`` is installed or in the folder; none of its code is run."""
    first, *below = name.partition(":")[0].split(".")
    try:
        spec = PathFinder.find_spec(first, [folder or ""]) or find_spec(first)
    except ValueError:  # no name, or a module that was made by hand
        return first in sys.modules
    for part in below:
        spec = spec and PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations or [])
    return spec is not None


def import_own(name: str, folder: str | None) -> Any:
    """The object ``package.module:name``, of an installed package or of a module in a folder, or one that was given.

    InputError: it was not given. Importing may raise any other Exception.
    """
    if name.startswith(given.PREFIX):
        return given.find(name)
    path, _, attribute = name.partition(":")
    with undisturbed():
        return getattr(importlib.import_module(own_modules.name_of(path, folder)), attribute)


@contextmanager
def undisturbed() -> Iterator[None]:
    """For code of other people: it sees no command line, and does not end or move this process."""
    arguments, place = sys.argv, Path.cwd()
    sys.argv = arguments[:1]
    try:
        yield
    except SystemExit as ending:
        raise RuntimeError(f"it ends the process: SystemExit {ending.code}") from None
    finally:
        sys.argv = arguments
        os.chdir(place)


def architecture_of(config: Model) -> Architecture:
    """A built-in model; ValueError for an unknown name, a vocabulary without tokens, or tokens without one."""
    if config.name not in ARCHITECTURES:
        raise ValueError(f"model.name {unknown(config.name, [*sorted(ARCHITECTURES), 'package.module:name'])}")
    found = ARCHITECTURES[config.name](config)
    if found.takes_tokens != (config.vocabulary is not None):
        wrong, inputs = ("is required", "tokens") if found.takes_tokens else ("must be left out", "numbers")
        raise ValueError(f"model.vocabulary {wrong} with model {config.name}, whose inputs are {inputs}")
    return found


def check_masked(config: Model, layers: Sequence[str]) -> None:
    """Raise ModelError for layers that a built-in model does not have."""
    masked = [each.layer for each in architecture_of(config).units() if each.count]
    if not masked:
        raise ModelError(f"submodels.scheme dropout: model {config.name} has no hidden layer to mask")
    for name in layers:
        if name not in masked:
            raise ModelError(f"submodels.layers: {unknown(name, masked)}")


def check_split(config: Model, count: int, shared: Sequence[str]) -> None:
    """Raise ModelError for an unknown layer of a built-in model, or more submodels than nodes."""
    architecture = architecture_of(config)
    layers = architecture.layers()
    for name in shared:
        if not any(under(layer, [name]) or under(name, [layer]) for layer in layers):
            raise ModelError(f"submodels.shared: {unknown(name, layers)}")
    check_count(config.name, architecture.units(), shared, count)
