"""The generators that custom code draws from: torch's, NumPy's and Python's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def generators_from(seed: int, gpus: bool = False) -> Iterator[None]:
    """Inside, they start from a seed of 63 bits; afterwards they are restored. ``gpus``: so do torch's on GPUs."""
    numpy_before, python_before = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(None if gpus else []):
        (torch.manual_seed if gpus else torch.default_generator.manual_seed)(seed)
        np.random.seed(seed >> 31)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_before)
            random.setstate(python_before)
