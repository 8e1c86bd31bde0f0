"""The likelihood ratio X of a run that has hidden rounds, and laws to draw its rounds from; docs/k-of-t.md has the
proofs, docs/correlated-noise.md those of spaced rounds.

X is a product of independent factors. One factor is the mean of e_h(x_1, .., x_r) / C(r, h) over the number h of rounds
that a person takes part in, x_i the independent likelihood ratios of the rounds and e_h the elementary symmetric
polynomial. A proposal is a law R of the rounds with a known density dR/dQ, for which delta(epsilon) = E_R[v] with
0 <= v <= a known bound: mostly in proportion to a power of X, whose moment follows from how several choices overlap.

Both kinds of rounds can be drawn tilted by a power of x, have a ``fingerprint`` that tells laws apart, so that each
has its own random numbers, and know:

    zero, infinite: Q-mass where x = 0, and P-mass where x is infinite.
    law_rounding: bound on the relative error of all masses; ratios are off by at most twice that.
    table_rounding: bound on the total variation between a draw and its law, and on the error of ``log_moment``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations, product
from operator import attrgetter
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import arithmetic
from fedamp.accounting.arithmetic import (
    BUFFERS,
    EXPONENT,
    UNIT,
    Array,
    chance_of_any,
    log_choose,
    log_factorials,
    log_sum,
    rounding_of_overlaps,
)
from fedamp.accounting.bounds import NotEvaluable, epsilon_of_moment, log_delta_of_moment
from fedamp.accounting.convolve import Points
from fedamp.accounting.events import BallsInBins, Spaced, spaced_sets

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
        log_products = arithmetic.scale_and_shift(ratios, precision, (exponents - 0.5) * precision**2, counts)
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
            return ratios, arithmetic.invert(ratios, values, np.exp(values), below, starts, counts)

    @cached_property
    def _log_ratios(self) -> Array:
        return self.points.log_ratio[self.points.log_mass_out > -math.inf]

    @cached_property
    def _log_masses(self) -> Array:
        """Of the Q-masses."""
        return self.points.log_mass_out[self.points.log_mass_out > -math.inf]

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
        """log X for rows of ratios, shape (draws, rounds); see ``arithmetic.symmetric_means``. ``NotEvaluable``:
        ratios leave the range in which the stated rounding holds.
        """
        if self.chances == (0.0, 1.0) and self.rounds == 1:
            return _logs(ratios[:, 0], float(np.max(ratios)), math.inf)
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
        means, largest = arithmetic.paired_means(ratios, rate, weights, damp)
        return _logs(means, largest * max(weights.max(), 1.0), 1e100)

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
    means, largest = arithmetic.symmetric_means(ratios, parts.rate, parts.tails, parts.rounds, parts.fewest)
    return _logs(means, largest * max(parts.tails.max(), 1.0))


def _logs(means: Array, largest: float, limit: float = 1e200) -> Array:
    """Their logs, if the ``largest`` number on the way is below the ``limit``; else NotEvaluable."""
    if not largest < limit:
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


# Laws to draw the rounds of a run from.


class Moment(NamedTuple):
    """What log E[X^order] <= ``log_moment`` proves."""

    order: float
    log_moment: float

    def log_bound(self, epsilon: float) -> float:
        return log_delta_of_moment(self.order, self.log_moment, epsilon)

    def bound_at(self, delta: float) -> float:
        return epsilon_of_moment(self.order, self.log_moment, delta)


class Proposal(ABC):
    """A law R to draw the rounds of a run from, and values v whose mean under R is delta. ``run``: what is released.
    ``name``: for a person to read; tells proposals for one run apart. ``parameters``: which of its kind it is.
    ``moment``: what bounds v; its order is the power of X in the density of R. ``variation``: bound on the total
    variation between the draws and R. ``relative``: bound on the relative error of v, X aside. With r the
    ``ratio_rounding`` of the run, values are off by at most a factor exp(relative + order * r), and belong to an
    epsilon off by r.
    """

    run: Run
    name: str
    parameters: tuple[float, ...]
    moment: Moment
    variation: float
    relative: float

    def log_bound(self, epsilon: float) -> float:
        """log of the largest value of v."""
        return self.moment.log_bound(epsilon)

    @abstractmethod
    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        """Logs of two positive numbers a and b for each draw; v = (a - exp(epsilon) b)+."""

    def on(self, run: Run) -> "Proposal":
        """The same proposal for another run."""
        return cast(Callable[..., Proposal], type(self))(run, *self.parameters)


@dataclass(frozen=True, eq=False)
class Pilot:
    """A first look that certifies nothing: where to look closer, and how many draws that takes. ``epsilon``, ``delta``:
    a point of the privacy profile, estimated. ``spread``: standard deviation of one draw over the mean. ``bound``: the
    largest value of one draw over the mean. ``slope``: how fast log delta falls as epsilon rises there.
    """

    proposal: Proposal
    epsilon: float
    delta: float
    spread: float
    bound: float
    slope: float

    def error(self, draws: float, log_term: float) -> float:
        """Relative error of delta that so many draws will leave."""
        stake = min(math.sqrt(2 * log_term / draws) / self.spread, STAKE / self.bound)
        return stake * self.spread**2 / 2 + log_term / (draws * stake)

    @property
    def for_lower(self) -> "Pilot":
        """The same for lower ends, which need no bound."""
        return replace(self, bound=1.0)

    @property
    def effort(self) -> float:
        """Draws for an epsilon known to 0.01 either way."""
        return self.draws_for(0.01 * self.slope, 32.0)

    def draws_for(self, error: float, log_term: float) -> float:
        """Draws that leave a relative error of delta of so much, or a fifth."""
        error = min(error, 0.2)
        stake = min(error / self.spread**2, STAKE / self.bound)
        return log_term / (stake * (error - stake * self.spread**2 / 2)) if stake > 0 else math.inf


STAKE = 0.8  # the largest stake on an upper end, over 1 / b
HIGHEST_SAMPLED_ORDER = 16
_WIDE = 1.7  # standard deviation of a draw over its mean; about 1.5 is the least that a power of X reaches
_LOW_ORDERS = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9)  # orders to try where noise is little
_MOST_COINS = 64  # orders of independent rounds to try
_EXACT = 0.2  # share of draws by a power of X, beside independent rounds; the bound is multiplied by its inverse

Rank = Callable[[Moment], float]  # what a moment alone proves about the answer: the smaller, the better
Look = Callable[[Proposal], Pilot]  # takes the pilot of a proposal


def best(pilots: Iterable[tuple[float, Pilot]]) -> tuple[float, Pilot]:
    """Of pilots (and their parameters) the one that needs the fewest draws; stops where that rises. Raises
    ``NotEvaluable``: there is no first one, or its draws meet no loss beyond epsilon.
    """
    chosen = None
    try:
        for parameter, pilot in pilots:
            if chosen is not None and pilot.effort >= chosen[1].effort:
                break
            chosen = parameter, pilot
    except NotEvaluable:
        if chosen is None:
            raise
    if chosen is None or chosen[1].effort == math.inf:
        raise NotEvaluable("the draws meet no loss beyond epsilon")
    return chosen


class _Tilted(NamedTuple):
    """One factor of X under the tilt X^t. ``counts``: shape (S, n), the occupancies; n = t + 1, or 4 for t below 2.
    ``exponents``: shape (n,): of the ratio of a round that is held 0, .., t times (below 2: by neither, by one, by the
    other, by both). ``log_mu``: logs of the moments of these exponents. ``below``: shape (S,), distribution function
    over occupancies. ``log_moment``: log E[X^t]. ``error``: bound on the error of the latter.
    """

    counts: NDArray[np.int32]
    exponents: Array
    log_mu: Array
    below: Array
    log_moment: float
    error: float

    @classmethod
    def of(cls, factor: HiddenRounds, order: float) -> "_Tilted":
        exponents, log_mu, (counts, log_chance) = factor.tilts(order)
        log_weights = log_chance + counts @ log_mu
        largest = float(log_weights.max())
        below = np.cumsum(np.exp(log_weights - largest))
        error = (
            rounding_of_overlaps(factor.rounds, max(order, 2) * factor.people)
            + 2 * order * factor.people * factor.chance_rounding
            + factor.rounds * factor.round.table_rounding
            + ((8 * order + 16) * (float(np.abs(log_mu).max() * factor.rounds) + 1) + len(below)) * UNIT
        )
        return cls(counts, exponents, log_mu, below / below[-1], largest + math.log(below[-1]), error)


class _Coins(NamedTuple):
    """One factor of X under the tilt prod_i (1 + r x_i)^t, where rounds are independent. ``order``: t, whole. ``odds``:
    r. ``chances``: of the exponents 0, .., t of a round. ``log_moment``: log E[(1 + r x)^t]. ``typical``: log of about
    E[X^t]. ``error``: bound on the error of the log of the density.
    """

    order: int
    odds: float
    chances: Array
    log_moment: float
    typical: float
    error: float

    @classmethod
    def of(cls, factor: HiddenRounds, order: int) -> "_Coins":
        """With the odds that bound X^t best: X <= max_h w_h / C(T, h) r^-h prod_i (1 + r x_i), convex in log r."""
        held, taken = np.arange(order + 1.0), np.flatnonzero(factor.chances)
        log_terms = log_choose(order, np.arange(order + 1)) + [factor.round.log_moment(exponent) for exponent in held]
        log_sets = np.log(np.array(factor.chances)[taken]) - log_choose(factor.rounds, taken)

        def logs(position: float) -> tuple[float, float]:
            """log E[(1 + r x)^t], and log of the bound on X^t over prod_i (1 + r x_i)^t."""
            return float(np.logaddexp.reduce(log_terms + held * position)), order * max(log_sets - taken * position)

        def proved(position: float) -> float:
            moment, bound = logs(position)
            return factor.rounds * moment + bound

        at_share = -math.log(max(1 / factor.share - 1, 1e-15))
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
    """The sum over all sets of (w times their ratio) to a ``power`` in (0, 1): as hidden rounds, whose ratios are to be
    given to that power, and the log of what their mean is to be multiplied by.
    """
    h = np.arange(factor.most + 1)
    with np.errstate(divide="ignore"):
        logs = power * np.log(factor.chances) + (1 - power) * log_choose(factor.rounds, h)
    total = float(np.logaddexp.reduce(logs))
    if np.any((logs > -np.inf) & (logs < total - 600)):
        raise NotEvaluable("the chances of hidden choices differ too much for an order below 2")
    off = power * factor.chance_rounding + rounding_of_overlaps(factor.rounds, 2)
    return replace(factor, chances=tuple(np.exp(logs - total).tolist()), chance_rounding=off), total


class RemoveProposal(Proposal):
    """H(P, Q), docs/k-of-t.md, Propositions 1 to 3: dR = (w X^t / M_t + (1 - w) Y / E[Y]) dQ, Y the product of (1 + r
    x)^u over all ratios x. Without Y (u = 0) w is 1. Y stands in for orders with too many occupancies. Below 2, for
    little noise, X^t stands for X times the sum over all choices of (their probability times their ratio)^(t - 1)
    (Proposition 5). ``order``: t, a whole number from 2 on, or between 1 and 2. ``coins``: u, a whole number.
    """

    def __init__(self, run: Run, order: float, coins: int = 0) -> None:
        self.run, self.order, self.coins, self.parameters = run, order, coins, (order, coins)
        self.name = f"order {order:.3g}" + (f" and independent rounds of order {coins}" if coins else "")
        self._share = _EXACT if coins else 1.0
        self._tilted = [_Tilted.of(each, order) for each in run.factors]
        both = list(zip(run.factors, self._tilted, strict=True))
        self._coins = [_Coins.of(each, coins) for each in run.factors] if coins else []
        self.log_moment = sum(each.copies * tilted.log_moment for each, tilted in both)
        self.moment = Moment(order, self.log_moment - math.log(self._share))
        self.relative = sum(
            each.copies
            * (3 * tilted.error + (3 + 4 * coins) * each.rounds * each.round.law_rounding + (64 + 8 * coins) * UNIT)
            for each, tilted in both
        )
        self.relative += sum(each.copies * 3 * c.error for each, c in zip(run.factors, self._coins, strict=False))
        self._powers = [_sum_of_powers(each, order - 1) for each in run.factors] if order < 2 else []
        self.relative += sum(each.copies * (each.ratio_rounding + 64 * UNIT) for each, _ in self._powers)
        self.variation = sum(
            each.copies * (each.rounds * each.round.table_rounding + 4 * len(tilted.below) * UNIT + coins * 1e-12)
            for each, tilted in both
        )

    def _ratios(
        self, rng: np.random.Generator, j: int, independent: NDArray[np.bool_]
    ) -> tuple[Array, NDArray[np.int32]]:
        """Ratios of factor j, and how many of them have each exponent. Binomial numbers more than ten standard
        deviations out do not occur; ``variation`` has 1e-12 for that.
        """
        factor, tilted, some = self.run.factors[j], self._tilted[j], int(independent.sum())
        exponents, width = tilted.exponents, len(tilted.exponents)
        counts = np.zeros((len(independent), width), np.int32)
        drawn = np.searchsorted(tilted.below, rng.random(len(independent) - some), side="right")
        counts[~independent] = tilted.counts[np.minimum(drawn, len(tilted.below) - 1)]
        if self.coins:
            counts = np.pad(counts, ((0, 0), (0, self.coins + 1)))
            exponents = np.append(exponents, np.arange(self.coins + 1.0))
            counts[independent, width:] = rng.multinomial(factor.rounds, self._coins[j].chances, size=some)
        return factor.round.draw(rng, exponents, counts)[0], counts

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        independent = rng.random(draws) >= self._share
        log_ratio, log_power, log_coins = np.zeros((3, draws))
        for j, factor in enumerate(self.run.factors):
            for _ in range(factor.copies):
                ratios, _ = self._ratios(rng, j, independent)
                log_ratio += factor.log_ratios(ratios)
                if self._powers:
                    powers, log_total = self._powers[j]
                    log_power += powers.log_ratios(ratios ** (self.order - 1)) + log_total
                if self.coins:
                    coin = self._coins[j]
                    log_coins += (
                        coin.order * arithmetic.log_products(ratios, coin.odds) - factor.rounds * coin.log_moment
                    )
        return self._excess(log_ratio, log_ratio + log_power if self._powers else self.order * log_ratio, log_coins)

    def draw_beginnings(self, rng: np.random.Generator, draws: int, parts: Beginnings) -> tuple[Array, Array]:
        """Proposition 6: as ``draw``, at whole orders, for the beginnings of the only factor, shape (draws, n)."""
        if self._powers:
            raise NotEvaluable("beginnings are drawn at whole orders only")
        independent = rng.random(draws) >= self._share
        (factor,), (tilted,), first = self.run.factors, self._tilted, int(parts.rounds[0])
        ratios, counts = self._ratios(rng, 0, independent)
        held = arithmetic.shuffle_ends(ratios, counts, rng.random((draws, factor.rounds - first)))
        log_mu = np.append(tilted.log_mu, np.zeros(self.coins + 1))  # independent later rounds integrate to 1
        later = np.cumsum(np.pad(log_mu[held], ((0, 0), (0, 1)))[:, ::-1], axis=1)[:, ::-1]
        log_ratio, log_coins = log_beginnings(parts, ratios), np.zeros(1)
        for coin in self._coins:
            log_coins = (coin.order * np.cumsum(np.log1p(coin.odds * ratios), axis=1))[:, parts.rounds - 1]
            log_coins -= parts.rounds * coin.log_moment
        log_a, log_b = self._excess(log_ratio, self.order * log_ratio, log_coins)
        return log_a - later[:, parts.rounds - first], log_b - later[:, parts.rounds - first]

    def _excess(self, log_ratio: Array, log_power: Array, log_coins: Array) -> tuple[Array, Array]:
        """Logs of a and b, for v = (X - e^epsilon)+ dQ/dR."""
        density = math.log(self._share) - self.log_moment + log_power
        if self.coins:
            density = np.logaddexp(density, math.log1p(-self._share) + log_coins)
        some = log_ratio > -math.inf
        log_b = np.where(some, -density, math.inf)
        return np.where(some, log_b + log_ratio, -math.inf), log_b

    def slack(self, parts: Beginnings) -> float:
        """log of what the bound of draws of beginnings is to be multiplied by: moments of a cut law may be below 1."""
        return float(parts.rounds[-1] - parts.rounds[0]) * max(0.0, -float(self._tilted[0].log_mu.min()))

    @classmethod
    def pilot(cls, run: Run, rank: Rank, look: Look, highest: int = HIGHEST_SAMPLED_ORDER) -> Pilot:
        """Of the order whose bound is the least, or the whole one below; where that leaves a wide spread, of the best
        independent rounds beside it.
        """
        proposal = cls.by_moments(run, rank, highest)
        if proposal.order == 2:
            with suppress(NotEvaluable):
                low = min((cls(run, each) for each in _LOW_ORDERS), key=lambda each: rank(each.moment))
                if rank(low.moment) < rank(proposal.moment):
                    return look(low)
        orders = range(int(proposal.order), max(int(proposal.order) - 2, 1), -1)
        found = best((each, look(cls(run, each))) for each in orders)[1]
        if found.spread < _WIDE:
            return found
        tried = [found]
        with suppress(NotEvaluable):  # ratios may leave the range of floating point
            coins = cls._best_coins(run, rank)
            tried += [look(cls(run, int(proposal.order), each)) for each in (coins, coins - 1) if each > 1]
        # Where the bound is too large for an upper end, that is left to others: the spread decides about the lower one.
        return min(tried, key=lambda pilot: replace(pilot, bound=min(pilot.bound, 1000.0)).effort)

    @staticmethod
    def _best_coins(run: Run, rank: Rank) -> int:
        """The order that would prove the least if moments were ``typical``."""
        least, chosen = math.inf, 2
        for order in range(2, _MOST_COINS):
            typical = sum(each.copies * _Coins.of(each, order).typical for each in run.factors)
            if (found := rank(Moment(order, typical))) >= least:
                break
            least, chosen = found, order
        return chosen

    @classmethod
    def by_moments(cls, run: Run, rank: Rank, highest: int = HIGHEST_SAMPLED_ORDER) -> "RemoveProposal":
        """The order, up to ``highest``, whose bound is the least."""
        found = cls(run, 2)
        for order in range(3, highest + 1):
            try:
                proposal = cls(run, order)
            except NotEvaluable:
                break
            if rank(proposal.moment) >= rank(found.moment):
                break
            found = proposal
        return found

    @staticmethod
    def share(run: Run) -> float:
        """P-mass at infinite ratios. Only rounds taken part in can meet one."""
        return chance_of_any((each.round.infinite, each.copies * each.most) for each in run.factors)


class AddProposal(Proposal):
    """H(Q, P), docs/k-of-t.md, Proposition 4: dR prop. to G^-a dQ, with G as in ``RemoveProposal``. ``share`` adds the
    mass at x = 0. ``tilt``: a > 0.
    """

    def __init__(self, run: Run, tilt: float) -> None:
        self.run, self.tilt, self.parameters = run, tilt, (tilt,)
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
        self.moment = Moment(1 + tilt, self.log_moment)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        log_a, log_ratio = np.full(draws, self.log_moment), np.zeros(draws)
        for factor in self.run.factors:
            exponent, counts = self.tilt * factor.share, np.full((draws, 1), factor.rounds, np.int32)
            for _ in range(factor.copies):
                ratios, log_products = factor.round.draw(rng, np.array([-exponent]), counts)
                log_a += exponent * log_products
                log_ratio += factor.log_ratios(ratios)
        return log_a, log_a + log_ratio

    @classmethod
    def pilot(cls, run: Run, rank: Rank, look: Look, highest: int = 0) -> Pilot:
        """Of the best tilt, from that of the least bound down."""
        candidates = [cls(run, 2.0**power) for power in np.arange(-10, 10, 0.5)]
        least = int(np.argmin([rank(proposal.moment) for proposal in candidates]))
        return best((each.tilt, look(each)) for each in candidates[least::-1])[1]

    @staticmethod
    def share(run: Run) -> float:
        """Q-mass at ratio 0, of any round."""
        return chance_of_any((each.round.zero, each.copies * each.rounds) for each in run.factors)


class Block(Proposal):
    """Draws for the last of some beginnings of one factor, with a column for each of them."""

    def __init__(self, whole: Proposal, parts: list[HiddenRounds]) -> None:
        assert isinstance(whole, RemoveProposal)
        self.whole, self.run, self.parts, self.moment = whole, whole.run, Beginnings.of(parts), whole.moment
        self.name, self.relative = f"{whole.name} from {parts[0].rounds}", 2 * whole.relative
        self.variation = whole.variation + parts[-1].rounds ** 2 * UNIT

    def log_bound(self, epsilon: float) -> float:
        return self.whole.log_bound(epsilon) + self.whole.slack(self.parts)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        return self.whole.draw_beginnings(rng, draws, self.parts)


# Correlated noise, where a person's rounds are hidden and spaced.

_HIGHEST = 4  # order; draws of more schedules take longer than they save
_DRIFTS = (1.5, 4.0, 10.0, 25.0)  # drifts to try; each adds this much to the order if X is a constant times G
_MOST_TUPLES = 4_000_000  # of listed sets: 32 MB
_UNDRIFTED = 0.5  # share of draws without drift; the bound is multiplied by its inverse
_MOST_ROUNDS = 1000  # without bands
_MOST_SETS = 2000  # that are listed
_MOST_STATES = 20_000_000  # numbers in a table: 160 MB


class Far(NamedTuple):
    """Sums of products of columns at least a gap apart, over sigma^2: the middle of the most and the least, and half
    their difference. ``inside``: over the pairs of a set. ``between``: over the pairs of two sets.
    """

    inside: tuple[float, float]
    between: tuple[float, float]


@dataclass(frozen=True)
class SpacedRun(Run):
    """``event``: what is released. ``noise_multiplier``: of one participation.

    X is the mean, over all sets S of k rounds at least ``gap`` apart, of the product of w_s over S, with w_s =
    exp(<c_s, z> / sigma - |c_s|^2 / (2 sigma^2)), c_s column s of C, cut after the released rows. Columns of a set are
    orthogonal if C has bands. Those of t sets that are drawn for X^t are not: their joint law is that of a Markov chain
    over the rounds since each of the t sets had its last one, and the rounds it has left. Without bands, columns that
    are a gap apart or more overlap as well; sets differ little in how much, and the difference is charged as ``Far``.
    """

    event: Spaced
    noise_multiplier: float
    log_least = -math.inf

    @classmethod
    def of(cls, event: BallsInBins | Spaced, noise_multiplier: float) -> "SpacedRun":
        """The run, with sets one by one where bands do not keep them apart and they are few."""
        if isinstance(event, Spaced) and (event.is_banded or event.sets > _MOST_SETS):
            return cls((), event, noise_multiplier)
        return ListedRun((), event, noise_multiplier)

    @cached_property
    def column(self) -> Array:
        """A column of C over sigma, shape (bands,)."""
        column = np.array([1.0, *self.event.coefficients])
        return np.asarray(column / (np.linalg.norm(column) * self.noise_multiplier))

    @cached_property
    def overlaps(self) -> Array:
        """<c_s, c_(s - d)> / sigma^2 at [s, d], d = 0..gap, shape (rounds, gap + 1)."""
        rounds, gap, released = self.event.rounds, self.event.gap, self.event.span
        padded = np.pad(self.column, (0, gap + 1))
        terms = np.array([self.column * padded[d : d + len(self.column)] for d in range(gap + 1)])
        sums = np.pad(np.cumsum(terms, axis=1), ((0, 0), (1, 0)))
        rows = np.clip(released - np.arange(rounds), 0, len(self.column))
        return np.ascontiguousarray(sums[:, rows].T)

    @cached_property
    def far(self) -> Far:
        """docs/correlated-noise.md, "Noise without bands": the sum over pairs is at most the largest sum, over a set,
        of the largest sums over another one.
        """
        event = self.event
        if event.is_banded:
            return Far((0.0, 0.0), (0.0, 0.0))
        if event.rounds > _MOST_ROUNDS:
            raise NotEvaluable(f"noise without bands is charged for up to {_MOST_ROUNDS} rounds")
        places = np.subtract.outer(np.arange(event.span), np.arange(event.rounds))
        column = np.pad(self.column, (0, event.rounds))
        cut = np.where(places >= 0, column[np.maximum(places, 0)], 0.0)
        apart = np.abs(np.subtract.outer(np.arange(event.rounds), np.arange(event.rounds)))
        products = np.where(apart >= event.gap, cut.T @ cut, 0.0)
        early = np.arange(event.k) * event.gap  # as coefficients never rise, no set has more inside
        inside = float(products[np.ix_(early, early)].sum())
        own = np.where((apart > 0) & (apart < event.gap), -np.inf, -products)
        own[np.diag_indices(event.rounds)] = event.rounds  # more than all others, so that a round is in its own set
        least_inside = -float(_most(_most(own, event) - event.rounds, event))
        between, least = float(_most(_most(products, event), event)), -float(_most(_most(-products, event), event))
        ends = (inside / 2, max(least_inside, 0.0) / 2), (between, max(least, 0.0))
        inner, outer = (((most + few) / 2, (most - few) / 2 + 1e-9 * most) for most, few in ends)
        return Far(inner, outer)

    @cached_property
    def shares(self) -> Array:
        """The chance of each round to be one of a person's, 0 for rounds that are not released, shape (rounds,)."""
        event = self.event
        found = np.zeros(event.rounds)
        for s in range(event.span):
            before, behind, left = max(s + 1 - event.gap, 0), max(event.rounds - s - event.gap, 0), event.k - 1
            ways = (
                spaced_sets(before, c, event.gap) * spaced_sets(behind, left - c, event.gap) for c in range(event.k)
            )
            found[s] = sum(ways) / event.sets
        return found

    @cached_property
    def drift(self) -> tuple[Array, Array, float]:
        """The mean m of all sets' columns over sigma, shape (released,); <c_s, m> / sigma, shape (rounds,); the mean
        of |c_s|^2 over all sets' rounds, summed, over sigma^2.
        """
        released = self.event.span
        mean = np.convolve(self.shares, self.column)[:released]
        along = np.zeros(self.event.rounds)
        along[:released] = np.correlate(np.pad(mean, (0, len(self.column) - 1)), self.column, "valid")
        return mean, along, float(self.shares @ self.overlaps[:, 0])

    @property
    def ratio_rounding(self) -> float:
        units = 2 * self.event.rounds + (8 * len(self.column) + 8) * EXPONENT * self.event.k + 64
        return (0.0 if self.event.is_banded else BUFFERS) + self.far.inside[1] + units * UNIT

    @property
    def widest(self) -> int:
        return 2 * self.event.rounds

    @property
    def work(self) -> int:
        return self.event.rounds * (self.event.k + len(self.column) + 60) + 100

    def fingerprint(self) -> bytes:
        return f"{self.event.to_json()}".encode() + np.float64(self.noise_multiplier).tobytes()

    def log_ratios(self, rows: Array) -> tuple[Array, Array]:
        """log X, and log G = the sum of the shares times log w_s, of z in ``rows``, shape (draws, released)."""
        event = self.event
        scale = math.exp(-math.log(event.sets) / event.k)
        padded, halves = np.pad(rows, ((0, 0), (0, len(self.column) - 1))), self.overlaps[:, 0] / 2
        means, logs, largest = arithmetic.spaced_means(
            padded, self.column, halves, self.shares, scale, event.k, event.gap, event.span
        )
        return _logs(means, largest) - self.far.inside[0], logs


