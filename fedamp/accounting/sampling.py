"""delta and epsilon of runs with hidden rounds, and of products with them, by tilted sampling.

The module knows no mechanism. docs/research/k-of-t.md has the proofs.

X is a product of independent factors. One factor is the mean of e_h(x_1, .., x_r) / C(r, h) over the number h of rounds
that a person takes part in. The x_i are the independent likelihood ratios of the rounds, and e_h is the elementary
symmetric polynomial. A proposal is a law R of the rounds with a known density dR/dQ, for which delta(epsilon) = E_R[v]
with 0 <= v <= a known bound: mostly in proportion to a power of X, whose moment follows from how several choices
overlap.

In reading order: rounds and factors; overlaps; proposals; certified means of bounded draws (how delta is estimated, how
sure that is, and how many draws that needs); and the profile of a run, in both directions.

Both kinds of rounds can be drawn tilted by a power of x. They have a ``fingerprint`` that tells laws apart, so that
each has its own random numbers. They know:

- ``zero``, ``infinite``: Q-mass where x = 0, and P-mass where x is infinite.
- ``law_rounding``: bound on the relative error of all masses; ratios are off by at most twice that.
- ``table_rounding``: bound on the total variation between a draw and its law, and on the error of ``log_moment``.

Answers do not depend on the number of threads: draws follow from a fixed seed and the question. A certificate is wrong
with a probability that is charged to delta.
"""

import hashlib
import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from operator import attrgetter, methodcaller
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import arithmetic
from fedamp.accounting.arithmetic import (
    EXPONENT,
    MOST_ROWS,
    SIDE_BY_SIDE,
    SMOOTHED,
    SUMMING,
    UNIT,
    Array,
    chance_of_any,
    log_choose,
    rounding_of_overlaps,
)
from fedamp.accounting.bounds import (
    Bounds,
    Method,
    NotEvaluable,
    Origin,
    check_delta,
    check_epsilon,
    check_positive,
    check_precision,
    epsilon_of_moment,
    log_delta_of_moment,
)
from fedamp.accounting.law import Law, Points

_PARTS = 2**14  # a power of two, so that the part a uniform number falls in is found without rounding


@dataclass(frozen=True)
class GaussianRound:
    """A round with Gaussian noise: x = exp(z / s - 1 / (2 s^2)), z standard normal, exactly.

    Attributes:
        noise_multiplier: s > 0.
    """

    noise_multiplier: float
    zero = infinite = law_rounding = 0.0
    table_rounding = 4 * UNIT

    def log_moment(self, exponent: float) -> float:
        """Return log of the mean of x^exponent over finite x > 0 under Q: c (c - 1) / (2 s^2) at exponent c."""
        return exponent * (exponent - 1) / self.noise_multiplier**2 / 2

    def fingerprint(self) -> bytes:
        """Return bytes that tell this round from others."""
        return np.float64(self.noise_multiplier).tobytes()

    def draw(self, rng: np.random.Generator, exponents: Array, counts: NDArray[np.int32]) -> tuple[Array, Array]:
        """Draw ratios of tilted rounds. Tilting by x^c moves z by c / s.

        On row d the first ``counts[d, 0]`` ratios are drawn from the law tilted by x to the power ``exponents[0]``, the
        next ``counts[d, 1]`` by ``exponents[1]``, and so on.

        Args:
            rng: the random numbers.
            exponents: shape (n,).
            counts: shape (draws, n); all rows have one sum, the number of rounds.

        Returns:
            Ratios x, shape (draws, rounds), and the logs of their products, shape (draws,).
        """
        ratios = rng.standard_normal((len(counts), int(counts[0].sum())))
        deviation = 1 / self.noise_multiplier  # of log x
        shifts = np.broadcast_to((exponents - 0.5) * deviation**2, counts.shape)  # of each row's classes
        ratios *= deviation
        ratios += np.repeat(shifts.ravel(), counts.ravel()).reshape(ratios.shape)
        log_of_products = ratios.sum(axis=1)
        with np.errstate(over="ignore"):  # refused where X is computed
            return np.exp(ratios, out=ratios), log_of_products


@dataclass(frozen=True, eq=False)
class FiniteRound:
    """A finite law of x, such as either end of a ``Law``: its upper law gives upper bounds, its lower law lower ones.

    Attributes:
        points: log ratios with P-masses and Q-masses.
        law_rounding: bound on the relative error of the masses.
    """

    points: Points
    law_rounding: float = 0.0

    @property
    def zero(self) -> float:
        """Q-mass where x = 0."""
        return self.points.zero

    @property
    def infinite(self) -> float:
        """P-mass where x is infinite."""
        return self.points.infinite

    @property
    def table_rounding(self) -> float:
        """Bound on the total variation between a draw and its law."""
        return (4 * self.points.log_ratio.size + 128 * EXPONENT) * UNIT

    def log_moment(self, exponent: float) -> float:
        """Return log of the mean of x^exponent over finite x > 0 under Q; at exponent 0 zero counts, too.

        Raises:
            NotEvaluable: the ratio is 0 or infinite.
        """
        logs = self._log_masses + exponent * self._log_ratios
        largest = float(logs.max(initial=-math.inf))
        if largest == -math.inf:
            raise NotEvaluable("the ratio of a round is 0 or infinite")
        total = float(np.exp(logs - largest).sum())
        if exponent == 0:
            total += self.zero * math.exp(-largest)
        return largest + math.log(total)

    def fingerprint(self) -> bytes:
        """Return bytes that tell this law from others."""
        return self._log_ratios.tobytes() + self._log_masses.tobytes()

    def draw(self, rng: np.random.Generator, exponents: Array, counts: NDArray[np.int32]) -> tuple[Array, Array]:
        """Draw by inversion, so that equal uniforms give neighbouring ratios under neighbouring laws.

        Arguments and results are those of :meth:`GaussianRound.draw`.
        """
        ratios = rng.random((len(counts), int(counts[0].sum())))
        tables = [self._inversion_table(float(exponent)) for exponent in exponents]
        values = np.append(self._log_ratios[::-1], -math.inf)
        below, starts = (np.stack(table) for table in zip(*tables, strict=True))
        with np.errstate(over="ignore"):  # refused where X is computed
            return ratios, arithmetic.invert_uniforms(ratios, values, np.exp(values), below, starts, counts)

    @cached_property
    def _log_ratios(self) -> Array:
        """Log ratios of the points with positive Q-mass."""
        return self.points.log_ratio[self.points.log_weights(0.0) > -math.inf]

    @cached_property
    def _log_masses(self) -> Array:
        """Logs of the positive Q-masses."""
        return self.points.log_weights(0.0)[self.points.log_weights(0.0) > -math.inf]

    def _inversion_table(self, exponent: float) -> tuple[Array, NDArray[np.int32]]:
        """Return the distribution function of a tilted law, and where in it each of 2**14 equal parts of [0, 1) starts.

        The function goes from the largest ratio down to zero.
        """
        masses = np.exp(self._log_masses + exponent * self._log_ratios - self.log_moment(exponent))[::-1]
        return inversion_table(np.append(masses, self.zero if exponent == 0 else 0.0))


def inversion_table(masses: Array) -> tuple[Array, NDArray[np.int32]]:
    """Return a distribution function, and where in it each of 2**14 equal parts of [0, 1) starts.

    Args:
        masses: in proportion to the chances, shape (n,).
    """
    below = np.cumsum(masses)
    below /= below[-1]
    below[below >= below[-1]] = math.inf  # the search ends here
    return below, np.searchsorted(below, np.arange(_PARTS) / _PARTS, side="right").astype(np.int32)


Round = GaussianRound | FiniteRound


