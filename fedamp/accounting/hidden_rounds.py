"""Hidden rounds: in how many of them a person takes part, and the likelihood ratio X of a run that has them.

X is a product of independent factors. One factor is the mean of e_h(x_1, .., x_r) / C(r, h) over the number h of rounds
that a person takes part in, x_i the independent likelihood ratios of the rounds and e_h the elementary symmetric
polynomial; docs/k-of-t.md.
"""

import math
from dataclasses import dataclass
from functools import cached_property, singledispatch

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.amplification import Allocation, AllocationPrefix, CappedPoisson, Poisson
from fedamp.accounting.bounds import Array
from fedamp.accounting.compiled import compiled
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.moments import UNIT, log_choose
from fedamp.accounting.points import NotEvaluable
from fedamp.accounting.ratios import EXPONENT, Round


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
        """log X for rows of ratios, shape (draws, rounds); see ``_symmetric_means``.

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


@compiled(nogil=True)
def _symmetric_means(ratios, rate, tail, fewest):  # type: ignore[no-untyped-def]
    """sum_h tail[h] p_h, p_h = e_h q^h (1 - q)^(T - h): but for the ratios the chance of h successes at rate q, so that
    the recursion has the scale of a probability. Also the largest prod max(1, 1 - q + q x), beyond which nothing grows.

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
