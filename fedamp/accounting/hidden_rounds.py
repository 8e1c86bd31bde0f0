"""The likelihood ratio X of a run that has hidden rounds, draws of its rounds, and how several choices overlap.

X is a product of independent factors. One factor is the mean of e_h(x_1, .., x_r) / C(r, h) over the number h of rounds
that a person takes part in, x_i the independent likelihood ratios of the rounds and e_h the elementary symmetric
polynomial; docs/k-of-t.md.

Both kinds of rounds can be drawn tilted by a power of x, have a ``fingerprint`` that tells laws apart, so that each
has its own random numbers, and know:

    zero, infinite: Q-mass where x = 0, and P-mass where x is infinite.
    law_rounding: bound on the relative error of all masses; ratios are off by at most twice that.
    table_rounding: bound on the total variation between a draw and its law, and on the error of ``log_moment``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.arithmetic import (
    EXPONENT,
    UNIT,
    Array,
    invert,
    log_choose,
    log_factorials,
    paired_means,
    rounding_of_overlaps,
    scale_and_shift,
    symmetric_means,
)
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.convolve import Points

_PARTS = 2**14  # a power of two, so that the part a uniform number falls in is found without rounding


@dataclass(frozen=True)
class GaussianRound:
    """x = exp(z / s - 1 / (2 s^2)), z standard normal, exactly. ``noise_multiplier``: s > 0."""

    noise_multiplier: float
    zero = infinite = law_rounding = 0.0
    table_rounding = 4 * UNIT

    def log_moment(self, exponent: float) -> float:
        """log of the mean of x^exponent over finite x > 0 under Q; at exponent 0 zero counts, too."""
        return exponent * (exponent - 1) / self.noise_multiplier**2 / 2

    def fingerprint(self) -> bytes:
        return np.float64(self.noise_multiplier).tobytes()

    def draw(self, rng: np.random.Generator, exponents: Array, counts: NDArray[np.int32]) -> tuple[Array, Array]:
        """Ratios x, shape (draws, rounds), and the logs of their products, shape (draws,): on row d the first
        ``counts[d, 0]`` are drawn from the law tilted by x to the power ``exponents[0]``, the next ``counts[d, 1]`` by
        ``exponents[1]``, and so on. Tilting by x^c moves z by c / s.
        """
        ratios = rng.standard_normal((len(counts), int(counts[0].sum())))
        precision = 1 / self.noise_multiplier
        log_products = scale_and_shift(ratios, precision, (exponents - 0.5) * precision**2, counts)
        with np.errstate(over="ignore"):  # refused where X is computed
            return np.exp(ratios, out=ratios), log_products


@dataclass(frozen=True, eq=False)
class FiniteRound:
    """A finite law of x, such as either end of a ``Law``: its upper law gives upper bounds, its lower law lower ones.
    ``points``: log ratios with P-masses and Q-masses. ``law_rounding``: bound on the relative error of the masses.
    """

    points: Points
    law_rounding: float = 0.0

    @property
    def zero(self) -> float:
        return self.points.zero

    @property
    def infinite(self) -> float:
        return self.points.infinite

    @property
    def table_rounding(self) -> float:
        return (4 * len(self.points) + 128 * EXPONENT) * UNIT

    def log_moment(self, exponent: float) -> float:
        logs = self._log_masses + exponent * self._log_ratios
        largest = float(logs.max(initial=-math.inf))
        if largest == -math.inf:
            raise NotEvaluable("the ratio of a round is 0 or infinite")
        total = float(np.exp(logs - largest).sum())
        if exponent == 0:
            total += self.zero * math.exp(-largest)
        return largest + math.log(total)

    def fingerprint(self) -> bytes:
        return self._log_ratios.tobytes() + self._log_masses.tobytes()

    def draw(self, rng: np.random.Generator, exponents: Array, counts: NDArray[np.int32]) -> tuple[Array, Array]:
        """By inversion, so that equal uniforms give neighbouring ratios under neighbouring laws."""
        ratios = rng.random((len(counts), int(counts[0].sum())))
        tables = [self._table(float(exponent)) for exponent in exponents]
        values = np.append(self._log_ratios[::-1], -math.inf)
        below, starts = (np.stack(table) for table in zip(*tables, strict=True))
        with np.errstate(over="ignore"):  # refused where X is computed
            return ratios, invert(ratios, values, np.exp(values), below, starts, counts)

    @cached_property
    def _used(self) -> NDArray[np.bool_]:
        return self.points.log_mass_out > -math.inf

    @cached_property
    def _log_ratios(self) -> Array:
        return self.points.log_ratio[self._used]

    @cached_property
    def _log_masses(self) -> Array:
        """Of the Q-masses."""
        return self.points.log_mass_out[self._used]

    def _table(self, exponent: float) -> tuple[Array, NDArray[np.int32]]:
        """Distribution function from the largest ratio down to zero, and where in it each of ``_PARTS`` equal parts of
        [0, 1) starts.
        """
        masses = np.exp(self._log_masses + exponent * self._log_ratios - self.log_moment(exponent))[::-1]
        below = np.cumsum(np.append(masses, self.zero if exponent == 0 else 0.0))
        below /= below[-1]
        below[below >= below[-1]] = math.inf  # the search ends here
        return below, np.searchsorted(below, np.arange(_PARTS) / _PARTS, side="right").astype(np.int32)


Round = GaussianRound | FiniteRound


@dataclass(frozen=True, eq=False)
class HiddenRounds:
    """One factor of X: a person takes part in H of ``rounds`` released rounds, a uniform set of a random size.
    ``round``: the likelihood ratio of one round. ``chances``: of H = 0, 1, ..; the last one is positive. ``rounds``: >=
    1. ``copies``: how many independent factors like this one there are. ``chance_rounding``: bound on the relative
    error of ``chances``.
    """

    round: Round
    chances: tuple[float, ...]
    rounds: int
    copies: int = 1
    chance_rounding: float = 0.0
    people: ClassVar[int] = 1

    @property
    def share(self) -> float:
        """Expected part of the rounds that a person takes part in."""
        return math.fsum(h * chance for h, chance in enumerate(self.chances)) / self.rounds

    @property
    def most(self) -> int:
        """The most rounds that a person can take part in."""
        return len(self.chances) - 1

    def log_ratios(self, ratios: Array) -> Array:
        """log X for rows of ratios, shape (draws, rounds); see ``loops.symmetric_means``. Raises ``NotEvaluable``:
        ratios leave the range in which the stated rounding holds.
        """
        if self.chances == (0.0, 1.0) and self.rounds == 1:
            if not np.max(ratios) < math.inf:
                raise NotEvaluable("likelihood ratios leave the range of floating point")
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(ratios[:, 0]))
        return log_beginnings(self._alone, ratios)[:, 0]

    @cached_property
    def _alone(self) -> "Beginnings":
        return Beginnings.of([self])

    def weights(self, rate: float) -> Array:
        """The chance of each h over C(r, h) q^h (1 - q)^(r - h), at a rate q near the share."""
        taken = np.flatnonzero(self.chances)
        logs = np.log(np.array(self.chances)[taken]) - log_choose(self.rounds, taken) - taken * math.log(rate)
        if rate < 1:
            logs -= (self.rounds - taken) * math.log1p(-rate)
        weights = np.zeros(len(self.chances))
        with np.errstate(over="ignore"):  # refused where X is computed
            weights[taken] = np.exp(logs)
        return weights

    def tilts(self, order: float) -> tuple[Array, Array, "Occupancies"]:
        """How rounds are held under X^order, at whole orders, or below 2 under X times Y of docs/k-of-t.md, Proposition
        5: of each class the exponent of a round's ratio and the log mean of what it weighs; how many rounds each has.
        """
        exponents = np.arange(order + 1.0) if order >= 2 else np.array([0.0, 1.0, order - 1, order])
        log_mu = np.array([self.round.log_moment(exponent) for exponent in exponents])
        if order >= 2:
            return exponents, log_mu, occupancies(self.chances, self.rounds, int(order))
        return exponents, log_mu, pairs(self.chances, self.rounds, order - 1)

    @property
    def work(self) -> int:
        """Steps of the recursion a draw."""
        return self.rounds * (self.most + 8) + 100

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X: a sum of products of h ratios (each off by a few units of its logarithm),
        with three roundings a round, and the factors outside. Underflow adds less than 1e-90: as many steps as there
        are, each off by 1e-308, times at most 1e200 (what they grow by, and the weight of h successes at the end).
        """
        rate = min(self.share, 1.0)
        outside = 16 * (math.lgamma(self.rounds + 1) + self.rounds + 1) - 8 * self.most * math.log(rate)
        outside -= 8 * self.rounds * math.log1p(-rate) if rate < 1 else 0.0
        units = 3 * self.rounds + (4 * EXPONENT + 4) * self.most + outside
        return units * UNIT + 2 * self.most * self.round.law_rounding + self.chance_rounding


