"""Gaussian noise on a sum."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.strategies.layout import Sums

# Numbers that are drawn from one stream: enough to keep a thread busy, few enough to stay in a cache.
_PIECE = 1 << 20


def add_noise(sums: Sums, deviation_of: Mapping[str, float], seed: int, round_: int) -> None:
    """Add independent N(0, deviation^2) to every coordinate, in place, on all cores where that pays.

    Args:
        sums: arrays by name, contiguous.
        deviation_of: standard deviation for each array, in the units of the sum; 0 adds nothing.
        seed: the run's seed; the noise is a function of it, the round, the array's place and the place in it alone.
        round_: number of this round.
    """

    def add(piece: tuple[tuple[int, ...], NDArray[np.float64], float]) -> None:
        address, values, deviation = piece
        noise = rng.stream(seed, "noise", round_, *address).standard_normal(values.shape)
        noise *= deviation
        values += noise

    pieces = list(_pieces(sums, deviation_of))
    if sum(values.size for _, values, _ in pieces) <= _PIECE:
        for piece in pieces:
            add(piece)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy draws without holding the interpreter
        for _ in pool.map(add, pieces):
            pass


def _pieces(
    sums: Sums, deviation_of: Mapping[str, float]
) -> Iterator[tuple[tuple[int, ...], NDArray[np.float64], float]]:
    """Addresses that no two pieces share, the numbers, and their deviation."""
    for index, (name, array) in enumerate(sums.items()):
        if deviation_of[name] > 0:
            flat = array.view()
            flat.shape = (-1,)  # an array that is not contiguous is an error, not a copy that gets the noise instead
            for number, start in enumerate(range(0, flat.size, _PIECE)):
                # The first piece keeps the address that whole arrays had: small models stay what they were.
                address = (index, number) if number else (index,)
                yield address, flat[start : start + _PIECE], deviation_of[name]
