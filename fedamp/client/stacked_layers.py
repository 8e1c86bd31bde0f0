"""Layers of torch that ``torch.func.vmap`` cannot stack by itself: recurrent layers, and fused attention.

Torch has the same layers in operations that it can stack; inside of a stack they take the place of the fused ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions, get_decompositions
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


def for_all_clients(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``forward`` of all clients at once: every argument has a first axis of clients."""
    together = torch.func.vmap(forward)

    def of_all(*arguments: Any) -> Tensor:
        with _Unfused(), sdpa_kernel(SDPBackend.MATH):
            return together(*arguments)

    return of_all


_TORCH: Any = decompositions  # private to torch, and without types; a test compares what it gives


def _lstm(
    inputs: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], biased: bool, layers: int, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Torch's own decomposition of ``torch.lstm`` without the kernel of the CPU, which cannot be stacked."""
    grouped = _TORCH.gather_params(weights, biased, states[0].size(2) != states[1].size(2))
    first = list(zip(*states, strict=True))
    layer = _TORCH.one_layer_lstm
    answers, last = _TORCH._rnn_helper(inputs, first, grouped, biased, layers, *others, layer)
    hidden, cells = zip(*last, strict=True)
    return answers, torch.stack(hidden), torch.stack(cells)


_SAME = {torch.gru: torch.ops.aten.gru.input, torch.rnn_tanh: torch.ops.aten.rnn_tanh.input}
_SAME |= {torch.rnn_relu: torch.ops.aten.rnn_relu.input}
_FOUND = get_decompositions(list(_SAME.values()))
_UNFUSED: dict[Any, Callable[..., Any]] = {torch.lstm: _lstm} | {fused: _FOUND[same] for fused, same in _SAME.items()}


class _Unfused(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _UNFUSED.get(function, function)(*args, **(kwargs or {}))
