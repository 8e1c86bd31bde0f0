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

    def tilted(self, order: float, drift: float = 0.0) -> "_Tilted":
        """The factor under X^order."""
        return _Tilted.of(self, order)

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
    def widest(self) -> int:
        """Ratios of one draw."""
        return self.rounds

    @property
    def work(self) -> int:
        """Steps of the recursion a draw."""
        return self.rounds * (self.most + 8) + 100

    def fingerprint(self) -> bytes:
        pairs = "" if self.people == 1 else " pairs"
        return f"{self.chances} {self.rounds} {self.copies}{pairs}".encode() + self.round.fingerprint()

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
    def of(cls, factors: "Sequence[HiddenRounds | SpacedRounds]") -> "Beginnings":
        numbers, hidden = (
            np.array([each.rounds for each in factors]),
            [f for f in factors if isinstance(f, HiddenRounds)],
        )
        if len(hidden) < len(factors):
            return cls(numbers, 1.0, np.zeros((0, 0)), 0)
        last = hidden[-1]
        rate = min(last.share, 1.0)
        tails = [np.pad(each.weights(rate), (0, last.most - each.most)) for each in hidden]
        return cls(numbers, rate, np.stack(tails), int(np.flatnonzero(last.chances)[0]))


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

    factors: "tuple[HiddenRounds | SpacedRounds, ...]"

    @property
    def hidden(self) -> list[HiddenRounds]:
        """The factors without correlated noise."""
        return [each for each in self.factors if isinstance(each, HiddenRounds)]

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
        return max(each.widest for each in self.factors)

    @property
    def work(self) -> int:
        return sum(each.copies * each.work for each in self.factors)

    def fingerprint(self) -> bytes:
        """Tells runs apart, so that each has its own random numbers."""
        return b"|".join(each.fingerprint() for each in self.factors)


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
_VERY_WIDE = 3.0  # the same, where other proposals need tables of their own
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
    over occupancies. ``log_moment``: log E[X^t]. ``relative``, ``variation``: what one copy adds to a proposal's.
    """

    counts: NDArray[np.int32]
    exponents: Array
    log_mu: Array
    below: Array
    log_moment: float
    relative: float
    variation: float

    @property
    def drifted_moment(self) -> float:
        """Of X^t G^g: rounds of independent noise have no drift."""
        return self.log_moment

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
        relative = 3 * error + 3 * factor.rounds * factor.round.law_rounding + 64 * UNIT
        variation = factor.rounds * factor.round.table_rounding + 4 * len(below) * UNIT
        log_moment = largest + math.log(below[-1])
        return cls(counts, exponents, log_mu, below / below[-1], log_moment, relative, variation)


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
    (Proposition 5). ``order``: t, a whole number from 2 on, or between 1 and 2. ``coins``: u, a whole number. With
    correlated noise Y is X^t G^g, G as in :meth:`SpacedRounds.log_ratios`; ``drift``: g >= 0.
    """

    def __init__(self, run: Run, order: float, coins: int = 0, drift: float = 0.0) -> None:
        if coins and len(run.hidden) < len(run.factors):
            raise NotEvaluable("rounds of correlated noise are not independent")
        self.run, self.order, self.coins, self.drift = run, order, coins, drift
        self.parameters = order, coins, drift
        self.name = f"order {order:.3g}" + (f" and independent rounds of order {coins}" if coins else "")
        self.name += f" and drift {drift:.2g}" if drift else ""
        self._share = _EXACT if coins else _UNDRIFTED if drift else 1.0
        self._tilted = [each.tilted(order, drift) for each in run.factors]
        both = list(zip(run.factors, self._tilted, strict=True))
        self._coins = [_Coins.of(each, coins) for each in run.hidden] if coins else []
        self.log_moment = sum(each.copies * tilted.log_moment for each, tilted in both)
        self._drifted_moment = sum(each.copies * tilted.drifted_moment for each, tilted in both)
        self.moment = Moment(order, self.log_moment - math.log(self._share))
        self.relative = sum(each.copies * tilted.relative for each, tilted in both)
        self.variation = sum(each.copies * (tilted.variation + coins * 1e-12) for each, tilted in both)
        for factor, coin in zip(run.hidden, self._coins, strict=False):
            law_rounding = 4 * coins * factor.rounds * factor.round.law_rounding
            self.relative += factor.copies * (law_rounding + 8 * coins * UNIT + 3 * coin.error)
        self._powers = [_sum_of_powers(each, order - 1) for each in run.hidden] if order < 2 else []
        self.relative += sum(each.copies * (each.ratio_rounding + 64 * UNIT) for each, _ in self._powers)

    def _ratios(
        self, rng: np.random.Generator, j: int, independent: NDArray[np.bool_]
    ) -> tuple[Array, NDArray[np.int32]]:
        """Ratios of factor j, and how many of them have each exponent. Binomial numbers more than ten standard
        deviations out do not occur; ``variation`` has 1e-12 for that.
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
        return factor.round.draw(rng, exponents, counts)[0], counts

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        second = rng.random(draws) >= self._share
        log_ratio, log_power, log_second = np.zeros((3, draws))
        for j, factor in enumerate(self.run.factors):
            for _ in range(factor.copies):
                if isinstance(factor, SpacedRounds):
                    sets = self._tilted[j]
                    assert not isinstance(sets, _Tilted)
                    one, log_mean = factor.log_ratios(sets.draw(rng, second))
                    log_second += self.drift * log_mean
                    log_ratio += one
                    continue
                ratios, _ = self._ratios(rng, j, second & (self.coins > 0))
                log_ratio += factor.log_ratios(ratios)
                if self._powers:
                    powers, log_total = self._powers[j]
                    log_power += powers.log_ratios(ratios ** (self.order - 1)) + log_total
                if self.coins:
                    coin = self._coins[j]
                    log_second += (
                        coin.order * arithmetic.log_products(ratios, coin.odds) - factor.rounds * coin.log_moment
                    )
        if self.drift:
            log_second += self.order * log_ratio - self._drifted_moment
        return self._excess(log_ratio, log_ratio + log_power if self._powers else self.order * log_ratio, log_second)

    def draw_beginnings(self, rng: np.random.Generator, draws: int, parts: Beginnings) -> tuple[Array, Array]:
        """Proposition 6: as ``draw``, at whole orders, for the beginnings of the only factor, shape (draws, n)."""
        if self._powers or self.drift:
            raise NotEvaluable("beginnings are drawn at whole orders, and without drift, only")
        (factor,), (tilted,), first = self.run.factors, self._tilted, int(parts.rounds[0])
        if isinstance(factor, SpacedRounds):
            assert isinstance(tilted, _Schedules)
            log_ratio, later = tilted.draw_beginnings(rng, draws, parts.rounds)
            log_a, log_b = self._excess(log_ratio, self.order * log_ratio, np.zeros(1))
            return log_a - later, log_b - later
        assert isinstance(tilted, _Tilted)
        independent = rng.random(draws) >= self._share
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

    def _excess(self, log_ratio: Array, log_power: Array, log_second: Array) -> tuple[Array, Array]:
        """Logs of a and b, for v = (X - e^epsilon)+ dQ/dR."""
        density = math.log(self._share) - self.log_moment + log_power
        if self._share < 1:
            density = np.logaddexp(density, math.log1p(-self._share) + log_second)
        some = log_ratio > -math.inf
        log_b = np.where(some, -density, math.inf)
        return np.where(some, log_b + log_ratio, -math.inf), log_b

    def slack(self, parts: Beginnings) -> float:
        """log of what the bound of draws of beginnings is to be multiplied by: moments of a cut law may be below 1."""
        tilted = self._tilted[0]
        least = float(tilted.log_mu.min()) if isinstance(tilted, _Tilted) else 0.0
        return float(parts.rounds[-1] - parts.rounds[0]) * max(0.0, -least)

    @classmethod
    def pilot(cls, run: Run, rank: Rank, look: Look, highest: int = HIGHEST_SAMPLED_ORDER) -> Pilot:
        """Of the order whose bound is the least, or the whole one below; where that leaves a wide spread, of the best
        independent rounds, or the best drift, beside it.
        """
        proposal = cls.by_moments(run, rank, highest)
        if proposal.order == 2:
            with suppress(NotEvaluable):
                low = min((cls(run, each) for each in _LOW_ORDERS), key=lambda each: rank(each.moment))
                if rank(low.moment) < rank(proposal.moment):
                    return look(low)
        orders = range(int(proposal.order), max(int(proposal.order) - 2, 1), -1)
        found = best((each, look(cls(run, each))) for each in orders)[1]
        if found.spread < (_WIDE if len(run.hidden) == len(run.factors) else _VERY_WIDE):
            return found
        tried = [found]
        if len(run.hidden) < len(run.factors):
            for drift in _DRIFTS:
                with suppress(NotEvaluable):  # with so much of it ratios leave the range of floating point
                    tried.append(look(cls(run, found.proposal.moment.order, 0, drift)))
            return min(tried, key=attrgetter("effort"))
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
            typical = sum(each.copies * _Coins.of(each, order).typical for each in run.hidden)
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
        return chance_of_any((each.round.infinite, each.copies * each.most) for each in run.hidden)


class AddProposal(Proposal):
    """H(Q, P), docs/k-of-t.md, Proposition 4: dR prop. to G^-a dQ, with G as in ``RemoveProposal``. ``share`` adds the
    mass at x = 0. ``tilt``: a > 0.
    """

    def __init__(self, run: Run, tilt: float) -> None:
        if len(run.hidden) < len(run.factors):
            raise NotEvaluable("rounds of correlated noise are drawn in the remove direction only")
        self.run, self.tilt, self.parameters = run, tilt, (tilt,)
        self.name = f"tilt {tilt:.3g}"
        self.log_moment = self.relative = self.variation = 0.0
        for each in run.hidden:
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
        for factor in self.run.hidden:
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
        return chance_of_any((each.round.zero, each.copies * each.rounds) for each in run.hidden)


class Block(Proposal):
    """Draws for the last of some beginnings of one factor, with a column for each of them."""

    def __init__(self, whole: Proposal, parts: "Sequence[HiddenRounds | SpacedRounds]") -> None:
        assert isinstance(whole, RemoveProposal)
        self.whole, self.run, self.parts, self.moment = whole, whole.run, Beginnings.of(parts), whole.moment
        self.name, self.relative = f"{whole.name} from {parts[0].rounds}", 2 * whole.relative
        self.variation = whole.variation + parts[-1].rounds ** 2 * UNIT

    def log_bound(self, epsilon: float) -> float:
        return self.whole.log_bound(epsilon) + self.whole.slack(self.parts)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        return self.whole.draw_beginnings(rng, draws, self.parts)


# Correlated noise, where a person's rounds are hidden and spaced.

_HIGHEST = 8  # order: 256 moves of a state at most
_DRIFTS = (1.5, 4.0, 10.0, 25.0)  # drifts to try; each adds this much to the order if X is a constant times G
_MOST_TUPLES = 4_000_000  # of listed sets: 32 MB
_UNDRIFTED = 0.5  # share of draws without drift; the bound is multiplied by its inverse
_MOST_ROUNDS = 1000  # without bands
_MOST_SETS = 2000  # that are listed
_MOST_STATES = 16_000_000  # numbers in a table: 128 MB


class Far(NamedTuple):
    """Sums of products of columns at least a gap apart, over sigma^2: the middle of the most and the least, and half
    their difference. ``inside``: over the pairs of a set. ``between``: over the pairs of two sets.
    """

    inside: tuple[float, float]
    between: tuple[float, float]


@dataclass(frozen=True)
class SpacedRounds:
    """One factor of X: hidden rounds of correlated noise. ``event``: what is released. ``noise_multiplier``: of one
    participation. ``copies``: how many independent factors like this one there are.

    X is the mean, over all sets S of k rounds at least ``gap`` apart, of the product of w_s over S, with w_s =
    exp(<c_s, z> / sigma - |c_s|^2 / (2 sigma^2)), c_s column s of C, cut after the released rows. Columns of a set are
    orthogonal if C has bands. Those of t sets that are drawn for X^t are not: their joint law is that of a Markov chain
    over the rounds since each of the t sets had its last one, and the rounds it has left. Without bands, columns that
    are a gap apart or more overlap as well; sets differ little in how much, and the difference is charged as ``Far``.
    """

    event: Spaced
    noise_multiplier: float
    copies: int = 1
    chances: ClassVar[tuple[float, ...]] = (0.0, 1.0)

    @classmethod
    def of(cls, event: BallsInBins | Spaced, noise_multiplier: float, copies: int = 1) -> "SpacedRounds":
        """The factor, with sets one by one where bands do not keep them apart and they are few."""
        if isinstance(event, Spaced) and (event.is_banded or event.sets > _MOST_SETS):
            return cls(event, noise_multiplier, copies)
        return ListedRounds(event, noise_multiplier, copies)

    @property
    def rounds(self) -> int:
        """How many are released."""
        return self.event.span

    def tilted(self, order: float, drift: float = 0.0) -> "_Schedules | _ListedTuples":
        """The factor under X^order, and under X^order G^drift."""
        return _Schedules.of(replace(self, copies=1), order, drift)

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
        return f"{self.event.to_json()} {self.copies}".encode() + np.float64(self.noise_multiplier).tobytes()

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


class _Moves(NamedTuple):
    """What t sets can do in a round. A set is of one of 1 + k gap kinds: it has no round yet, or some number of rounds
    left and had its last one ``age`` + 1 rounds ago (``gap`` - 1 stands for that and more). A state is a multiset of t
    kinds, as the sets are alike. ``ages``: shape (states, t), of a state's kinds. ``done``: shape (states,), whether no
    rounds are left. Moves from state i are ``starts[i]`` to ``starts[i + 1]``, the first: no set takes the round.
    ``targets``, ``taken``: shape (moves,): the state after each, and how many sets take the round.
    """

    ages: NDArray[np.int64]
    done: NDArray[np.bool_]
    starts: NDArray[np.int64]
    targets: NDArray[np.int32]
    taken: NDArray[np.int8]


@lru_cache(maxsize=8)
def _moves(k: int, gap: int, order: int) -> _Moves:
    kind, states = np.arange(1 + k * gap), np.zeros((1, 0), int)
    for size in range(1, order + 1):  # multisets in an order in which those of the first kinds come first
        firsts = [states[: math.comb(each + size - 1, size - 1)] for each in kind]
        states = np.concatenate([np.pad(f, ((0, 0), (0, 1)), constant_values=i) for i, f in enumerate(firsts)])
    age, left = np.where(kind > 0, (kind - 1) % gap, gap - 1), np.where(kind > 0, k - 1 - (kind - 1) // gap, k)
    older, taking = np.where((kind > 0) & (age < gap - 1), kind + 1, kind), 1 + (k - left) * gap
    place = np.arange(order)
    rank = np.array([[math.comb(each + i, i + 1) for i in range(order)] for each in kind.tolist()])
    may, moves = ((age == gap - 1) & (left > 0))[states], []
    for mask in product((False, True), repeat=order):
        sources = np.flatnonzero(may[:, list(mask)].all(axis=1))
        after = np.sort(np.where(mask, taking[states[sources]], older[states[sources]]), axis=1)
        moves.append((sources, rank[after, place].sum(axis=1), np.full(len(sources), sum(mask))))
    sources, targets, taken = (np.concatenate(each) for each in zip(*moves, strict=True))
    order_of_sources = np.argsort(sources, kind="stable")
    starts = np.searchsorted(sources[order_of_sources], np.arange(len(states) + 1))
    targets, taken = targets[order_of_sources].astype(np.int32), taken[order_of_sources].astype(np.int8)
    return _Moves(age[states], (left[states] == 0).all(axis=1), starts, targets, taken)


class _Tables(NamedTuple):
    """The chain of t sets. ``weight``: shape (rounds + 1, states): of all that may follow before each round, up to a
    factor ``scale`` of each. c sets that take round s weigh ``near[which[s], state]^c alone[s, c]``: what they share
    with sets that had a round shortly before, and with one another. ``log_total``: of the weight of everything.
    """

    weight: Array
    scale: Array
    near: Array
    which: NDArray[np.int64]
    alone: Array
    log_total: float


@lru_cache(maxsize=2)
def _tables(factor: SpacedRounds, order: int, drift: float) -> _Tables:
    event, gap, overlaps = factor.event, factor.event.gap, factor.overlaps
    if (event.rounds + 1) * math.comb(event.k * gap + order, order) > _MOST_STATES:
        raise NotEvaluable(f"{order} spaced schedules have too many states")
    moves, count = _moves(event.k, gap, order), np.arange(order + 1)
    kinds, which = np.unique(overlaps[:, 1:], axis=0, return_inverse=True)
    beside = np.where(np.arange(gap) < gap - 1, kinds, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.exp([each[moves.ages].sum(axis=1) for each in beside])
        alone = np.multiply.outer(drift * factor.drift[1], count) if drift else 0.0
        alone = np.exp(alone + np.multiply.outer(overlaps[:, 0], count * (count - 1) / 2))
        weight, scale = np.zeros((event.rounds + 1, len(moves.done))), np.ones(event.rounds)
        weight[-1] = moves.done
        arithmetic.chain_weights(weight, scale, near, which.ravel(), alone, moves.starts, moves.targets, moves.taken)
    whole = float(weight[0, 0])
    if not 1e-200 < whole < math.inf:
        raise NotEvaluable("weights of spaced schedules leave the range of floating point")
    return _Tables(weight, scale, near, which.ravel(), alone, math.log(whole) + float(np.log(scale).sum()))


class _Schedules(NamedTuple):
    """Spaced rounds under X^t, t whole, and under X^t G^drift: tables of both; the other fields as in ``_Tilted``."""

    factor: SpacedRounds
    order: int
    drift: float
    tables: tuple[_Tables, _Tables]
    log_moment: float
    drifted_moment: float
    relative: float
    variation: float

    @classmethod
    def of(cls, factor: SpacedRounds, order: float, drift: float) -> "_Schedules":
        """``log_moment``: log E_Q[X^order], or with ``Far`` what stands for it in the middle of the density."""
        if order != int(order) or order > _HIGHEST:
            raise NotEvaluable(f"spaced schedules are drawn at whole orders up to {_HIGHEST} only")
        event, t = factor.event, int(order)
        tables = _tables(factor, t, 0.0), _tables(factor, t, drift)
        log_moment, drifted = (
            each.log_total - t * math.log(event.sets) + t * (t - 1) / 2 * factor.far.between[0] for each in tables
        )
        if drift:
            mean, _, squares = factor.drift
            drifted += drift * (drift * float(mean @ mean) - squares) / 2
        size = (t**2 + drift * (t + drift)) * event.k / factor.noise_multiplier**2
        steps = 8 * event.rounds * (2**t + 4 + t**2) + 64 * (size + t * math.log(event.sets) + EXPONENT * drift)
        relative = steps * UNIT + t * (t - 1) / 2 * factor.far.between[1]
        return cls(factor, t, drift, tables, log_moment, drifted, relative, 16 * steps * UNIT)

    def draw(self, rng: np.random.Generator, drifted: NDArray[np.bool_]) -> Array:
        """z, shape (draws, released)."""
        rows = rng.standard_normal((len(drifted), self.factor.rounds))
        for which, drift in ((~drifted, 0.0), (drifted, self.drift)):
            if which.any():
                moved = rows[which] + drift * self.factor.drift[0] if drift else rows[which]
                arithmetic.add_columns(moved, self._taken(rng, len(moved), drift), self.factor.column)
                rows[which] = moved
        return rows

    def _taken(self, rng: np.random.Generator, draws: int, drift: float) -> NDArray[np.int8]:
        """How many of the t sets take each round, shape (draws, rounds)."""
        event, tables = self.factor.event, self.tables[drift > 0]
        moves = _moves(event.k, event.gap, self.order)
        uniforms = rng.random((event.rounds, draws))
        drawn: NDArray[np.int8] = arithmetic.taken_rounds(
            uniforms, *tables[:-1], moves.starts, moves.targets, moves.taken
        )
        return drawn

    def draw_beginnings(self, rng: np.random.Generator, draws: int, ends: NDArray[np.int64]) -> tuple[Array, Array]:
        """log X after each of the first ``ends`` rounds, and the log of the mean over later rows of the ratios of the t
        sets that are drawn (docs/correlated-noise.md, "After each round"); both of shape (draws, n).
        """
        factor, event = self.factor, self.factor.event
        rows = rng.standard_normal((draws, factor.rounds))
        taken, signal, squares = self._taken(rng, draws, 0.0), np.zeros(rows.shape), np.zeros(rows.shape)
        arithmetic.add_columns(signal, taken, factor.column)
        arithmetic.add_columns(squares, taken, factor.column**2)
        later = np.cumsum(np.pad((signal**2 - squares) / 2, ((0, 0), (0, 1)))[:, ::-1], axis=1)[:, ::-1]
        scale = math.exp(-math.log(event.sets) / event.k)
        ways = [[spaced_sets(n, c, event.gap) * scale**c for c in range(event.k + 1)] for n in range(event.rounds + 1)]
        means, largest = arithmetic.spaced_beginnings(
            rows + signal, factor.column, scale, np.array(ways, float), event.k, event.gap, ends
        )
        return _logs(means, largest), later[:, ends]


@dataclass(frozen=True)
class ListedRounds(SpacedRounds):
    """X as a mean over few sets, each with its signal."""

    event: BallsInBins | Spaced  # type: ignore[assignment]

    def tilted(self, order: float, drift: float = 0.0) -> "_ListedTuples":
        return _ListedTuples(self, order, drift)

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


class _ListedTuples:
    """Listed rounds under X^t, t whole: t sets with chances in proportion to exp of their signals' products; the
    attributes as in ``_Tilted``.
    """

    def __init__(self, factor: ListedRounds, order: float, drift: float) -> None:
        signals, t = factor.signals, int(order)
        if drift or order != t or len(signals) ** t > _MOST_TUPLES:
            raise NotEvaluable("few sets are drawn at whole orders, as long as their tuples are few")
        self.signals, self.order = signals, t
        products, logs = signals @ signals.T, np.zeros((len(signals),) * t)
        for one, other in combinations(range(t), 2):
            logs += products.reshape([len(signals) if axis in (one, other) else 1 for axis in range(t)])
        self._below = np.cumsum(np.exp(logs.ravel() - logs.max()))
        self.log_moment = float(logs.max() + math.log(self._below[-1]) - t * math.log(len(signals)))
        self.drifted_moment = self.log_moment
        self._below /= self._below[-1]
        self.relative = (4 * (signals.shape[1] + 8) * (float(logs.max()) + 1) + logs.size) * UNIT
        self.variation = 2 * self.relative

    def draw(self, rng: np.random.Generator, drifted: NDArray[np.bool_]) -> Array:
        """z, shape (draws, released)."""
        draws, signals = len(drifted), self.signals
        drawn = np.minimum(np.searchsorted(self._below, rng.random(draws), side="right"), len(self._below) - 1)
        rows = rng.standard_normal((draws, signals.shape[1]))
        for _ in range(self.order):
            drawn, last = np.divmod(drawn, len(signals))
            rows += signals[last]
        return rows
