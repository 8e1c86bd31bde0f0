"""Count the operations that torch dispatches, by what they would cost on a GPU: launches, copies, waits.

The second device (:mod:`tests.client.second_device`) stands for a GPU, so a copy between the devices is seen, and so is
whatever reads a value. Counts do not depend on the machine.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.client.second_device import Elsewhere

# On a GPU the program waits for these, because the host asks for a value.
READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"}
# The shape of their results follows from values, so the host waits for it.
VALUE_DEPENDENT = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "argwhere"}
# They make a tensor out of another one's memory, and start nothing on a GPU.
VIEWS = {"view", "detach", "alias", "expand", "transpose", "t", "permute", "slice", "select", "squeeze", "unsqueeze"}
VIEWS |= {"_unsafe_view", "as_strided", "split", "split_with_sizes", "unbind", "unsqueeze_", "squeeze_", "diagonal"}
VIEWS |= {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "unfold", "view_as", "lift_fresh"}


@dataclass
class Counts:
    """What a piece of work dispatches.

    Attributes:
        operations: how often each was dispatched, by name.
        into, home: copies to the second device, and from it.
        bytes_into: of the copies to the second device.
        reads: values that the host asks for, by operation.
        dependent: operations whose shapes follow from values.
    """

    operations: Counter[str] = field(default_factory=Counter)
    into: int = 0
    home: int = 0
    bytes_into: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    dependent: Counter[str] = field(default_factory=Counter)

    @property
    def dispatched(self) -> int:
        """All operations."""
        return sum(self.operations.values())

    @property
    def launched(self) -> int:
        """Operations that compute something; each is at least one kernel on a GPU."""
        return sum(count for name, count in self.operations.items() if name not in VIEWS)


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        out = func(*args, **(kwargs or {}))
        counts, tensors = self.counts, [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        counts.operations[name] += 1
        counts.reads[name] += name in READS
        masked = name in ("index", "index_put", "index_put_") and any(
            isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in tree_leaves(args[1])
        )
        repeats = name == "repeat_interleave" and func._overloadname != "self_int"
        counts.dependent[name] += masked or repeats or name in VALUE_DEPENDENT
        if name in ("_to_copy", "copy_") and tensors:
            source, target = tensors[-1], out
            if isinstance(source, Elsewhere) != isinstance(target, Elsewhere):
                counts.into += isinstance(target, Elsewhere)
                counts.bytes_into += isinstance(target, Elsewhere) * source.numel() * source.element_size()
                counts.home += isinstance(source, Elsewhere)
        return out


@contextmanager
def counted() -> Iterator[Counts]:
    """Count while the context lasts."""
    with _Counting() as counting:
        yield counting.counts
    for each in (counting.counts.reads, counting.counts.dependent):
        for name in [name for name, count in each.items() if not count]:
            del each[name]


def counts_of(action: Callable[[], object]) -> Counts:
    """Count one call."""
    with counted() as counts:
        action()
    return counts
