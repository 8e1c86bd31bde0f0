"""The likelihood ratio of banded noise where a person's rounds are hidden and spaced, and where to draw it from.

X = dP/dQ is the mean, over all sets S of k rounds at least ``gap`` apart, of the product of w_s over S, with w_s =
exp(<c_s, z> / sigma - |c_s|^2 / (2 sigma^2)), c_s column s of C, cut after the released rows. Columns of one set are
orthogonal. Those of t sets that are drawn for X^t are not: their joint law is that of a Markov chain over the rounds
since each of the t sets had its last one, and the rounds it has left.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from operator import attrgetter

import numpy as np

from fedamp.accounting.arithmetic import EXPONENT, UNIT, Array, spaced_means, spaced_rows
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.events import Spaced, spaced_sets
from fedamp.accounting.hidden_rounds import Run
from fedamp.accounting.sampling import HIGHEST_SAMPLED_ORDER, WIDE, Look, Moment, Pilot, Rank, RemoveProposal, best

_HIGHEST = 4  # order; draws of more schedules take longer than they save
_DRIFTS = (1.5, 4.0, 10.0, 25.0)  # drifts to try; each adds this much to the order if X is a constant times G
_UNDRIFTED = 0.5  # share of draws without drift; the bound is multiplied by its inverse
_MOST_STATES = 20_000_000  # numbers in a table: 160 MB


@dataclass(frozen=True)
class SpacedRun(Run):
    """``event``: what is released. ``noise_multiplier``: of one participation."""

    event: Spaced
    noise_multiplier: float
    log_least = -math.inf

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
    def shares(self) -> Array:
        """The chance of each round to be one of a person's, 0 for rounds that are not released, shape (rounds,)."""
        event = self.event
        found = np.zeros(event.rounds)
        for s in range(event.span):
            before, behind = max(s + 1 - event.gap, 0), max(event.rounds - s - event.gap, 0)
            ways = [
                spaced_sets(before, c, event.gap) * spaced_sets(behind, event.k - 1 - c, event.gap)
                for c in range(event.k)
            ]
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
        event = self.event
        return (2 * event.rounds + (8 * len(self.column) + 8) * EXPONENT * event.k + 64) * UNIT

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
        means, logs, largest = spaced_means(
            np.pad(rows, ((0, 0), (0, len(self.column) - 1))),
            self.column,
            self.overlaps[:, 0] / 2,
            self.shares,
            scale,
            event.k,
            event.gap,
            event.span,
        )
        if not largest < 1e200:
            raise NotEvaluable("likelihood ratios leave the range of floating point")
        with np.errstate(divide="ignore"):
            return np.log(means), logs


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
    """log E_Q[X^order G^drift]."""
    mean, _, squares = run.drift
    sets = _tables(run, order, drift)[-1] - order * math.log(run.event.sets)
    return sets + drift * (drift * float(mean @ mean) - squares) / 2


class SpacedRemove(RemoveProposal):
    """As its base, at whole orders and with another second part: dR = X^t (w / M_t + (1 - w) G^g / M_(t,g)) dQ, G as
    in ``log_ratios``. ``drift``: g >= 0; w is 1 without it.
    """

    run: SpacedRun

    def __init__(self, run: SpacedRun, order: float, drift: float = 0.0) -> None:
        if order != int(order) or order > _HIGHEST:
            raise NotEvaluable(f"spaced schedules are drawn at whole orders up to {_HIGHEST} only")
        self.run, self.order, self.drift, self.power = run, int(order), drift, float(order)
        self.name = f"order {order:.3g}" + (f" and drift {drift:.2g}" if drift else "")
        self._share = _UNDRIFTED if drift else 1.0
        self.log_moment = _log_moment(run, self.order, 0.0)
        self._drifted_moment = _log_moment(run, self.order, drift)
        self._moment = Moment(order, self.log_moment - math.log(self._share))
        size = (order**2 + drift * (order + drift)) * run.event.k / run.noise_multiplier**2
        steps = run.event.rounds * (2**order + 4)
        self.relative = (8 * steps + 64 * (size + order * math.log(run.event.sets) + EXPONENT * drift)) * UNIT
        self.variation = 16 * self.relative

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        event, drifted = self.run.event, rng.random(draws) >= self._share
        rows, uniforms = rng.standard_normal((draws, event.span)), rng.random((event.rounds, draws))
        for which, drift in ((~drifted, 0.0), (drifted, self.drift)):
            if which.any():
                *tables, _ = _tables(self.run, self.order, drift)
                moved = rows[which] + drift * self.run.drift[0]
                spaced_rows(
                    moved,
                    np.ascontiguousarray(uniforms[:, which]),
                    *tables,
                    self.run.column,
                    self.order,
                    event.k,
                    event.gap,
                )
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
        if found.spread < WIDE:
            return found
        tried = [found]
        for drift in _DRIFTS:
            with suppress(NotEvaluable):  # with so much of it ratios leave the range of floating point
                tried.append(look(cls(run, order, drift)))
        return min(tried, key=attrgetter("effort"))

    def on(self, run: Run) -> "SpacedRemove":
        assert isinstance(run, SpacedRun)
        return SpacedRemove(run, self.order, self.drift)
