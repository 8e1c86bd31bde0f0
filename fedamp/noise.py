"""The noise of the sums of rounds: independent, banded or from buffers. A release is the exact noisy value, rounded.

A sum x is released as the multiple of a power of two nearest to the exact x + s Z, for a standard normal Z. So a
release is a function of the real-valued output of the Gaussian mechanism, and costs the same. It has no low bits of
float64, from which Mironov 2012 reads membership.

Z is the normal quantile of a uniform U, of which 64 bits nearly always decide, and else 320
(docs/research/accounting.md has the proof, and the cost: the law of a release is within ``TOTAL_VARIATION`` of the
exact one).

This module knows sums, standard deviations and addresses of randomness (:mod:`fedamp.rng`). It knows no budget: the
plan (:mod:`fedamp.federation`) decides how much noise a round needs, and the accountant charges it. Correlated noise is
an extension, which inherits :class:`Noise`.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from threading import Lock
from typing import Any

import numpy as np

from fedamp import rng
from fedamp.base.arrays import Arrays, Floats, State, Sums

TOTAL_VARIATION = 2.0**-280
"""Upper bound on the total variation distance between the law of one released number and the exact one."""

_STEPS = 18  # log2 of the multiples of the grid in a standard deviation: at least as many, and less than twice
_FURTHER = 4  # further words of U, if the first does not decide
_SHORTEST = 2.0**-24  # for a uniform closer to zero 64 bits do not decide: the quantile is too steep
_BLOCK = 1 << 14  # numbers computed at a time: they stay in the cache
_reals_lock = Lock()  # a context of mpmath serves one thread at a time


@dataclass(frozen=True)
class Uniform:
    """Uniform numbers about zero that hide a sum beside its noise; each has the width ``unit`` times its multiple.

    Attributes:
        unit: the smallest width, in units of the sum; exact, because it is charged.
        multiples: whole numbers >= 1, one for each number of the sum.
    """

    unit: Fraction  # exact, because it is charged
    multiples: Floats  # whole numbers >= 1, one for each number of the sum


@dataclass(frozen=True)
class Address:
    """The address of the randomness of some numbers in :mod:`fedamp.rng`.

    Attributes:
        seed: of the attempt at a round.
        purpose: what the numbers are for.
        indices: such as round, array and piece.
    """

    seed: int
    purpose: str
    indices: tuple[int, ...]

    def stream(self, kind: str = "", *further: int) -> rng.Stream:
        """Open the stream of this address, of a ``kind`` of numbers (added to the purpose) and ``further`` indices."""
        return rng.stream(self.seed, self.purpose + kind, *self.indices, *further)


def grid_of(deviation: float, steps: int = _STEPS) -> float:
    """Return the power of two of which noisy numbers are whole multiples.

    Args:
        deviation: standard deviation of the noise, positive.
        steps: log2 of the multiples in a standard deviation.

    Returns:
        With 18 steps: at most 2**-18 standard deviations, and more than half of that.

    Example:
        >>> grid_of(1.0) == 2.0**-18, grid_of(1.9) == 2.0**-18, grid_of(2.0) == 2.0**-17
        (True, True, True)
    """
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1 - steps)


def add_gaussian(
    values: Floats, deviation: float, address: Address, hidden: Uniform | None = None, steps: int = _STEPS
) -> None:
    """Add independent N(0, deviation²) and hidden uniform numbers to exact sums, and round to the grid, in place.

    Args:
        values: the sums, shape [n], contiguous.
        deviation: standard deviation, positive; 0 with ``hidden`` and without noise.
        address: of the randomness; no two calls may share one.
        hidden: uniform numbers to add (ModelMix); None: none.
        steps: log2 of the multiples of the grid in a standard deviation, at most 18.

    Raises:
        ValueError: numbers of 2**32 deviations or widths of 2**20; float64 cannot hold them to a multiple of the grid.

    Example:
        >>> sums = np.array([1.0, 2.0])
        >>> add_gaussian(sums, 0.5, Address(7, "noise", (1, 0, 0)))
        >>> sums.round(3).tolist(), (sums % grid_of(0.5)).tolist()
        ([0.045, 1.428], [0.0, 0.0])
    """
    grid = grid_of(deviation or float(hidden.unit if hidden else 0), steps)
    gaussian, uniform = address.stream(), address.stream(", uniform") if hidden else None
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        part = (_in_units(hidden, grid, start), uniform.words(len(block))) if hidden and uniform else None

        def further(kind: str, place: int, start: int = start) -> rng.Words:
            return address.stream(f"{kind}, further bits", start + place).words(_FURTHER)

        whole, rest = split(block, grid)
        nearest = round_noisy(rest, deviation / grid, gaussian.words(len(block)), further, part)
        nearest += whole
        np.multiply(nearest, grid, out=block)


def split(values: Floats, grid: float) -> tuple[Floats, Floats]:
    """Split numbers into whole multiples of the grid and the rest, both exact and in units of the grid.

    Args:
        values: shape [n].
        grid: a power of two.

    Returns:
        The whole multiples, and the rest in [-1/2, 1/2], both of shape [n].

    Raises:
        ValueError: a number is of more than 2**51 multiples.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scaled = values / grid
        fits = scaled.max() < 2.0**51 and scaled.min() > -(2.0**51)
    if not fits:
        found, most = f"a sum of {np.abs(values).max():.3g}", "at most 2**32 standard deviations of the noise"
        raise ValueError(f"noise: {found} where noise is a multiple of {grid:.3g}; expected: {most}")
    whole = np.rint(scaled)
    scaled -= whole
    return whole, scaled


