"""Moments and exact draws of the likelihood ratio of hidden rounds, by how several choices of rounds overlap.

A proposal R has a known density dR/dQ that bounds what is averaged; docs/k-of-t.md has the proofs.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.conversion import epsilon_of_moment, log_delta_of_moment
from fedamp.accounting.hidden_rounds import EXPONENT, HiddenRounds, Run
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


# Proposals: laws R of the rounds to draw from, and what to average: delta(epsilon) = E_R[v], 0 <= v <= bound.
#
# Both know the ``power`` of X in their density, bounds on the total ``variation`` between the draws and R, and on the
# ``relative`` error of what is averaged, X aside: with ``ratio_rounding`` r of X, values are off by at most a factor
# exp(relative + power * r), and belong to an epsilon off by r.

_UNDRIFTED = 0.5
"""Share of draws without drift, whose inverse the bound is multiplied by."""


class _Tilted(NamedTuple):
    """One factor of X under the tilts X^t and, in a second row of each array, X^t G^g.

    Attributes:
        counts: shape (S, n), the occupancies; n = t + 1, or 4 for t below 2.
        exponents: shape (1 or 2, n): of the ratio of a round that is held 0, .., t times (below 2: by neither, by one,
            by the other, by both).
        below: shape (1 or 2, S), distribution function over occupancies.
        log_moments: shape (1 or 2,): log E[X^t], log E[X^t G^g].
        error: bound on the error of the latter.
    """

    counts: NDArray[np.int32]
    exponents: Array
    below: Array
    log_moments: Array
    error: float

    @classmethod
    def of(cls, factor: HiddenRounds, order: float, drifts: Array) -> "_Tilted":
        held = np.arange(order + 1.0) if order >= 2 else np.array([0.0, 1.0, order - 1, order])
        found = occupancies(factor.chances, factor.rounds, int(order)) if order >= 2 else _overlaps(factor, order - 1)
        counts, log_chance = found
        exponents = held + drifts[:, None] * factor.share
        log_mu = np.array([[factor.round.log_moment(exponent) for exponent in row] for row in exponents])
        log_weights = log_chance + log_mu @ counts.T
        largest = log_weights.max(axis=1, keepdims=True)
        below = np.cumsum(np.exp(log_weights - largest), axis=1)
        log_moments = largest[:, 0] + np.log(below[:, -1])
        size = float(np.abs(log_mu).max() * factor.rounds) + drifts[-1] * factor.share * factor.rounds * EXPONENT
        error = (
            rounding(factor.rounds, max(order, 2))
            + 2 * order * factor.chance_rounding
            + factor.rounds * factor.round.table_rounding
            + ((8 * order + 16) * (size + 1) + below.shape[1]) * UNIT
        )
        return cls(counts, exponents, below / below[:, -1:], log_moments, error)


def _overlaps(factor: HiddenRounds, power: float) -> Occupancies:
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


def _sum_of_powers(factor: HiddenRounds, power: float) -> tuple[HiddenRounds, float]:
    """The sum over all sets of (w times their ratio) to a ``power`` in (0, 1): as hidden rounds, whose ratios are to be
    given to that power, and the log of what their mean is to be multiplied by.
    """
    h = np.arange(factor.most + 1)
    with np.errstate(divide="ignore"):
        logs = power * np.log(factor.chances) + (1 - power) * log_choose(factor.rounds, h)
    total = float(np.logaddexp.reduce(logs))
    if np.any((logs > -np.inf) & (logs < total - 600)):
        raise NotEvaluable("the chances of hidden choices are too unlike for an order below 2")
    off = power * factor.chance_rounding + rounding(factor.rounds, 2)
    return replace(factor, chances=tuple(np.exp(logs - total).tolist()), chance_rounding=off), total


class RemoveProposal:
    """H(P, Q), docs/k-of-t.md, Propositions 1 to 3: dR = X^t (w / M_t + (1 - w) G^g / M_(t,g)) dQ, where G is the
    product of all ratios, each to the power of the share of its rounds that a person takes part in. Without drift (g =
    0) w is 1, with it 1/2. The drift stands in for orders with too many occupancies. Below 2, for little noise, X^t
    stands for X times the sum over all choices of (their probability times their ratio)^(t - 1) (Proposition 5).

    Args:
        order: t, a whole number from 2 on, or between 1 and 2.
        drift: g >= 0.
    """

    def __init__(self, run: Run, order: float, drift: float = 0.0) -> None:
        self.run, self.order, self.drift, self.power = run, order, drift, float(order)
        self.name = f"order {order:.3g}" + (f" and drift {drift:.2g}" if drift else "")
        self._weights = np.array([_UNDRIFTED, 1 - _UNDRIFTED] if drift else [1.0])
        self._factors = [_Tilted.of(each, order, np.array([0.0, drift] if drift else [0.0])) for each in run.factors]
        both = list(zip(run.factors, self._factors, strict=True))
        self._log_moments = np.sum([each.copies * tilted.log_moments for each, tilted in both], axis=0)
        self.relative = sum(
            each.copies
            * (3 * tilted.error + (3 + 4 * drift * each.share) * each.rounds * each.round.law_rounding + 64 * UNIT)
            for each, tilted in both
        )
        self._powers = [_sum_of_powers(each, order - 1) for each in run.factors] if order < 2 else []
        self.relative += sum(each.copies * (each.ratio_rounding + 64 * UNIT) for each, _ in self._powers)
        self.variation = sum(
            each.copies * (each.rounds * each.round.table_rounding + 4 * tilted.below.size * UNIT)
            for each, tilted in both
        )

    @property
    def log_moment(self) -> float:
        """log E[X^t]."""
        return float(self._log_moments[0])

    def log_bound(self, epsilon: float) -> float:
        """log of the largest value of v."""
        return log_delta_of_moment(self.order, self.log_moment - math.log(self._weights[0]), epsilon)

    def bound_at(self, delta: float) -> float:
        """The epsilon at which the largest value of v is ``delta``: what a Rényi divergence proves."""
        return epsilon_of_moment(self.order, self.log_moment - math.log(self._weights[0]), delta)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        """Logs of two positive numbers a and b each, of which v = (a - exp(epsilon) b)+."""
        drifted = (rng.random(draws) >= self._weights[0]).astype(int)
        log_ratio, log_drift, log_power = np.zeros(draws), np.zeros(draws), np.zeros(draws)
        for j, (factor, tilted) in enumerate(zip(self.run.factors, self._factors, strict=True)):
            for _ in range(factor.copies):
                uniforms, width = rng.random(draws), tilted.counts.shape[1]
                counts = np.zeros((draws, tilted.exponents.size), np.int32)
                for i, below in enumerate(tilted.below):
                    drawn = np.searchsorted(below, uniforms[drifted == i], side="right")
                    counts[drifted == i, i * width : (i + 1) * width] = tilted.counts[np.minimum(drawn, len(below) - 1)]
                ratios, log_products = factor.round.draw(rng, tilted.exponents.ravel(), counts)
                log_ratio += factor.log_ratios(ratios)
                if self._powers:
                    powers, log_total = self._powers[j]
                    log_power += powers.log_ratios(ratios ** (self.order - 1)) + log_total
                if self.drift:
                    log_drift += self.drift * factor.share * log_products
        density = np.log(self._weights[0]) - self._log_moments[0]
        if self.drift:
            density = np.logaddexp(density, np.log(self._weights[1]) + log_drift - self._log_moments[1])
        with np.errstate(invalid="ignore"):
            log_b = -(log_ratio + log_power if self._powers else self.order * log_ratio) - density
        some = log_ratio > -math.inf
        return np.where(some, log_b + log_ratio, -math.inf), np.where(some, log_b, math.inf)


class AddProposal:
    """H(Q, P), docs/k-of-t.md, Proposition 4: dR prop. to G^-a dQ, with G as in ``RemoveProposal``. Mass at x = 0 is
    left out here.

    Args:
        tilt: a > 0.
    """

    def __init__(self, run: Run, tilt: float) -> None:
        self.run, self.tilt, self.power = run, tilt, 1 + tilt
        self.name = f"tilt {tilt:.3g}"
        self.log_moment = self.relative = self.variation = 0.0
        for each in run.factors:
            exponent, rounds = tilt * each.share, each.copies * each.rounds
            log_moment = rounds * each.round.log_moment(-exponent)
            on_each = rounds * each.round.table_rounding
            size = (EXPONENT * exponent + abs(log_moment) + 1) * rounds
            self.log_moment += log_moment
            self.relative += 2 * on_each + 16 * size * UNIT + (3 + 2 * exponent) * rounds * each.round.law_rounding
            self.variation += on_each

    def log_bound(self, epsilon: float) -> float:
        return log_delta_of_moment(1 + self.tilt, self.log_moment, epsilon)

    def bound_at(self, delta: float) -> float:
        return epsilon_of_moment(1 + self.tilt, self.log_moment, delta)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        log_a, log_ratio = np.full(draws, self.log_moment), np.zeros(draws)
        for factor in self.run.factors:
            exponent, counts = self.tilt * factor.share, np.full((draws, 1), factor.rounds, np.int32)
            for _ in range(factor.copies):
                ratios, log_products = factor.round.draw(rng, np.array([-exponent]), counts)
                log_a += exponent * log_products
                log_ratio += factor.log_ratios(ratios)
        return log_a, log_a + log_ratio


Proposal = RemoveProposal | AddProposal
