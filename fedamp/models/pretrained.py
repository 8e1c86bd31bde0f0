"""Read trained weights from files, and freeze parameters.

A frozen weight is a value that a model starts from and does not train. It becomes a buffer, and buffers are never sent,
clipped or noised. This module does not pin them: :func:`fedamp.models.networks.pinned` computes their digest.

:func:`fedamp.models.networks.build` calls all that is here while it makes a custom model. docs/models.md explains the
keys ("Frozen weights").
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedamp.base.reading import read_typed, regular
from fedamp.errors import ModelError, one_line

_IN_FOLDERS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")  # of Hugging Face
_PICKLES = (".pt", ".pth", ".bin")


def matches(name: str, pattern: str) -> bool:
    """Say whether a pattern, such as ``lora_*`` or ``head``, matches a dotted name or consecutive parts.

    Args:
        name: of a parameter.
        pattern: with the wildcards of ``fnmatch``; upper and lower case differ, and ``*`` also matches a dot.

    >>> matches("body.lora_A.weight", "lora_*"), matches("body.head.bias", "head"), matches("header.bias", "head")
    (True, True, False)
    """
    parts = name.split(".")
    ranges = ((first, last) for first in range(len(parts)) for last in range(first + 1, len(parts) + 1))
    return any(fnmatchcase(".".join(parts[first:last]), pattern) for first, last in ranges)


def matching(names: Sequence[str], patterns: Sequence[str], key: str) -> frozenset[str]:
    """Return the names that at least one pattern matches, as :func:`matches` says.

    Args:
        names: of all parameters, one or more.
        patterns: as in ``model.trainable`` and ``model.local``.
        key: of the scenario, such as ``model.local``; the error names it.

    Raises:
        ModelError: a pattern matches no name.
    """
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ModelError(f"{key}: {pattern!r} matches no parameter; expected: such as {names[-1]}")
    return frozenset(name for name in names if any(matches(name, pattern) for pattern in patterns))


def place_of(initial: str) -> Path:
    """Return where ``model.initial`` lies: below ``$FEDAMP_MODELS``, or as it is without that variable.

    A node of a deployment is told the last part of the path only, so its operator chooses the folder. An absolute path
    stays as it is.
    """
    return Path(os.environ.get("FEDAMP_MODELS", "")) / initial


def choose_trainable(module: nn.Module, patterns: Sequence[str]) -> None:
    """Require a gradient of exactly those parameters that a pattern matches.

    Args:
        module: changed in place.
        patterns: the scenario's ``model.trainable``.

    Raises:
        ModelError: a pattern matches no parameter, or matches one of integers, which has no gradient.
    """
    chosen = matching([name for name, _ in module.named_parameters()], patterns, "model.trainable")
    for name, parameter in module.named_parameters():
        if name in chosen and not parameter.dtype.is_floating_point:
            raise ModelError(f"model.trainable: parameter {name} is {parameter.dtype}, which cannot be trained")
        parameter.requires_grad_(name in chosen)


def freeze(module: nn.Module) -> None:
    """Make a buffer of each parameter without ``requires_grad``, so that all parameters are trained ones.

    A module that makes smaller networks loses ``smaller``, because those would not have the frozen values. Its
    submodels are trained under masks instead, at the cost of whole models.

    Args:
        module: changed in place. Modules that share a frozen weight still share its memory.
    """
    found = False
    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                del each._parameters[name]
                each.register_buffer(name, parameter.detach())
                found = True
    if found and callable(getattr(module, "smaller", None)):
        module.smaller = None  # type: ignore[assignment]


def load_start(module: nn.Module, path: Path, names: Mapping[str, str | None]) -> None:
    """Fill the frozen parameters of a module from a file or folder.

    Each frozen parameter must be there, but one name is enough for a tensor that has several. Other tensors of the
    module may be there too, and are filled as well. Values take the module's number format.

    Args:
        module: changed in place.
        path: a safetensors file, a ``state_dict`` that ``torch.load`` reads (``.pt``, ``.pth``, ``.bin``), or a folder
            of Hugging Face.
        names: as for :func:`read_tensors`.

    Raises:
        ModelError: the file cannot be read, lacks a frozen parameter, has a name that the module does not know, or has
            another shape.
    """
    given = read_tensors(path, names)
    state = module.state_dict(keep_vars=True)
    frozen = {name for name, value in state.items() if isinstance(value, nn.Parameter) and not value.requires_grad}
    tied = {name for name in frozen if any(state[name] is state[each] for each in given if each in state)}
    problems = {"lacks": frozen - given.keys() - tied, "has unexpected": given.keys() - state.keys()}
    if any(problems.values()):
        found = "; ".join(f"{problem} {_names_in_words(wrong)}" for problem, wrong in problems.items() if wrong)
        raise ModelError(f"model.initial {path}: {found}; model.initial_names maps prefixes")
    for name, value in given.items():
        if state[name].shape != value.shape:
            must = f"must have shape {list(state[name].shape)}, got {list(value.shape)}"
            raise ModelError(f"model.initial {path}: {name} {must}")
    module.load_state_dict(given, strict=False)


def _names_in_words(names: Iterable[str]) -> str:
    """Name the first five for an error line, and count the others."""
    first, *rest = sorted(names)
    return ", ".join([first, *rest[:4]]) + (f" and {len(rest) - 4} more" if len(rest) > 4 else "")


def read_tensors(path: Path, names: Mapping[str, str | None] = MappingProxyType({})) -> dict[str, Tensor]:
    """Return all tensors of a file or folder, on the CPU, by their names in the model.

    Pickles are read without running code (``weights_only``).

    Args:
        path: as for :func:`load_start`.
        names: the scenario's ``model.initial_names``: a prefix in the file, and what stands for it in the model. The
            longest prefix that fits counts; None leaves its tensors out.

    Raises:
        ModelError: the file cannot be read, or the folder has no weights.
    """
    found = {}
    for name, value in _read_weights(path).items():
        prefix = max((prefix for prefix in names if name.startswith(prefix)), key=len, default=None)
        to = "" if prefix is None else names[prefix]
        if to is not None:
            found[to + name.removeprefix(prefix or "")] = value
    return found


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by their names in the file; a folder's index, where there is one, names several files."""
    if path.is_dir():
        file = next((path / name for name in _IN_FOLDERS if (path / name).is_file()), None)
        if file is None:
            raise ModelError(f"model.initial {path}: no weights; expected: a folder with {', '.join(_IN_FOLDERS)}")
        path = file
    try:
        if path.suffix == ".json":
            files = sorted(set(json.loads(read_typed(path))["weight_map"].values()))
            return {name: value for file in files for name, value in load_file(regular(path.parent / file)).items()}
        if path.suffix not in _PICKLES:
            return load_file(regular(path))
        loaded = torch.load(regular(path), map_location="cpu", weights_only=True)
        return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    except Exception as error:  # a pickle may raise anything
        kind = "a state_dict" if path.suffix in _PICKLES else "safetensors"
        raise ModelError(f"model.initial {path}: cannot be read as {kind} ({one_line(error)})") from error