def _in_units(hidden: Uniform, grid: float, start: int) -> Uniform:
    """Express the hidden uniform numbers of a block in units of the grid; ValueError: above 2**39 of them."""
    unit, multiples = hidden.unit / Fraction(grid), hidden.multiples[start : start + _BLOCK]
    if not (float(unit) * multiples <= 2.0**39).all():
        width, most = float(hidden.unit) * multiples.max(), "at most 2**20 standard deviations of the noise"
        raise ValueError(f"mixing: a width of {width:.3g} where noise is a multiple of {grid:.3g}; expected: {most}")
    return Uniform(unit, multiples)


def quantiles(uniform: Floats) -> Floats:
    """Return the normal quantile of each |U|, with the sign of U.

    Args:
        uniform: in [-1/2, 1/2], any shape.

    Returns:
        Of the same shape; finite also for U = 0, where the size counts as 2**-65.
    """
    from scipy.special import ndtri  # a slow import, and most commands draw nothing

    sizes = np.maximum(np.abs(uniform), 2.0**-65)
    ndtri(sizes, out=sizes)
    return np.copysign(sizes, uniform, out=sizes)


def round_noisy(
    values: Floats,
    deviation: float,
    words: rng.Words,
    further: Callable[[str, int], rng.Words],
    hidden: tuple[Uniform, rng.Words] | None = None,
) -> Floats:
    """Return the whole numbers nearest to values with their noise, exactly.

    float64 decides nearly always. Where the noisy value is within the error of float64 of a rounding boundary, 256
    further bits of each uniform number and reals of 400 bits decide.

    Args:
        values: shape [n], at most 1/2 in size.
        deviation: of the noise, below 2**19.
        words: the first 64 bits of each number's uniform, shape [n].
        further: gives the next 256 bits of a kind ("" or ", uniform") and place.
        hidden: uniform numbers to add, and their first 64 bits.

    Returns:
        Whole numbers, shape [n].
    """
    coarse = words.view(np.int64) * 2.0**-64
    unsure, exact = np.abs(coarse) < _SHORTEST, quantiles(coarse)
    exact *= deviation
    exact += values
    # Error of the noise: the quantile itself, to 2**-47 of at most 5.3 (a test allows 2**-48); what bits that are not
    # drawn, and those that float64 has no room for, move it by (at most Mills' ratio times their share of U, which is
    # 2**-53 of 1.26 in the middle and 2**-40 of 0.19 at the ends): together below 2**-42. The rest is rounding of sums
    # and products of numbers whose size is bounded by the last terms.
    error = deviation * 2.0**-42 + 2.0**-28
    if hidden:
        widths = float(hidden[0].unit) * hidden[0].multiples
        exact += widths * (hidden[1].view(np.int64) * 2.0**-64)
        error += widths.max() * 2.0**-50
    nearest: Floats = np.rint(exact)
    exact -= nearest
    unsure |= np.abs(exact, out=exact) > 0.5 - error
    for place in map(int, np.flatnonzero(unsure)):
        with _reals_lock:
            reals = _exact_reals()
            uniform = _uniform_of_bits(words[place], further("", place))
            quantile = reals.sign(uniform) * reals.sqrt(2) * reals.erfinv(1 - 2 * abs(uniform))
            sample = float(values[place]) + deviation * quantile
            if hidden:
                unit, multiple = hidden[0].unit, float(hidden[0].multiples[place])
                width = reals.mpf(unit.numerator) / unit.denominator * multiple
                sample += width * _uniform_of_bits(hidden[1][place], further(", uniform", place))
            nearest[place] = float(reals.nint(sample))
    return nearest


