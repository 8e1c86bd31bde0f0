"""Exact sampling of the likelihood ratio X of k hidden rounds of T, tilted towards what delta is made of.

X = e_k(x_1, .., x_T) / C(T, k), x_i the independent likelihood ratios of the rounds and e_k the elementary symmetric
polynomial. A proposal R has a known density dR/dQ that bounds what is averaged; docs/k-of-t.md has the proofs.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numba import njit

from fedamp.accounting.occupancy import UNIT, log_choose, occupancies
from fedamp.accounting.occupancy import rounding as occupancy_rounding
from fedamp.accounting.points import Array, NotEvaluable
from fedamp.accounting.ratios import EXPONENT, Round

_UNDRIFTED = 0.5
"""Share of draws without drift, whose inverse the bound is multiplied by."""


@dataclass(frozen=True)
class Release:
    """Who sees what: a person takes part in ``k`` hidden rounds of ``rounds``, of which the first ``released`` are out.

    Args:
        round: the likelihood ratio of one round.
    """

    round: Round
    k: int
    rounds: int
    released: int

    def log_ratios(self, ratios: Array) -> Array:
        """log X for rows of ratios, shape (draws, released).

        With q = k / T, e_h of the first i ratios times q^h (1 - q)^(i - h) is, but for the weights x, a probability of
        h successes in i trials: the recursion has the scale of a probability throughout. Rounds not released have x =
        1.

        Raises:
            NotEvaluable: ratios leave the range in which the stated rounding holds.
        """
        rate, hidden = self.k / self.rounds, self.rounds - self.released
        taken = np.arange(max(0, self.k - hidden), min(self.k, self.released) + 1)
        log_tail = log_choose(hidden, self.k - taken) - log_choose(self.rounds, self.k)
        log_tail -= taken * math.log(rate)
        if rate < 1:
            log_tail -= (self.released - taken) * math.log1p(-rate)
        tail = np.zeros(self.k + 1)
        tail[taken] = np.exp(log_tail)
        means, largest = _symmetric_means(ratios, rate, tail, max(0, self.k - hidden))
        if not largest < 1e200:
            raise NotEvaluable("likelihood ratios leave the range of floating point")
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(means))

    @property
    def log_least(self) -> float:
        """log of the least value of X: that of choices without any released round."""
        hidden = self.rounds - self.released
        return float(log_choose(hidden, self.k) - log_choose(self.rounds, self.k)) if hidden >= self.k else -math.inf

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X: a sum of products of k ratios (each off by a few units of its logarithm),
        with three roundings a round, and the factors outside.

        Underflow adds less than 1e-90: as many steps as there are, each off by 1e-308, times at most 1e200.
        """
        outside = 16 * (math.lgamma(self.rounds + 1) + self.rounds + 1)
        return (3 * self.rounds + (4 * EXPONENT + 4) * self.k + outside) * UNIT + 2 * self.k * self.round.law_rounding


class Proposal(Protocol):
    """A law R of the rounds to draw from, and what to average: delta(epsilon) = E_R[v], 0 <= v <= bound.

    Attributes:
        name: for a person to read.
        variation: bound on the total variation between the draws and R.
        relative: bound on the relative error of what is averaged, X aside; with ``ratio_rounding`` r of X, values are
            off by at most a factor exp(relative + power * r), and belong to an epsilon off by r.
        power: of X in the density of R.
    """

    release: Release
    name: str
    variation: float
    relative: float
    power: float

    def log_bound(self, epsilon: float) -> float:
        """log of the largest value of v."""
        ...

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        """Logs of two positive numbers a and b each, of which v = (a - exp(epsilon) b)+."""
        ...


