"""Noise mechanisms: what is added to the sum of a round."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.arrays import Arrays, State, Sums

# Numbers that are drawn from one stream: enough to keep a thread busy, few enough to stay in a cache.
_PIECE = 1 << 20


class Noise(ABC):
    """Adds noise to the sums of the rounds, one after the other.

    A mechanism that remembers (correlated noise: DP-FTRL, matrix mechanisms) keeps what it remembers in its state,
    which goes to the checkpoint: noise of earlier rounds cannot be drawn again. Its charge belongs to the plan:
    :class:`fedamp.plan.Cost` takes it that rounds have independent Gaussian noise.
    """

    @abstractmethod
    def init(self, parameters: Arrays) -> State:
        """What is remembered before the first round: some sets of arrays in the model's shapes, by name."""

    @abstractmethod
    def update(self, sums: Sums, deviation_of: Mapping[str, float], state: State, seed: int, round_: int) -> State:
        """Add a round's noise in place, and return what is remembered then, in new arrays.

        Args:
            sums: arrays by name, contiguous.
            deviation_of: standard deviation for each array, in the units of the sum; 0 adds nothing.
            state: as :meth:`init` or the round before left it.
            seed: of this attempt at the round; another one each time, unless the run's is known.
            round_: number of this round.
        """


class IndependentGaussian(Noise):
    """N(0, deviation^2) on every coordinate, independent over coordinates and rounds."""

    def init(self, parameters: Arrays) -> State:
        return {}

    def update(self, sums: Sums, deviation_of: Mapping[str, float], state: State, seed: int, round_: int) -> State:
        add_noise(sums, deviation_of, seed, round_)
        return state


def add_noise(sums: Sums, deviation_of: Mapping[str, float], seed: int, round_: int) -> None:
    """Add independent N(0, deviation^2) to every coordinate, in place, on all cores where that pays.

    The noise is a function of the seed, the round, the array's place and the place in it alone. Arguments are those of
    :meth:`Noise.update`.
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
