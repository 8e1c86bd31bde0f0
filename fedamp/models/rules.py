"""What a model may contain to be trained privately; every breach is refused by name."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedamp.errors import ModelError


def check(module: nn.Module) -> None:
    """Refuse what cannot be trained privately or reproducibly.

    Everything that a record can change must be a float32 parameter, because parameters are what is clipped and noised.
    Batch norm mixes the records of a batch and keeps running statistics; integer buffers count records; both would
    leave the client unprotected.

    Raises:
        ModelError: batch norm, running statistics, integer buffers, parameters that are not float32, frozen, or not yet
            of known shape, or no parameters at all.
    """
    for name, submodule in module.named_modules():
        _check_submodule(name or type(module).__name__, submodule)
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        _check_parameter(name, parameter)
    if sum(parameter.numel() for parameter in parameters.values()) == 0:
        raise ModelError(f"model {type(module).__name__} has no parameters to train")


def _check_submodule(name: str, submodule: nn.Module) -> None:
    kind = type(submodule).__name__
    if isinstance(submodule, nn.modules.batchnorm._BatchNorm):
        raise ModelError(f"model: {name} is {kind}, whose statistics mix records unprotected; use GroupNorm")
    if isinstance(submodule, _NormBase) and submodule.track_running_stats:
        raise ModelError(f"model: {name} ({kind}) keeps running statistics; use track_running_stats=False or GroupNorm")
    for buffer_name, buffer in submodule.named_buffers(recurse=False):
        where = f"{name}.{buffer_name}"
        if not buffer.dtype.is_floating_point:
            raise ModelError(f"model: buffer {where} is {_dtype(buffer)}; integer buffers cannot be protected")
        if buffer_name.startswith("running"):
            raise ModelError(f"model: buffer {where} is a running statistic, which cannot be protected")


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.UninitializedParameter):
        raise ModelError(f"model: parameter {name} has no shape yet (a lazy module); give its sizes")
    if parameter.dtype != torch.float32:
        raise ModelError(f"model: parameter {name} is {_dtype(parameter)}; only float32 is accepted")
    if not parameter.requires_grad:
        raise ModelError(f"model: parameter {name} is frozen (requires_grad=False); register it as a buffer instead")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