@dataclass(frozen=True, eq=False)
class PairOfPeople(HiddenRounds):
    """Two people who choose independently and contribute the same. A round with c of them has the ratio
    exp(c z / s - c^2 / (2 s^2)), s the noise of one of them.
    """

    people = 2

    @property
    def work(self) -> int:
        return self.rounds * ((self.most + 1) * (self.most + 2) + 16) + 100

    @property
    def ratio_rounding(self) -> float:
        return 2 * super().ratio_rounding + 8 * self.rounds * UNIT

    def log_ratios(self, ratios: Array) -> Array:
        rate = min(self.share, 1.0)
        damp, weights = math.exp(-self.round.log_moment(2.0)), self.weights(rate)
        means, largest = paired_means(ratios, rate, weights, damp)
        if not largest * max(weights.max(), 1.0) < 1e100:
            raise NotEvaluable("likelihood ratios leave the range of floating point")
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(means))

    def tilts(self, order: float) -> tuple[Array, Array, "Occupancies"]:
        """X^2 is a mean over two pairs of sets. Rounds held a times by the first pair and b times by the second are of
        the classes (a + b, a b) = (0, 0), (1, 0), (2, 0), (2, 1), (3, 2), (4, 4), and weigh exp(a b / s^2).
        """
        if order != 2 or self.round.log_moment(2.0) > 600:
            raise NotEvaluable("two people are sampled at order 2 only, and not at little noise")
        both = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 4.0]) * self.round.log_moment(2.0)
        return np.array([0.0, 1.0, 2.0, 2.0, 3.0, 4.0]), both, _pairs_of_pairs(self.chances, self.rounds)


