"""Where to draw the rounds of a run from: proposals R with a known density dR/dQ; docs/k-of-t.md has the proofs.

delta(epsilon) = E_R[v] with 0 <= v <= a known bound, in the remove direction and in the add direction.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.certificate import Pilot, Proposal, best
from fedamp.accounting.conversion import epsilon_of_moment, log_delta_of_moment
from fedamp.accounting.hidden_rounds import EXPONENT, Beginnings, HiddenRounds, Run, log_beginnings
from fedamp.accounting.loops import shuffle_ends
from fedamp.accounting.numeric import UNIT, chance_of_any, log_choose
from fedamp.accounting.participation import occupancies, pairs, rounding

HIGHEST_SAMPLED_ORDER = 16

_WIDE = 2.5  # standard deviation of a draw over its mean; about 1.5 is the least that a power of X reaches

_LOW_ORDERS = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9)  # orders to try where noise is little

_DRIFTS = (1.5, 4.0, 10.0, 25.0)  # drifts to try; each adds this much to the order if X is a constant times G

Rank = Callable[[Proposal], float]
"""What a proposal's bound alone proves about the answer: the smaller, the better the proposal."""

Look = Callable[[Proposal], Pilot]  # takes the pilot of a proposal

UNDRIFTED = 0.5  # share of draws without drift; the bound is multiplied by its inverse