def _uniform_of_bits(first: np.uint64, further: rng.Words) -> Any:
    """Return the middle of the interval of [-1/2, 1/2) that is left when all bits are drawn."""
    bits = int(first.view(np.int64))
    for word in further.tolist():
        bits = (bits << 64) + word
    return _exact_reals().ldexp(2 * bits + 1, -64 * (1 + len(further)) - 1)


@cache
def _exact_reals() -> Any:
    """Open a context of mpmath for real numbers of 400 bits."""
    from mpmath import mp  # takes a while to import, and most commands draw nothing

    reals = mp.clone()
    reals.prec = 400
    return reals


# The noise of a round.

Deviations = Mapping[str, float]
HiddenUniforms = Mapping[str, Uniform]
_PIECE = 1 << 20  # numbers of one stream: enough to keep a thread busy


class Noise(ABC):
    """Interface: add noise to the sums of the rounds, one after the other.

    A mechanism with correlated noise (DP-FTRL, matrix mechanisms) keeps a state in the checkpoint, because the noise of
    earlier rounds cannot be drawn again. The plan charges independent Gaussian noise in every round unless a section
    says otherwise. An implementation must guarantee two things. The released sums are a function of the exact noisy
    sums, and a round's noise follows from its seed and the state alone.
    """

    @abstractmethod
    def init(self, parameters: Arrays) -> State:
        """Return the state before the first round: sets of arrays in the model's shapes, by name.

        Args:
            parameters: the model's arrays by name.
        """

    @abstractmethod
    def update(
        self, sums: Sums, deviation_of: Deviations, hidden: HiddenUniforms, state: State, seed: int, round_: int
    ) -> State:
        """Add a round's noise in place, and return the next state, in new arrays.

        The resulting sums must be a function of the exact noisy sums: :func:`fedamp.noise.add_gaussian`. The given
        state must stay as it is, because an attempt at a round may be repeated.

        Args:
            sums: arrays by name, contiguous.
            deviation_of: standard deviation for each array, in the units of the sum; 0 adds nothing.
            hidden: uniform numbers to add, by name (ModelMix).
            state: from :meth:`init` or the round before.
            seed: of this attempt at the round; a new one each time, unless the run's seed is known.
            round_: number of this round, from 1 on.

        Returns:
            The state for the next round.
        """


class IndependentGaussian(Noise):
    """Noise N(0, deviation²) on every coordinate, independent over coordinates and rounds; it needs no state."""

    def init(self, parameters: Arrays) -> State:
        return {}

    def update(
        self, sums: Sums, deviation_of: Deviations, hidden: HiddenUniforms, state: State, seed: int, round_: int
    ) -> State:
        add_noise(sums, deviation_of, hidden, seed, round_)
        return state


def add_noise(sums: Sums, deviation_of: Deviations, hidden: HiddenUniforms, seed: int, round_: int) -> None:
    """Add independent N(0, deviation²) to every coordinate, in place; arguments are those of :meth:`Noise.update`.

    The noise is a function of the seed, the round, the array's index and the index in it alone, whatever the number of
    threads.

    Raises:
        ValueError: sums that are 2**32 times as large as the noise.
    """
    pieces = []  # of the work, with an address each
    for index, (name, array) in enumerate(sums.items()):
        if deviation_of[name] == 0 and name not in hidden:
            continue
        flat = np.reshape(array, (-1,), copy=False)  # a copy, of an array that is not contiguous, would get the noise
        for number, start in enumerate(range(0, flat.size, _PIECE)):
            piece, uniform = slice(start, start + _PIECE), hidden.get(name)
            if uniform:
                uniform = Uniform(uniform.unit, np.ravel(uniform.multiples)[piece])
            address = Address(seed, "noise", (round_, index, number))
            pieces.append(partial(add_gaussian, flat[piece], deviation_of[name], address, uniform))
    if sum(array.size for array in sums.values()) <= _PIECE:
        for work in pieces:
            work()
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy and scipy compute without holding the interpreter
        for done in [pool.submit(work) for work in pieces]:
            done.result()


# Correlated noise.


def norm_of(coefficients: Sequence[float]) -> float:
    """Return the Euclidean norm of 1, c_1, c_2, .., rounded up: what one participation adds to correlated noise's sums.

    Args:
        coefficients: c_1, c_2, ..

    Example:
        >>> round(norm_of([0.75]), 6)
        1.25
    """
    return math.sqrt(1 + math.fsum(each * each for each in coefficients)) * (1 + 2.0**-50)
