"""Choices of hidden rounds: in how many released rounds a person takes part, and how several choices overlap."""

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.amplification import Allocation, AllocationPrefix, CappedPoisson, Poisson
from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.numeric import UNIT, log_choose


@dataclass(frozen=True)
class Participation:
    """A person takes part in H of ``rounds`` released rounds: H is drawn, then a uniform set of that size.

    Attributes:
        mechanism: one round.
        chances: of H = 0, 1, ..; the last one is positive.
        rounds: the number of released rounds.
        rounding: bound on the relative error of ``chances``.
    """

    mechanism: Mechanism
    chances: tuple[float, ...]
    rounds: int
    rounding: float = 0.0

    def with_refusals(self) -> "Participation":
        """Poisson sampling inside the rounds as a smaller number of rounds: a uniform set, thinned, is uniform."""
        found = self
        while isinstance(found.mechanism, Poisson) and 0 < found.mechanism.rate < 1:
            rate, h = found.mechanism.rate, np.arange(len(found.chances))
            logs = log_choose(h, np.minimum(h[:, None], h)) + h[:, None] * math.log(rate)
            chances = _mixed(logs + (h - h[:, None]) * math.log1p(-rate), h[:, None] <= h, np.array(found.chances))
            rounding = found.rounding + _rounding(len(h), rate)
            found = Participation(found.mechanism.mechanism, chances, found.rounds, rounding)
        return found


@singledispatch
def participation(event: Mechanism) -> Participation:
    """The choice of rounds of an event; for most kinds, the event as its only round."""
    return Participation(event, (0.0, 1.0), 1)


@participation.register(Allocation)
@participation.register(AllocationPrefix)
def _(event: Allocation | AllocationPrefix) -> Participation:
    return _first_rounds(event.mechanism, _exactly(event.k), event.rounds, event.span)


@participation.register
def _(event: CappedPoisson) -> Participation:
    if event.rate in (0.0, 1.0):
        return _first_rounds(event.mechanism, _exactly(int(event.rate) * event.at_most), event.rounds, event.span)
    h = np.arange(event.rounds + 1)
    logs = log_choose(event.rounds, h) + h * math.log(event.rate) + h[::-1] * math.log1p(-event.rate)
    chances = np.exp(logs)
    capped = np.append(chances[: event.at_most], chances[event.at_most :].sum())
    return _first_rounds(event.mechanism, capped, event.rounds, event.span, _rounding(event.rounds, event.rate))


@participation.register
def _(event: Poisson) -> Participation:
    inner = participation(event.mechanism)
    if event.rate == 0 or (len(inner.chances) == 2 and inner.rounds == 1):  # the law of one round is exact
        return Participation(event, (0.0, 1.0), 1)
    chances = event.rate * np.array(inner.chances)
    chances[0] += 1 - event.rate
    return Participation(inner.mechanism, tuple(chances.tolist()), inner.rounds, inner.rounding + 4 * UNIT)


def _exactly(k: int) -> Array:
    return np.append(np.zeros(k), 1.0)


def _first_rounds(mechanism: Mechanism, chances: Array, rounds: int, released: int, off: float = 0.0) -> Participation:
    """Of a uniform set of h of all rounds, the part among those released is uniform, of a hypergeometric size."""
    if released < rounds:
        h, j = np.arange(len(chances)), np.arange(min(len(chances) - 1, released) + 1)[:, None]
        there = (j <= h) & (h - j <= rounds - released)
        outside = np.where(there, h - j, 0)
        logs = log_choose(released, j) + log_choose(rounds - released, outside) - log_choose(rounds, h)
        chances = np.array(_mixed(logs, there, chances))
        off += _rounding(rounds)
    return Participation(mechanism, tuple(chances.tolist()), released, off).with_refusals()


def _mixed(logs: Array, there: NDArray[np.bool_], chances: Array) -> tuple[float, ...]:
    """The chances of j = 0, 1, .., given those of j under each h (``logs``, by j and h) and those of h."""
    mixed = np.where(there, np.exp(np.where(there, logs, -np.inf)), 0.0) @ chances
    return tuple(np.trim_zeros(mixed, "b").tolist())


def _rounding(rounds: int, rate: float = 0.5) -> float:
    """Three log binomials of three log factorials each, powers of ``rate``, and sums, each rounded to a few units."""
    return 64 * (math.lgamma(rounds + 1) + rounds * -math.log(min(rate, 1 - rate)) + rounds + 1) * UNIT


# The number of rounds as a sum of independent coins, by which ``reductions`` charges prefixes.


