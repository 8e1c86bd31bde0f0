"""delta and epsilon of runs with hidden rounds, and of products with them, by tilted sampling (docs/k-of-t.md)."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import methodcaller

import numpy as np

from fedamp.accounting import checks, laws
from fedamp.accounting.amplification import AllocationPrefix, CappedPoisson, Spaced
from fedamp.accounting.bounds import Array, Bounds, NotEvaluable
from fedamp.accounting.certificate import Pilot, Proposal, certify
from fedamp.accounting.hidden_rounds import FiniteRound, GaussianRound, HiddenRounds, Round, Run
from fedamp.accounting.law import Law
from fedamp.accounting.mechanism import Mechanism, Relation
from fedamp.accounting.participation import Participation, participation
from fedamp.accounting.proposals import HIGHEST_SAMPLED_ORDER, AddProposal, RemoveProposal
from fedamp.accounting.reductions import attained, factors, hidden_rounds_bounds
from fedamp.accounting.releases import Compose, Gaussian, Repeat
from fedamp.accounting.spaced import SpacedRemove, SpacedRun

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
            return Bounds(0.0, 0.0, "an output that unlikely cannot occur")
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
        return Bounds(min(lower, upper), upper, _method(pilot.proposal, draws, charge))

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
        return Bounds(min(float(lower_deltas[0]), upper), upper, _method(pilot.proposal, draws, charge))

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
        add = Bounds(min(add.lower, known), known, f"the add direction by the law; remove: {remove.method}")
    decides = max(remove, add, key=lambda bounds: bounds.upper)
    return Bounds(max(remove.lower, add.lower), decides.upper, decides.method)


def _method(proposal: Proposal, draws: int, charge: float) -> str:
    return f"sampled, {draws:,} draws of {proposal.name}, failure probability {charge:.0e} (charged to delta)"


def is_sampled(event: Mechanism) -> bool:
    """Whether a person takes part in several hidden rounds. Law and moments are only bounds there."""
    if isinstance(event, Spaced):
        precision, others = factors(event.mechanism)
        return precision > 0 and not others and not event.is_empty
    return event.is_private and any(_is_hidden(other) for other in factors(event)[1])


def sampled_profile(event: Mechanism, detail: laws.Detail = laws.DEFAULT_DETAIL) -> SampledProfile:
    """The sampler of an event that ``is_sampled``: its hidden rounds one by one, and all the rest as one law.
    ``event``: what is released. ``detail``: of the law that bounds the add direction. Raises ``NotEvaluable``: a round,
    or the rest, has no numerical law.
    """
    if isinstance(event, Spaced):
        spaced = SpacedRun((), event, factors(event.mechanism)[0] ** -0.5)
        return SampledProfile(spaced, spaced, (), SpacedRemove, None)
    precision, others = factors(event)
    hidden = [(participation(other), times) for other, times in others.items() if _is_hidden(other)]
    rest: list[Mechanism] = [Repeat(other, times) for other, times in others.items() if not _is_hidden(other)]
    if precision:
        rest.append(Gaussian(min(precision**-0.5, 1e50), relation=event.relation or Relation.ZERO_OUT))
    if rest:
        hidden.append((Participation(Compose(rest), (0.0, 1.0), 1), 1))
    rounds = [_rounds(found.mechanism) for found, _ in hidden]
    upper, lower = (
        tuple(
            HiddenRounds(each, found.chances, found.rounds, times, found.rounding)
            for each, (found, times) in zip(ends, hidden, strict=True)
        )
        for ends in zip(*rounds, strict=True)
    )
    run = Run(upper)
    costlier = hidden_rounds_bounds(event)[::-1] if isinstance(event, AllocationPrefix | CappedPoisson) else [event]
    bounds = tuple(partial(laws.numerical_law, each, detail) for each in costlier)
    if all(above is below for above, below in rounds):
        return SampledProfile(run, run, bounds)
    nothing = all(isinstance(below, FiniteRound) and len(below.points) == 1 for _, below in rounds)
    return SampledProfile(run, None if nothing else Run(lower), bounds)


def _is_hidden(event: Mechanism) -> bool:
    return len(participation(event).chances) > 2 and not event.releases_nothing


def _rounds(mechanism: Mechanism) -> tuple[Round, Round]:
    """The likelihood ratio of one round, for upper and for lower ends."""
    precision, others = factors(mechanism)
    if precision and not others:
        one = GaussianRound(precision**-0.5)
        return one, one
    law = laws.numerical_law(mechanism)
    if attained(mechanism) is not mechanism:
        law = law.upper_only()
    upper = FiniteRound(law.upper, law.rounding)
    return upper, upper if law.lower is law.upper else FiniteRound(law.lower, law.rounding)
