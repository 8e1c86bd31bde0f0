"""Which arithmetic matrix products may use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """Inside, a GPU rounds to tf32 only where the scenario asks for it (torch by default lets convolutions do so)."""
    if not device.startswith("cuda"):
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
