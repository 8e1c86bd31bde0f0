"""Certified means of bounded draws: how delta is estimated, how sure that is, and which proposal needs fewest draws."""

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.hidden_rounds import Run
from fedamp.accounting.loops import sums_of_logs
from fedamp.accounting.numeric import UNIT

SEED = 20260713  # of the accountant's own coins, which are independent of all data

_BATCH, _MOST_ROWS = 1_500_000, 16_384
"""Ratios, and rows of them, that a thread draws at once: 12 MB, and as much again on the way."""

_PILOT, _PILOT_WORK = 4096, 3e8
"""Draws that tell one proposal from another, and steps of the recursion that they may take."""

_STAKE = 0.8  # the largest stake on an upper end, over 1 / b

Result = TypeVar("Result")

_SUMMING = 4 * _MOST_ROWS * UNIT + 1e-11
"""Bound on the relative error of sums of non-negative numbers, of a batch and then of up to 100,000 batches."""


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
    error = proposal.relative + (proposal.power + 1) * rounding + 4 * _SUMMING
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
    rows = max(64, min(_MOST_ROWS, _BATCH // proposal.run.widest))

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
