"""delta and epsilon of runs with hidden rounds, and of products with them, by tilted sampling; docs/k-of-t.md has the
proofs. First certified means of bounded draws (how delta is estimated, how sure that is, and how many draws that
needs), then the profile of a run, in both directions.
"""

import hashlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import TypeVar

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.arithmetic import MOST_ROWS, SUMMING, UNIT, Array, sums_of_logs
from fedamp.accounting.bounds import Bounds, Method, NotEvaluable
from fedamp.accounting.hidden_rounds import (
    HIGHEST_SAMPLED_ORDER,
    STAKE,
    AddProposal,
    Pilot,
    Proposal,
    RemoveProposal,
    Run,
)
from fedamp.accounting.law import Law

SEED = 20260713  # of the accountant's own coins, which are independent of all data

_BATCH = 1_500_000
"""Ratios that a thread draws at once: 12 MB, and as much again on the way."""

_PILOT, _PILOT_WORK = 4096, 3e8
"""Draws that tell one proposal from another, and steps of the recursion that they may take."""


Result = TypeVar("Result")


def certify(proposal: Proposal, above: Array, below: Array, draws: int, failure: float) -> tuple[Array, Array]:
    """Upper bounds of delta at each epsilon in ``above`` and lower bounds at each in ``below``, from fresh draws; of
    shape (n, candidates) where a draw has n columns, else (candidates,). All hold together, with a failure probability
    of ``failure`` that they share. For v in [0, b], E[prod_i (1 + s v_i)] = (1 + s delta)^n for n independent draws and
    any stake s > -1/b. So by Markov's inequality (1 + s delta)^n >= exp(-L) prod_i (1 + s v_i) but for a probability of
    exp(-L), L = log(candidates / failure). A negative stake bounds delta from above, a positive one from below.
    """
    rounding = proposal.run.ratio_rounding
    epsilons = np.concatenate([above - rounding, below + rounding], axis=-1)
    error = proposal.relative + (proposal.moment.order + 1) * rounding + 4 * SUMMING
    bound = np.exp([min(proposal.log_bound(epsilon) + error, 700.0) for epsilon in epsilons.flat])
    bound, count = bound.reshape(epsilons.shape), above.shape[-1]
    log_term = math.log(epsilons.size / failure)
    stakes = _stakes(proposal, epsilons, count, math.sqrt(2 * log_term / draws))
    stakes[..., :count] = -np.minimum(stakes, STAKE / np.maximum(bound, 1e-300))[..., :count]
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


def pilot_at_delta(proposal: Proposal, delta: float, draws: int = 0) -> Pilot:
    """Around the epsilon >= 0 that belongs to ``delta``; the same random numbers for every proposal."""
    log_a, log_b = _drawn(proposal, draws)
    low, high = 0.0, 1.0
    while _values(log_a, log_b, high).mean() > delta:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _values(log_a, log_b, middle).mean() > delta else (low, middle)
    return _pilot(proposal, low, log_a, log_b)


def pilots_of_columns(proposal: Proposal, delta: float) -> list[Pilot]:
    """The same for each column of the draws, sooner: between two losses delta is linear in exp(epsilon)."""
    columns = np.stack(_drawn(proposal), axis=1).T
    return [_pilot(proposal, _epsilon_of(log_a, log_b, delta), log_a, log_b) for log_a, log_b in columns]


def pilot_at_epsilon(proposal: Proposal, epsilon: float, draws: int = 0) -> Pilot:
    """Around one epsilon."""
    return _pilot(proposal, epsilon, *_drawn(proposal, draws))


def _pilot(proposal: Proposal, epsilon: float, log_a: Array, log_b: Array) -> Pilot:
    values = _values(log_a, log_b, epsilon)
    mean = float(values.mean())
    if not 0 < mean < math.inf:
        return Pilot(proposal, epsilon, 0.0, math.inf, math.inf, 1.0)
    fall = float(np.exp(epsilon + log_b[values > 0]).sum() / len(values))
    bound = math.exp(min(proposal.log_bound(epsilon) - math.log(mean), 700.0))
    return Pilot(proposal, epsilon, mean, max(float(values.std()) / mean, 1e-3), bound, max(fall / mean, 1e-9))


def pilot_draws(run: Run) -> int:
    """How many draws a first look takes."""
    return max(512, min(_PILOT, int(_PILOT_WORK / run.work)))


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
        look = partial(pilot_at_delta, delta=spendable)
        pilot = direction.pilot(self.upper, methodcaller("bound_at", spendable), look, highest)
        if pilot.epsilon * (1 + precision / 2) >= known:
            raise NotEvaluable("another bound is as low")
        failure, certified = charge / QUESTIONS, len(STEPS) * 2
        log_term = math.log(2 * certified / failure)
        aim = 0.42 * precision * max(pilot.epsilon, 0.02)
        needed = pilot.draws_for(aim * pilot.slope, log_term) if pilot.epsilon > 0 else FOR_ZERO
        draws = int(min(max(needed, 4096), most))
        half_width(pilot.for_lower, draws, log_term)
        pilot = pilot_at_delta(pilot.proposal, spendable, max(512, min(draws // 4, 500_000)))
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
        look = partial(pilot_at_epsilon, epsilon=epsilon)
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
        look = partial(pilot_at_delta, delta=delta, draws=draws)
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