def _chances(k: int, rounds: int, released: int) -> Array:
    """Probabilities of independent coins whose sum has the law of a person's rounds among the released ones; shape
    (min(k, released),).

    They are the roots of a Jacobi polynomial: E[C(H, j)] = C(k, j) C(r, j) / C(T, j) makes the product of (x - p_i)
    proportional to 2F1(-n, T - n + 1; |r - k| + 1; x), n = min(k, r). Where k + r > T the coins of those not drawn
    are turned over.
    """
    if min(k, released) == 1:
        return np.array([max(k, released) / rounds])
    if k + released > rounds:
        hidden = (
            1 - _chances(k, rounds, rounds - released) if k <= released else 1 - _chances(rounds - k, rounds, released)
        )
        return np.concatenate([np.ones(min(k, released) - len(hidden)), hidden])
    n, alpha, beta = min(k, released), abs(released - k), rounds - k - released
    if n == 0:
        return np.zeros(0)
    total, i = alpha + beta, np.arange(1.0, n)
    first = (beta - alpha) / (total + 2)
    diagonal = np.concatenate([[first], (beta - alpha) * total / ((2 * i + total) * (2 * i + total + 2))])
    numerator = 4 * i * (i + alpha) * (i + beta) * (i + total)
    beside = np.sqrt(numerator / ((2 * i + total) ** 2 * (2 * i + total + 1) * (2 * i + total - 1)))
    return np.clip((1 - _eigenvalues(diagonal, beside)) / 2, 0.0, 1.0)


def _eigenvalues(diagonal: Array, beside: Array) -> Array:
    """Eigenvalues of a symmetric tridiagonal matrix, increasing."""
    if len(diagonal) <= 32:  # no slow import
        return np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, -1))
    from scipy.linalg import eigvalsh_tridiagonal

    return np.asarray(eigvalsh_tridiagonal(diagonal, beside))


def coin_groups(k: int, rounds: int, released: int, most: int = 12) -> list[tuple[float, int, int]]:
    """The coins of a prefix and the sizes of their groups, at most ``most`` distinct ones: (probability, size, number).

    Sizes are in proportion to the probabilities (the best at order 2). More coins than ``most`` share the largest
    probability and the smallest size of their neighbours, which costs more.
    """
    exact = np.sort(_chances(k, rounds, released))
    if not len(exact):
        return []
    # Up, by what eigenvalues of a matrix of norm 1 may be off: a larger rate costs more.
    off = 8 * UNIT * (len(exact) + 4) if len(exact) > 1 else 0.0
    coins = np.minimum(exact * (1 + 8 * UNIT) + off, 1.0)
    low, high = 0.0, released / coins[-1] * 2
    for _ in range(4):  # the largest multiple of the coins that fits, to one part in 20,000
        tried = np.linspace(low, high, 13)
        fits = np.maximum(1, np.floor(tried[:, None] * coins)).sum(axis=1) <= released
        last = int(np.flatnonzero(fits)[-1])
        low, high = tried[last], tried[min(last + 1, 12)]
    sizes = np.maximum(1, np.floor(low * coins)).astype(int)
    sizes[np.argsort(sizes - low * coins, kind="stable")[: released - sizes.sum()]] += 1
    chunks = np.array_split(np.arange(len(coins)), min(most, len(coins)))
    return [(float(coins[chunk].max()), int(sizes[chunk].min()), len(chunk)) for chunk in chunks]


@lru_cache(maxsize=1024)
def best_coin_groups(k: int, rounds: int, released: int) -> list[tuple[float, int, int]]:
    """The groups of this prefix or, where groups are small, of a longer one: it costs at least as much, but may divide
    better. The second moment, sum of p^2 / size, decides.
    """
    ahead = 31 if released < 3 * k <= 600 else 0
    candidates = [coin_groups(k, rounds, r) for r in range(released, min(rounds, released + ahead) + 1)]
    return min(candidates, key=lambda groups: sum(n * p * p / size for p, size, n in groups))


# Overlaps of several choices, and the exact moments of X that follow; docs/k-of-t.md has the proofs.

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
    """Of ``order`` independent subsets of ``rounds`` rounds, each uniform among those of a size drawn by ``chances``;
    NotEvaluable if there are too many.
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

    Args:
        log_moments: log E[x^a] of one round, exact or from above, at a = 0..A, shape (A + 1,).
        chances: of taking part 0, 1, .. times, each known to a relative error of ``off``.
        rounds: all of them released.

    Returns:
        log E[X^a] at a = 0..A, exact or from above, shape (A + 1,), rounding included.
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


def pairs(chances: tuple[float, ...], rounds: int, power: float) -> Occupancies:
    """How many rounds are in neither, in the first alone, in the second alone, and in both of two sets: the first
    counts by its probability w, the second by w to a ``power`` in (0, 1), so that the weights are no chances.
    """
    sizes, most = np.flatnonzero(chances), len(chances) - 1
    if len(sizes) ** 2 * (most + 1) > 4 * _MOST_ROWS:
        raise NotEvaluable(f"two hidden choices of up to {most} of {rounds} rounds overlap in too many ways")
    first, second, both = (each.ravel() for each in np.meshgrid(sizes, sizes, np.arange(most + 1)))
    there = (both <= np.minimum(first, second)) & (first + second - both <= rounds)
    first, second, both = first[there], second[there], both[there]
    log_chances = np.log(chances, where=np.array(chances) > 0, out=np.zeros(most + 1))
    log_weight = log_chances[first] + log_choose(first, both) + log_choose(rounds - first, second - both)
    log_weight += power * (log_chances[second] - log_choose(rounds, second))
    counts = np.stack([rounds - first - second + both, first - both, second - both, both], axis=1)
    return Occupancies(counts.astype(np.int32), log_weight)
