"""The likelihood ratio of correlated noise where a person's rounds are hidden and spaced, and where to draw it from.

X = dP/dQ is the mean, over all sets S of k rounds at least ``gap`` apart, of the product of w_s over S, with w_s =
exp(<c_s, z> / sigma - |c_s|^2 / (2 sigma^2)), c_s column s of C, cut after the released rows. Columns of one set are
orthogonal if C has bands. Those of t sets that are drawn for X^t are not: their joint law is that of a Markov chain
over the rounds since each of the t sets had its last one, and the rounds it has left. Without bands, columns that are a
gap apart or more overlap as well; sets differ little in how much, and the difference is charged as ``Far``.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from fedamp.accounting.arithmetic import BUFFERS, EXPONENT, UNIT, Array, log_sum, spaced_means, spaced_rows
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.events import BallsInBins, Spaced, spaced_sets
from fedamp.accounting.hidden_rounds import Run
from fedamp.accounting.sampling import HIGHEST_SAMPLED_ORDER, WIDE, Look, Moment, Pilot, Rank, RemoveProposal, best

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
    """``event``: what is released. ``noise_multiplier``: of one participation."""

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
        buffers = 0.0 if self.event.is_banded else BUFFERS
        return (
            buffers
            + self.far.inside[1]
            + (2 * event.rounds + (8 * len(self.column) + 8) * EXPONENT * event.k + 64) * UNIT
        )

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
            return np.log(means) - self.far.inside[0], logs


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
        self.relative += order * (order - 1) / 2 * run.far.between[1]

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


@dataclass(frozen=True)
class ListedRun(SpacedRun):
    """X as a mean over few sets, each with its signal."""

    event: BallsInBins | Spaced  # type: ignore[assignment]

    @cached_property
    def signals(self) -> Array:
        """C 1_S over sigma for each set, shape (sets, released)."""
        event = self.event
        column = np.array([1.0, *event.coefficients])
        column = np.pad(column / (np.linalg.norm(column) * self.noise_multiplier), (0, event.rounds))
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
        self.run, self.order, self.drift, self.power = run, int(order), 0.0, float(order)
        self.name = f"order {order:.3g}"
        products, logs = signals @ signals.T, np.zeros((len(signals),) * t)
        for one, other in combinations(range(t), 2):
            logs += products.reshape([len(signals) if axis in (one, other) else 1 for axis in range(t)])
        self._below = np.cumsum(np.exp(logs.ravel() - logs.max()))
        self.log_moment = float(logs.max() + math.log(self._below[-1]) - t * math.log(len(signals)))
        self._below /= self._below[-1]
        self._moment = Moment(order, self.log_moment)
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

    def on(self, run: Run) -> "ListedRemove":
        assert isinstance(run, ListedRun)
        return ListedRemove(run, self.order)
