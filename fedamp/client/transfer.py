"""Copy many arrays to a device, or home, as one block: on a GPU each copy waits for the one before and for Python.

On the CPU nothing is copied. :mod:`fedamp.client.worker` sends the orders and records of a round, and brings its sums
home.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedamp.base.devices import is_gpu

# Every array of a block begins at a multiple of so many bytes, as torch's own tensors do on a GPU: kernels may round by
# where their operands begin.
_ALIGNMENT = 512


def aligned(array: NDArray[Any]) -> Tensor:
    """Make a tensor on the CPU whose memory begins at a multiple of 64 bytes; a copy where the array's does not."""
    fits = array.flags.writeable and array.ctypes.data % 64 == 0
    return torch.from_numpy(array) if fits else torch.tensor(array)


def send_block(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
    """Copy tensors of the CPU to a device as one block; on the CPU they are returned as they are.

    Args:
        tensors: of any types and shapes.
        device: torch's name of the device.

    Returns:
        Tensors of the same types, shapes and values, contiguous, on the device.

    Raises:
        torch.OutOfMemoryError: the device has no room for the block.
    """
    if not is_gpu(device):
        return list(tensors)
    sizes = [-(-each.numel() * each.element_size() // _ALIGNMENT) * _ALIGNMENT for each in tensors]
    block = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.startswith("cuda"))
    for part, each in zip(torch.split(block, sizes), tensors, strict=True):
        _as_in(part, each).copy_(each)
    there = block.to(device, non_blocking=True)
    return [_as_in(part, each) for part, each in zip(torch.split(there, sizes), tensors, strict=True)]


def _as_in(part: Tensor, like: Tensor) -> Tensor:
    """View the first bytes of a part of a block as a tensor of the type and shape of another one."""
    return part[: like.numel() * like.element_size()].view(like.dtype).view(like.shape)


def fetch_block(tensors: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    """Copy tensors home as one block; those on the CPU share their memory where they are float64.

    Args:
        tensors: on one device; float64, float32, or bool.

    Returns:
        float64 arrays in the tensors' shapes.
    """
    if not any(is_gpu(each.device.type) for each in tensors):
        return [each.numpy().astype(np.float64, copy=False) for each in tensors]
    block = torch.cat([each.flatten().double() for each in tensors]).cpu().numpy()
    ends = np.cumsum([math.prod(each.shape) for each in tensors])[:-1]
    return [part.reshape(each.shape) for part, each in zip(np.split(block, ends), tensors, strict=True)]
