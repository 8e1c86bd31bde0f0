"""What a model costs to send and to train: counts, not times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Cost:
    """Size of a (sub)model. Only the operations of matrix products and convolutions count: the rest is negligible."""

    parameters: int  # float32: four bytes each in a message
    flops_per_record: int  # of a forward and a backward pass; two for a multiplication and addition


def cost(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Cost:
    """Count one pass of a single record of zeros; the module is left as it was."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _Counter() as counter:  # type: ignore[no-untyped-call]
        torch.autograd.grad(module(torch.zeros(1, *input_shape, dtype=dtype)).sum(), parameters, allow_unused=True)
    return Cost(sum(parameter.numel() for parameter in parameters), counter.flops)


def kept_per_record(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """The numbers that the forward pass of one record keeps for the backward pass, besides the parameters."""
    known = {each.untyped_storage().data_ptr() for each in (*module.parameters(), *module.buffers())}
    kept: dict[int, Tensor] = {}  # by place in memory: two operations may keep the same numbers

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in known:
            kept[place] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        module(torch.zeros(1, *input_shape, dtype=dtype))
    return sum(tensor.numel() for tensor in kept.values())


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up torch's own counts of the operations inside. Torch's own counter loads its compiler for that."""

    flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        return out
