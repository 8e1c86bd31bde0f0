"""Build modules from a scenario's model section: built-in ones by name, custom ones by import path.

:func:`build` is the door: it checks each module, and submodels are cut from checked ones. The server takes its first
model from :func:`initial_parameters`. :mod:`fedamp.models.pieces` builds what clients train.
"""

import copy
import hashlib
import inspect
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedamp import rng
from fedamp.base import devices
from fedamp.base.arrays import Arrays
from fedamp.errors import InputError, ModelError, one_line
from fedamp.extension import offered
from fedamp.models import pretrained
from fedamp.models.architectures import Architecture, architecture_of
from fedamp.models.custom import generators_from, import_own, is_import_path, undisturbed
from fedamp.models.inspection import check, check_calls, constants, example
from fedamp.models.model import Model, library_of
from fedamp.models.units import Blocks, Units


class Network(nn.Module):
    """A built-in model: the modules of an architecture, under its names.

    Args:
        architecture: of the model.
        input_shape: of one record.
        num_classes: outputs for every record, or every token.
    """

    def __init__(self, architecture: Architecture, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.architecture, self.input_shape, self.num_classes = architecture, input_shape, num_classes
        for name, module in architecture.modules(input_shape, num_classes).items():
            self.add_module(name, module)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute outputs [batch, outputs], or [batch, length, outputs] for tokens."""
        return self.architecture.forward(self, inputs)

    def units_to_split(self) -> Sequence[Units | Blocks]:
        """Declare the nodes that can be left out."""
        return self.architecture.units()

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> "Network":
        """Make the network of the kept nodes, with new initial values."""
        return Network(self.architecture.smaller(kept), self.input_shape, self.num_classes)


def build(config: Model, input_shape: tuple[int, ...], num_classes: int, seed: int = 0) -> nn.Module:
    """Build the model of a scenario, checked, with initial values from the seed. Global generators stay as they were.

    The module takes float32 (tokens: int64) [batch, *input_shape], and answers [batch, num_classes], for sequences also
    [batch, length, num_classes].

    Args:
        config: the scenario's ``model`` section.
        input_shape: of one record.
        num_classes: outputs for every record, or every token.
        seed: of 63 bits.

    Raises:
        ModelError: the module cannot be built, breaks a rule (:mod:`fedamp.models.inspection`), needs more memory than
            there is, or has other frozen weights than when the run began.

    >>> build(Model(name="mlp", hidden=(8,)), (4,), 3)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    input_shape = tuple(input_shape)
    with generators_from(seed):
        if not is_import_path(config.name):
            network = _built_in_network(config, input_shape, num_classes)
            check(network)
            return network
        module = _import_model(config, input_shape, num_classes)
        check(module)
        check_calls(module, config, input_shape, num_classes)
    pin = config.frozen_sha256
    if pin is not None and (found := _frozen_digest(config, input_shape, num_classes)) != pin:
        raise ModelError(
            f"model {config.name}: its frozen weights (buffers and other constants) have SHA-256 {found}; expected: "
            f"{pin}, as when the run began"
        )
    return module


def pinned(config: Model, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Return the section with the digest of a custom model's frozen weights, to which :func:`build` then holds them.

    Frozen weights are all tensors beside the parameters: never sent, so every machine must hold the same.
    """
    if not is_import_path(config.name):
        return config
    return config.model_copy(update={"frozen_sha256": _frozen_digest(config, tuple(input_shape), num_classes)})


def initial_parameters(
    config: Model, input_shape: tuple[int, ...], num_classes: int, seed: int, folder: Path = Path()
) -> Arrays:
    """Return the initial model, float32 by parameter name: from the run's seed alone, or read from ``config.initial``.

    Args:
        config: the scenario's ``model`` section.
        input_shape: of one record.
        num_classes: outputs for every record, or every token.
        seed: of the run; the initial model is public.
        folder: where a relative path of ``config.initial`` starts.

    Raises:
        ModelError: as :func:`build`; a file that cannot be read or does not fit the model; a custom module whose
            initial values come from another generator than torch's.
    """
    model_seed = int(rng.public_stream(seed, "initial-model").integers(2**63))
    module = build(config, input_shape, num_classes, model_seed)
    values = _parameter_values(module)
    if config.initial is not None and not module.__dict__.get("starts_there"):
        return read_parameters(folder / config.initial, values, config.initial_names)
    if is_import_path(config.name):
        again = _parameter_values(build(config, input_shape, num_classes, model_seed))
        for name, value in values.items():
            if not np.array_equal(value, again[name], equal_nan=True):
                raise ModelError(
                    f"model {config.name}: parameter {name} starts from another value each time; "
                    "draw initial values from torch's default generator, without seeding it"
                )
    return values


def is_random(module: nn.Module, config: Model, input_shape: tuple[int, ...]) -> bool:
    """Say whether the forward pass of a scenario's model draws random numbers in training.

    A built-in model does not. A custom one is called with two random records.
    """

    def next_numbers(called: bool) -> tuple[float, ...]:
        with generators_from(0), torch.no_grad():
            inputs = example((2, *input_shape), config.vocabulary)
            if called:
                module(inputs)
            return torch.rand((), dtype=torch.float64).item(), np.random.random(), random.random()

    return is_import_path(config.name) and next_numbers(True) != next_numbers(False)


def input_type(config: Model) -> torch.dtype:
    """Return the type of a model's inputs: int64 for tokens, else float32."""
    return torch.float32 if config.vocabulary is None else torch.int64


def _built_in_network(config: Model, input_shape: tuple[int, ...], num_classes: int) -> Network:
    """Build a built-in model, after a look at its size and at keys that only custom models take."""
    try:
        architecture = architecture_of(config)
    except ValueError as error:
        raise ModelError(str(error)) from None
    for key, verb in {"options": "are", "frozen_sha256": "is", "trainable": "is", "initial_names": "are"}.items():
        if getattr(config, key):
            raise ModelError(f"model.{key} {verb} for a custom model; {config.name} takes none")
    with torch.device("meta"):  # shapes alone
        outline = Network(architecture, input_shape, num_classes)
    # Beside it there is at least an update, and a sum of updates in float64.
    needed, memory = 16 * sum(each.numel() for each in outline.parameters()), devices.memory()[0]
    if needed > memory:
        raise ModelError(
            f"model {config.name} needs {needed / 1e9:,.0f} GB, and this machine has {memory / 1e9:,.0f} GB of memory; "
            "expected: smaller model.hidden, model.channels or data.shape"
        )
    return Network(architecture, input_shape, num_classes)


def _import_model(config: Model, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build a custom model. Its frozen weights are buffers with the values of ``config.initial``."""
    of_library = next(offered("model_libraries", library_of(config.name)), None)
    module = of_library(config, num_classes) if of_library else _import_own(config, input_shape, num_classes)
    if config.trainable is not None:
        pretrained.choose_trainable(module, config.trainable)
    is_frozen = not all(parameter.requires_grad for parameter in module.parameters())
    if config.initial is not None and is_frozen and not of_library:
        pretrained.load_start(module, pretrained.place_of(config.initial), config.initial_names)
    pretrained.freeze(module)
    module.__dict__["starts_there"] = bool(of_library) or is_frozen  # it has the values of ``config.initial``
    return module


def _import_own(config: Model, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Import a class, a function or a module by its path, and make the model."""
    try:
        with generators_from(0):  # a file that draws numbers does so once, and not from the model's seed
            factory = import_own(config.name, config.folder)
    except InputError as error:
        raise ModelError(f"model.name: {error}") from None
    except Exception as error:  # a custom module may raise anything while it is imported
        raise ModelError(
            f"model.name {config.name!r} cannot be imported ({one_line(error)}); expected: package.module:name, "
            "installed or beside the scenario"
        ) from error
    try:
        if isinstance(factory, nn.Module):  # its weights are where training starts
            return copy.deepcopy(factory).cpu().train()
        with undisturbed():
            module = factory(*((input_shape, num_classes) if _takes_shapes(factory) else ()), **config.options)
    except Exception as error:
        raise ModelError(
            f"model {config.name} cannot be built with input_shape={input_shape}, num_classes={num_classes}, "
            f"options={config.options} ({one_line(error)})"
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"model {config.name} must return a torch.nn.Module, got {type(module).__name__}")
    return module


def _takes_shapes(factory: Any) -> bool:
    """Say whether a class or function needs arguments; a model of fixed shape, such as ``class Net``, takes none."""
    parameters = inspect.signature(factory).parameters.values()
    positional = [each for each in parameters if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)]
    return any(each.default is each.empty for each in positional)  # also of *arguments


def _frozen_digest(config: Model, input_shape: tuple[int, ...], num_classes: int) -> str:
    """Compute SHA-256, in hex, of names, types, shapes and bytes of a custom module's constants."""
    with generators_from(0):
        module = _import_model(config, input_shape, num_classes)
    state = hashlib.sha256()
    for name, value in sorted(constants(module).items()):
        state.update(f"{name} {value.dtype} {list(value.shape)}\0".encode())
        state.update(value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def _parameter_values(module: nn.Module) -> Arrays:
    """Copy a module's parameters to NumPy, by name."""
    return {name: parameter.detach().cpu().numpy().copy() for name, parameter in module.named_parameters()}


def read_parameters(
    path: Path, expected: Mapping[str, NDArray[np.float32]], names: Mapping[str, str | None] = MappingProxyType({})
) -> Arrays:
    """Read the values of exactly these parameters, float32.

    Args:
        path: as for :func:`fedamp.models.pretrained.load_start`.
        expected: values of the model, by name; only their shapes count.
        names: prefixes of names in the file, as for :func:`fedamp.models.pretrained.load_start`.

    Raises:
        ModelError: the file does not hold them.
    """
    values = pretrained.read_tensors(path, names)
    for name in expected.keys() ^ values.keys():
        side = "is missing" if name in expected else "is not in the model"
        raise ModelError(f"model.initial {path}: parameter {name} {side}")
    for name, value in expected.items():
        shape, kind = list(values[name].shape), str(values[name].dtype).removeprefix("torch.")
        if shape != list(value.shape) or kind != "float32":
            must = f"must be float32 of shape {list(value.shape)}, got {kind} of shape {shape}"
            raise ModelError(f"model.initial {path}: parameter {name} {must}")
    return {name: values[name].numpy() for name in expected}