class _Tilted(NamedTuple):
    """One factor of X under the tilts X^t and, in a second row of each array, X^t G^g. ``counts``: shape (S, n), the
    occupancies; n = t + 1, or 4 for t below 2. ``exponents``: shape (1 or 2, n): of the ratio of a round that is held
    0, .., t times (below 2: by neither, by one, by the other, by both). ``log_mu``: logs of the moments of these
    exponents. ``below``: shape (1 or 2, S), distribution function over occupancies. ``log_moments``: shape (1 or 2,):
    log E[X^t], log E[X^t G^g]. ``error``: bound on the error of the latter.
    """

    counts: NDArray[np.int32]
    exponents: Array
    log_mu: Array
    below: Array
    log_moments: Array
    error: float

    @classmethod
    def of(cls, factor: HiddenRounds, order: float, drifts: Array) -> "_Tilted":
        held = np.arange(order + 1.0) if order >= 2 else np.array([0.0, 1.0, order - 1, order])
        found = (
            occupancies(factor.chances, factor.rounds, int(order))
            if order >= 2
            else pairs(factor.chances, factor.rounds, order - 1)
        )
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
        return cls(counts, exponents, log_mu, below / below[:, -1:], log_moments, error)

    def draw(self, rng: np.random.Generator, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """How many rounds have each exponent, shape (draws, exponents.size), by the tilt of one of the ``rows``."""
        uniforms, width = rng.random(len(rows)), self.counts.shape[1]
        counts = np.zeros((len(rows), self.exponents.size), np.int32)
        for i, below in enumerate(self.below):
            drawn = np.searchsorted(below, uniforms[rows == i], side="right")
            counts[rows == i, i * width : (i + 1) * width] = self.counts[np.minimum(drawn, len(below) - 1)]
        return counts


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
    off = power * factor.chance_rounding + rounding(factor.rounds, 2)
    return replace(factor, chances=tuple(np.exp(logs - total).tolist()), chance_rounding=off), total


class RemoveProposal(Proposal):
    """H(P, Q), docs/k-of-t.md, Propositions 1 to 3: dR = X^t (w / M_t + (1 - w) G^g / M_(t,g)) dQ, where G is the
    product of all ratios, each to the power of the share of its rounds that a person takes part in. Without drift (g =
    0) w is 1, with it 1/2. The drift stands in for orders with too many occupancies. Below 2, for little noise, X^t
    stands for X times the sum over all choices of (their probability times their ratio)^(t - 1) (Proposition 5).
    ``order``: t, a whole number from 2 on, or between 1 and 2. ``drift``: g >= 0.
    """

    def __init__(self, run: Run, order: float, drift: float = 0.0) -> None:
        self.run, self.order, self.drift, self.power = run, order, drift, float(order)
        self.name = f"order {order:.3g}" + (f" and drift {drift:.2g}" if drift else "")
        self._weights = np.array([UNDRIFTED, 1 - UNDRIFTED] if drift else [1.0])
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
        return log_delta_of_moment(self.order, self.log_moment - math.log(self._weights[0]), epsilon)

    def bound_at(self, delta: float) -> float:
        return epsilon_of_moment(self.order, self.log_moment - math.log(self._weights[0]), delta)

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        drifted = (rng.random(draws) >= self._weights[0]).astype(int)
        log_ratio, log_drift, log_power = np.zeros(draws), np.zeros(draws), np.zeros(draws)
        for j, (factor, tilted) in enumerate(zip(self.run.factors, self._factors, strict=True)):
            for _ in range(factor.copies):
                counts = tilted.draw(rng, drifted)
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
        return excess(log_ratio, log_ratio + log_power if self._powers else self.order * log_ratio, density)

    def draw_beginnings(self, rng: np.random.Generator, draws: int, parts: Beginnings) -> tuple[Array, Array]:
        """Proposition 6: as ``draw``, at whole orders, for the beginnings of the only factor, shape (draws, n)."""
        if self._powers:
            raise NotEvaluable("beginnings are drawn at whole orders only")
        (factor,), (tilted,) = self.run.factors, self._factors
        counts = tilted.draw(rng, (rng.random(draws) >= self._weights[0]).astype(int))
        ratios, _ = factor.round.draw(rng, tilted.exponents.ravel(), counts)
        first = int(parts.rounds[0])
        held = shuffle_ends(ratios, counts, rng.random((draws, factor.rounds - first))) % tilted.counts.shape[1]
        log_ratio, density = log_beginnings(parts, ratios), np.full((draws, len(parts.rounds)), -math.inf)
        for log_mu, weight, log_moment, drift in zip(
            tilted.log_mu, self._weights, self._log_moments, (0.0, self.drift), strict=False
        ):
            later = np.cumsum(np.pad(log_mu[held], ((0, 0), (0, 1)))[:, ::-1], axis=1)[:, ::-1]
            component = math.log(weight) - log_moment + later[:, parts.rounds - first]
            if drift:
                with np.errstate(divide="ignore"):
                    component += drift * factor.share * np.cumsum(np.log(ratios), axis=1)[:, parts.rounds - 1]
            density = np.logaddexp(density, component)
        return excess(log_ratio, self.order * log_ratio, density)

    def slack(self, parts: Beginnings) -> float:
        """log of what the bound of draws of beginnings is to be multiplied by: moments of a cut law may be below 1."""
        return float(parts.rounds[-1] - parts.rounds[0]) * max(0.0, -float(self._factors[0].log_mu[0].min()))

    @classmethod
    def pilot(cls, run: Run, rank: Rank, look: Look, highest: int = HIGHEST_SAMPLED_ORDER) -> Pilot:
        """Of the order whose bound is the least, or the whole one below; where that leaves a wide spread, of the best
        drift beside it.
        """
        proposal = cls.by_moments(run, rank, highest)
        if proposal.order == 2:
            with suppress(NotEvaluable):
                low = min((cls(run, each) for each in _LOW_ORDERS), key=rank)
                if rank(low) < rank(proposal):
                    return look(low)
        orders = range(int(proposal.order), max(int(proposal.order) - 2, 1), -1)
        order, found = best((each, look(cls(run, each))) for each in orders)
        if found.spread < _WIDE:
            return found
        drifted = [found]
        for drift in _DRIFTS:
            with suppress(NotEvaluable):  # with so much of it ratios leave the range of floating point
                drifted.append(look(cls(run, order, drift)))
        return min(drifted, key=lambda pilot: pilot.effort)

    @classmethod
    def by_moments(cls, run: Run, rank: Rank, highest: int = HIGHEST_SAMPLED_ORDER) -> "RemoveProposal":
        """The order, up to ``highest``, whose bound is the least."""
        found = cls(run, 2)
        for order in range(3, highest + 1):
            try:
                proposal = cls(run, order)
            except NotEvaluable:
                break
            if rank(proposal) >= rank(found):
                break
            found = proposal
        return found

    def on(self, run: Run) -> "RemoveProposal":
        return RemoveProposal(run, self.order, self.drift)

    @staticmethod
    def share(run: Run) -> float:
        """P-mass at infinite ratios. Only rounds taken part in can meet one."""
        return chance_of_any((each.round.infinite, each.copies * each.most) for each in run.factors)


def excess(log_ratio: Array, log_power: Array, density: Array) -> tuple[Array, Array]:
    """Logs of a and b, for v = (X - e^epsilon)+ / (power times density)."""
    with np.errstate(invalid="ignore"):
        log_b = -log_power - density
    some = log_ratio > -math.inf
    return np.where(some, log_b + log_ratio, -math.inf), np.where(some, log_b, math.inf)


class AddProposal(Proposal):
    """H(Q, P), docs/k-of-t.md, Proposition 4: dR prop. to G^-a dQ, with G as in ``RemoveProposal``. ``share`` adds the
    mass at x = 0. ``tilt``: a > 0.
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

    @classmethod
    def pilot(cls, run: Run, rank: Rank, look: Look, highest: int = 0) -> Pilot:
        """Of the best tilt, from that of the least bound down."""
        candidates = [cls(run, 2.0**power) for power in np.arange(-10, 10, 0.5)]
        least = int(np.argmin([rank(proposal) for proposal in candidates]))
        return best((each.tilt, look(each)) for each in candidates[least::-1])[1]

    def on(self, run: Run) -> "AddProposal":
        return AddProposal(run, self.tilt)

    @staticmethod
    def share(run: Run) -> float:
        """Q-mass at ratio 0, of any round."""
        return chance_of_any((each.round.zero, each.copies * each.rounds) for each in run.factors)