class RemoveProposal:
    """H(P, Q): dR = X^t (w / M_t + (1 - w) G^g / M_(t,g)) dQ, G the product of all ratios, M_(t,g) = E[X^t G^g].

    v = (X - e^epsilon)+ dQ/dR is at most M_t / w times the largest X^-t (X - e^epsilon)+, which is
    e^(epsilon (1 - t)) (t - 1)^(t - 1) / t^t. Without drift (g = 0) w is 1, with it 1/2. The drift stands in for orders
    with too many occupancies: where noise is high, X is nearly a power of G.

    Drawn by occupancies (see ``occupancy``): X is symmetric, so that the rounds held c times may come in any order.

    Args:
        order: t >= 2.
        drift: g >= 0.
    """

    def __init__(self, release: Release, order: int, drift: float = 0.0) -> None:
        self.release, self.order, self.drift, self.power = release, order, drift, float(order)
        self.name = f"order {order}" + (f" and drift {drift:.2g}" if drift else "")
        self._weights = np.array([_UNDRIFTED, 1 - _UNDRIFTED] if drift else [1.0])
        ways = occupancies(release.k, release.rounds, release.released, order)
        self._counts = ways.counts
        drifts = np.array([0.0, drift] if drift else [0.0])
        exponents = np.arange(order + 1.0) + drifts[:, None]
        log_mu = np.array([[release.round.log_moment(exponent) for exponent in row] for row in exponents])
        self._exponents = exponents.ravel()
        log_weights = ways.log_chance + log_mu @ self._counts.T
        largest = log_weights.max(axis=1, keepdims=True)
        below = np.cumsum(np.exp(log_weights - largest), axis=1)
        self._log_moments = largest[:, 0] + np.log(below[:, -1])
        self._below = below / below[:, -1:]
        on_each = release.released * release.round.table_rounding
        size = float(np.abs(log_mu).max() * release.released) + drift * release.released * EXPONENT
        error = (
            occupancy_rounding(release.rounds, order)
            + on_each
            + ((8 * order + 16) * (size + 1) + below.shape[1]) * UNIT
        )
        self.relative = 3 * error + (3 + 4 * drift) * release.released * release.round.law_rounding
        self.variation = on_each + 4 * below.size * UNIT

    @property
    def log_moment(self) -> float:
        """log E[X^t]."""
        return float(self._log_moments[0])

    def log_bound(self, epsilon: float) -> float:
        t = self.order
        largest = epsilon * (1 - t) + (t - 1) * math.log(t - 1) - t * math.log(t)
        return self.log_moment - math.log(self._weights[0]) + largest

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        uniforms = rng.random(draws)
        drifts = (rng.random(draws) >= self._weights[0]).astype(int)
        counts = np.zeros((draws, len(self._exponents)), np.int32)
        for i, below in enumerate(self._below):
            drawn = np.minimum(np.searchsorted(below, uniforms[drifts == i], side="right"), len(below) - 1)
            counts[drifts == i, i * (self.order + 1) : (i + 1) * (self.order + 1)] = self._counts[drawn]
        ratios, log_products = self.release.round.draw(rng, self._exponents, counts)
        log_ratio = self.release.log_ratios(ratios)
        density = np.log(self._weights[0]) - self._log_moments[0]
        if self.drift:
            density = np.logaddexp(density, np.log(self._weights[1]) + self.drift * log_products - self._log_moments[1])
        with np.errstate(invalid="ignore"):
            log_b = -self.order * log_ratio - density
        some = log_ratio > -math.inf
        return np.where(some, log_b + log_ratio, -math.inf), np.where(some, log_b, math.inf)


class AddProposal:
    """dR prop. to prod_i x_i^-s dQ over released rounds: v = m^r prod_i x_i^s (1 - e^epsilon X)+, m = E[x^-s].

    By Maclaurin's inequality X is at least (prod_i x_i)^(k / T), so that with a = s T / k v is at most
    m^r e^(-epsilon a) a^a / (1 + a)^(1 + a). Mass at x = 0 is left out here.

    Args:
        tilt: s > 0.
    """

    def __init__(self, release: Release, tilt: float) -> None:
        self.release, self.tilt = release, tilt
        self.power = 1 + tilt * release.rounds / release.k
        self.name = f"tilt {tilt:.3g}"
        self.log_moment = release.released * release.round.log_moment(-tilt)
        self._exponent = tilt * release.rounds / release.k
        self._counts = np.array([[release.released]], np.int32)
        on_each = release.released * release.round.table_rounding
        size = (EXPONENT * tilt + abs(self.log_moment) + 1) * release.released
        self.relative = 2 * on_each + 16 * size * UNIT + (3 + 2 * tilt) * release.released * release.round.law_rounding
        self.variation = on_each

    def log_bound(self, epsilon: float) -> float:
        a = self._exponent
        return self.log_moment - epsilon * a + a * math.log(a) - (1 + a) * math.log1p(a)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        counts = np.broadcast_to(self._counts, (draws, 1))
        ratios, log_products = self.release.round.draw(rng, np.array([-self.tilt]), counts)
        log_a = self.log_moment + self.tilt * log_products
        return log_a, log_a + self.release.log_ratios(ratios)


@njit(cache=True, nogil=True)
def _symmetric_means(ratios, rate, tail, fewest):  # type: ignore[no-untyped-def]
    """sum_h tail[h] p_h, p_h the weight of h successes: see ``Release.log_ratios``. Also the largest prod max(1, 1 - q
    + q x), beyond which no number on the way can grow.

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
