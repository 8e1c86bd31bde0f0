"""delta and epsilon of runs with hidden rounds, and of products with them, by tilted sampling; docs/k-of-t.md has the
proofs.

Three parts: certified means of bounded draws (how delta is estimated, how sure that is, and which proposal needs the
fewest draws); proposals R with a known density dR/dQ, for which delta(epsilon) = E_R[v] with 0 <= v <= a known bound,
in both directions; the profile of a run.
"""

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import checks
from fedamp.accounting.arithmetic import (
    EXPONENT,
    MOST_ROWS,
    SUMMING,
    UNIT,
    Array,
    chance_of_any,
    log_choose,
    log_products,
    rounding_of_overlaps,
    shuffle_ends,
    sums_of_logs,
)
from fedamp.accounting.bounds import Bounds, Method, NotEvaluable, epsilon_of_moment, log_delta_of_moment
from fedamp.accounting.hidden_rounds import (
    Beginnings,
    HiddenRounds,
    Run,
    log_beginnings,
)
from fedamp.accounting.law import Law

SEED = 20260713  # of the accountant's own coins, which are independent of all data

_BATCH = 1_500_000
"""Ratios that a thread draws at once: 12 MB, and as much again on the way."""

_PILOT, _PILOT_WORK = 4096, 3e8
"""Draws that tell one proposal from another, and steps of the recursion that they may take."""

_STAKE = 0.8  # the largest stake on an upper end, over 1 / b

Result = TypeVar("Result")


