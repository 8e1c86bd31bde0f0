"""How several choices of hidden rounds overlap, and exact moments of X; docs/k-of-t.md has the proofs."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.hidden_rounds import HiddenRounds
from fedamp.accounting.numeric import UNIT, log_choose

_MOST_ROWS, _MOST_TO_EXTEND = 500_000, 5_000
"""Rows that the recursion keeps at once (some 40 MB), and from which it goes on to one subset more."""


class Occupancies(NamedTuple):
    """All occupancies of t subsets.

    Attributes:
        counts: shape (S, t + 1): n_0..n_t of each; rows sum to the rounds in question.
        log_chance: shape (S,): log of the probability of each, under t independent uniform subsets.
    """

    counts: NDArray[np.int32]
    log_chance: Array


def occupancies(chances: tuple[float, ...], rounds: int, order: int) -> Occupancies:
    """Of ``order`` independent subsets of ``rounds`` rounds, each uniform among those of a size drawn by ``chances``.

    Raises:
        NotEvaluable: there are too many to go on from, or on the way.
    """
    found = _occupancies(chances, rounds, order)
    if found is None:
        raise NotEvaluable(f"{order} hidden choices of up to {len(chances) - 1} of {rounds} rounds overlap too much")
    return found


@lru_cache(maxsize=64)
def _occupancies(chances: tuple[float, ...], rounds: int, order: int) -> Occupancies | None:
    """Adding a subset takes a_c of the n_c rounds held c times, in C(n_c, a_c) ways each. Classes are taken one after
    another, and equal rows are merged after each, so that the work grows with the number of distinct occupancies.
    """
    if rounds >= 2**31:  # no room in the table
        return None
    if order == 0:
        return Occupancies(np.array([[rounds]], np.int32), np.zeros(1))
    before = _occupancies(chances, rounds, order - 1)
    if before is None or len(before.counts) > _MOST_TO_EXTEND:
        return None
    sizes = np.flatnonzero(chances).astype(np.int32)
    counts = np.pad(before.counts, ((0, 0), (0, 2)))  # the last column: rounds that the new subset has yet to take
    log_chance = np.add.outer(before.log_chance, np.log(np.array(chances)[sizes]) - log_choose(rounds, sizes)).ravel()
    counts = np.repeat(counts, len(sizes), axis=0)
    counts[:, -1] = np.tile(sizes, len(before.counts))
    for held in range(order - 1, -1, -1):
        there, left = counts[:, held], counts[:, -1]
        least = np.maximum(0, left - counts[:, :held].sum(axis=1))
        ways = np.maximum(np.minimum(there, left) - least + 1, 0)
        if ways.sum() > _MOST_ROWS:
            return None
        rows = np.repeat(np.arange(len(counts)), ways)
        taken = least[rows] + (np.arange(len(rows)) - np.repeat(np.cumsum(ways) - ways, ways)).astype(np.int32)
        log_chance = log_chance[rows] + log_choose(there[rows], taken)
        counts = counts[rows]
        counts[:, held + 1] += taken
        counts[:, held] -= taken
        counts[:, -1] -= taken
        counts, log_chance = _merged(counts, log_chance)
    return Occupancies(np.ascontiguousarray(counts[:, :-1]), log_chance)


def hidden_log_moments(log_moments: Array, chances: tuple[float, ...], rounds: int, off: float = 0.0) -> Array:
    """Integer moments of X where a person takes part in hidden rounds, a uniform set of a size drawn by ``chances``.

    Exact where those of the round are, from above where they are; the remove direction of Rényi divergences.

    Args:
        log_moments: log E[x^a] of one round at a = 0..A, shape (A + 1,).
        chances: of taking part 0, 1, .. times, each known to a relative error of ``off``.
        rounds: all of them released.

    Returns:
        log E[X^a] at a = 0..A, shape (A + 1,), rounding included.

    Raises:
        NotEvaluable: hidden choices overlap in too many ways.
    """
    result = np.zeros(len(log_moments))
    for order in range(2, len(log_moments)):
        counts, log_chance = occupancies(chances, rounds, order)
        held = counts[:, 2:] @ np.asarray(log_moments[2 : order + 1])
        error = rounding(rounds, order) + 2 * order * off + 16 * order * UNIT * float(np.abs(held).max())
        result[order] = np.logaddexp.reduce(log_chance + held) + error
    return result


def rounding(rounds: int, order: float) -> float:
    """Bound on the error of ``log_chance``: each of the ``order`` subsets adds at most ``order + 2`` log binomials,
    of three log factorials each, all rounded to eight units, and as many sums.
    """
    return 64 * order * (order + 2) * (math.lgamma(rounds + 1) + 1) * UNIT


def _merged(counts: NDArray[np.int32], log_chance: Array) -> tuple[NDArray[np.int32], Array]:
    """Equal rows put together. The first column follows from the others and is not compared."""
    sizes = [int(size) + 1 for size in counts[:, 1:].max(axis=0)]
    if math.prod(sizes) < 2**62:
        key = np.zeros(len(counts), np.int64)
        for column, size in enumerate(sizes, start=1):
            key = key * size + counts[:, column]
        order = np.argsort(key, kind="stable")
    else:
        order = np.lexsort(counts[:, 1:].T)
    counts, log_chance = counts[order], log_chance[order]
    differs = np.any(counts[1:] != counts[:-1], axis=1)
    starts = np.concatenate([[0], np.flatnonzero(differs) + 1])
    largest = np.maximum.reduceat(log_chance, starts)
    lengths = np.diff(np.append(starts, len(counts)))
    total = np.add.reduceat(np.exp(log_chance - np.repeat(largest, lengths)), starts)
    return counts[starts], largest + np.log(total)


def pairs(factor: HiddenRounds, power: float) -> Occupancies:
    """How many rounds are in neither, in the first alone, in the second alone, and in both of two sets: the first
    counts by its probability w, the second by w to a ``power`` in (0, 1), so that the weights are no chances.
    """
    sizes, rounds = np.flatnonzero(factor.chances), factor.rounds
    if len(sizes) ** 2 * (factor.most + 1) > 4 * _MOST_ROWS:
        raise NotEvaluable(f"two hidden choices of up to {factor.most} of {rounds} rounds overlap in too many ways")
    first, second, both = (each.ravel() for each in np.meshgrid(sizes, sizes, np.arange(factor.most + 1)))
    there = (both <= np.minimum(first, second)) & (first + second - both <= rounds)
    first, second, both = first[there], second[there], both[there]
    log_chances = np.log(factor.chances, where=np.array(factor.chances) > 0, out=np.zeros(factor.most + 1))
    log_weight = log_chances[first] + log_choose(first, both) + log_choose(rounds - first, second - both)
    log_weight += power * (log_chances[second] - log_choose(rounds, second))
    counts = np.stack([rounds - first - second + both, first - both, second - both, both], axis=1)
    return Occupancies(counts.astype(np.int32), log_weight)
