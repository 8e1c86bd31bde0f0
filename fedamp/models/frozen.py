"""Frozen weights: what a model starts from and does not train. They become buffers, which are never sent or noised."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedamp.errors import ModelError, one_line

_IN_FOLDERS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")  # of Hugging Face
_PICKLES = (".pt", ".pth", ".bin")


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, such as ``lora_*`` or ``head``, is a dotted name, or some of its parts in a row."""
    parts = name.split(".")
    ranges = ((first, last) for first in range(len(parts)) for last in range(first + 1, len(parts) + 1))
    return any(fnmatchcase(".".join(parts[first:last]), pattern) for first, last in ranges)


def matching(names: Sequence[str], patterns: Sequence[str], key: str) -> frozenset[str]:
    """The names that some pattern matches; ModelError, which names the scenario's ``key``, where one matches none."""
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ModelError(f"{key}: {pattern!r} matches no parameter; expected: such as {names[-1]}")
    return frozenset(name for name in names if any(matches(name, pattern) for pattern in patterns))


def place_of(initial: str) -> Path:
    """Where the weights of ``model.initial`` are: on a node, which is told a name alone, in ``$FEDAMP_MODELS``."""
    return Path(os.environ.get("FEDAMP_MODELS", "")) / initial


def choose_trainable(module: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze every parameter that no pattern matches; ModelError where a pattern matches none."""
    chosen = matching([name for name, _ in module.named_parameters()], patterns, "model.trainable")
    for name, parameter in module.named_parameters():
        if name in chosen and not parameter.dtype.is_floating_point:
            raise ModelError(f"model.trainable: parameter {name} is {parameter.dtype}, which cannot be trained")
        parameter.requires_grad_(name in chosen)


def freeze(module: nn.Module) -> None:
    """Make all parameters without ``requires_grad`` buffers, so that only what is trained is a parameter.

    Its smaller networks would not have the frozen values: a module that makes some is trained under masks instead.
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
    """Fill a module with frozen parameters from a file or folder; every frozen parameter must be there.

    Args:
        path: a safetensors file, a ``state_dict`` that ``torch.load`` reads, or a folder of Hugging Face.
        names: prefixes of names in the file, and what stands for them in the model; None leaves the tensors out.

    Raises:
        ModelError: the file cannot be read; names are missing or unexpected; a shape is another.
    """
    given = read_tensors(path, names)
    state = module.state_dict(keep_vars=True)
    frozen = {name for name, value in state.items() if isinstance(value, nn.Parameter) and not value.requires_grad}
    tied = {name for name in frozen if any(state[name] is state[each] for each in given if each in state)}
    problems = {"lacks": frozen - given.keys() - tied, "has unexpected": given.keys() - state.keys()}
    if any(problems.values()):
        found = "; ".join(f"{problem} {_shown(wrong)}" for problem, wrong in problems.items() if wrong)
        raise ModelError(f"model.initial {path}: {found}; model.initial_names maps prefixes")
    for name, value in given.items():
        if state[name].shape != value.shape:
            must = f"must have shape {list(state[name].shape)}, got {list(value.shape)}"
            raise ModelError(f"model.initial {path}: {name} {must}")
    module.load_state_dict(given, strict=False)


def _shown(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return ", ".join([first, *rest[:4]]) + (f" and {len(rest) - 4} more" if len(rest) > 4 else "")


def read_tensors(path: Path, names: Mapping[str, str | None] = MappingProxyType({})) -> dict[str, Tensor]:
    """All tensors of a file, or of a folder of Hugging Face, by their names in the model; see :func:`load_start`."""
    found = {}
    for name, value in _read(path).items():
        prefix = max((prefix for prefix in names if name.startswith(prefix)), key=len, default=None)
        to = "" if prefix is None else names[prefix]
        if to is not None:
            found[to + name.removeprefix(prefix or "")] = value
    return found


def _read(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        file = next((path / name for name in _IN_FOLDERS if (path / name).is_file()), None)
        if file is None:
            raise ModelError(f"model.initial {path}: no weights; expected: a folder with {', '.join(_IN_FOLDERS)}")
        path = file
    try:
        if path.suffix == ".json":
            files = sorted(set(json.loads(path.read_text())["weight_map"].values()))
            return {name: value for file in files for name, value in load_file(path.parent / file).items()}
        if path.suffix not in _PICKLES:
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    except Exception as error:  # a pickle may raise anything
        kind = "a state_dict" if path.suffix in _PICKLES else "safetensors"
        raise ModelError(f"model.initial {path}: cannot be read as {kind} ({one_line(error)})") from error