def _most(weights: Array, event: Spaced) -> Array:
    """The largest sum of weights over a person's possible rounds, for each row of ``weights``, shape (.., rounds)."""
    sums = np.full((event.rounds + 1, event.k + 1, *weights.shape[:-1]), -np.inf)
    sums[:, 0] = 0.0
    for s in range(event.rounds):
        sums[s + 1, 1:] = np.maximum(sums[s, 1:], weights[..., s] + sums[max(s + 1 - event.gap, 0), :-1])
    return np.asarray(sums[-1, -1])


@lru_cache(maxsize=2)
def _tables(run: SpacedRun, order: int, drift: float) -> tuple[Array, Array, Array, Array, float]:
    """The weight of all that may follow: table[s, a, l], before round s + 1, with the ages a (rounds since the last
    one, less 1; ``gap`` - 1: the next may come) and the rounds l that are left, of each of ``order`` sets, up to a
    factor for each s. Also the weights of a round that a set takes alone, that two sets share, and of
    a round a + 1 after one of another set; the log of the weight of everything.
    """
    event, t = run.event, order
    gap, left = event.gap, event.k + 1
    if event.rounds * gap**t * left**t > _MOST_STATES:
        raise NotEvaluable(f"{t} spaced schedules have too many states")
    alone, same = np.exp(drift * run.drift[1]), np.exp(run.overlaps[:, 0])
    near = np.exp(np.where(np.arange(gap) < gap - 1, run.overlaps[:, 1:], 0.0))
    table = np.zeros((event.rounds + 1, *(gap,) * t, *(left,) * t))
    table[(-1, *(slice(None),) * t, *(0,) * t)] = 1.0
    older, log_scale = np.minimum(np.arange(gap) + 1, gap - 1), 0.0
    for s in range(event.rounds - 1, -1, -1):
        now, after = table[s], table[s + 1]
        for taken in product((False, True), repeat=t):
            count = sum(taken)
            weight = np.full((1,) * t, alone[s] ** count * same[s] ** (count * (count - 1) // 2))
            for axis in np.flatnonzero(~np.array(taken)) if count else ():
                weight = weight * np.moveaxis(near[s].reshape(gap, *(1,) * (t - 1)) ** count, 0, axis)
            to = tuple(slice(gap - 1, gap) if each else slice(None) for each in taken)
            more = tuple(slice(1, None) if each else slice(None) for each in taken)
            less = tuple(slice(None, -1) if each else slice(None) for each in taken)
            source = after[np.ix_(*[np.zeros(1, int) if each else older for each in taken])][(..., *less)]
            now[to + more] += weight.reshape(weight.shape + (1,) * t) * source
        power = math.frexp(now.max())[1]
        now *= 2.0**-power
        log_scale += power * math.log(2)
    whole = float(table[(0, *(gap - 1,) * t, *(event.k,) * t)])
    if not 1e-200 < whole < math.inf:
        raise NotEvaluable("weights of spaced schedules leave the range of floating point")
    table = table.reshape(event.rounds + 1, gap**t, left**t)
    return table, alone, same, near, math.log(whole) + log_scale


@lru_cache(maxsize=256)
def _log_moment(run: SpacedRun, order: int, drift: float) -> float:
    """log E_Q[X^order G^drift], or with ``Far`` what stands for it in the middle of the density."""
    mean, _, squares = run.drift
    sets = _tables(run, order, drift)[-1] - order * math.log(run.event.sets)
    sets += order * (order - 1) / 2 * run.far.between[0]
    return sets + drift * (drift * float(mean @ mean) - squares) / 2


class SpacedRemove(RemoveProposal):
    """As its base, at whole orders and with another second part: dR = X^t (w / M_t + (1 - w) G^g / M_(t,g)) dQ, G as
    in ``log_ratios``. ``drift``: g >= 0; w is 1 without it.
    """

    run: SpacedRun

    def __init__(self, run: SpacedRun, order: float, drift: float = 0.0) -> None:
        if order != int(order) or order > _HIGHEST:
            raise NotEvaluable(f"spaced schedules are drawn at whole orders up to {_HIGHEST} only")
        self.run, self.order, self.drift, self.parameters = run, int(order), drift, (order, drift)
        self.name = f"order {order:.3g}" + (f" and drift {drift:.2g}" if drift else "")
        self._share = _UNDRIFTED if drift else 1.0
        self.log_moment = _log_moment(run, self.order, 0.0)
        self._drifted_moment = _log_moment(run, self.order, drift)
        self.moment = Moment(order, self.log_moment - math.log(self._share))
        size = (order**2 + drift * (order + drift)) * run.event.k / run.noise_multiplier**2
        steps = run.event.rounds * (2**order + 4)
        self.relative = (8 * steps + 64 * (size + order * math.log(run.event.sets) + EXPONENT * drift)) * UNIT
        self.variation = 16 * self.relative
        self.relative += order * (order - 1) / 2 * run.far.between[1]

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        event, drifted = self.run.event, rng.random(draws) >= self._share
        rows, uniforms = rng.standard_normal((draws, event.span)), rng.random((event.rounds, draws))
        for which, drift in ((~drifted, 0.0), (drifted, self.drift)):
            if which.any():
                *tables, _ = _tables(self.run, self.order, drift)
                moved, drawn = rows[which] + drift * self.run.drift[0], np.ascontiguousarray(uniforms[:, which])
                arithmetic.spaced_rows(moved, drawn, *tables, self.run.column, self.order, event.k, event.gap)
                rows[which] = moved
        log_ratio, log_mean = self.run.log_ratios(rows)
        density = np.full(draws, math.log(self._share) - self.log_moment)
        if self.drift:
            drifted_density = math.log1p(-self._share) + self.drift * log_mean - self._drifted_moment
            density = np.logaddexp(density, drifted_density)
        some = log_ratio > -math.inf  # others are too small for floating point; their values are 0
        log_b = np.where(some, -self.order * np.where(some, log_ratio, 0.0) - density, math.inf)
        return np.where(some, log_b + log_ratio, -math.inf), log_b

    @classmethod
    def pilot(cls, run: Run, rank: Rank, look: Look, highest: int = HIGHEST_SAMPLED_ORDER) -> Pilot:
        """Of the order whose bound is the least, or the one below; where that leaves a wide spread, of the best drift
        beside it.
        """
        assert isinstance(run, SpacedRun)
        highest = int(cls.by_moments(run, rank, highest).order)
        order, found = best((each, look(cls(run, each))) for each in range(highest, max(highest - 2, 1), -1))
        if found.spread < _WIDE:
            return found
        tried = [found]
        for drift in _DRIFTS:
            with suppress(NotEvaluable):  # with so much of it ratios leave the range of floating point
                tried.append(look(cls(run, order, drift)))
        return min(tried, key=attrgetter("effort"))


@dataclass(frozen=True)
class ListedRun(SpacedRun):
    """X as a mean over few sets, each with its signal."""

    event: BallsInBins | Spaced  # type: ignore[assignment]

    @cached_property
    def signals(self) -> Array:
        """C 1_S over sigma for each set, shape (sets, released)."""
        event, column = self.event, np.pad(self.column, (0, self.event.rounds))
        if isinstance(event, Spaced):
            moved = np.arange(event.k) * (event.gap - 1)
            sets = [np.array(each, int) + moved for each in combinations(range(event.rounds - moved[-1]), event.k)]
        else:
            sets = [np.arange(first, event.rounds, event.gap) for first in range(event.gap)]
        if len(sets) > _MOST_SETS or event.rounds > _MOST_ROUNDS:
            raise NotEvaluable(f"up to {_MOST_SETS} sets of up to {_MOST_ROUNDS} rounds are listed")
        found = np.zeros((len(sets), event.span))
        for signal, rounds in zip(found, sets, strict=True):
            for s in rounds[rounds < event.span]:
                signal[s:] += column[: event.span - s]
        return found

    @property
    def ratio_rounding(self) -> float:
        """Of sums of ``span`` products of up to ``EXPONENT``, their exponentials, and the mean."""
        units = (4 * self.event.span + 8) * EXPONENT + len(self.signals)
        return (0.0 if self.event.is_banded else BUFFERS) + units * UNIT

    @property
    def widest(self) -> int:
        return self.event.span + len(self.signals)

    @property
    def work(self) -> int:
        return self.signals.size // 16 + 8 * len(self.signals) + 100

    def log_ratios(self, rows: Array) -> tuple[Array, Array]:
        """log X of z in ``rows``, shape (draws, released), twice."""
        logs = rows @ self.signals.T - (self.signals**2).sum(1) / 2
        if not np.abs(logs).max() < EXPONENT:
            raise NotEvaluable("likelihood ratios leave the range of floating point")
        found = np.asarray(log_sum(logs) - math.log(len(self.signals)))
        return found, found


class ListedRemove(SpacedRemove):
    """dR = X^t / M_t dQ, the ``order`` t whole: t sets with chances in proportion to exp of their signals' products."""

    run: ListedRun

    def __init__(self, run: SpacedRun, order: float, drift: float = 0.0) -> None:
        assert isinstance(run, ListedRun)
        signals, t = run.signals, int(order)
        if drift or order != t or len(signals) ** t > _MOST_TUPLES:
            raise NotEvaluable("few sets are drawn at whole orders, as long as their tuples are few")
        self.run, self.order, self.drift, self.parameters = run, int(order), 0.0, (order,)
        self.name = f"order {order:.3g}"
        products, logs = signals @ signals.T, np.zeros((len(signals),) * t)
        for one, other in combinations(range(t), 2):
            logs += products.reshape([len(signals) if axis in (one, other) else 1 for axis in range(t)])
        self._below = np.cumsum(np.exp(logs.ravel() - logs.max()))
        self.log_moment = float(logs.max() + math.log(self._below[-1]) - t * math.log(len(signals)))
        self._below /= self._below[-1]
        self.moment = Moment(order, self.log_moment)
        self.relative = (4 * (signals.shape[1] + 8) * (float(logs.max()) + 1) + logs.size) * UNIT
        self.variation = 2 * self.relative

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        signals = self.run.signals
        drawn = np.minimum(np.searchsorted(self._below, rng.random(draws), side="right"), len(self._below) - 1)
        rows = rng.standard_normal((draws, signals.shape[1]))
        for _ in range(int(self.order)):
            drawn, last = np.divmod(drawn, len(signals))
            rows += signals[last]
        log_ratio, _ = self.run.log_ratios(rows)
        log_b = self.log_moment - self.order * log_ratio
        return log_b + log_ratio, log_b
