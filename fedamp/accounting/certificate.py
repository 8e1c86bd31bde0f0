"""Means of bounded draws with a certificate: how delta is estimated, how sure that is, which proposal needs fewest."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fedamp.accounting.bounds import Array, NotEvaluable
from fedamp.accounting.compiled import compiled
from fedamp.accounting.hidden_rounds import Run
from fedamp.accounting.numeric import UNIT, chance_of_any
from fedamp.accounting.tilted import AddProposal, Proposal, RemoveProposal

SEED = 20260713
"""Of the accountant's own coins, which are independent of all data."""

_BATCH, _MOST_ROWS = 1_500_000, 16_384
"""Ratios, and rows of them, that a thread draws at once: 12 MB, and as much again on the way."""

_PILOT = 4096
"""Draws that tell one proposal from another."""

_SUMMING = 4 * _MOST_ROWS * UNIT + 1e-11
"""Bound on the relative error of sums of non-negative numbers, of a batch and then of up to 100,000 batches."""


def certify(proposal: Proposal, above: Array, below: Array, draws: int, failure: float) -> tuple[Array, Array]:
    """Upper bounds of delta at each epsilon in ``above`` and lower bounds at each in ``below``, from fresh draws.

    All hold together but for a probability of ``failure``. Maurer and Pontil 2009, Theorem 4:
    the mean of n independent draws in [0, b] with sample variance V is off by at most sqrt(2 V L / n) + 7 b L / (3 (n -
    1)), L = log(2 / failure), on either side; failure is shared among all of them.
    """
    rounding = proposal.run.ratio_rounding
    epsilons = np.concatenate([above - rounding, below + rounding])
    total, squares = _sums(proposal, epsilons, draws)
    mean = total / draws
    variance = (np.maximum(squares - total * mean, 0.0) + _SUMMING * squares) / (draws - 1)
    error = proposal.relative + (proposal.power + 1) * rounding + _SUMMING
    bound = np.exp([min(proposal.log_bound(epsilon) + error, 700.0) for epsilon in epsilons])
    log_term = math.log(2 * len(epsilons) / failure)
    radius = np.sqrt(2 * variance * log_term / draws) + 7 * bound * log_term / (3 * (draws - 1))
    radius += bound * (proposal.variation + 64 * UNIT)
    upper, lower = (mean + radius) * math.exp(error), (mean - radius) * math.exp(-error)
    return upper[: len(above)], np.maximum(lower[len(above) :], 0.0)


@dataclass(frozen=True, eq=False)
class Pilot:
    """A first look, from which nothing is certified: where to look closer, and how many draws that takes.

    Attributes:
        epsilon, delta: a point of the privacy profile, estimated.
        spread: standard deviation of one draw over the mean.
        bound: the largest value of one draw over the mean.
        slope: how fast log delta falls as epsilon rises there.
    """

    proposal: Proposal
    epsilon: float
    delta: float
    spread: float
    bound: float
    slope: float

    @classmethod
    def at_delta(cls, proposal: Proposal, delta: float, draws: int = _PILOT) -> "Pilot":
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
    def at_epsilon(cls, proposal: Proposal, epsilon: float, draws: int = _PILOT) -> "Pilot":
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
        return self.spread * math.sqrt(2 * log_term / draws) + 7 * self.bound * log_term / (3 * draws)

    @property
    def effort(self) -> float:
        """Draws for an epsilon known to 0.02 either way."""
        return self.draws_for(0.02 * self.slope, 32.0)

    def draws_for(self, error: float, log_term: float) -> float:
        """Draws that leave a relative error of delta of so much, or a fifth: a quadratic equation in their root."""
        error = min(error, 0.2)
        a, c = self.spread * math.sqrt(2 * log_term), 7 * self.bound * log_term / 3
        return ((a + math.sqrt(a * a + 4 * error * c)) / (2 * error)) ** 2


def best(pilots: Iterable[Pilot], chosen: Pilot | None = None) -> Pilot:
    """Of the pilots (and ``chosen``, if given) the one that needs the fewest draws; stops where that rises, or where
    there is no next one.

    Raises:
        NotEvaluable: there is no first one, or its draws meet no loss beyond epsilon.
    """
    try:
        for pilot in pilots:
            if chosen is not None and pilot.effort >= chosen.effort:
                break
            chosen = pilot
    except NotEvaluable:
        if chosen is None:
            raise
    if chosen is None or chosen.effort == math.inf:
        raise NotEvaluable("the draws meet no loss beyond epsilon")
    return chosen


def _values(log_a: Array, log_b: Array, epsilon: float) -> Array:
    excess = log_a - log_b - epsilon
    return np.where(excess > 0, np.exp(np.minimum(log_a, 700.0)) * -np.expm1(-np.maximum(excess, 0.0)), 0.0)


def _drawn(proposal: Proposal, draws: int) -> tuple[Array, Array]:
    """The same random numbers for every proposal: differences between proposals are then better known than either."""
    parts = _batches(proposal, draws, 0, lambda log_a, log_b: (log_a, log_b))
    log_a, log_b = (np.concatenate(part) for part in zip(*parts, strict=True))
    return log_a, log_b