class DependentTilt(Protocol):
    """Interface: a factor whose rounds depend on one another, under X^order, and under X^order G^drift.

    G is the product of the ratios of its single rounds, each to the power of its share.
    """

    @property
    def log_moment(self) -> float:
        """log E[X^order]."""

    @property
    def drifted_moment(self) -> float:
        """log E[X^order G^drift]."""

    @property
    def relative(self) -> float:
        """Amount that one copy adds to ``Proposal.relative``."""

    @property
    def variation(self) -> float:
        """Amount that one copy adds to ``Proposal.variation``."""

    def draw(self, rng: np.random.Generator, drifted: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
        """Draw log X, its common shift, and log G, for draws of which some are ``drifted``; shapes (draws,)."""

    def draw_beginnings(self, rng: np.random.Generator, draws: int, ends: NDArray[np.int64]) -> tuple[Array, Array]:
        """Draw log X after each of the first ``ends`` rounds, and the log weight of later rounds; shapes (draws, n)."""


class Factor(Protocol):
    """Interface: one independent factor of X that is sampled, :class:`HiddenRounds` or a mechanism's own."""

    @property
    def rounds(self) -> int:
        """Number of released rounds."""

    @property
    def copies(self) -> int:
        """Number of independent factors like this one."""

    @property
    def chances(self) -> tuple[float, ...]:
        """Chances of taking part in 0, 1, .. rounds."""

    @property
    def common_spread(self) -> float:
        """Standard deviation of log X along a direction of the noise in which it is linear; 0: there is none."""

    @property
    def draw_width(self) -> int:
        """Number of floats of one draw."""

    @property
    def draw_steps(self) -> int:
        """Number of steps of one draw."""

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X."""

    def fingerprint(self) -> bytes:
        """Return bytes that tell factors apart, so that each has its own random numbers."""

    def tilted_factor(self, order: float, drift: float = 0.0) -> "_Tilted | DependentTilt":
        """Return the factor under X^order, and under X^order G^drift."""


@dataclass(frozen=True, eq=False)
class HiddenRounds:
    """One factor of X: a person takes part in H of ``rounds`` released rounds, a uniform set of a random size.

    X = sum_h c_h e_h(x_1, .., x_r) / C(r, h), c_h the chance of H = h.

    Attributes:
        round: the likelihood ratio of one round.
        chances: of H = 0, 1, ..; the last one is positive.
        rounds: r >= 1.
        copies: how many independent factors like this one there are.
        chance_rounding: bound on the relative error of ``chances``.
    """

    round: Round
    chances: tuple[float, ...]
    rounds: int
    copies: int = 1
    chance_rounding: float = 0.0
    people: ClassVar[int] = 1

    @property
    def expected_share(self) -> float:
        """Expected part of the rounds that a person takes part in."""
        return math.fsum(map(operator.mul, self.chances, range(len(self.chances)))) / self.rounds

    @property
    def most_rounds(self) -> int:
        """The most rounds that a person can take part in."""
        return len(self.chances) - 1

    def log_ratios(self, ratios: Array) -> Array:
        """Return log X for rows of ratios; see :func:`fedamp.accounting.arithmetic.symmetric_means`.

        Args:
            ratios: shape (draws, rounds).

        Returns:
            Shape (draws,).

        Raises:
            NotEvaluable: ratios leave the range in which the stated rounding holds.
        """
        if self.chances == (0.0, 1.0) and self.rounds == 1:
            return logs_in_range(ratios[:, 0], float(np.max(ratios)), math.inf)
        return log_beginnings(Beginnings.of_factors([self]), ratios)[:, 0]

    @cached_property
    def common_spread(self) -> float:
        """Standard deviation of log X as all rounds' noise moves alike; 0: log X is not linear along that direction."""
        if not isinstance(self.round, GaussianRound) or any(self.chances[:-1]):
            return 0.0
        return self.people * self.most_rounds / self.round.noise_multiplier / math.sqrt(self.rounds)

    def chance_ratios(self, rate: float) -> Array:
        """Return the chance of each h over C(r, h) q^h (1 - q)^(r - h), at a rate q near the share."""
        taken = np.flatnonzero(self.chances)
        logs = np.log(np.array(self.chances)[taken]) - log_choose(self.rounds, taken) - taken * math.log(rate)
        if rate < 1:
            logs -= (self.rounds - taken) * math.log1p(-rate)
        weights = np.zeros(len(self.chances))
        with np.errstate(over="ignore"):  # refused where X is computed
            weights[taken] = np.exp(logs)
        return weights

    def tilted_factor(self, order: float, drift: float = 0.0, held: "_Held | None" = None) -> "_Tilted":
        """Return the factor under X^order.

        Args:
            order: of the tilt.
            drift: not used: rounds of independent noise have none.
            held: how rounds are held under another tilt; default: :meth:`tilted_occupancies`.
        """
        exponents, log_mu, (counts, log_chance) = held or self.tilted_occupancies(order)
        log_weights = log_chance + counts @ log_mu
        largest = float(log_weights.max())
        below = np.cumsum(np.exp(log_weights - largest))
        error = (
            rounding_of_overlaps(self.rounds, max(order, 2) * self.people)
            + 2 * order * self.people * self.chance_rounding
            + self.rounds * self.round.table_rounding
            + ((8 * order + 16) * (float(np.abs(log_mu).max() * self.rounds) + 1) + len(below)) * UNIT
        )
        relative = 3 * error + 3 * self.rounds * self.round.law_rounding + 64 * UNIT
        variation = self.rounds * self.round.table_rounding + 4 * len(below) * UNIT
        log_moment = largest + math.log(below[-1])
        return _Tilted(counts, exponents, log_mu, below / below[-1], log_moment, log_moment, relative, variation)

    def single_sets(self, power: float) -> "_Tilted":
        """Return the factor under the sum over all sets of (their chance times their ratio) to a ``power``."""
        taken, exponents = np.flatnonzero(self.chances), np.array([0.0, power])
        log_weights = power * np.log(np.array(self.chances)[taken]) + (1 - power) * log_choose(self.rounds, taken)
        counts = np.stack([self.rounds - taken, taken], axis=1).astype(np.int32)
        log_mu = np.array(list(map(self.round.log_moment, exponents)))
        return self.tilted_factor(power, held=(exponents, log_mu, Occupancies(counts, log_weights)))

    def log_tilt(self, ratios: Array, log_ratio: Array, order: float) -> Array:
        """Return log X^order, or of a larger number, under which ratios are drawn at whole orders."""
        return order * log_ratio

    def tilted_occupancies(self, order: float) -> "_Held":
        """Return how rounds are held under X^order.

        That is at whole orders, or below 2 under X times Y of docs/research/k-of-t.md, Proposition 5.

        Returns:
            For each class of rounds the exponent of a round's ratio, and the log mean of its weight; and how many
            rounds each class has.
        """
        exponents = np.arange(order + 1.0) if order >= 2 else np.array([0.0, 1.0, order - 1, order])
        log_mu = np.array(list(map(self.round.log_moment, exponents)))
        if order >= 2:
            return exponents, log_mu, occupancies(self.chances, self.rounds, int(order))
        return exponents, log_mu, paired_occupancies(self.chances, self.rounds, order - 1)

    @property
    def draw_width(self) -> int:
        """Number of ratios of one draw."""
        return self.rounds

    @property
    def draw_steps(self) -> int:
        """Number of steps of the recursion for one draw."""
        return self.rounds * (self.most_rounds + 8) + 100

    def fingerprint(self) -> bytes:
        """Return bytes that tell factors apart."""
        pairs = "" if self.people == 1 else " pairs"
        return f"{self.chances} {self.rounds} {self.copies}{pairs}".encode() + self.round.fingerprint()

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X.

        X is a sum of products of h ratios (each off by a few units of its logarithm), with three roundings a round, and
        the factors outside. Underflow adds less than 1e-90: as many steps as there are, each off by 1e-308, times at
        most 1e200 (the growth of the products, and the weight of h successes at the end).
        """
        rate = min(self.expected_share, 1.0)
        outside = 16 * (math.lgamma(self.rounds + 1) + self.rounds + 1) - 8 * self.most_rounds * math.log(rate)
        outside -= 8 * self.rounds * math.log1p(-rate) if rate < 1 else 0.0
        units = 3 * self.rounds + (4 * EXPONENT + 4) * self.most_rounds + outside
        units += (self.rounds + 16) * EXPONENT * self.most_rounds if self.common_spread else 0.0  # of the common shift
        return units * UNIT + 2 * self.most_rounds * self.round.law_rounding + self.chance_rounding


class Beginnings(NamedTuple):
    """Beginnings of one factor of X, ascending, the last the factor itself.

    Attributes:
        rounds: number of rounds of each, shape (n,).
        rate: the share.
        tails: shape (n, k + 1), weights of each number h of rounds taken part in.
        fewest: smallest number of them in all rounds.
    """

    rounds: NDArray[np.int64]
    rate: float
    tails: Array
    fewest: int

    @classmethod
    def of_factors(cls, factors: "Sequence[Factor]") -> "Beginnings":
        """Collect factors that are beginnings of the last one."""
        numbers, last = np.array(list(map(attrgetter("rounds"), factors))), factors[-1]
        if not isinstance(last, HiddenRounds):
            return cls(numbers, 1.0, np.zeros((0, 0)), 0)
        rate = min(last.expected_share, 1.0)
        tails = np.zeros((len(factors), len(last.chances)))
        for tail, each in zip(tails, factors, strict=True):
            assert isinstance(each, HiddenRounds)
            tail[: len(each.chances)] = each.chance_ratios(rate)
        return cls(numbers, rate, tails, int(np.flatnonzero(last.chances)[0]))


def log_beginnings(parts: Beginnings, ratios: Array) -> Array:
    """Return log X after each beginning, shape (draws, n); see :meth:`HiddenRounds.log_ratios`."""
    means, rows = np.empty((len(ratios), len(parts.rounds))), np.empty((parts.tails.shape[1] + 2, SIDE_BY_SIDE))
    largest = arithmetic.symmetric_means(ratios, parts.rate, parts.tails, parts.rounds, parts.fewest, means, rows)
    return logs_in_range(means, largest * max(parts.tails.max(), 1.0))


def log_shifted_beginnings(parts: Beginnings, ratios: Array, factors: Array) -> Array:
    """Return log X after each beginning where all of a row's ratios are multiplied by each of its ``factors``.

    Each e_h is multiplied by the factor to the power h.

    Args:
        parts: the beginnings.
        ratios: shape (draws, rounds).
        factors: shape (draws, m).

    Returns:
        Shape (draws * m, n), the m rows of a draw together.
    """
    beginnings, most = parts.tails.shape
    tails, rounds = np.tile(np.eye(most), (beginnings, 1)), np.repeat(parts.rounds, most)
    found, room = np.empty((len(ratios), factors.shape[1], beginnings)), np.empty((most + 2, SIDE_BY_SIDE))
    for first in range(0, len(ratios), 8 * SIDE_BY_SIDE):  # a part that stays in the processor's cache
        rows = slice(first, first + 8 * SIDE_BY_SIDE)
        terms, scales = np.empty((len(ratios[rows]), beginnings * most)), np.ascontiguousarray(factors[rows].T)
        largest = arithmetic.symmetric_means(ratios[rows], parts.rate, tails, rounds, parts.fewest, terms, room)
        by_power = parts.tails[:, :, None] * terms.T.reshape(beginnings, most, -1)
        sums = np.zeros((beginnings, *scales.shape))
        for h in range(most - 1, -1, -1):
            sums *= scales
            sums += by_power[:, None, h]
        largest *= max(parts.tails.max(), 1.0) * max(float(scales.max()), 1.0) ** (most - 1)
        found[rows] = logs_in_range(sums.transpose(2, 1, 0), largest)
    return found.reshape(-1, beginnings)


def logs_in_range(means: Array, largest: float, limit: float = 1e200) -> Array:
    """Return logs, if the ``largest`` number on the way is below the ``limit``; else NotEvaluable."""
    if not largest < limit:
        raise NotEvaluable("likelihood ratios leave the range of floating point")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(means))


@dataclass(frozen=True, eq=False)
class SampledRun:
    """Everything that is released: X is the product of all factors."""

    factors: "tuple[Factor, ...]"

    @cached_property
    def independent_factors(self) -> list[HiddenRounds]:
        """The factors whose rounds have independent noise."""
        found = list[HiddenRounds]()
        for each in self.factors:
            if isinstance(each, HiddenRounds):
                found.append(each)
        return found

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X."""
        found = 0.0
        for each in self.factors:
            found += each.copies * (each.ratio_rounding + 4 * EXPONENT * UNIT)
        return found

    @property
    def log_least(self) -> float:
        """log of a number that X is never below: the chance of having taken part in no round."""
        chances = [(each.chances[0], each.copies) for each in self.factors]
        return sum(copies * math.log(chance) if chance else -math.inf for chance, copies in chances)

    @cached_property
    def draw_steps(self) -> int:
        """Number of steps of one draw."""
        found = 0
        for each in self.factors:
            found += each.copies * each.draw_steps
        return found


# Overlaps of several choices, and the exact moments of X that follow; docs/research/k-of-t.md has the proofs.

MOST_OVERLAPS, _MOST_TO_EXTEND = 500_000, 5_000
"""Rows that the recursion keeps at once (some 40 MB), and from which it goes on to one subset more."""


class Occupancies(NamedTuple):
    """All occupancies of t subsets: how many rounds are in 0, 1, .., t of them.

    Attributes:
        counts: shape (S, t + 1): n_0..n_t of each; rows sum to the rounds in question.
        log_chance: shape (S,): log of the probability of each, under t independent uniform subsets.
    """

    counts: NDArray[np.int32]
    log_chance: Array


_Held = tuple[Array, Array, Occupancies]
"""How rounds are held under a tilt; see :meth:`HiddenRounds.tilted_occupancies`."""


def occupancies(chances: tuple[float, ...], rounds: int, order: int) -> Occupancies:
    """Return the occupancies of independent subsets, each uniform among those of a random size.

    Args:
        chances: of the size 0, 1, ..
        rounds: number of rounds.
        order: number of subsets.

    Raises:
        NotEvaluable: there are too many.

    Example:
        >>> found = occupancies((0.0, 1.0), rounds=3, order=2)  # two of three rounds, each drawn alone
        >>> found.counts.tolist(), np.exp(found.log_chance).round(3).tolist()
        ([[2, 0, 1], [1, 2, 0]], [0.333, 0.667])
    """
    found = _occupancies(chances, rounds, order)
    if found is None:
        raise NotEvaluable(f"{order} hidden choices of up to {len(chances) - 1} of {rounds} rounds overlap too much")
    return found


@lru_cache(maxsize=64)
def _occupancies(chances: tuple[float, ...], rounds: int, order: int) -> Occupancies | None:
    """Extend the occupancies by one subset; None: there are too many.

    Adding a subset takes a_c of the n_c rounds held c times, in C(n_c, a_c) ways each. Classes are taken one after
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
        if ways.sum() > MOST_OVERLAPS:
            return None
        rows = np.repeat(np.arange(len(counts)), ways)
        taken = least[rows] + (np.arange(len(rows)) - np.repeat(np.cumsum(ways) - ways, ways)).astype(np.int32)
        log_chance = log_chance[rows] + log_choose(there[rows], taken)
        counts = counts[rows]
        counts[:, held + 1] += taken
        counts[:, held] -= taken
        counts[:, -1] -= taken
        counts, log_chance = merged_rows(counts, log_chance)
    return Occupancies(np.ascontiguousarray(counts[:, :-1]), log_chance)


def hidden_log_moments(log_moments: Array, chances: tuple[float, ...], rounds: int, off: float = 0.0) -> Array:
    """Return whole moments of X where a person takes part in hidden rounds, a uniform set of a random size.

    E[X^a] = sum over occupancies of their chance times the product of E[x^c]^(n_c), c = 2, .., a.

    Args:
        log_moments: log E[x^a] of one round, exact or from above, at a = 0..A, shape (A + 1,).
        chances: of taking part 0, 1, .. times, each known to a relative error of ``off``.
        rounds: all of them released.
        off: see ``chances``.

    Returns:
        log E[X^a] at a = 0..A, exact or from above, shape (A + 1,), rounding included.

    Raises:
        NotEvaluable: there are too many occupancies.
    """
    result = np.zeros(len(log_moments))
    for order in range(2, len(log_moments)):
        counts, log_chance = occupancies(chances, rounds, order)
        held = counts[:, 2:] @ np.asarray(log_moments[2 : order + 1])
        error = rounding_of_overlaps(rounds, order) + 2 * order * off + 16 * order * UNIT * float(np.abs(held).max())
        result[order] = np.logaddexp.reduce(log_chance + held) + error
    return result


def merged_rows(counts: NDArray[np.int32], log_chance: Array) -> tuple[NDArray[np.int32], Array]:
    """Put equal rows together. The first column follows from the others and is not compared."""
    sizes = (counts[:, 1:].max(axis=0).astype(np.int64) + 1).tolist()
    if math.prod(sizes) < 2**62:
        key = np.zeros(len(counts), np.int64)
        for column, size in enumerate(sizes, start=1):
            key = key * size + counts[:, column]
        order = np.argsort(key, kind="stable")
        differs = np.diff(key[order]) != 0
    else:
        order = np.lexsort(counts[:, 1:].T)
        differs = np.any(np.diff(counts[order], axis=0) != 0, axis=1)
    log_chance, starts = log_chance[order], np.concatenate([[0], np.flatnonzero(differs) + 1])
    largest = np.maximum.reduceat(log_chance, starts)
    lengths = np.diff(np.append(starts, len(counts)))
    total = np.add.reduceat(np.exp(log_chance - np.repeat(largest, lengths)), starts)
    return counts[order[starts]], largest + np.log(total)


def paired_occupancies(chances: tuple[float, ...], rounds: int, power: float) -> Occupancies:
    """Return how many rounds are in neither, in the first alone, in the second alone, and in both of two sets.

    The first set counts by its probability w, the second by w to a ``power`` in (0, 1), so that the weights are no
    chances.

    Raises:
        NotEvaluable: there are too many.
    """
    sizes, most = np.flatnonzero(chances), len(chances) - 1
    if len(sizes) ** 2 * (most + 1) > 4 * MOST_OVERLAPS:
        raise NotEvaluable(f"two hidden choices of up to {most} of {rounds} rounds overlap in too many ways")
    first, second, both = (each.ravel() for each in np.meshgrid(sizes, sizes, np.arange(most + 1)))
    there = (both <= np.minimum(first, second)) & (first + second - both <= rounds)
    first, second, both = first[there], second[there], both[there]
    log_chances = np.log(chances, where=np.array(chances) > 0, out=np.zeros(most + 1))
    log_weight = log_chances[first] + log_choose(first, both) + log_choose(rounds - first, second - both)
    log_weight += power * (log_chances[second] - log_choose(rounds, second))
    counts = np.stack([rounds - first - second + both, first - both, second - both, both], axis=1)
    return Occupancies(counts.astype(np.int32), log_weight)


# Laws to draw the rounds of a run from.


class Moment(NamedTuple):
    """A bound on a moment: log E[X^order] <= ``log_moment``."""

    order: float
    log_moment: float


class Proposal(ABC):
    """A law R to draw the rounds of a run from, and values v whose mean under R is delta.

    With r the ``ratio_rounding`` of the run, values are off by at most a factor exp(relative + order * r), and belong
    to an epsilon off by r.

    Attributes:
        run: the released run.
        name: for a person to read; tells proposals for one run apart.
        parameters: which of its kind it is.
        moment: the bound on v; its order is the power of X in the density of R.
        variation: bound on the total variation between the draws and R.
        relative: bound on the relative error of v, X aside.
        smoothing: standard deviation of a part of log X over which v is a mean, in closed form; 0: there is none.
        together: rows of ``draw`` that are one draw, whose v is their mean.
        moved: bound on the relative error of X beside that of the run.
    """

    run: SampledRun
    name: str
    parameters: tuple[float, ...]
    moment: Moment
    variation: float
    relative: float
    smoothing: float = 0.0
    together: int = 1
    moved: float = 0.0

    def log_bound(self, epsilon: float) -> float:
        """Return log of the largest value of v."""
        return log_delta_of_moment(*self.moment, epsilon)

    @abstractmethod
    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        """Draw logs of two positive numbers a and b; v = (a - exp(epsilon) b)+, smoothed."""

    def excesses(self, log_a: Array, log_b: Array, epsilon: float | Array, quick: bool = False) -> tuple[Array, Array]:
        """Return v of draws, and how fast it falls as epsilon rises."""
        if self.smoothing:
            return arithmetic.smoothed_excess(log_a, log_b, float(epsilon), self.smoothing, quick)
        excess = log_a - log_b - epsilon
        met = excess > 0
        values = np.where(met, np.exp(np.minimum(log_a, 700.0)) * -np.expm1(-np.maximum(excess, 0.0)), 0.0)
        falls = np.where(met, np.exp(epsilon + log_b), 0.0)
        if self.together > 1:
            values, falls = (each.reshape(-1, self.together, *each.shape[1:]).mean(axis=1) for each in (values, falls))
        return values, falls

    def for_run(self, run: SampledRun) -> "Proposal":
        """Return the same proposal for another run."""
        return cast(Callable[..., Proposal], type(self))(run, *self.parameters)


@dataclass(frozen=True, eq=False)
class Pilot:
    """A first look that certifies nothing: where to look closer, and how many draws that takes.

    Attributes:
        proposal: the law of the draws.
        epsilon, delta: a point of the privacy profile, estimated.
        spread: standard deviation of one draw over the mean.
        bound: the largest value of one draw over the mean.
        slope: how fast log delta falls as epsilon rises there.
    """

    proposal: Proposal
    epsilon: float
    delta: float
    spread: float
    bound: float
    slope: float

    def relative_error(self, draws: float, log_term: float, bound: float | None = None) -> float:
        """Return the relative error of delta that so many draws will leave.

        Args:
            draws: number of draws.
            log_term: log of the number of statements over the failure probability.
            bound: 1 for lower ends, which need none; default: that of the pilot.
        """
        stake = min(math.sqrt(2 * log_term / draws) / self.spread, STAKE / (bound or self.bound))
        return stake * self.spread**2 / 2 + log_term / (draws * stake)

    @property
    def draws_needed(self) -> float:
        """Number of draws for an epsilon known to 0.01 either way."""
        return self.draws_for(0.01 * self.slope, 32.0)

    def draws_for(self, error: float, log_term: float) -> float:
        """Return the number of draws that leaves a relative error of delta of so much, or a fifth."""
        error = min(error, 0.2)
        stake = min(error / self.spread**2, STAKE / self.bound)
        return log_term / (stake * (error - stake * self.spread**2 / 2)) if stake > 0 else math.inf


STAKE = 0.8  # the largest stake on an upper end, over 1 / b
HIGHEST_SAMPLED_ORDER = 16
_WIDE = 1.7  # standard deviation of a draw over its mean; about 1.5 is the least that a power of X reaches
_VERY_WIDE = 3.0  # the same, where other proposals need tables of their own
_LOW_ORDERS = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9)  # orders to try where noise is little
_POWERS = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8)  # of single sets, to try beside them
_LARGE_BOUND = 1000.0  # of a draw over its mean: it leaves an upper end wide
_MOST_COINS = 64  # orders of independent rounds to try
_LEAST_SMOOTHING, _MOST_SMOOTHING = 0.1, 27.0  # and the most times the order; docs/research/k-of-t.md, "Rounding"
_DRIFTS = (1.5, 4.0, 10.0, 25.0)  # drifts to try; each adds this much to the order if X is a constant times G
_COMMON_POINTS = 4  # of the common noise of beginnings: more hardly lower the spread
_UNDRIFTED = 0.5  # share of draws without drift; the bound is multiplied by its inverse
_EXACT = 0.2  # share of draws by a power of X, beside independent rounds; the bound is multiplied by its inverse

Rank = Callable[[float, float], float]  # what a moment (order, log) proves about the answer: the smaller, the better
PilotChoice = Callable[[Proposal], Pilot]  # takes the pilot of a proposal


def cheapest_pilot(pilots: Iterable[tuple[float, Pilot]]) -> tuple[float, Pilot]:
    """Return the pilot that needs the fewest draws, with its parameter; the search stops where that rises.

    Raises:
        NotEvaluable: there is no first one, or its draws meet no loss beyond epsilon.
    """
    chosen = None
    try:
        for parameter, pilot in pilots:
            if chosen is not None and pilot.draws_needed >= chosen[1].draws_needed:
                break
            chosen = parameter, pilot
    except NotEvaluable:
        if chosen is None:
            raise
    if chosen is None or chosen[1].draws_needed == math.inf:
        raise NotEvaluable("the draws meet no loss beyond epsilon")
    return chosen


def _draws_by_spread(pilot: Pilot) -> float:
    """Return the draws needed. A bound too large for an upper end is left to others: then the spread decides."""
    return replace(pilot, bound=min(pilot.bound, _LARGE_BOUND)).draws_needed


class _Tilted(NamedTuple):
    """One factor of X under the tilt X^t.

    Attributes:
        counts: shape (S, n), the occupancies; n = t + 1, or 4 for t below 2.
        exponents: shape (n,): of the ratio of a round that is held 0, .., t times (below 2: by neither, by one, by the
            other, by both).
        log_mu: logs of the moments of these exponents.
        below: shape (S,), distribution function over occupancies.
        log_moment: log E[X^t].
        drifted_moment: the same: rounds of independent noise have no drift.
        relative, variation: amounts that one copy adds to a proposal's.
    """

    counts: NDArray[np.int32]
    exponents: Array
    log_mu: Array
    below: Array
    log_moment: float
    drifted_moment: float  # the same: rounds of independent noise have no drift
    relative: float
    variation: float


class _Coins(NamedTuple):
    """One factor of X under the tilt prod_i (1 + r x_i)^t, where rounds are independent.

    Attributes:
        order: t, whole.
        odds: r.
        chances: of the exponents 0, .., t of a round.
        log_moment: log E[(1 + r x)^t].
        typical: log of about E[X^t].
        error: bound on the error of the log of the density.
    """

    order: int
    odds: float
    chances: Array
    log_moment: float
    typical: float
    error: float

    @classmethod
    def with_best_odds(cls, factor: HiddenRounds, order: int) -> "_Coins":
        """Choose the odds that bound X^t best: X <= max_h w_h / C(T, h) r^-h prod_i (1 + r x_i), convex in log r."""
        held, taken = np.arange(order + 1.0), np.flatnonzero(factor.chances)
        log_terms = log_choose(order, np.arange(order + 1)) + [factor.round.log_moment(exponent) for exponent in held]
        log_sets = np.log(np.array(factor.chances)[taken]) - log_choose(factor.rounds, taken)

        def logs(position: float) -> tuple[float, float]:
            """log E[(1 + r x)^t], and log of the bound on X^t over prod_i (1 + r x_i)^t."""
            return float(np.logaddexp.reduce(log_terms + held * position)), order * max(log_sets - taken * position)

        def proved(position: float) -> float:
            moment, bound = logs(position)
            return factor.rounds * moment + bound

        at_share = -math.log(max(1 / factor.expected_share - 1, 1e-15))
        low, high = at_share - 16, at_share + 4
        for _ in range(40):
            left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
            low, high = (low, right) if proved(left) < proved(right) else (left, high)
        moment = logs(low)[0]
        typical = proved(low) - factor.rounds * order * math.log1p(math.exp(at_share)) - logs(at_share)[1]
        masses = np.exp(log_terms + held * low - moment)
        size = float(np.abs(log_terms).max()) + order * (abs(low) + 8) + 1
        error = factor.rounds * (16 * (size + order * EXPONENT) * UNIT + factor.round.table_rounding)
        return cls(order, math.exp(low), masses / masses.sum(), moment, typical, error)


def _sum_of_powers(factor: HiddenRounds, power: float) -> tuple[HiddenRounds, float]:
    """Return the sum over all sets of (w times their ratio) to a ``power`` > 0, as hidden rounds.

    Their ratios are to be given to that power. The second result is the log of a factor of their mean.
    """
    h = np.arange(factor.most_rounds + 1)
    with np.errstate(divide="ignore"):
        logs = power * np.log(factor.chances) + (1 - power) * log_choose(factor.rounds, h)
    total = float(np.logaddexp.reduce(logs))
    if np.any((logs > -np.inf) & (logs < total - 600)):
        raise NotEvaluable("the chances of hidden choices differ too much for an order below 2")
    off = power * factor.chance_rounding + rounding_of_overlaps(factor.rounds, 2)
    return replace(factor, chances=tuple(np.exp(logs - total).tolist()), chance_rounding=off), total


class RemoveProposal(Proposal):
    """Draws for H(P, Q): dR = (w X^t / M_t + (1 - w) Y / E[Y]) dQ, M_t = E[X^t].

    docs/research/k-of-t.md has the proofs (Propositions 1 to 3). Y is the product of (1 + r x)^u over all ratios x;
    without it (u = 0) w is 1. Y stands in for orders with too many occupancies. Below 2, for little noise, X^t stands
    for X times the sum over all choices of (their probability times their ratio)^(t - 1) (Proposition 5), and Y may be
    that sum with a power above 1 (Proposition 5'). With correlated noise Y is X^t G^g, G that of
    :class:`DependentTilt`. With X^t alone v is the mean over the noise that moves all rounds of Gaussian factors alike
    (Proposition 1').

    Args:
        run: the released run.
        order: t, a whole number from 2 on, or between 1 and 2.
        coins: u, a whole number.
        drift: g >= 0.
        power: of single sets, above 1; 0: without them. Only beside an order below 2.
    """

    def __init__(self, run: SampledRun, order: float, coins: int = 0, drift: float = 0.0, power: float = 0.0) -> None:
        if (coins or power) and len(run.independent_factors) < len(run.factors):
            raise NotEvaluable("rounds of correlated noise are not independent")
        self.run, self.order, self.coins, self.drift, self.power = run, order, coins, drift, power
        self.parameters = order, coins, drift, power
        self.name = f"order {order:.3g}" + (f" and independent rounds of order {coins}" if coins else "")
        self.name += f" and drift {drift:.2g}" if drift else ""
        self.name += f" and single sets of order {power:.3g}" if power else ""
        self._share = _EXACT if coins else _UNDRIFTED if drift else 1.0
        self._tilted, self._coins = list[_Tilted | DependentTilt](), list[_Coins]()
        self.log_moment = self._drifted_moment = self.relative = self.variation = 0.0
        for each in run.factors:
            tilted = each.tilted_factor(order, drift)
            self._tilted.append(tilted)
            self.log_moment += each.copies * tilted.log_moment
            self._drifted_moment += each.copies * tilted.drifted_moment
            self.relative += each.copies * tilted.relative
            self.variation += each.copies * (tilted.variation + coins * 1e-12)
        self.moment = Moment(order, self.log_moment - math.log(self._share))
        for factor in run.independent_factors if coins else ():
            self._coins.append(_Coins.with_best_odds(factor, coins))
        for factor, coin in zip(run.independent_factors, self._coins, strict=False):
            law_rounding = 4 * coins * factor.rounds * factor.round.law_rounding
            self.relative += factor.copies * (law_rounding + 8 * coins * UNIT + 3 * coin.error)
        variance = 0.0
        for each in run.factors:
            variance += each.copies * each.common_spread**2
        if _LEAST_SMOOTHING <= math.sqrt(variance) <= _MOST_SMOOTHING / order and not (coins or drift or power):
            self.smoothing, self.moved = math.sqrt(variance), SMOOTHED
        self._powers = list(map(partial(_sum_of_powers, power=order - 1), run.independent_factors)) if order < 2 else []
        off = 0.0
        for each, _ in self._powers:
            off += each.copies * (each.ratio_rounding + 64 * UNIT)
        self.relative += off
        self._singles = list[tuple[_Tilted, HiddenRounds, float]]()
        if power:
            self._share, log_single = (power - 1) / (power - order + 1), 0.0
            for each in run.independent_factors:
                single, (sums, log_total) = each.single_sets(power), _sum_of_powers(each, power)
                self._singles.append((single, sums, log_total))
                log_single += sums.copies * single.log_moment
                self.relative += sums.copies * (single.relative + sums.ratio_rounding + 64 * UNIT)
                self.variation += sums.copies * single.variation
            self.moment = Moment(1 + self._share, self._share * self.log_moment + (1 - self._share) * log_single)

    def _draw_ratios(
        self, rng: np.random.Generator, j: int, independent: NDArray[np.bool_]
    ) -> tuple[Array, NDArray[np.int32], Array]:
        """Draw ratios of factor j, how many of them have each exponent, and the logs of their products.

        Binomial numbers more than ten standard deviations out do not occur; ``variation`` has 1e-12 for that.
        """
        factor, tilted, some = self.run.factors[j], self._tilted[j], int(independent.sum())
        assert isinstance(factor, HiddenRounds)
        assert isinstance(tilted, _Tilted)
        exponents, width = tilted.exponents, len(tilted.exponents)
        counts = np.zeros((len(independent), width), np.int32)
        drawn = np.searchsorted(tilted.below, rng.random(len(independent) - some), side="right")
        counts[~independent] = tilted.counts[np.minimum(drawn, len(tilted.below) - 1)]
        if self.coins:
            counts = np.pad(counts, ((0, 0), (0, self.coins + 1)))
            exponents = np.append(exponents, np.arange(self.coins + 1.0))
            counts[independent, width:] = rng.multinomial(factor.rounds, self._coins[j].chances, size=some)
        if self.power:
            single = self._singles[j][0]
            counts, exponents = np.pad(counts, ((0, 0), (0, 2))), np.append(exponents, single.exponents)
            drawn = np.searchsorted(single.below, rng.random(some), side="right")
            counts[independent, width:] = single.counts[np.minimum(drawn, len(single.below) - 1)]
        ratios, log_of_products = factor.round.draw(rng, exponents, counts)
        return ratios, counts, log_of_products

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        """Draw logs of a and b, for v = (X - e^epsilon)+ dQ/dR."""
        second = rng.random(draws) >= self._share
        log_ratio, log_power, log_second, shift = np.zeros((4, draws))
        for j, factor in enumerate(self.run.factors):
            for _ in range(factor.copies):
                tilted = self._tilted[j]
                if not isinstance(factor, HiddenRounds):
                    assert not isinstance(tilted, _Tilted)
                    one, moved, log_mean = tilted.draw(rng, second)
                    shift += moved
                    log_second += self.drift * log_mean
                    log_ratio += one
                    log_power += self.order * one
                    continue
                ratios, _, log_of_products = self._draw_ratios(rng, j, second & (self.coins + self.power > 0))
                one = factor.log_ratios(ratios)
                log_ratio += one
                if self.smoothing and factor.common_spread:
                    centred = log_of_products + factor.rounds * factor.round.log_moment(2.0) / 2
                    shift += factor.people * factor.most_rounds / factor.rounds * centred
                if self._powers:
                    powers, log_total = self._powers[j]
                    log_power += one + powers.log_ratios(ratios ** (self.order - 1)) + log_total
                else:
                    log_power += factor.log_tilt(ratios, one, self.order)
                if self.power:
                    single, sums, log_total = self._singles[j]
                    log_second += sums.log_ratios(ratios**self.power) + log_total - single.log_moment
                if self.coins:
                    coin = self._coins[j]
                    log_second += (
                        coin.order * arithmetic.log_products(ratios, coin.odds) - factor.rounds * coin.log_moment
                    )
        if self.drift:
            log_second += self.order * log_ratio - self._drifted_moment
        if self.smoothing:  # means over the shift, under Q, of X and of the density
            log_power += (self.order * self.smoothing) ** 2 / 2 - self.order * shift
            log_ratio += self.smoothing**2 / 2 - shift
        return self._log_excess(log_ratio, log_power, log_second)

    @cached_property
    def common_points(self) -> int:
        """Number of values of the noise that all rounds have in common, over which draws of beginnings are means."""
        factor = self.run.factors[0]
        if self.coins or self._powers or not isinstance(factor, HiddenRounds) or factor.people > 1:
            return 1
        if not isinstance(factor.round, GaussianRound):
            return 1
        farthest = 20 * factor.most_rounds / factor.round.noise_multiplier / math.sqrt(factor.rounds)
        return _COMMON_POINTS if farthest < 200 else 1  # else ratios leave the range of floating point

    def _common_factors(self, rng: np.random.Generator, counts: NDArray[np.int32], log_of_products: Array) -> Array:
        """Draw factors of all ratios that give each row other noise in common, one in each of equal parts of its law.

        Given the classes of rounds, the mean of all rounds' noise is independent of the rest.
        """
        from scipy.special import ndtri  # a slow import

        (factor,), (tilted,), many = self.run.factors, self._tilted, self.common_points
        assert isinstance(factor, HiddenRounds)
        assert isinstance(factor.round, GaussianRound)
        assert isinstance(tilted, _Tilted)
        deviation = 1 / factor.round.noise_multiplier  # of log x
        common = (log_of_products - counts @ ((tilted.exponents - 0.5) * deviation**2)) / factor.rounds
        parts = (np.arange(many) + rng.random((len(counts), 1))) / many
        other: Array = ndtri(np.clip(parts, UNIT, 1 - UNIT)) * (deviation / math.sqrt(factor.rounds))
        return np.asarray(np.exp(other - common[:, None]))

    def draw_beginnings(self, rng: np.random.Generator, draws: int, parts: Beginnings) -> tuple[Array, Array]:
        """Draw like ``draw``, at whole orders, for the beginnings of the only factor, shape (draws, n).

        With ``common_points`` there are as many rows for each draw, one after the other. See docs/research/k-of-t.md,
        Propositions 6 and 6'.
        """
        if self._powers or self.drift:
            raise NotEvaluable("beginnings are drawn at whole orders, and without drift, only")
        (factor,), (tilted,), first = self.run.factors, self._tilted, int(parts.rounds[0])
        if not isinstance(factor, HiddenRounds):
            assert not isinstance(tilted, _Tilted)
            log_ratio, later = tilted.draw_beginnings(rng, draws, parts.rounds)
            log_a, log_b = self._log_excess(log_ratio, self.order * log_ratio, np.zeros(1))
            return log_a - later, log_b - later
        assert isinstance(tilted, _Tilted)
        independent = rng.random(draws) >= self._share
        ratios, counts, log_of_products = self._draw_ratios(rng, 0, independent)
        held = arithmetic.shuffle_ends(ratios, counts, rng.random((draws, factor.rounds - first)))
        log_mu = np.append(tilted.log_mu, np.zeros(self.coins + 1))  # independent later rounds integrate to 1
        later = np.cumsum(np.pad(log_mu[held], ((0, 0), (0, 1)))[:, ::-1], axis=1)[:, ::-1]
        later = later[:, parts.rounds - first]
        if self.common_points > 1:
            log_ratio = log_shifted_beginnings(parts, ratios, self._common_factors(rng, counts, log_of_products))
            log_a, log_b = self._log_excess(log_ratio, self.order * log_ratio, np.zeros(1))
            later = np.repeat(later, self.common_points, axis=0)
            return log_a - later, log_b - later
        log_ratio, log_coins = log_beginnings(parts, ratios), np.zeros(1)
        for coin in self._coins:
            log_coins = (coin.order * np.cumsum(np.log1p(coin.odds * ratios), axis=1))[:, parts.rounds - 1]
            log_coins -= parts.rounds * coin.log_moment
        log_a, log_b = self._log_excess(log_ratio, self.order * log_ratio, log_coins)
        return log_a - later, log_b - later

    def _log_excess(self, log_ratio: Array, log_power: Array, log_second: Array) -> tuple[Array, Array]:
        """Return logs of a and b, for v = (X - e^epsilon)+ dQ/dR."""
        density = math.log(self._share) - self.log_moment + log_power
        if self._share < 1:
            density = np.logaddexp(density, math.log1p(-self._share) + log_second)
        some = log_ratio > -math.inf
        log_b = np.where(some, -density, math.inf)
        return np.where(some, log_b + log_ratio, -math.inf), log_b

    def log_slack(self, parts: Beginnings) -> float:
        """Return log of a factor of the bound of draws of beginnings: moments of a cut law may be below 1."""
        tilted = self._tilted[0]
        least = float(tilted.log_mu.min()) if isinstance(tilted, _Tilted) else 0.0
        return float(parts.rounds[-1] - parts.rounds[0]) * max(0.0, -least)

    @classmethod
    def best_pilot(cls, run: SampledRun, rank: Rank, look: PilotChoice, highest: int = HIGHEST_SAMPLED_ORDER) -> Pilot:
        """Return the pilot of the order whose bound is the least, or of the whole one below.

        Where that leaves a wide spread, it is the pilot of the best independent rounds, single sets or drift beside it.

        Args:
            run: the released run.
            rank: value that a moment proves; the smaller, the better.
            look: takes the pilot of a proposal.
            highest: order to try.
        """
        proposal = cls.by_moments(run, rank, highest)
        if proposal.order == 2:
            with suppress(NotEvaluable):
                low = min((cls(run, each) for each in _LOW_ORDERS), key=lambda each: rank(*each.moment))
                if rank(*low.moment) < rank(*proposal.moment):
                    tried = [look(low)]
                    if tried[0].bound > _LARGE_BOUND:
                        mixed = (cls(run, low.order, power=each) for each in _POWERS)
                        with suppress(NotEvaluable):  # ratios may leave the range of floating point
                            tried.append(look(min(mixed, key=lambda each: rank(*each.moment))))
                    return min(tried, key=_draws_by_spread)
        orders = range(int(proposal.order), max(int(proposal.order) - 2, 1), -1)
        found = cheapest_pilot(zip(orders, map(look, map(partial(cls, run), orders)), strict=True))[1]
        if found.spread < (_WIDE if len(run.independent_factors) == len(run.factors) else _VERY_WIDE):
            return found
        tried = [found]
        if len(run.independent_factors) < len(run.factors):
            for drift in _DRIFTS:
                with suppress(NotEvaluable):  # with so much of it ratios leave the range of floating point
                    tried.append(look(cls(run, found.proposal.moment.order, 0, drift)))
            return min(tried, key=attrgetter("draws_needed"))
        with suppress(NotEvaluable):  # ratios may leave the range of floating point
            coins = cls._best_coins(run, rank)
            tried += [look(cls(run, int(proposal.order), each)) for each in (coins, coins - 1) if each > 1]
        return min(tried, key=_draws_by_spread)

    @staticmethod
    def _best_coins(run: SampledRun, rank: Rank) -> int:
        """Return the order that would prove the least if moments were ``typical``."""
        least, chosen = math.inf, 2
        for order in range(2, _MOST_COINS):
            typical = sum(each.copies * _Coins.with_best_odds(each, order).typical for each in run.independent_factors)
            if (found := rank(order, typical)) >= least:
                break
            least, chosen = found, order
        return chosen

    @classmethod
    def by_moments(cls, run: SampledRun, rank: Rank, highest: int = HIGHEST_SAMPLED_ORDER) -> "RemoveProposal":
        """Return the proposal of the order, up to ``highest``, whose bound is the least."""
        found = cls(run, 2)
        least, dependent = rank(*found.moment), len(run.independent_factors) < len(run.factors)
        for order in range(3, highest + 1):
            try:
                proposal = cls(run, order)
            except NotEvaluable:
                break
            if (proved := rank(*proposal.moment)) >= least:
                break
            hardly = dependent and proved > 0.99 * least  # the next tables would take longer than the draws they spare
            found, least = proposal, proved
            if hardly:
                break
        return found

    @staticmethod
    def infinite_loss_mass(run: SampledRun) -> float:
        """Return the P-mass at infinite ratios. Only rounds taken part in can meet one."""
        chances = list[tuple[float, int]]()
        for each in run.independent_factors:
            chances.append((each.round.infinite, each.copies * each.most_rounds))
        return chance_of_any(chances)


class AddProposal(Proposal):
    """Draws for H(Q, P): dR in proportion to G^-a dQ; docs/research/k-of-t.md, Proposition 4.

    G is that of :class:`DependentTilt`. By the inequalities of Maclaurin and Jensen X is at least G, which bounds v.
    ``share`` adds the mass at x = 0.

    Args:
        run: the released run.
        tilt: a > 0.
    """

    def __init__(self, run: SampledRun, tilt: float) -> None:
        if len(run.independent_factors) < len(run.factors):
            raise NotEvaluable("rounds of correlated noise are drawn in the remove direction only")
        self.run, self.tilt, self.parameters = run, tilt, (tilt,)
        self.name = f"tilt {tilt:.3g}"
        self.log_moment = self.relative = self.variation = 0.0
        for each in run.independent_factors:
            exponent, rounds = tilt * each.expected_share, each.copies * each.rounds
            log_moment = rounds * each.round.log_moment(-exponent)
            on_each = rounds * each.round.table_rounding
            size = (EXPONENT * exponent + abs(log_moment) + 1) * rounds
            self.log_moment += log_moment
            self.relative += 2 * on_each + 16 * size * UNIT + (3 + 2 * exponent) * rounds * each.round.law_rounding
            self.variation += on_each
        self.moment = Moment(1 + tilt, self.log_moment)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        """Draw logs of a and b, for v = (1 - e^epsilon X)+ dQ/dR."""
        log_a, log_ratio = np.full(draws, self.log_moment), np.zeros(draws)
        for factor in self.run.independent_factors:
            exponent, counts = self.tilt * factor.expected_share, np.full((draws, 1), factor.rounds, np.int32)
            for _ in range(factor.copies):
                ratios, log_of_products = factor.round.draw(rng, np.array([-exponent]), counts)
                log_a += exponent * log_of_products
                log_ratio += factor.log_ratios(ratios)
        return log_a, log_a + log_ratio

    @classmethod
    def best_pilot(cls, run: SampledRun, rank: Rank, look: PilotChoice, highest: int = 0) -> Pilot:
        """Return the pilot of the best tilt, from that of the least bound down."""
        candidates = [cls(run, 2.0**power) for power in np.arange(-10, 10, 0.5)]
        least = int(np.argmin([rank(*proposal.moment) for proposal in candidates]))
        return cheapest_pilot((each.tilt, look(each)) for each in candidates[least::-1])[1]

    @staticmethod
    def infinite_loss_mass(run: SampledRun) -> float:
        """Return the Q-mass at ratio 0, of any round."""
        return chance_of_any((each.round.zero, each.copies * each.rounds) for each in run.independent_factors)


class Block(Proposal):
    """Draws for the last of some beginnings of one factor, with a column for each of them."""

    def __init__(self, whole: Proposal, parts: "Sequence[Factor]") -> None:
        assert isinstance(whole, RemoveProposal)
        self.whole, self.run, self.parts, self.moment = whole, whole.run, Beginnings.of_factors(parts), whole.moment
        self.name, self.relative = f"{whole.name} from {parts[0].rounds}", 2 * whole.relative
        self.variation = whole.variation + parts[-1].rounds ** 2 * UNIT
        self.together = whole.common_points
        if self.together > 1:
            self.moved = (parts[-1].rounds + 32) * EXPONENT * (self.parts.tails.shape[1] - 1) * UNIT

    def log_bound(self, epsilon: float) -> float:
        return self.whole.log_bound(epsilon) + self.whole.log_slack(self.parts)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        return self.whole.draw_beginnings(rng, draws, self.parts)


# Certified means of bounded draws.

SEED = 20260713
"""Seed of the accountant's own coins, which are independent of all data."""

_BATCH = 1_500_000
"""Ratios that a thread draws at once: 12 MB, and as much again on the way."""

_NEWTON = 30  # steps to the epsilon of smoothed draws; mostly five are enough

_PILOT, _PILOT_WORK = 4096, 3e8
"""Draws that tell one proposal from another, and steps of the recursion that they may take."""


Result = TypeVar("Result")


def certify_deltas(proposal: Proposal, above: Array, below: Array, draws: int, failure: float) -> tuple[Array, Array]:
    """Return upper and lower bounds of delta from fresh draws, which hold together but for a failure probability.

    For v in [0, b], E[prod_i (1 + s v_i)] = (1 + s delta)^n for n independent draws and any stake s > -1/b. So by
    Markov's inequality (1 + s delta)^n >= exp(-L) prod_i (1 + s v_i) but for a probability of exp(-L), L =
    log(candidates / failure). A negative stake bounds delta from above, a positive one from below.

    Args:
        proposal: the law of the draws.
        above: epsilons for upper bounds, shape (candidates,), or (n, candidates) where a draw has n columns.
        below: epsilons for lower bounds, of such a shape.
        draws: number of draws.
        failure: probability that any of the bounds is false.

    Returns:
        Bounds of the shapes of ``above`` and ``below``.
    """
    rounding = proposal.run.ratio_rounding + proposal.moved
    epsilons = np.concatenate([above - rounding, below + rounding], axis=-1)
    error = proposal.relative + (proposal.moment.order + 1) * rounding + 4 * SUMMING
    bound = np.exp(np.minimum(np.array(list(map(proposal.log_bound, epsilons.flat))) + error, 700.0))
    bound, count = bound.reshape(epsilons.shape), above.shape[-1]
    log_term = math.log(epsilons.size / failure)
    step, (log_a, log_b), stakes = math.sqrt(2 * log_term / draws), _common_draws(proposal), np.zeros(epsilons.shape)
    for part in (slice(0, count), slice(count, None)):  # a pilot at the first epsilon above, and at the first below
        if stakes[..., part].size:
            values = proposal.excesses(log_a, log_b, epsilons[..., part][..., 0])[0]
            stakes[..., part] = 1 / np.maximum(values.std(axis=0) / step, values.mean(axis=0) + 1e-300)[..., None]
    stakes[..., :count] = -np.minimum(stakes, STAKE / np.maximum(bound, 1e-300))[..., :count]
    found = np.expm1((_log_wealth(proposal, epsilons, stakes, draws) - log_term) / draws) / stakes
    off = bound * (proposal.variation + 64 * UNIT)
    upper, lower = found * math.exp(error) + off, found * math.exp(-error) - off
    return upper[..., :count], np.maximum(lower[..., count:], 0.0)


def pilot_at_delta(proposal: Proposal, delta: float, draws: int = 0, quick: bool = False) -> Pilot:
    """Take a pilot around the epsilon >= 0 that belongs to ``delta``.

    The random numbers are the same for every proposal. A ``quick`` one is for searches, not for certificates.
    """
    log_a, log_b = _common_draws(proposal, draws)
    epsilon = _epsilon_of(log_a, log_b, delta)
    for _ in range(_NEWTON if proposal.smoothing else 0):  # the smoothed mean is larger; its log is nearly straight
        values, falls = proposal.excesses(log_a, log_b, epsilon, quick)
        step = math.log(values.mean() / delta) * values.mean() / falls.mean() if values.any() else 0.0
        epsilon = max(epsilon + step, 0.0)
        if abs(step) < 1e-9 * epsilon:
            break
    return _pilot_of_draws(proposal, epsilon, log_a, log_b, quick)


def pilots_of_columns(proposal: Proposal, delta: float) -> list[Pilot]:
    """Take a pilot for each column of the draws, sooner: between two losses delta is linear in exp(epsilon)."""
    columns = np.stack(_common_draws(proposal), axis=1).T
    return [_pilot_of_draws(proposal, _epsilon_of(log_a, log_b, delta), log_a, log_b) for log_a, log_b in columns]


def pilot_at_epsilon(proposal: Proposal, epsilon: float) -> Pilot:
    """Take a pilot around one epsilon."""
    return _pilot_of_draws(proposal, epsilon, *_common_draws(proposal))


def _pilot_of_draws(proposal: Proposal, epsilon: float, log_a: Array, log_b: Array, quick: bool = False) -> Pilot:
    """Take a pilot from draws of a and b at one epsilon."""
    values, falls = proposal.excesses(log_a, log_b, epsilon, quick)
    mean = float(values.mean())
    if not 0 < mean < math.inf:
        return Pilot(proposal, epsilon, 0.0, math.inf, math.inf, 1.0)
    bound = math.exp(min(proposal.log_bound(epsilon) - math.log(mean), 700.0))
    return Pilot(
        proposal, epsilon, mean, max(float(values.std()) / mean, 1e-3), bound, max(float(falls.mean()) / mean, 1e-9)
    )


def pilot_draws(run: SampledRun) -> int:
    """Return how many draws a first look takes."""
    return max(512, min(_PILOT, int(_PILOT_WORK / run.draw_steps)))


def _epsilon_of(log_a: Array, log_b: Array, delta: float) -> float:
    """Return the epsilon >= 0 at which the mean of (a - exp(epsilon) b)+ is ``delta``."""
    order = np.argsort(log_b - log_a)
    order = order[log_a[order] > log_b[order]]
    a, b = np.cumsum(np.exp(np.minimum([log_a[order], log_b[order]], 600.0)), axis=1)
    excess = a - b * np.exp(np.minimum(log_a - log_b, 600.0))[order] - len(log_a) * delta
    last = int(np.searchsorted(excess, 0.0)) - 1
    return max(math.log((a[last] - len(log_a) * delta) / b[last]), 0.0) if a[-1:] > len(log_a) * delta else 0.0


def _common_draws(proposal: Proposal, draws: int = 0) -> tuple[Array, Array]:
    """Draw the same random numbers for every proposal.

    Differences between proposals are then better known than either.
    """
    draws = (draws or pilot_draws(proposal.run)) // proposal.together
    log_a, log_b = zip(*_in_batches(proposal, draws, 0, tuple), strict=True)
    return np.concatenate(log_a), np.concatenate(log_b)


def _log_wealth(proposal: Proposal, epsilons: Array, stakes: Array, draws: int) -> Array:
    """Return sums of log(1 + stake v) at each epsilon and its stake, of the shape of both, from fresh draws."""
    columns = np.atleast_2d(epsilons)
    order = np.argsort(columns, axis=1)
    ascending = np.take_along_axis(columns, order, axis=1)
    scales = np.exp(ascending)
    sorted_stakes = np.take_along_axis(np.atleast_2d(stakes), order, axis=1)

    def summed(drawn: tuple[Array, Array]) -> Array:
        (log_a, log_b), found = drawn, np.zeros(columns.shape)
        if proposal.smoothing:
            for j, (epsilon, stake) in enumerate(zip(ascending[0].tolist(), sorted_stakes[0], strict=True)):
                values, _ = arithmetic.smoothed_excess(log_a, log_b, epsilon, proposal.smoothing, quick=True)
                found[0, j] = np.log1p(stake * values).sum()
            return found
        for i, (a, b) in enumerate(zip(np.atleast_2d(log_a.T), np.atleast_2d(log_b.T), strict=True)):
            a, b = a.reshape(-1, proposal.together), b.reshape(-1, proposal.together)
            some = (a - b > columns[i, order[i, 0]]).any(axis=1)  # elsewhere all values are 0
            found[i] = arithmetic.sums_of_logs(np.exp(a[some]), np.exp(b[some]), scales[i], sorted_stakes[i])
        return found

    run = b"|".join(map(methodcaller("fingerprint"), proposal.run.factors))  # so that each question has its own draws
    digest = hashlib.blake2b(f"{proposal.name} {draws}".encode() + epsilons.tobytes() + run, digest_size=8)
    question = 1 + int.from_bytes(digest.digest(), "little")
    total = np.sum(_in_batches(proposal, draws, question, summed), axis=0)
    return np.asarray(np.take_along_axis(total, np.argsort(order, axis=1), axis=1).reshape(epsilons.shape))


def _in_batches(
    proposal: Proposal, draws: int, question: int, use: Callable[[tuple[Array, Array]], Result]
) -> list[Result]:
    """Return the results of all batches of draws, in order. Batches do not depend on how many threads there are.

    Args:
        proposal: the law of the draws.
        draws: number of draws.
        question: a number that decides the random numbers.
        use: from the draws of a batch, two arrays, to a result.
    """
    widest = max(map(attrgetter("draw_width"), proposal.run.factors))
    rows = max(64, min(MOST_ROWS, _BATCH // widest))

    def batch(first: int) -> Result:
        rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([SEED, question, first])))
        return use(proposal.draw(rng, min(rows, draws - first)))

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        return list(pool.map(batch, range(0, draws, rows)))


PRECISION = 5e-3  # relative width of the bracket on epsilon that sampling aims at

CHARGE = 1e-6  # share of delta that is charged for the probability that a certificate is wrong

QUESTIONS = 32
"""One answer may ask for this many certificates: each fails with at most this fraction of the charged probability."""

STEPS = np.concatenate([np.arange(0.3, 1.8, 0.06), 1.8 * 1.25 ** np.arange(17)])
"""Where epsilon is certified, in expected half-widths from the pilot's: close by, and further off if that fails."""

_WORK = 5e9  # steps of the recursion that a precision of 5e-3 may take: two to five seconds on two cores

FOR_ZERO = 50_000  # draws to confirm that epsilon is 0

_HOPELESS = 0.1  # relative width beyond which the other bounds are as good


Direction = type[RemoveProposal] | type[AddProposal]


@dataclass(frozen=True, eq=False)
class SampledProfile:
    """The privacy profile of a run that has hidden rounds; docs/research/k-of-t.md.

    Attributes:
        upper: its likelihood ratio, exact or larger in convex order.
        lower: the same, exact or smaller; the same object as ``upper`` if exact, None if no lower end is wanted.
        laws: each makes a law whose add direction bounds this one's, asked in turn. The add direction is sampled only
            if they leave it larger than the remove direction, a rare case.
        is_one_sided: whether the add direction is never the larger one.
    """

    upper: SampledRun
    lower: SampledRun | None
    laws: tuple[Callable[[], Law], ...] = ()
    is_one_sided: bool = False

    def epsilon(
        self,
        delta: float,
        *,
        precision: float = PRECISION,
        known: float = math.inf,
        highest: int = HIGHEST_SAMPLED_ORDER,
    ) -> Bounds:
        """Return the smallest epsilon >= 0 at ``delta``, in both directions.

        Args:
            delta: in (0, 1).
            precision: relative width of the bracket that is aimed at, in [1e-4, 0.1].
            known: an upper end from elsewhere; nothing is certified that would hardly be below it.
            highest: order to try in the remove direction; low ones are found sooner.

        Returns:
            A bracket with a failure probability of 1e-6 delta, charged to ``upper``.

        Raises:
            NotEvaluable: too much work, or not worth it; another bound has to answer.
        """
        remove = self._one_sided_epsilon(RemoveProposal, delta, precision, known, highest)
        if self.is_one_sided:
            return remove
        add = self.add_by_laws("epsilon", delta, remove.upper)
        sample = partial(self._one_sided_epsilon, AddProposal, delta, precision, known, enough=remove.upper)
        return _with_add(remove, add, sample)

    def delta(self, epsilon: float, *, precision: float = 0.05) -> Bounds:
        """Return the smallest delta at ``epsilon`` >= 0, in both directions; otherwise see :meth:`epsilon`.

        Args:
            epsilon: >= 0, at most 200.
            precision: relative width of the bracket on delta that is aimed at.
        """
        remove = self.delta_remove(epsilon, precision=precision)
        known = self.add_by_laws("delta", epsilon, remove.upper)
        return _with_add(remove, known, lambda: self.delta_add(epsilon, precision=precision))

    def delta_remove(self, epsilon: float, *, precision: float = 0.05) -> Bounds:
        """Return delta of the remove direction H(P, Q) alone; see :meth:`delta`."""
        return self._one_sided_delta(RemoveProposal, epsilon, precision)

    def delta_add(self, epsilon: float, *, precision: float = 0.05) -> Bounds:
        """Return delta of the add direction H(Q, P) alone; see :meth:`delta`."""
        if self.is_one_sided:
            return self.delta_remove(epsilon, precision=precision)
        if epsilon > self.upper.ratio_rounding - self.upper.log_least:
            return Bounds(0.0, 0.0, Origin(Method.RARE_OUTPUT))
        return self._one_sided_delta(AddProposal, epsilon, precision)

    def add_by_laws(self, question: Literal["epsilon", "delta"], at: float, enough: float) -> float:
        """Return an upper end of the add direction by the laws.

        No more of them are asked once it is at most ``enough``.

        Args:
            question: ``"epsilon"`` or ``"delta"``.
            at: the delta, or the epsilon, of the question.
            enough: an upper end of the remove direction.
        """
        if self.is_one_sided:
            return 0.0
        known = math.inf
        for law in self.laws:
            with suppress(NotEvaluable):
                add = law().both_directions[1]
                known = min(known, (add.epsilon(at) if question == "epsilon" else add.delta(at)).upper)
            if known <= enough:
                break
        return known

    def _one_sided_epsilon(
        self,
        direction: Direction,
        delta: float,
        precision: float,
        known: float,
        highest: int = HIGHEST_SAMPLED_ORDER,
        enough: float = 0.0,
    ) -> Bounds:
        """Return epsilon of one direction: a pilot chooses candidates, and fresh draws certify them.

        A direction that is far below ``enough``, the upper end of the other one, takes fewer draws.
        """
        check_delta(delta)
        check_precision(precision)
        charge = CHARGE * delta
        spendable = delta - charge - direction.infinite_loss_mass(self.upper)
        if spendable <= 0:
            raise NotEvaluable("a round gives a person away with more than delta")
        most = self.most_draws(PRECISION / precision)
        look = partial(pilot_at_delta, delta=spendable)
        pilot = direction.best_pilot(self.upper, partial(epsilon_of_moment, delta=spendable), look, highest)
        if pilot.epsilon * (1 + precision / 2) >= known:
            raise NotEvaluable("another bound is as low")
        steps = STEPS[::2] if pilot.proposal.smoothing else STEPS  # each takes long to ask of smoothed draws
        failure = charge / QUESTIONS
        log_term = math.log(4 * len(steps) / failure)
        gap = min(0.7 * (enough - pilot.epsilon), 0.3 * _HOPELESS * pilot.epsilon)
        aim = max(0.42 * precision * max(pilot.epsilon, 0.02), gap)
        needed = pilot.draws_for(aim * pilot.slope, log_term) if pilot.epsilon > 0 else FOR_ZERO
        draws = int(min(max(needed, 4096), most))
        half_width(pilot, draws, log_term, bound=1.0)
        pilot = pilot_at_delta(pilot.proposal, spendable, max(512, min(draws // 4, 500_000)))
        half = half_width(pilot, draws, log_term, bound=1.0)
        below = np.maximum(pilot.epsilon - half * steps, 0.0)
        above = np.minimum(pilot.epsilon + pilot.relative_error(draws, log_term) / pilot.slope * steps, 600.0)
        above[0] = above[0] if pilot.epsilon > 0 else 0.0
        upper_deltas, lower_deltas = self._certified_deltas(pilot.proposal, above, below, draws, failure)
        kept, exceeded = np.flatnonzero(upper_deltas <= spendable), np.flatnonzero(lower_deltas > delta)
        upper = float(above[kept[0]]) if len(kept) else math.inf
        lower = float(below[exceeded[0]]) if len(exceeded) else 0.0
        return Bounds(min(lower, upper), upper, Origin(Method.SAMPLED, (draws, pilot.proposal.name, charge)))

    def _one_sided_delta(self, direction: Direction, epsilon: float, precision: float) -> Bounds:
        """Return delta of one direction, certified on fresh draws."""
        check_epsilon(epsilon)
        check_positive("precision", precision)
        if epsilon > 200:
            raise NotEvaluable("epsilon is too large to be sampled")
        at, most = np.array([epsilon]), self.most_draws()
        look = partial(pilot_at_epsilon, epsilon=epsilon)
        pilot = direction.best_pilot(self.upper, partial(log_delta_of_moment, epsilon=epsilon), look)
        charge = CHARGE * min(pilot.delta, 1e-3)
        failure = charge / QUESTIONS
        draws = int(min(max(pilot.draws_for(precision / 2, math.log(4 / failure)), 4096), most))
        upper_deltas, lower_deltas = self._certified_deltas(pilot.proposal, at, at, draws, failure)
        upper = float(upper_deltas[0]) + charge + direction.infinite_loss_mass(self.upper)
        if not upper <= 2 * pilot.delta:
            raise NotEvaluable("sampling leaves delta uncertain by more than a factor of two")
        upper = min(upper, 1.0)
        return Bounds(
            min(float(lower_deltas[0]), upper), upper, Origin(Method.SAMPLED, (draws, pilot.proposal.name, charge))
        )

    def estimated_pilot(self, delta: float, proposal: Proposal | None = None, draws: int = 0) -> Pilot:
        """Estimate epsilon in the remove direction, not certified; for searches.

        Equal random numbers for all runs make it a smooth function of the noise.

        Args:
            delta: in (0, 1).
            proposal: law of the draws, for another run; default: the best one for this run.
            draws: number of draws; 0: those of a pilot.
        """
        look = partial(pilot_at_delta, delta=delta, draws=draws, quick=True)
        if proposal is None:
            return RemoveProposal.best_pilot(self.upper, partial(epsilon_of_moment, delta=delta), look)
        return look(proposal.for_run(self.upper))

    def by_moments(self, delta: float) -> RemoveProposal:
        """Return the order whose moment proves the least epsilon at ``delta``; for searches."""
        return RemoveProposal.by_moments(self.upper, partial(epsilon_of_moment, delta=delta))

    def _certified_deltas(
        self, proposal: Proposal, above: Array, below: Array, draws: int, failure: float
    ) -> tuple[Array, Array]:
        """Return certified bounds of delta: from the upper law at ``above``, from the lower law at ``below``."""
        if self.upper is self.lower:
            return certify_deltas(proposal, above, below, draws, failure)
        nothing = np.zeros(0)
        upper, _ = certify_deltas(proposal, above, nothing, draws, failure / 2)
        if self.lower is None:
            return upper, np.zeros(len(below))
        return upper, certify_deltas(proposal.for_run(self.lower), nothing, below, draws, failure / 2)[1]

    def most_draws(self, finer: float = 1.0) -> float:
        """Return the largest number of draws, for so much finer a precision than 5e-3; NotEvaluable: too few."""
        most = _WORK / self.upper.draw_steps * finer**2 / (1 if self.lower in (self.upper, None) else 2)
        if most < 2_000:
            raise NotEvaluable("a draw of all hidden rounds takes too long")
        return most


def half_width(pilot: Pilot, draws: int, log_term: float, bound: float | None = None) -> float:
    """Return half of the width of the bracket on epsilon that so many draws will leave.

    Raises:
        NotEvaluable: the bracket would be so wide that other bounds are as good.
    """
    half = pilot.relative_error(draws, log_term, bound) / pilot.slope
    if 2 * half > _HOPELESS * max(pilot.epsilon, 0.1):
        raise NotEvaluable(f"sampling leaves epsilon, some {pilot.epsilon:.2g}, uncertain by {2 * half:.1g}")
    return half


def _with_add(remove: Bounds, known: float, sample: Callable[[], Bounds]) -> Bounds:
    """Return the larger of both directions.

    The add direction is at most ``known``, and sampled where it may decide.
    """
    if known <= remove.upper:
        return remove  # the larger of both lies in this bracket in any case
    try:
        add = sample()
    except NotEvaluable:
        if known == math.inf:
            raise
        add = Bounds(0.0, math.inf)
    if add.upper > known:
        add = Bounds(min(add.lower, known), known, remove.origin.used_by(Method.ADD_BY_LAW))
    decides = max(remove, add, key=lambda bounds: bounds.upper)
    return Bounds(max(remove.lower, add.lower), decides.upper, decides.origin)
