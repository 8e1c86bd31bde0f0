"""The likelihood ratio X of a run that has hidden rounds, and draws of its rounds.

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
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.loops import invert, scale_and_shift, symmetric_means
from fedamp.accounting.numeric import UNIT, log_choose
from fedamp.accounting.points import Points

EXPONENT = 750.0  # exp of anything beyond is 0 or infinite

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
        return sum(each.copies * (each.rounds * (each.most + 8) + 100) for each in self.factors)

    def fingerprint(self) -> bytes:
        """Tells runs apart, so that each has its own random numbers."""
        texts = (
            f"{each.chances} {each.rounds} {each.copies}".encode() + each.round.fingerprint() for each in self.factors
        )
        return b"|".join(texts)