def _sums(proposal: Proposal, epsilons: Array, draws: int) -> tuple[Array, Array]:
    """Sums of the values and of their squares at each epsilon, shape (len(epsilons),) each, from draws of their own."""
    order = np.argsort(epsilons)
    scales = np.exp(epsilons[order])

    def summed(log_a: Array, log_b: Array) -> tuple[Array, Array]:
        some = log_a - log_b > epsilons[order[0]]  # elsewhere all values are 0
        total, squares = _excesses(np.exp(log_a[some]), np.exp(log_b[some]), scales)
        return total, squares

    parts = _batches(proposal, draws, _question(proposal, epsilons, draws), summed)
    total, squares = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
    return total[np.argsort(order)], squares[np.argsort(order)]


def _batches(
    proposal: Proposal, draws: int, question: int, use: Callable[[Array, Array], tuple[Array, Array]]
) -> list[tuple[Array, Array]]:
    """What becomes of each batch of draws. Batches do not depend on how many threads there are."""
    rows = max(64, min(_MOST_ROWS, _BATCH // proposal.run.widest))

    def batch(first: int) -> tuple[Array, Array]:
        rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([SEED, question, first])))
        return use(*proposal.draw(rng, min(rows, draws - first)))

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        return list(pool.map(batch, range(0, draws, rows)))


def _question(proposal: Proposal, epsilons: Array, draws: int) -> int:
    """A number for each question, so that different questions get independent draws."""
    told = f"{proposal.name} {draws}".encode() + epsilons.tobytes() + proposal.run.fingerprint()
    digest = hashlib.blake2b(told, digest_size=8)
    return 1 + int.from_bytes(digest.digest(), "little")


@compiled(nogil=True)
def _excesses(a, b, scales):  # type: ignore[no-untyped-def]
    """Sums of (a - scale b)+ and of its square at each scale; ``scales`` increase."""
    total, squares = np.zeros(len(scales)), np.zeros(len(scales))
    for d in range(len(a)):
        for i in range(len(scales)):
            value = a[d] - scales[i] * b[d]
            if value <= 0:
                break
            total[i] += value
            squares[i] += value * value
    return total, squares


HIGHEST_SAMPLED_ORDER = 16

_WIDE = 2.5
"""Standard deviation of a draw over its mean; about 1.5 is the least that a power of X reaches."""

_LOW_ORDERS = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9)
"""Orders to try where noise is little."""

_DRIFTS = (1.5, 4.0, 10.0, 25.0)
"""Drifts to try; each adds so much to the order, were X a constant times G."""

Rank = Callable[[Proposal], float]
"""What a proposal's bound alone proves about the answer: the smaller, the better the proposal."""


@dataclass(frozen=True)
class Remove:
    """H(P, Q), sampled by orders up to ``highest``."""

    highest: int = HIGHEST_SAMPLED_ORDER

    def pilot(self, run: Run, rank: Rank, look: Callable[[Proposal], Pilot]) -> Pilot:
        """Of the order whose bound is the least, or the whole one below; where that leaves a wide spread, of the best
        drift beside it.
        """
        proposal = self.by_moments(run, rank)
        highest = int(proposal.order)
        if highest == 2:
            with suppress(NotEvaluable):
                low = min((RemoveProposal(run, each) for each in _LOW_ORDERS), key=rank)
                if rank(low) < rank(proposal):
                    return look(low)
        found = best(look(RemoveProposal(run, each)) for each in range(highest, max(highest - 2, 1), -1))
        if found.spread < _WIDE or not isinstance(found.proposal, RemoveProposal):
            return found
        drifted, order = [found], found.proposal.order
        for drift in _DRIFTS:
            with suppress(NotEvaluable):  # with so much of it ratios leave the range of floating point
                drifted.append(look(RemoveProposal(run, order, drift)))
        return min(drifted, key=lambda pilot: pilot.effort)

    def by_moments(self, run: Run, rank: Rank) -> RemoveProposal:
        """The order whose bound is the least."""
        found = RemoveProposal(run, 2)
        for order in range(3, self.highest + 1):
            try:
                proposal = RemoveProposal(run, order)
            except NotEvaluable:
                break
            if rank(proposal) >= rank(found):
                break
            found = proposal
        return found

    def same(self, proposal: Proposal, run: Run) -> Proposal:
        """The proposal, of another run."""
        assert isinstance(proposal, RemoveProposal)
        return RemoveProposal(run, proposal.order, proposal.drift)

    def share(self, run: Run) -> float:
        """P-mass at infinite ratios, which only rounds taken part in can meet."""
        return chance_of_any((f.round.infinite, f.copies * f.most) for f in run.factors)


@dataclass(frozen=True)
class Add:
    """H(Q, P)."""

    def pilot(self, run: Run, rank: Rank, look: Callable[[Proposal], Pilot]) -> Pilot:
        """Of the best tilt, from that of the least bound down."""
        candidates = [AddProposal(run, 2.0**power) for power in np.arange(-10, 10, 0.5)]
        least = int(np.argmin([rank(proposal) for proposal in candidates]))
        return best(look(proposal) for proposal in candidates[least::-1])

    def same(self, proposal: Proposal, run: Run) -> Proposal:
        """The proposal, of another run."""
        assert isinstance(proposal, AddProposal)
        return AddProposal(run, proposal.tilt)

    def share(self, run: Run) -> float:
        """Q-mass at ratio 0, of any round."""
        return chance_of_any((f.round.zero, f.copies * f.rounds) for f in run.factors)
