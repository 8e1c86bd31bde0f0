"""Noise mechanisms: the noise of the sum of a round."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from fedamp.base.arrays import Arrays, State, Sums
from fedamp.noise.gaussian import Address, Uniform, add_gaussian

Deviations = Mapping[str, float]
Hidden = Mapping[str, Uniform]
_PIECE = 1 << 20  # numbers of one stream: enough to keep a thread busy


class Noise(ABC):
    """Adds noise to the sums of the rounds, one after the other.

    A mechanism with correlated noise (DP-FTRL, matrix mechanisms) keeps a state in the checkpoint, because the noise of
    earlier rounds cannot be drawn again. The plan charges independent Gaussian noise in every round.
    """

    @abstractmethod
    def init(self, parameters: Arrays) -> State:
        """The state before the first round: sets of arrays in the model's shapes, by name."""

    @abstractmethod
    def update(
        self, sums: Sums, deviation_of: Deviations, hidden: Hidden, state: State, seed: int, round_: int
    ) -> State:
        """Add a round's noise in place, and return the next state, in new arrays.

        The resulting sums must be a function of the exact noisy sums: :func:`fedamp.noise.gaussian.add_gaussian`.

        Args:
            sums: arrays by name, contiguous.
            deviation_of: standard deviation for each array, in the units of the sum; 0 adds nothing.
            hidden: uniform numbers to add, by name (ModelMix).
            state: of :meth:`init` or the round before.
            seed: of this attempt at the round; a new one each time, unless the run's seed is known.
            round_: number of this round.
        """


class IndependentGaussian(Noise):
    """N(0, deviation^2) on every coordinate, independent over coordinates and rounds."""

    def init(self, parameters: Arrays) -> State:
        return {}

    def update(
        self, sums: Sums, deviation_of: Deviations, hidden: Hidden, state: State, seed: int, round_: int
    ) -> State:
        add_noise(sums, deviation_of, hidden, seed, round_)
        return state


def add_noise(sums: Sums, deviation_of: Deviations, hidden: Hidden, seed: int, round_: int) -> None:
    """Add independent N(0, deviation^2) to every coordinate, in place; arguments as of :meth:`Noise.update`.

    The noise is a function of the seed, the round, the array's index and the index in it alone.

    Raises:
        ValueError: sums that are 2**32 times as large as the noise.
    """
    pieces = list(_pieces(sums, deviation_of, hidden, seed, round_))
    if sum(array.size for array in sums.values()) <= _PIECE:
        for piece in pieces:
            piece()
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy and scipy compute without holding the interpreter
        for done in [pool.submit(piece) for piece in pieces]:
            done.result()


def _pieces(sums: Sums, deviation_of: Deviations, hidden: Hidden, seed: int, round_: int) -> Iterator[partial[None]]:
    """The work, in pieces with an address each."""
    for index, (name, array) in enumerate(sums.items()):
        if deviation_of[name] == 0 and name not in hidden:
            continue
        flat = np.reshape(
            array, (-1,), copy=False
        )  # of an array that is not contiguous a copy would get the noise instead
        for number, start in enumerate(range(0, flat.size, _PIECE)):
            piece, uniform = slice(start, start + _PIECE), hidden.get(name)
            if uniform:
                uniform = Uniform(uniform.unit, np.ravel(uniform.multiples)[piece])
            address = Address(seed, "noise", (round_, index, number))
            yield partial(add_gaussian, flat[piece], deviation_of[name], address, uniform)