class Proposal(ABC):
    """A law R to draw the rounds of a run from, and values v whose mean under R is delta. ``run``: what is released.
    ``name``: for a person to read; tells proposals for one run apart. ``power``: of X in the density of R.
    ``variation``: bound on the total variation between the draws and R. ``relative``: bound on the relative error of v,
    X aside. With r the ``ratio_rounding`` of the run, values are off by at most a factor exp(relative + power * r), and
    belong to an epsilon off by r.
    """

    run: Run
    name: str
    power: float
    variation: float
    relative: float

    @abstractmethod
    def log_bound(self, epsilon: float) -> float:
        """log of the largest value of v."""

    @abstractmethod
    def bound_at(self, delta: float) -> float:
        """The epsilon at which the largest value of v is ``delta``: what a Rényi divergence proves."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        """Logs of two positive numbers a and b for each draw; v = (a - exp(epsilon) b)+."""

    @abstractmethod
    def on(self, run: Run) -> "Proposal":
        """The same proposal for another run."""


def certify(proposal: Proposal, above: Array, below: Array, draws: int, failure: float) -> tuple[Array, Array]:
    """Upper bounds of delta at each epsilon in ``above`` and lower bounds at each in ``below``, from fresh draws; of
    shape (n, candidates) where a draw has n columns, else (candidates,). All hold together, with a failure probability
    of ``failure`` that they share. For v in [0, b], E[prod_i (1 + s v_i)] = (1 + s delta)^n for n independent draws and
    any stake s > -1/b. So by Markov's inequality (1 + s delta)^n >= exp(-L) prod_i (1 + s v_i) but for a probability of
    exp(-L), L = log(candidates / failure). A negative stake bounds delta from above, a positive one from below.
    """
    rounding = proposal.run.ratio_rounding
    epsilons = np.concatenate([above - rounding, below + rounding], axis=-1)
    error = proposal.relative + (proposal.power + 1) * rounding + 4 * SUMMING
    bound = np.exp([min(proposal.log_bound(epsilon) + error, 700.0) for epsilon in epsilons.flat])
    bound, count = bound.reshape(epsilons.shape), above.shape[-1]
    log_term = math.log(epsilons.size / failure)
    stakes = _stakes(proposal, epsilons, count, math.sqrt(2 * log_term / draws))
    stakes[..., :count] = -np.minimum(stakes, _STAKE / np.maximum(bound, 1e-300))[..., :count]
    found = np.expm1((_sums(proposal, epsilons, stakes, draws) - log_term) / draws) / stakes
    off = bound * (proposal.variation + 64 * UNIT)
    upper, lower = found * math.exp(error) + off, found * math.exp(-error) - off
    return upper[..., :count], np.maximum(lower[..., count:], 0.0)


def _stakes(proposal: Proposal, epsilons: Array, count: int, step: float) -> Array:
    """``step`` over the standard deviation of a draw, at most 1 over its mean; of the shape of ``epsilons``, by a pilot
    at the first of them above and below.
    """
    (log_a, log_b), found = _drawn(proposal), np.zeros(epsilons.shape)
    for part in (slice(0, count), slice(count, None)):
        if found[..., part].size:
            values = _values(log_a, log_b, epsilons[..., part][..., 0])
            found[..., part] = 1 / np.maximum(values.std(axis=0) / step, values.mean(axis=0) + 1e-300)[..., None]
    return found


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

    @classmethod
    def at_delta(cls, proposal: Proposal, delta: float, draws: int = 0) -> "Pilot":
        """Around the epsilon >= 0 that belongs to ``delta``; the same random numbers for every proposal."""
        log_a, log_b = _drawn(proposal, draws)
        low, high = 0.0, 1.0
        while _values(log_a, log_b, high).mean() > delta:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _values(log_a, log_b, middle).mean() > delta else (low, middle)
        return cls._from(proposal, low, log_a, log_b)

    @classmethod
    def of_columns(cls, proposal: Proposal, delta: float) -> "list[Pilot]":
        """The same for each column of the draws, sooner: between two losses delta is linear in exp(epsilon)."""
        return [
            cls._from(proposal, _epsilon_of(log_a, log_b, delta), log_a, log_b)
            for log_a, log_b in np.stack(_drawn(proposal), axis=1).T
        ]

    @classmethod
    def at_epsilon(cls, proposal: Proposal, epsilon: float, draws: int = 0) -> "Pilot":
        """Around one epsilon."""
        return cls._from(proposal, epsilon, *_drawn(proposal, draws))

    @classmethod
    def _from(cls, proposal: Proposal, epsilon: float, log_a: Array, log_b: Array) -> "Pilot":
        values = _values(log_a, log_b, epsilon)
        mean = float(values.mean())
        if not 0 < mean < math.inf:
            return cls(proposal, epsilon, 0.0, math.inf, math.inf, 1.0)
        fall = float(np.exp(epsilon + log_b[values > 0]).sum() / len(values))
        bound = math.exp(min(proposal.log_bound(epsilon) - math.log(mean), 700.0))
        return cls(proposal, epsilon, mean, max(float(values.std()) / mean, 1e-3), bound, max(fall / mean, 1e-9))

    def error(self, draws: float, log_term: float) -> float:
        """Relative error of delta that so many draws will leave."""
        stake = min(math.sqrt(2 * log_term / draws) / self.spread, _STAKE / self.bound)
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
        stake = min(error / self.spread**2, _STAKE / self.bound)
        return log_term / (stake * (error - stake * self.spread**2 / 2)) if stake > 0 else math.inf


def pilot_draws(run: Run) -> int:
    """How many draws a first look takes."""
    return max(512, min(_PILOT, int(_PILOT_WORK / run.work)))


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


def _epsilon_of(log_a: Array, log_b: Array, delta: float) -> float:
    """The epsilon >= 0 at which the mean of (a - exp(epsilon) b)+ is ``delta``."""
    order = np.argsort(log_b - log_a)
    order = order[log_a[order] > log_b[order]]
    a, b = (np.cumsum(np.exp(np.minimum(each[order], 600.0))) for each in (log_a, log_b))
    excess = a - b * np.exp(np.minimum(log_a - log_b, 600.0))[order] - len(log_a) * delta
    last = int(np.searchsorted(excess, 0.0)) - 1
    return max(math.log((a[last] - len(log_a) * delta) / b[last]), 0.0) if a[-1:] > len(log_a) * delta else 0.0


def _values(log_a: Array, log_b: Array, epsilon: float | Array) -> Array:
    excess = log_a - log_b - epsilon
    return np.where(excess > 0, np.exp(np.minimum(log_a, 700.0)) * -np.expm1(-np.maximum(excess, 0.0)), 0.0)


def _drawn(proposal: Proposal, draws: int = 0) -> tuple[Array, Array]:
    """The same random numbers for every proposal: differences between proposals are then better known than either."""
    parts = _batches(proposal, draws or pilot_draws(proposal.run), 0, lambda log_a, log_b: (log_a, log_b))
    log_a, log_b = (np.concatenate(part) for part in zip(*parts, strict=True))
    return log_a, log_b


def _sums(proposal: Proposal, epsilons: Array, stakes: Array, draws: int) -> Array:
    """Sums of log(1 + stake v) at each epsilon and its stake, of the shape of both, from fresh draws."""
    columns = np.atleast_2d(epsilons)
    order = np.argsort(columns, axis=1)
    scales = np.exp(np.take_along_axis(columns, order, axis=1))
    sorted_stakes = np.take_along_axis(np.atleast_2d(stakes), order, axis=1)

    def summed(log_a: Array, log_b: Array) -> Array:
        found = np.empty(columns.shape)
        for i, (a, b) in enumerate(zip(np.atleast_2d(log_a.T), np.atleast_2d(log_b.T), strict=True)):
            some = a - b > columns[i, order[i, 0]]  # elsewhere all values are 0
            found[i] = sums_of_logs(np.exp(a[some]), np.exp(b[some]), scales[i], sorted_stakes[i])
        return found

    total = np.sum(_batches(proposal, draws, _question(proposal, epsilons, draws), summed), axis=0)
    return np.asarray(np.take_along_axis(total, np.argsort(order, axis=1), axis=1).reshape(epsilons.shape))


def _batches(proposal: Proposal, draws: int, question: int, use: Callable[[Array, Array], Result]) -> list[Result]:
    """What becomes of each batch of draws. Batches do not depend on how many threads there are."""
    rows = max(64, min(MOST_ROWS, _BATCH // proposal.run.widest))

    def batch(first: int) -> Result:
        rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([SEED, question, first])))
        return use(*proposal.draw(rng, min(rows, draws - first)))

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        return list(pool.map(batch, range(0, draws, rows)))


def _question(proposal: Proposal, epsilons: Array, draws: int) -> int:
    """A number for each question, so that different questions get independent draws."""
    text = f"{proposal.name} {draws}".encode() + epsilons.tobytes() + proposal.run.fingerprint()
    digest = hashlib.blake2b(text, digest_size=8)
    return 1 + int.from_bytes(digest.digest(), "little")


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
    off = power * factor.chance_rounding + rounding_of_overlaps(factor.rounds, 2)
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
    """The privacy profile of a run that has hidden rounds; docs/k-of-t.md. ``upper``: its likelihood ratio, exact or
    larger in convex order. ``lower``: the same, exact or smaller; the same object as ``upper`` if exact, None if no
    lower end is wanted. ``laws``: each makes a law whose add direction bounds this one's, asked in turn. The add
    direction is sampled only if they leave it larger than the remove direction, a rare case. ``remove``,
    ``add``: the proposals of each direction; ``add`` None where it is never the larger one.
    """

    upper: Run
    lower: Run | None
    laws: tuple[Callable[[], Law], ...] = ()
    remove: type[RemoveProposal] = RemoveProposal
    add: type[AddProposal] | None = AddProposal

    def epsilon(
        self,
        delta: float,
        *,
        precision: float = PRECISION,
        known: float = math.inf,
        highest: int = HIGHEST_SAMPLED_ORDER,
    ) -> Bounds:
        """Smallest epsilon >= 0 at ``delta``, in both directions. ``delta``: in (0, 1). ``precision``: relative width
        of the bracket that is aimed at, in [1e-4, 0.1]. ``known``: an upper end from elsewhere; nothing is certified
        that would hardly be below it. ``highest``: order to try in the remove direction; low ones are found sooner.
        Returns a bracket with a failure probability of 1e-6 delta, charged to ``upper``. Raises ``NotEvaluable``: too
        much work, or not worth it; another bound has to answer.
        """
        remove = self._epsilon(self.remove, delta, precision, known, highest)
        add = self.known(lambda law: law.add.epsilon(delta), remove.upper)
        return _with_add(remove, add, lambda: self._epsilon(self.add or self.remove, delta, precision, known))

    def delta(self, epsilon: float, *, precision: float = 0.05) -> Bounds:
        """Smallest delta at ``epsilon`` >= 0, in both directions, with a bracket of a relative width of ``precision``;
        otherwise as :meth:`epsilon`.
        """
        remove = self.delta_remove(epsilon, precision=precision)
        known = self.known(lambda law: law.add.delta(epsilon), remove.upper)
        return _with_add(remove, known, lambda: self.delta_add(epsilon, precision=precision))

    def delta_remove(self, epsilon: float, *, precision: float = 0.05) -> Bounds:
        """As :meth:`delta`, for the remove direction H(P, Q) alone."""
        return self._delta(self.remove, epsilon, precision)

    def delta_add(self, epsilon: float, *, precision: float = 0.05) -> Bounds:
        """As :meth:`delta`, for the add direction H(Q, P) alone."""
        if not self.add:
            return self.delta_remove(epsilon, precision=precision)
        if epsilon > self.upper.ratio_rounding - self.upper.log_least:
            return Bounds(0.0, 0.0, Method.RARE_OUTPUT.of())
        return self._delta(self.add, epsilon, precision)

    def known(self, ask: Callable[[Law], Bounds], enough: float) -> float:
        """An upper end of the add direction by the laws; no more of them are asked once it is at most ``enough``."""
        known = math.inf if self.add else 0.0
        for law in self.laws:
            with suppress(NotEvaluable):
                known = min(known, ask(law()).upper)
            if known <= enough:
                break
        return known

    def _epsilon(
        self, direction: Direction, delta: float, precision: float, known: float, highest: int = HIGHEST_SAMPLED_ORDER
    ) -> Bounds:
        checks.delta(delta)
        checks.precision(precision)
        charge = CHARGE * delta
        spendable = delta - charge - direction.share(self.upper)
        if spendable <= 0:
            raise NotEvaluable("a round gives a person away with more than delta")
        most = self.most_draws(PRECISION / precision)
        look = partial(Pilot.at_delta, delta=spendable)
        pilot = direction.pilot(self.upper, methodcaller("bound_at", spendable), look, highest)
        if pilot.epsilon * (1 + precision / 2) >= known:
            raise NotEvaluable("another bound is as low")
        failure, certified = charge / QUESTIONS, len(STEPS) * 2
        log_term = math.log(2 * certified / failure)
        aim = 0.42 * precision * max(pilot.epsilon, 0.02)
        needed = pilot.draws_for(aim * pilot.slope, log_term) if pilot.epsilon > 0 else FOR_ZERO
        draws = int(min(max(needed, 4096), most))
        half_width(pilot.for_lower, draws, log_term)
        pilot = Pilot.at_delta(pilot.proposal, spendable, max(512, min(draws // 4, 500_000)))
        half = half_width(pilot.for_lower, draws, log_term)
        below = np.maximum(pilot.epsilon - half * STEPS, 0.0)
        above = np.minimum(pilot.epsilon + pilot.error(draws, log_term) / pilot.slope * STEPS, 600.0)
        above[0] = above[0] if pilot.epsilon > 0 else 0.0
        upper_deltas, lower_deltas = self._certified(pilot.proposal, above, below, draws, failure)
        kept, exceeded = np.flatnonzero(upper_deltas <= spendable), np.flatnonzero(lower_deltas > delta)
        upper = float(above[kept[0]]) if len(kept) else math.inf
        lower = float(below[exceeded[0]]) if len(exceeded) else 0.0
        return Bounds(min(lower, upper), upper, Method.SAMPLED.of(draws, pilot.proposal.name, charge))

    def _delta(self, direction: Direction, epsilon: float, precision: float) -> Bounds:
        checks.epsilon(epsilon)
        checks.positive("precision", precision)
        if epsilon > 200:
            raise NotEvaluable("epsilon is too large to be sampled")
        at, most = np.array([epsilon]), self.most_draws()
        look = partial(Pilot.at_epsilon, epsilon=epsilon)
        pilot = direction.pilot(self.upper, methodcaller("log_bound", epsilon), look)
        charge = CHARGE * min(pilot.delta, 1e-3)
        failure = charge / QUESTIONS
        draws = int(min(max(pilot.draws_for(precision / 2, math.log(4 / failure)), 4096), most))
        upper_deltas, lower_deltas = self._certified(pilot.proposal, at, at, draws, failure)
        upper = float(upper_deltas[0]) + charge + direction.share(self.upper)
        if not upper <= 2 * pilot.delta:
            raise NotEvaluable("sampling leaves delta uncertain by more than a factor of two")
        upper = min(upper, 1.0)
        return Bounds(min(float(lower_deltas[0]), upper), upper, Method.SAMPLED.of(draws, pilot.proposal.name, charge))

    def estimate(self, delta: float, proposal: Proposal | None = None, draws: int = 0) -> Pilot:
        """For searches: epsilon in the remove direction, not certified, by draws from what ``proposal`` is for another
        run. Equal random numbers for all runs make it a smooth function of the noise.
        """
        look = partial(Pilot.at_delta, delta=delta, draws=draws)
        if proposal is None:
            return self.remove.pilot(self.upper, methodcaller("bound_at", delta), look)
        return look(proposal.on(self.upper))

    def by_moments(self, delta: float) -> RemoveProposal:
        """For searches: the order whose moment proves the least epsilon, ``bound_at(delta)``."""
        return self.remove.by_moments(self.upper, methodcaller("bound_at", delta))

    def _certified(
        self, proposal: Proposal, above: Array, below: Array, draws: int, failure: float
    ) -> tuple[Array, Array]:
        """Certified bounds of delta: from the upper law at ``above``, from the lower law at ``below``."""
        if self.upper is self.lower:
            return certify(proposal, above, below, draws, failure)
        nothing = np.zeros(0)
        upper, _ = certify(proposal, above, nothing, draws, failure / 2)
        if self.lower is None:
            return upper, np.zeros(len(below))
        return upper, certify(proposal.on(self.lower), nothing, below, draws, failure / 2)[1]

    def most_draws(self, finer: float = 1.0) -> float:
        """For so much finer a precision than 5e-3."""
        most = _WORK / self.upper.work * finer**2 / (1 if self.lower in (self.upper, None) else 2)
        if most < 2_000:
            raise NotEvaluable("a draw of all hidden rounds takes too long")
        return most


def half_width(pilot: Pilot, draws: int, log_term: float) -> float:
    """Of the bracket on epsilon that so many draws will leave, if it is worth them."""
    half = pilot.error(draws, log_term) / pilot.slope
    if 2 * half > _HOPELESS * max(pilot.epsilon, 0.1):
        raise NotEvaluable(f"sampling leaves epsilon, some {pilot.epsilon:.2g}, uncertain by {2 * half:.1g}")
    return half


def _with_add(remove: Bounds, known: float, sample: Callable[[], Bounds]) -> Bounds:
    """The larger of both directions; the add direction is at most ``known``, and sampled where it may decide."""
    if known <= remove.upper:
        return remove  # the larger of both lies in this bracket in any case
    try:
        add = sample()
    except NotEvaluable:
        if known == math.inf:
            raise
        add = Bounds(0.0, math.inf)
    if add.upper > known:
        add = Bounds(min(add.lower, known), known, remove.origin.within(Method.ADD_BY_LAW))
    decides = max(remove, add, key=lambda bounds: bounds.upper)
    return Bounds(max(remove.lower, add.lower), decides.upper, decides.origin)