class Beginnings(NamedTuple):
    """Beginnings of one factor of X, ascending, the last the factor itself. ``rounds``: of each, shape (n,). ``rate``:
    the share. ``tails``: shape (n, k + 1), of each number h of rounds taken part in. ``fewest``: of them in all rounds.
    """

    rounds: NDArray[np.int64]
    rate: float
    tails: Array
    fewest: int

    @classmethod
    def of(cls, factors: Sequence[HiddenRounds]) -> "Beginnings":
        last = factors[-1]
        rate = min(last.share, 1.0)
        tails = [np.pad(each.weights(rate), (0, last.most - each.most)) for each in factors]
        fewest = int(np.flatnonzero(last.chances)[0])
        return cls(np.array([each.rounds for each in factors]), rate, np.stack(tails), fewest)


def log_beginnings(parts: Beginnings, ratios: Array) -> Array:
    """log X after each beginning, shape (draws, n); see :meth:`HiddenRounds.log_ratios`."""
    means, largest = symmetric_means(ratios, parts.rate, parts.tails, parts.rounds, parts.fewest)
    if not largest * max(parts.tails.max(), 1.0) < 1e200:
        raise NotEvaluable("likelihood ratios leave the range of floating point")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(means))


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
        return sum(each.copies * each.work for each in self.factors)

    def fingerprint(self) -> bytes:
        """Tells runs apart, so that each has its own random numbers."""
        texts = (
            f"{each.chances} {each.rounds} {each.copies}{'' if each.people == 1 else ' pairs'}".encode()
            + each.round.fingerprint()
            for each in self.factors
        )
        return b"|".join(texts)


