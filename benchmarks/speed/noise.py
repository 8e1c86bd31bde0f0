"""Exact noise from a cryptographic generator against NumPy's: `python -m benchmarks.speed.noise`.

The speed is a ratio of times taken in turn in one run, so that it does not depend on the machine's speed. At 1/2, exact
noise takes twice as long as noise in float64 from Philox.
"""

import os
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.record import made, store
from fedamp import rng
from fedamp.noise import add_noise

NUMBERS = 10_000_000
_PIECE = 1 << 20


def in_float64(values: np.ndarray) -> None:
    """Noise in float64, as fedamp 0.2 added it, on all cores."""

    def add(number: int) -> None:
        piece = values[number * _PIECE : (number + 1) * _PIECE]
        noise = rng.public_stream(1, "noise", 1, 0, number).standard_normal(len(piece))
        noise *= 2.5
        piece += noise

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(add, range(-(-len(values) // _PIECE))))


def exact(values: np.ndarray) -> None:
    """Exact noise."""
    add_noise({"sum": values}, {"sum": 2.5}, {}, seed=1, round_=1)


def seconds(action: Callable[[np.ndarray], None]) -> float:
    """One call, on sums that are in memory already."""
    values = np.zeros(NUMBERS)
    start = perf_counter()
    action(values)
    return perf_counter() - start


def ratios(times: int = 7) -> dict[str, float]:
    """Speed over that of noise in float64: the median, the least and the most of pairs of calls."""
    found = sorted(seconds(in_float64) / seconds(exact) for _ in range(times))
    return {"speed": statistics.median(found), "least": found[0], "most": found[-1]}


if __name__ == "__main__":
    begun = made()
    seconds(exact)
    store(Path(__file__).with_suffix(".json"), begun | {"numbers": NUMBERS} | ratios())
