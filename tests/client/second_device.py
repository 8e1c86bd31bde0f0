"""A second device, which exists everywhere: it computes on the CPU, but does not mix with it, and its memory may end.

Its tensors say that they are on torch's ``meta`` device and hold real ones. As on a GPU, an operation on tensors of
both devices is an error, and so is handing one of its tensors to NumPy.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedamp.models.units import Units

ELSEWHERE = torch.device("meta")


class Memory:
    """Bytes of the second device that are in use, were so at most, and may be so."""

    def __init__(self) -> None:
        self.limit, self.used, self.peak = float("inf"), 0, 0
        self._holders: dict[int, int] = {}  # tensors of each storage
        self._lock = threading.RLock()  # tensors die in whichever thread collects garbage

    def of(self, action: Callable[[], object]) -> int:
        """Bytes that an action takes at most, on top of what was in use."""
        self.peak = before = self.used
        action()
        return self.peak - before

    def hold(self, tensor: "Elsewhere") -> None:
        storage = tensor.held.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        with self._lock:
            if place not in self._holders:
                if self.used + size > self.limit:
                    raise torch.OutOfMemoryError("the second device is full")
                self.used += size
                self.peak = max(self.peak, self.used)
            self._holders[place] = self._holders.get(place, 0) + 1
        weakref.finalize(tensor, self._release, place, size)

    def _release(self, place: int, size: int) -> None:
        with self._lock:
            self._holders[place] -= 1
            if not self._holders[place]:
                del self._holders[place]
                self.used -= size


memory = Memory()


class Elsewhere(Tensor):
    """A tensor of the second device."""

    held: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> "Elsewhere":
        shape = {"strides": real.stride(), "storage_offset": real.storage_offset(), "dtype": real.dtype}
        made = Tensor._make_wrapper_subclass(cls, real.shape, device=ELSEWHERE, **shape)
        made.held = real
        memory.hold(made)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Inside, the second device is there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation, on whichever device its arguments are."""
    flat, structure = tree_flatten((args, kwargs))
    tensors = [each for each in flat if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, Elsewhere)]
    asked = kwargs.get("device")
    moves = func is torch.ops.aten._to_copy.default
    if there and not moves and any(each.dim() for each in tensors if not isinstance(each, Elsewhere)):
        raise RuntimeError(f"{func} mixes the CPU with the second device")
    unwrapped, real_kwargs = tree_unflatten(
        [each.held if isinstance(each, Elsewhere) else each for each in flat], structure
    )
    if asked is not None:
        real_kwargs["device"] = "cpu"
    out = func(*unwrapped, **real_kwargs)
    on_it = torch.device(asked) == ELSEWHERE if asked is not None else bool(there)
    if not on_it:
        return out
    known = {id(each.held): each for each in there}  # what was changed in place stays the same tensor
    return tree_map(lambda each: known.get(id(each), Elsewhere(each)) if isinstance(each, Tensor) else each, out)


class WithTable(nn.Module):
    """A model of one's own with a buffer; its hidden units can be cut, by leaving them out."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0.5, 1.5, input_shape[0]))
        self.hidden, self.squash, self.output = nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.squash(self.hidden(inputs * self.table)))

    def units_to_split(self) -> list[Units]:
        return [Units("hidden", 8, {"hidden.weight": 0, "hidden.bias": 0, "output.weight": 1}, "squash")]


class Undecided(WithTable):
    """One that looks at its numbers, which ``torch.func.vmap`` refuses."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (1.0 if float(inputs.detach().sum()) > 0 else 2.0)