# Overlaps of several choices, and the exact moments of X that follow; docs/k-of-t.md has the proofs.

_MOST_ROWS, _MOST_TO_EXTEND = 500_000, 5_000
"""Rows that the recursion keeps at once (some 40 MB), and from which it goes on to one subset more."""


class Occupancies(NamedTuple):
    """All occupancies of t subsets. ``counts``: shape (S, t + 1): n_0..n_t of each; rows sum to the rounds in question.
    ``log_chance``: shape (S,): log of the probability of each, under t independent uniform subsets.
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


@lru_cache(maxsize=16)
def _pairs_of_pairs(chances: tuple[float, ...], rounds: int) -> Occupancies:
    """Of two pairs of sets the classes of ``PairOfPeople.tilts``. Given how many rounds either pair holds 0, 1 and 2
    times, the numbers n_ab of those held a times by one and b times by the other are those of a contingency table with
    these margins: their chance is a multivariate hypergeometric one.
    """
    pair = occupancies(chances, rounds, 2)
    largest = pair.counts[:, 1:].max(axis=0)
    if len(pair.counts) ** 2 * int(largest[0] + 1) * int(largest[1] + 1) ** 2 > 40 * _MOST_ROWS:
        raise NotEvaluable("the choices of two people overlap in too many ways")
    logs, found = log_factorials(rounds), []
    for (n, one), (m, other) in product(zip(*pair, strict=True), repeat=2):
        grid = np.indices((min(n[1], m[1]) + 1, min(n[1], m[2]) + 1, min(n[2], m[1]) + 1, min(n[2], m[2]) + 1))
        n11, n12, n21, n22 = (each.ravel() for each in grid)
        n10, n20, n01, n02 = n[1] - n11 - n12, n[2] - n21 - n22, m[1] - n11 - n21, m[2] - n12 - n22
        table = np.stack([n[0] - n01 - n02, n01, n02, n10, n11, n12, n20, n21, n22])
        table = table[:, (table >= 0).all(axis=0)]
        log_chance = one + other + logs[n].sum() + logs[m].sum() - logs[rounds] - logs[table].sum(axis=0)
        n00, n01, n02, n10, n11, n12, n20, n21, n22 = table
        counts = np.stack([n00, n01 + n10, n02 + n20, n11, n12 + n21, n22], axis=1)
        found.append(_merged(counts.astype(np.int32), log_chance))
    counts, log_chance = (np.concatenate(each) for each in zip(*found, strict=True))
    return Occupancies(*_merged(counts, log_chance))


def hidden_log_moments(log_moments: Array, chances: tuple[float, ...], rounds: int, off: float = 0.0) -> Array:
    """Integer moments of X where a person takes part in hidden rounds, a uniform set of a size drawn by ``chances``.
    ``log_moments``: log E[x^a] of one round, exact or from above, at a = 0..A, shape (A + 1,). ``chances``: of taking
    part 0, 1, .. times, each known to a relative error of ``off``. ``rounds``: all of them released. Returns log E[X^a]
    at a = 0..A, exact or from above, shape (A + 1,), rounding included.
    """
    result = np.zeros(len(log_moments))
    for order in range(2, len(log_moments)):
        counts, log_chance = occupancies(chances, rounds, order)
        held = counts[:, 2:] @ np.asarray(log_moments[2 : order + 1])
        error = rounding_of_overlaps(rounds, order) + 2 * order * off + 16 * order * UNIT * float(np.abs(held).max())
        result[order] = np.logaddexp.reduce(log_chance + held) + error
    return result


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
