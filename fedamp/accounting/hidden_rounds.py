"""The likelihood ratio X of a run with hidden rounds: a product of independent factors, and its integer moments.

One factor is the mean of e_h(x_1, .., x_r) / C(r, h) over the number h of rounds that a person takes part in, x_i the
independent likelihood ratios of the rounds and e_h the elementary symmetric polynomial; docs/k-of-t.md.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array
from fedamp.accounting.moments import UNIT, log_choose
from fedamp.accounting.points import NotEvaluable
from fedamp.accounting.ratios import EXPONENT, Round

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


def rounding(rounds: int, order: int) -> float:
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


@dataclass(frozen=True, eq=False)
class HiddenRounds:
    """One factor of X: a person takes part in H of ``rounds`` released rounds, a uniform set of a random size.

    Args:
        round: the likelihood ratio of one round.
        chances: of H = 0, 1, ..; the last one is positive.
        rounds: >= 1.
        copies: how many independent factors like this one there are.
        chance_rounding: bound on the relative error of ``chances``.
    """

    round: Round
    chances: tuple[float, ...]
    rounds: int
    copies: int = 1
    chance_rounding: float = 0.0

    @property
    def share(self) -> float:
        """Expected part of the rounds that a person takes part in."""
        return math.fsum(h * chance for h, chance in enumerate(self.chances)) / self.rounds

    @property
    def most(self) -> int:
        """The most rounds that a person can take part in."""
        return len(self.chances) - 1

    def log_ratios(self, ratios: Array) -> Array:
        """log X for rows of ratios, shape (draws, rounds).

        With q the share, e_h of the first i ratios times q^h (1 - q)^(i - h) is, but for the weights x, a probability
        of h successes in i trials: the recursion has the scale of a probability throughout.

        Raises:
            NotEvaluable: ratios leave the range in which the stated rounding holds.
        """
        if self.chances == (0.0, 1.0) and self.rounds == 1:
            if not np.max(ratios) < math.inf:
                raise NotEvaluable("likelihood ratios leave the range of floating point")
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(ratios[:, 0]))
        rate, tail, fewest = self._weights
        means, largest = _symmetric_means(ratios, rate, tail, fewest)
        if not largest * max(tail.max(), 1.0) < 1e200:
            raise NotEvaluable("likelihood ratios leave the range of floating point")
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(means))

    @cached_property
    def _weights(self) -> tuple[float, Array, int]:
        """The share q, the chance of each h over C(r, h) q^h (1 - q)^(r - h), and the least possible h."""
        rate, taken = min(self.share, 1.0), np.flatnonzero(self.chances)
        logs = np.log(np.array(self.chances)[taken]) - log_choose(self.rounds, taken) - taken * math.log(rate)
        if rate < 1:
            logs -= (self.rounds - taken) * math.log1p(-rate)
        weights = np.zeros(len(self.chances))
        with np.errstate(over="ignore"):  # refused where X is computed
            weights[taken] = np.exp(logs)
        return rate, weights, int(taken[0])

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X: a sum of products of h ratios (each off by a few units of its logarithm),
        with three roundings a round, and the factors outside.

        Underflow adds less than 1e-90: as many steps as there are, each off by 1e-308, times at most 1e200 (what they
        grow by, and the weight of h successes at the end).
        """
        rate = min(self.share, 1.0)
        outside = 16 * (math.lgamma(self.rounds + 1) + self.rounds + 1) - 8 * self.most * math.log(rate)
        outside -= 8 * self.rounds * math.log1p(-rate) if rate < 1 else 0.0
        units = 3 * self.rounds + (4 * EXPONENT + 4) * self.most + outside
        return units * UNIT + 2 * self.most * self.round.law_rounding + self.chance_rounding


@dataclass(frozen=True, eq=False)
class Run:
    """Everything that is released: X is the product of all factors."""

    factors: tuple[HiddenRounds, ...]

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X."""
        return sum(each.copies * (each.ratio_rounding + 4 * EXPONENT * UNIT) for each in self.factors)

    @property
    def log_least(self) -> float:
        """log of a number that X is never below: the chance of having taken part in no round."""
        chances = [(each.chances[0], each.copies) for each in self.factors]
        return sum(copies * math.log(chance) if chance else -math.inf for chance, copies in chances)

    @property
    def widest(self) -> int:
        """The most ratios that one factor has."""
        return max(each.rounds for each in self.factors)

    @property
    def work(self) -> int:
        """Steps of the recursion a draw."""
        return sum(each.copies * (each.rounds * (each.most + 8) + 100) for each in self.factors)

    def fingerprint(self) -> bytes:
        """Tells runs apart, so that each has random numbers of its own."""
        told = (
            f"{each.chances} {each.rounds} {each.copies}".encode() + each.round.fingerprint() for each in self.factors
        )
        return b"|".join(told)


@njit(cache=True, nogil=True)
def _symmetric_means(ratios, rate, tail, fewest):  # type: ignore[no-untyped-def]
    """sum_h tail[h] p_h, p_h the weight of h successes: see ``HiddenRounds.log_ratios``. Also the largest prod max(1,
    1 - q + q x), beyond which no number on the way can grow.

    Sixteen rows at a time, side by side, so that the inner loop is one vector instruction. Only numbers of successes
    from which ``fewest`` can still be reached are kept.
    """
    draws, rounds = ratios.shape
    k, side = len(tail) - 1, 16
    means, largest = np.empty(draws), 0.0
    weights, growth, p = np.empty(side), np.empty(side), np.empty((k + 1, side))
    for first in range(0, draws, side):
        here = min(side, draws - first)
        p[:], p[0], growth[:], weights[:] = 0.0, 1.0, 1.0, 1.0
        for i in range(rounds):
            for d in range(here):
                weights[d] = rate * ratios[first + d, i]
                growth[d] *= max(1.0, 1.0 - rate + weights[d])
            for h in range(min(i + 1, k), max(0, fewest - (rounds - 1 - i)) - 1, -1):
                if h == 0:
                    for d in range(side):
                        p[0, d] *= 1.0 - rate
                else:
                    for d in range(side):
                        p[h, d] = (1.0 - rate) * p[h, d] + weights[d] * p[h - 1, d]
        for d in range(here):
            total = 0.0
            for h in range(fewest, k + 1):
                total += tail[h] * p[h, d]
            means[first + d] = total
            largest = max(largest, growth[d])
            if not total < np.inf:
                largest = np.inf
    return means, largest
