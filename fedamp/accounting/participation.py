"""Choices of hidden rounds, and what is out of them: in how many released rounds a person takes part.

The number of rounds has two descriptions: its chances (``Participation``), and a sum of independent coins
(``best_coin_groups``), which ``reductions`` charges prefixes by.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.amplification import Allocation, AllocationPrefix, CappedPoisson, Poisson
from fedamp.accounting.bounds import Array
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.numeric import UNIT, log_choose


@dataclass(frozen=True)
class Participation:
    """A person takes part in H of ``rounds`` released rounds: H is drawn, then a uniform set of that size.

    Attributes:
        mechanism: one round.
        chances: of H = 0, 1, ..; the last one is positive.
        rounds: how many are released.
        rounding: bound on the relative error of ``chances``.
    """

    mechanism: Mechanism
    chances: tuple[float, ...]
    rounds: int
    rounding: float = 0.0

    def with_refusals(self) -> "Participation":
        """Poisson sampling inside the rounds told as a smaller number of them: a uniform set, thinned, is uniform."""
        found = self
        while isinstance(found.mechanism, Poisson) and 0 < found.mechanism.rate < 1:
            rate, h = found.mechanism.rate, np.arange(len(found.chances))
            logs = log_choose(h, np.minimum(h[:, None], h)) + h[:, None] * math.log(rate)
            chances = _mixed(logs + (h - h[:, None]) * math.log1p(-rate), h[:, None] <= h, np.array(found.chances))
            rounding = found.rounding + _rounding(len(h), rate)
            found = Participation(found.mechanism.mechanism, chances, found.rounds, rounding)
        return found


@singledispatch
def participation(event: Mechanism) -> Participation | None:
    """How often a person takes part in the rounds of an event; None for events that are no choice of rounds."""
    return None


@participation.register
def _(event: Allocation) -> Participation:
    return Participation(event.mechanism, (0.0,) * event.k + (1.0,), event.rounds).with_refusals()


@participation.register
def _(event: AllocationPrefix) -> Participation:
    chosen = np.zeros(event.k + 1)
    chosen[-1] = 1.0
    return _first_rounds(event.mechanism, chosen, event.rounds, event.released, 0.0)


@participation.register
def _(event: CappedPoisson) -> Participation:
    if event.rate in (0.0, 1.0):
        chosen = np.zeros(int(event.rate) * event.at_most + 1)
        chosen[-1] = 1.0
        return _first_rounds(event.mechanism, chosen, event.rounds, event.span, 0.0)
    h = np.arange(event.rounds + 1)
    logs = log_choose(event.rounds, h) + h * math.log(event.rate) + h[::-1] * math.log1p(-event.rate)
    chances = np.exp(logs)
    capped = np.append(chances[: event.at_most], chances[event.at_most :].sum())
    return _first_rounds(event.mechanism, capped, event.rounds, event.span, _rounding(event.rounds, event.rate))


@participation.register
def _(event: Poisson) -> Participation | None:
    inner = participation(event.mechanism)
    if inner is None or not 0 < event.rate <= 1:
        return None
    chances = event.rate * np.array(inner.chances)
    chances[0] += 1 - event.rate
    return Participation(inner.mechanism, tuple(chances.tolist()), inner.rounds, inner.rounding + 4 * UNIT)


def _first_rounds(mechanism: Mechanism, chances: Array, rounds: int, released: int, rounding: float) -> Participation:
    """Of a uniform set of h of all rounds, the part among those released is uniform, of a hypergeometric size."""
    if released < rounds:
        h, j = np.arange(len(chances)), np.arange(min(len(chances) - 1, released) + 1)[:, None]
        there = (j <= h) & (h - j <= rounds - released)
        outside = np.where(there, h - j, 0)
        logs = log_choose(released, j) + log_choose(rounds - released, outside) - log_choose(rounds, h)
        chances = np.array(_mixed(logs, there, chances))
        rounding += _rounding(rounds)
    return Participation(mechanism, tuple(chances.tolist()), released, rounding).with_refusals()


def _mixed(logs: Array, there: NDArray[np.bool_], chances: Array) -> tuple[float, ...]:
    """The chances of j = 0, 1, .., given those of j under each h (``logs``, by j and h) and those of h."""
    mixed = np.where(there, np.exp(np.where(there, logs, -np.inf)), 0.0) @ chances
    return tuple(np.trim_zeros(mixed, "b").tolist())


def _rounding(rounds: int, rate: float = 0.5) -> float:
    """Three log binomials of three log factorials each, powers of ``rate``, and sums, each rounded to a few units."""
    return 64 * (math.lgamma(rounds + 1) + rounds * -math.log(min(rate, 1 - rate)) + rounds + 1) * UNIT


# As independent coins.


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
    """Eigenvalues of a symmetric tridiagonal matrix, increasing. Small ones do without an import that takes longer."""
    if len(diagonal) <= 32:
        return np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, -1))
    from scipy.linalg import eigvalsh_tridiagonal

    return np.asarray(eigvalsh_tridiagonal(diagonal, beside))


def coin_groups(k: int, rounds: int, released: int, most: int = 12) -> list[tuple[float, int, int]]:
    """The coins of a prefix and the sizes of their groups, at most ``most`` distinct ones: triples (probability,
    size, number).

    Sizes are in proportion to the probabilities, which is best at order 2. Where there are more coins, neighbours
    share the largest probability and the smallest size among them, which costs more.
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
    """The groups of this prefix or, where groups are small, of one a little longer, which costs at least as much but
    may divide better. The cheapest is told by the second moment, sum of p^2 / size.
    """
    ahead = 31 if released < 3 * k <= 600 else 0
    candidates = [coin_groups(k, rounds, r) for r in range(released, min(rounds, released + ahead) + 1)]
    return min(candidates, key=lambda groups: sum(n * p * p / size for p, size, n in groups))
