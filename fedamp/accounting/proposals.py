"""Where to draw the rounds of a run from: proposals R with a known density dR/dQ; docs/k-of-t.md has the proofs.

delta(epsilon) = E_R[v] with 0 <= v <= a known bound, in the remove direction and in the add direction.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.certificate import Pilot, Proposal, best
from fedamp.accounting.conversion import epsilon_of_moment, log_delta_of_moment
from fedamp.accounting.hidden_rounds import EXPONENT, Beginnings, HiddenRounds, Run, log_beginnings
from fedamp.accounting.loops import log_products, shuffle_ends
from fedamp.accounting.numeric import UNIT, chance_of_any, log_choose
from fedamp.accounting.participation import occupancies, pairs, rounding

HIGHEST_SAMPLED_ORDER = 16

WIDE = 1.7  # standard deviation of a draw over its mean; about 1.5 is the least that a power of X reaches

_LOW_ORDERS = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9)  # orders to try where noise is little

_MOST_COINS = 64  # orders of independent rounds to try

Rank = Callable[[Any], float]
"""What the bound of a proposal, or of a ``Moment``, alone proves about the answer: the smaller, the better."""

Look = Callable[[Proposal], Pilot]  # takes the pilot of a proposal

_EXACT = 0.2  # share of draws by a power of X, beside independent rounds; the bound is multiplied by its inverse


class Moment(NamedTuple):
    """What log E[X^order] <= ``log_moment`` proves."""

    order: float
    log_moment: float

    def log_bound(self, epsilon: float) -> float:
        return log_delta_of_moment(self.order, self.log_moment, epsilon)

    def bound_at(self, delta: float) -> float:
        return epsilon_of_moment(self.order, self.log_moment, delta)


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
        exponents = np.arange(order + 1.0) if order >= 2 else np.array([0.0, 1.0, order - 1, order])
        found = (
            occupancies(factor.chances, factor.rounds, int(order))
            if order >= 2
            else pairs(factor.chances, factor.rounds, order - 1)
        )
        counts, log_chance = found
        log_mu = np.array([factor.round.log_moment(exponent) for exponent in exponents])
        log_weights = log_chance + counts @ log_mu
        largest = float(log_weights.max())
        below = np.cumsum(np.exp(log_weights - largest))
        error = (
            rounding(factor.rounds, max(order, 2))
            + 2 * order * factor.chance_rounding
            + factor.rounds * factor.round.table_rounding
            + ((8 * order + 16) * (float(np.abs(log_mu).max() * factor.rounds) + 1) + len(below)) * UNIT
        )
        return cls(counts, exponents, log_mu, below / below[-1], largest + math.log(below[-1]), error)

    def draw(self, rng: np.random.Generator, draws: int) -> NDArray[np.int32]:
        """How many rounds have each exponent, shape (draws, n)."""
        drawn = np.searchsorted(self.below, rng.random(draws), side="right")
        return np.asarray(self.counts[np.minimum(drawn, len(self.below) - 1)])


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
    off = power * factor.chance_rounding + rounding(factor.rounds, 2)
    return replace(factor, chances=tuple(np.exp(logs - total).tolist()), chance_rounding=off), total


class RemoveProposal(Proposal):
    """H(P, Q), docs/k-of-t.md, Propositions 1 to 3: dR = (w X^t / M_t + (1 - w) Y / E[Y]) dQ, Y the product of (1 + r
    x)^u over all ratios x. Without Y (u = 0) w is 1. Y stands in for orders with too many occupancies. Below 2, for
    little noise, X^t stands for X times the sum over all choices of (their probability times their ratio)^(t - 1)
    (Proposition 5). ``order``: t, a whole number from 2 on, or between 1 and 2. ``coins``: u, a whole number.
    """

    def __init__(self, run: Run, order: float, coins: int = 0) -> None:
        self.run, self.order, self.coins, self.power = run, order, coins, float(order)
        self.name = f"order {order:.3g}" + (f" and independent rounds of order {coins}" if coins else "")
        self._share = _EXACT if coins else 1.0
        self._factors = [_Tilted.of(each, order) for each in run.factors]
        self._coins = [_Coins.of(each, coins) for each in run.factors] if coins else []
        self.log_moment = sum(each.copies * tilted.log_moment for each, tilted in self._both)
        self._moment = Moment(order, self.log_moment - math.log(self._share))
        self.relative = sum(
            each.copies
            * (3 * tilted.error + (3 + 4 * coins) * each.rounds * each.round.law_rounding + (64 + 8 * coins) * UNIT)
            for each, tilted in self._both
        )
        self.relative += sum(each.copies * 3 * c.error for each, c in zip(run.factors, self._coins, strict=False))
        self._powers = [_sum_of_powers(each, order - 1) for each in run.factors] if order < 2 else []
        self.relative += sum(each.copies * (each.ratio_rounding + 64 * UNIT) for each, _ in self._powers)
        self.variation = sum(
            each.copies * (each.rounds * each.round.table_rounding + 4 * len(tilted.below) * UNIT + coins * 1e-12)
            for each, tilted in self._both
        )

    @property
    def _both(self) -> list[tuple[HiddenRounds, _Tilted]]:
        return list(zip(self.run.factors, self._factors, strict=True))

    def log_bound(self, epsilon: float) -> float:
        return self._moment.log_bound(epsilon)

    def bound_at(self, delta: float) -> float:
        return self._moment.bound_at(delta)

    def _ratios(
        self, rng: np.random.Generator, j: int, independent: NDArray[np.bool_]
    ) -> tuple[Array, NDArray[np.int32]]:
        """Ratios of factor j, and how many of them have each exponent. Binomial numbers more than ten standard
        deviations out do not occur; ``variation`` has 1e-12 for that.
        """
        (factor, tilted), width = self._both[j], len(self._factors[j].exponents)
        counts, exponents = np.zeros((len(independent), width), np.int32), tilted.exponents
        counts[~independent] = tilted.draw(rng, int((~independent).sum()))
        if self.coins:
            counts = np.pad(counts, ((0, 0), (0, self.coins + 1)))
            exponents = np.append(exponents, np.arange(self.coins + 1.0))
            counts[independent, width:] = rng.multinomial(
                factor.rounds, self._coins[j].chances, size=int(independent.sum())
            )
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
                    log_coins += coin.order * log_products(ratios, coin.odds) - factor.rounds * coin.log_moment
        return self._excess(log_ratio, log_ratio + log_power if self._powers else self.order * log_ratio, log_coins)

    def draw_beginnings(self, rng: np.random.Generator, draws: int, parts: Beginnings) -> tuple[Array, Array]:
        """Proposition 6: as ``draw``, at whole orders, for the beginnings of the only factor, shape (draws, n)."""
        if self._powers:
            raise NotEvaluable("beginnings are drawn at whole orders only")
        independent = rng.random(draws) >= self._share
        (factor,), (tilted,), first = self.run.factors, self._factors, int(parts.rounds[0])
        ratios, counts = self._ratios(rng, 0, independent)
        held = shuffle_ends(ratios, counts, rng.random((draws, factor.rounds - first)))
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
        return float(parts.rounds[-1] - parts.rounds[0]) * max(0.0, -float(self._factors[0].log_mu.min()))

    @classmethod
    def pilot(cls, run: Run, rank: Rank, look: Look, highest: int = HIGHEST_SAMPLED_ORDER) -> Pilot:
        """Of the order whose bound is the least, or the whole one below; where that leaves a wide spread, of the best
        independent rounds beside it.
        """
        proposal = cls.by_moments(run, rank, highest)
        if proposal.order == 2:
            with suppress(NotEvaluable):
                low = min((cls(run, each) for each in _LOW_ORDERS), key=rank)
                if rank(low) < rank(proposal):
                    return look(low)
        orders = range(int(proposal.order), max(int(proposal.order) - 2, 1), -1)
        found = best((each, look(cls(run, each))) for each in orders)[1]
        if found.spread < WIDE:
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
            if rank(proposal) >= rank(found):
                break
            found = proposal
        return found

    def on(self, run: Run) -> "RemoveProposal":
        return RemoveProposal(run, self.order, self.coins)

    @staticmethod
    def share(run: Run) -> float:
        """P-mass at infinite ratios. Only rounds taken part in can meet one."""
        return chance_of_any((each.round.infinite, each.copies * each.most) for each in run.factors)


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
