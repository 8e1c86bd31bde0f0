"""What a mechanism costs: the smallest upper end of all evaluators, and the largest attained lower end."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce, singledispatch
from operator import attrgetter, itemgetter

import numpy as np

from fedamp.accounting import checks, events, theorems
from fedamp.accounting.arithmetic import UNIT, Array, crossing, gaussian_delta, log_choose, repeated
from fedamp.accounting.bounds import (
    Bounds,
    ByOrder,
    DeltaAt,
    EpsilonAt,
    Method,
    NotEvaluable,
    Question,
    in_floating_point,
    search_orders,
)
from fedamp.accounting.convolve import DEFAULT_POINTS
from fedamp.accounting.events import Mechanism
from fedamp.accounting.hidden_rounds import (
    AddProposal,
    FiniteRound,
    GaussianRound,
    HiddenRounds,
    PairOfPeople,
    Round,
    Run,
    SpacedRounds,
)
from fedamp.accounting.law import DEFAULT_DETAIL, Detail, numerical_law
from fedamp.accounting.outcomes import outcomes_of
from fedamp.accounting.renyi import HIGHEST_ORDER, rdp
from fedamp.accounting.sampling import PRECISION, SampledProfile

# Answers.


@singledispatch
def answer_by_law(event: Mechanism, question: Question) -> Bounds:
    """The answer by numerical law of what is released. NotEvaluable: it has none, or none that floating point holds."""
    first = DEFAULT_POINTS if question.points is None else checks.count("points", question.points, 50, 20_000)
    best = question.ask(numerical_law(event, Detail(first, question.with_lower, question.reach)))
    low, high = question.fine
    for more in (2400, 4800) if question.points is None else ():
        if not low <= best.upper <= high or best.width <= 1e-3 * best.upper:
            break
        finer = question.ask(numerical_law(event, Detail(more, question.with_lower, question.reach)))
        helps = finer.width < 0.7 * best.width
        origin = finer.origin if finer.upper < best.upper else best.origin
        best = Bounds(max(best.lower, finer.lower), min(best.upper, finer.upper), origin)
        if not helps:
            break
    return best


@answer_by_law.register(events.AllocationPrefix)
@answer_by_law.register(events.CappedPoisson)
def by_more_rounds(event: events.AllocationPrefix | events.CappedPoisson, question: Question) -> Bounds:
    """The smallest of several bounds. None is exact, so a grid finer than the default is not worth its time."""
    bounds = theorems.hidden_rounds_bounds(event)
    if question.points is None and len(bounds) > 1:
        question = replace(question, points=DEFAULT_POINTS)
    return min((answer_by_law(part, question) for part in bounds), key=attrgetter("upper"))


@answer_by_law.register
def by_group_property(event: events.Group, question: Question) -> Bounds:
    """The property (Mironov 2017, Corollary 4) or, if it is smaller, a bound with choices revealed; no lower end."""
    generic = group_property(event, question)
    others = [question.ask(bound, points=question.points) for bound in theorems.other_bounds(event)]
    return min(generic, *others, key=attrgetter("upper")) if others else generic


def group_property(event: events.Group, question: Question) -> Bounds:
    """K people are K changes of one: delta_K(epsilon) <= delta(epsilon / K) (e^epsilon - 1) / (e^(epsilon / K) - 1)
    (Mironov 2017, Corollary 4). A grid finer than the default hardly helps.
    """
    points = DEFAULT_POINTS if question.points is None else question.points

    def delta_at(epsilon: float) -> Bounds:
        part = event.mechanism.delta(epsilon / event.size, points=points)
        if epsilon == 0 or part.upper == 0:
            return Bounds(0.0, min(1.0, event.size * part.upper), Method.GROUP_PROPERTY_ALONE.of())
        upper = min(1.0, part.upper * math.exp(min(_log_factor(epsilon, event.size), 700.0)))
        return Bounds(0.0, upper, part.origin.within(Method.GROUP_PROPERTY))

    if isinstance(question, DeltaAt):
        return delta_at(question.epsilon)
    upper = crossing(lambda epsilon: delta_at(epsilon).upper, question.delta, 1e4, 1e-4)[1]
    return Bounds(0.0, upper, delta_at(upper).origin if upper < math.inf else Method.GROUP_PROPERTY_ALONE.of())


def _log_factor(epsilon: float, size: int) -> float:
    """log of what the group property multiplies delta by, at epsilon > 0; it grows with epsilon."""
    log_factor = np.log(np.expm1(epsilon)) if epsilon < 700 else epsilon
    log_factor -= np.log(np.expm1(epsilon / size)) if epsilon < 700 * size else epsilon / size
    return float(log_factor)


def epsilon_below(known: float, delta: float, size: int, of_one: Callable[[float], Bounds]) -> Bounds:
    """The group property's epsilon from few questions, given an upper end: the factor there is at least that at a
    smaller one. ``of_one`` answers with the epsilon of one person at a delta.
    """
    for _ in range(2):
        one = of_one(delta * math.exp(-_log_factor(known, size)))
        known = min(known, size * one.upper)
        if known == 0:
            break
    return Bounds(0.0, known, one.origin.within(Method.GROUP_PROPERTY))


@answer_by_law.register
def by_batch(event: events.WithoutReplacement, question: Question) -> Bounds:
    """A single release: given that i >= 1 of the group are in the batch, it differs from one of their substitutes by a
    change of 2 i; joint convexity in i. The batch holds any of the group with a chance p, and
    delta(epsilon) <= p delta'(log(1 + (e^epsilon - 1) / p)) (Balle, Barthe, Gaboardi 2018, Theorem 10).
    """
    if isinstance(event.mechanism, events.RandomisedResponse):
        return answer_by_law(theorems.changed_batch(event), question)
    share, drawn = theorems.some_in_batch(event, partial(theorems.group, event.mechanism))
    if isinstance(question, DeltaAt):
        inner = math.log1p(math.expm1(question.epsilon) / share) if question.epsilon < 700 else question.epsilon
        answer = drawn.delta(inner, points=question.points)
        return Bounds(0.0, share * answer.upper, answer.origin)
    if question.delta >= share:
        return Bounds(0.0, 0.0, Method.RARE_BATCH.of())
    answer = drawn.epsilon(question.delta / share, points=question.points)
    upper = math.log1p(share * math.expm1(answer.upper)) if answer.upper < 700 else answer.upper
    return Bounds(0.0, upper, answer.origin)


# Beside every number that rests on Theorem 4.1 of Xiao, Wan, Devadas 2022.
CHECKED = "; the worst case of ModelMix is checked, not proved"

_LARGEST_SAMPLED = 450.0  # epsilon beyond which likelihood ratios leave the range of floating point
_BLOCKS, _CLOSE = 300, 0.97  # of very many rounds, for their lower end, where the bracket is not that narrow

_PATIENCE = 5.0  # seconds, of the clock and of the processor, after which an answer warns and names its bound


def epsilon(event: Mechanism, delta: float, points: int | None = None, precision: float | None = None) -> Bounds:
    """See ``Mechanism.epsilon``."""
    checks.delta(delta)
    if precision is not None:
        checks.precision(precision)
    start, event = (time.perf_counter(), time.process_time()), theorems.normal(event)
    found = _without_sampling(event, EpsilonAt(delta, points))
    if points is None or precision is not None:
        found = _narrowed_by_sampling(event, found, delta, precision or PRECISION)
    _warn_if_slow("epsilon", start, found)
    return found


def delta(event: Mechanism, epsilon: float, points: int | None = None, precision: float | None = None) -> Bounds:
    """See ``Mechanism.delta``."""
    checks.epsilon(epsilon)
    start, event = (time.perf_counter(), time.process_time()), theorems.normal(event)
    found = _without_sampling(event, DeltaAt(epsilon, points))
    if precision is not None and (is_sampled(event) or is_pair(event)):
        with suppress(NotEvaluable), in_floating_point():
            sampled = _in_draws(event, lambda part: sampled_profile(part).delta(epsilon, precision=precision))
            found = _narrower(event, found, sampled)
    _warn_if_slow("delta", start, found)
    return found


@lru_cache(maxsize=512)
def _without_sampling(event: Mechanism, question: Question) -> Bounds:
    """The answer by the law, with hidden choices revealed and, where it may be smaller, by Rényi divergences."""
    if event.releases_nothing:
        return Bounds(0.0, 0.0, Method.NOTHING.of())
    if isinstance(event, events.NotPrivate):
        return Bounds(question.unknown, question.unknown, Method.NO_NOISE.of())
    chance = theorems.chance_to_take_part(event)
    if isinstance(question, EpsilonAt) and chance <= question.delta:
        return Bounds(0.0, 0.0, Method.RARELY.of())
    by_losses = question.of_losses(*theorems.losses(event))
    if question.points is None:
        with suppress(NotEvaluable):
            exact = question.ask(outcomes_of(event))
            lower = _lower(event, question, exact) if event.contains(events.LinearCombination) else exact.lower
            upper, origin = min((exact.upper, exact.origin), (by_losses, Method.LOSSES.of()), key=itemgetter(0))
            return Bounds(min(lower, upper), upper, origin)
    reason = ""
    try:
        with in_floating_point():
            by_law = answer_by_law(event, question)
    except NotEvaluable as error:
        by_law, reason = Bounds(0.0, question.unknown, Method.NONE.of(str(error))), f" ({error})"
    narrow = by_law.lower >= 0.99 * by_law.upper < question.unknown
    shown = _with_choices_revealed(event, question, narrow)
    upper, origin = min((by_law.upper, by_law.origin), (shown.upper, shown.origin), key=itemgetter(0))
    if by_losses < upper:
        upper, origin = by_losses, Method.LOSSES.of()
    if isinstance(question, DeltaAt) and chance < upper:
        upper, origin = math.nextafter(float(chance), 1.0), Method.RARELY.of()
    mixes = event.contains(events.ModelMix)
    if mixes:
        origin = origin._replace(unmixed=True)
    wide = shown.lower < 0.99 * upper and (by_law.upper == question.unknown or 0 < by_law.lower < 0.99 * upper)
    # Elsewhere they are not smaller.
    if event.is_private and (mixes or wide or event.contains(events.WithoutReplacement)):
        by_order = _by_renyi(event, question, more=not mixes)
        if by_order.value < upper:
            upper, origin = by_order.value, Method.RENYI.of(by_order.order, reason, CHECKED if mixes else "")
    lower = max(_lower(event, question, by_law), shown.lower)
    if lower > (1 + 1e-6) * upper + 1e-9:  # one end is wrong, and it is not known which one
        return Bounds(lower, question.unknown, Method.CONTRADICTED.of(origin))
    return Bounds(min(lower, upper), upper, origin)


def _lower(event: Mechanism, question: Question, by_law: Bounds) -> float:
    """The lower end by law, of an attained mechanism. A group costs at least what one of it costs."""
    parts = [event, event.mechanism] if isinstance(event, events.Group) else [event]
    lowers = [0.0]
    for known in map(theorems.attained, parts):
        with suppress(NotEvaluable), in_floating_point():
            lowers.append(by_law.lower if known is event else answer_by_law(known, question).lower)
    return max(lowers)


def _with_choices_revealed(event: Mechanism, question: Question, narrow: bool) -> Bounds:
    """Both ends in closed form, or the upper end without amplification. A ``narrow`` bracket needs only the closed
    form, and none where nothing is hidden.
    """
    shown, unknown = in_closed_form(event), Bounds(0.0, question.unknown)
    if shown is not None:
        if narrow and shown.is_plain:
            return unknown
        with in_floating_point():
            return question.ask(shown)
    try:
        if narrow or (plain := event.unamplified()) == event:
            return unknown
        found = question.ask(plain, points=question.points)
    except ValueError:  # without amplification the noise may be too little
        return unknown
    return Bounds(0.0, found.upper, found.origin.within(Method.UNAMPLIFIED))


def _by_renyi(event: Mechanism, question: Question, more: bool) -> ByOrder:
    """The best over the usual orders, and over ``more`` where the largest is the best: tiny epsilons at tiny deltas."""
    for highest in (HIGHEST_ORDER, 4 * HIGHEST_ORDER) if more else (HIGHEST_ORDER,):
        orders = search_orders(highest)
        best = question.convert(orders, rdp(event, orders))
        if best.order < highest:
            break
    return best


def _narrowed_by_sampling(event: Mechanism, found: Bounds, delta: float, precision: float) -> Bounds:
    """The answer for epsilon, narrowed by sampling where a person takes part in several hidden rounds."""
    part, size = (event.mechanism, event.size) if isinstance(event, events.Group) else (event, 1)
    if found.lower >= (1 - precision) * found.upper or found.upper > _LARGEST_SAMPLED * size:
        return found
    coarser = min(2 * precision, 0.1)
    with suppress(NotEvaluable):
        if is_pair(event):
            return _narrower(event, found, _sampled_epsilon(event, delta, coarser))
    with suppress(NotEvaluable):
        if is_sampled(part) and size > 1:
            sampled = epsilon_below(found.upper, delta, size, lambda spent: _sampled_epsilon(part, spent, coarser))
            return _narrower(event, found, sampled)
        if is_sampled(part):
            found = _narrower(event, found, _sampled_epsilon(part, delta, precision))
    if is_sampled(event) and found.lower < _CLOSE * found.upper and theorems.participation(event).rounds > 4 * _BLOCKS:
        lower = max(found.lower, _lower_by_blocks(event, delta, precision))
        return Bounds(min(lower, found.upper), found.upper, found.origin)
    return found


@lru_cache(maxsize=256)
def _sampled_epsilon(event: Mechanism, delta: float, precision: float) -> Bounds:
    with in_floating_point():
        return _in_draws(event, lambda part: sampled_profile(part).epsilon(delta, precision=precision))


@lru_cache(maxsize=256)
def _lower_by_blocks(event: Mechanism, delta: float, precision: float) -> float:
    """docs/k-of-t.md, Proposition 8: of the rounds that a person has in a block of them, one."""
    found = theorems.participation(theorems.attained_in_draws(event))
    size = -(-found.rounds // _BLOCKS)
    law = numerical_law(theorems.attained(events.Submodels(found.mechanism, size)))
    chances = theorems.blocks_met(found.chances, _BLOCKS, size)
    off = found.rounding + 16 * len(chances) * UNIT
    run = Run((HiddenRounds(FiniteRound(law.lower, law.rounding), chances, _BLOCKS, 1, off),))
    with suppress(NotEvaluable), in_floating_point():
        return SampledProfile(run, run, add=None).epsilon(delta, precision=precision).lower
    return 0.0


def _in_draws(event: Mechanism, ask: Callable[[Mechanism], Bounds]) -> Bounds:
    """The answer by sampling, with the lower end of what is attained."""
    found, lower = ask(event), 0.0
    if (below := theorems.attained_in_draws(event)) is event:
        return found
    with suppress(NotEvaluable):
        lower = ask(below).lower if is_sampled(below) else 0.0
    return Bounds(min(lower, found.upper), found.upper, found.origin)


def _narrower(event: Mechanism, found: Bounds, sampled: Bounds) -> Bounds:
    """The intersection of both brackets."""
    origin = sampled.origin._replace(unmixed=event.contains(events.ModelMix))
    upper, origin = min((found.upper, found.origin), (sampled.upper, origin), key=itemgetter(0))
    return Bounds(min(max(found.lower, sampled.lower), upper), upper, origin)


def upper_epsilon(event: Mechanism, delta: float, points: int = DEFAULT_POINTS) -> float:
    """For searches: at least ``event.epsilon(delta).upper``, and hardly more, in half the time if a law is enough."""
    several = event.contains(
        (events.AllocationPrefix, events.CappedPoisson, events.Group, events.ModelMix, events.WithoutReplacement)
    )
    upper = math.inf if several else law_upper(event, delta, points)
    return upper if upper < math.inf else epsilon(event, delta, points).upper


def law_upper(event: Mechanism, delta: float, points: int) -> float:
    """Upper end of epsilon by the numerical law, in half the time of both ends, or with hidden choices revealed;
    infinite where neither has an answer.
    """
    upper = math.inf
    with suppress(NotEvaluable), in_floating_point():
        upper = answer_by_law(event, EpsilonAt(delta, points, with_lower=False)).upper
    shown = in_closed_form(event)
    if shown is None or (upper < math.inf and (shown.is_plain or shown.delta(upper).upper > delta)):
        return upper
    return min(upper, shown.epsilon(delta).upper)


def _warn_if_slow(name: str, start: tuple[float, float], found: Bounds) -> None:
    """Warn if a question took long."""
    seconds = min(time.perf_counter() - start[0], time.process_time() - start[1])
    if seconds > _PATIENCE:
        advice = "precision 0.05, a scenario's privacy.precision, answers sooner, with a wider bracket"
        warnings.warn(f"{name} took {seconds:.0f} s, answered by: {found.method} ({advice})", stacklevel=4)


# Closed forms of Gaussian releases whose hidden choices A, of chances w_A, are revealed (docs/accounting.md, "Little
# noise"): sum_A w_A delta_A(epsilon - log w_A) <= delta(epsilon) <= sum_A w_A delta_A(epsilon).

# Kinds of choices that are kept apart, the chance below which they are not, and the most sizes of a set of rounds.
_MOST_KINDS, _RARE, _MOST_SIZES = 512, 1e-40, 2000


@dataclass(frozen=True, eq=False)
class Revealed:
    """The kinds of choices that a mechanism hides, each with the Gaussian that is released given one of them.
    ``least``, ``most``: shape (n,): squared signal-to-noise ratio that is attained, and that is charged. ``chance``:
    shape (n,): of all choices of the kind together. ``log_weight``: shape (n,): log w_A of one of them, at least.
    ``off``: bound on the relative errors, and on the absolute one of ``log_weight``.
    """

    least: Array
    most: Array
    chance: Array
    log_weight: Array
    off: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is hidden."""
        return not self.log_weight.any()

    def epsilon(self, delta: float) -> Bounds:
        """The smallest epsilon >= 0 at ``delta``."""
        upper = crossing(partial(self._delta, upper=True), delta, 1e250, 1e-9)[1]
        lower = crossing(partial(self._delta, upper=False), delta, 1e250, 1e-9)[0]
        return Bounds(min(lower, upper), upper, Method.CLOSED_FORM.of())

    def delta(self, epsilon: float) -> Bounds:
        """The smallest delta at ``epsilon`` >= 0."""
        upper = self._delta(epsilon, upper=True)
        return Bounds(min(self._delta(epsilon, upper=False), upper), upper, Method.CLOSED_FORM.of())

    def _delta(self, epsilon: float, upper: bool) -> float:
        """One end of delta."""
        if epsilon == math.inf:
            return float(self.chance[(self.most if upper else self.least) == math.inf].sum())
        off = self.off + 8 * UNIT * len(self.chance)
        if upper:
            return min(1.0, float(self.chance @ gaussian_delta(self.most * (1 + off), epsilon, 1)) * (1 + off))
        lost = epsilon - self.log_weight * (1 + off) + off
        return float(self.chance @ gaussian_delta(self.least * (1 - off), lost, -1)) * (1 - off)

    def times(self, other: "Revealed") -> "Revealed":
        """Of two mechanisms, one after the other."""
        least, most, logs = (
            np.add.outer(getattr(self, each), getattr(other, each)) for each in ("least", "most", "log_weight")
        )
        chance = np.multiply.outer(self.chance, other.chance)
        return _of(least, most, chance, logs, self.off + other.off + 4 * UNIT)

    def chosen(self, chance: float, log_weight: float) -> "Revealed":
        """The release if a choice with this ``chance`` falls on the mechanism."""
        return Revealed(self.least, self.most, chance * self.chance, self.log_weight + log_weight, self.off)


def _of(least: Array, most: Array, chance: Array, log_weight: Array, off: float) -> Revealed:
    """Rows of any shape. The same ones are put together, and so are neighbours where they are too many or too rare."""
    most, log_weight, least, chance = (each.ravel() for each in (most, log_weight, least, chance))
    rare = chance < _RARE
    order = np.lexsort((log_weight, most, ~rare))
    most, log_weight, least, chance, rare = (each[order] for each in (most, log_weight, least, chance, rare))
    same = np.isclose(most[1:], most[:-1], rtol=1e-12, atol=0) & np.isclose(log_weight[1:], log_weight[:-1], 1e-12, 0)
    starts = np.flatnonzero(np.r_[True, ~(rare[1:] | (same & ~rare[:-1]))])
    if len(starts) > _MOST_KINDS:
        starts = starts[np.linspace(0, len(starts), _MOST_KINDS, endpoint=False).astype(int)]
    lowest, total = (partial(each.reduceat, indices=starts) for each in (np.minimum, np.add))
    highest = np.maximum.reduceat(most, starts)
    return Revealed(lowest(least), highest, total(chance), lowest(log_weight), off + len(chance) * UNIT)


_NOTHING = Revealed(np.zeros(1), np.zeros(1), np.ones(1), np.zeros(1))


@lru_cache(maxsize=256)
def revealed(event: Mechanism) -> Revealed:
    """The hidden choices of a mechanism; NotEvaluable if its releases are not Gaussian."""
    if event.releases_nothing:
        return _NOTHING
    match event:
        case events.Gaussian(noise):
            signal = np.full(1, event.change**2 / noise**2)
            return Revealed(signal, signal, np.ones(1), np.zeros(1), 4 * UNIT)
        case events.GaussianMixture(shifts, weights):
            signal, chance = np.square(shifts), np.array(weights)
            return Revealed(signal, signal, chance, np.log(chance), 4 * UNIT)
        case events.NotPrivate():
            signal = np.full(1, np.inf)
            return Revealed(signal, signal, np.ones(1), np.zeros(1))
        case events.Repeat(inner, times):
            return repeated(revealed(inner), times, Revealed.times)
        case events.Compose(mechanisms):
            return reduce(Revealed.times, [revealed(part) for part in mechanisms])
        case events.Submodels(inner, number):
            return revealed(inner).chosen(1.0, -math.log(number))
        case events.Poisson(inner, 1):
            return revealed(inner)
        case events.Poisson(inner, rate):
            parts = [(_NOTHING, 1 - rate), (revealed(inner), rate)]
            return _one_of([(part, chance, math.log(chance)) for part, chance in parts])
        case events.RandomSelection():  # the draw may be seen: it takes no part in the weight
            return _one_of([(revealed(part), weight, 0.0) for part, weight in zip(*event.used, strict=True)])
        case events.Allocation() | events.AllocationPrefix() | events.CappedPoisson():
            return _of_hidden_rounds(event)
    return _between(event)


def _between(event: Mechanism) -> Revealed:
    """From above what it is charged as, or costs without amplification; from below what is attained."""
    known, below = theorems.attained(event), _NOTHING
    try:
        other = theorems.charged_as(event)
    except TypeError:
        other = event.unamplified()
    else:
        if known is event:  # and what it is charged as is the same
            return revealed(other)
    if other == event:
        raise NotEvaluable(f"{type(event).__name__} is not Gaussian")
    above = revealed(other)
    if known is not event:
        with suppress(NotEvaluable):
            below = revealed(known)
    if below is _NOTHING:
        nothing = np.zeros(len(above.chance))
        return Revealed(nothing, above.most, above.chance, nothing, above.off)
    most = np.full(len(below.chance), above.most.max())
    return Revealed(below.least, most, below.chance, below.log_weight, max(below.off, above.off))


def _of_hidden_rounds(event: Mechanism) -> Revealed:
    """A person takes part in h rounds with a chance c_h; all sets of h rounds are equally likely."""
    found = theorems.participation(event)
    one, parts, known, rounds = revealed(found.mechanism), [], _NOTHING, 0
    possible = [h for h, chance in enumerate(found.chances) if chance > 0]
    if len(possible) > _MOST_SIZES:
        raise NotEvaluable("a person may take part in too many different numbers of rounds")
    for h in possible:
        known, rounds = known.times(repeated(one, h - rounds, Revealed.times)) if h else known, h
        parts.append((known, found.chances[h], math.log(found.chances[h]) - float(log_choose(found.rounds, h))))
    return _one_of(parts, found.rounding + 64 * (math.lgamma(found.rounds + 1) + 1) * UNIT)


def _one_of(parts: Sequence[tuple[Revealed, float, float]], off: float = 4 * UNIT) -> Revealed:
    """A choice among mechanisms: triples (a mechanism, its chance, log w of each such choice)."""
    chosen = [part.chosen(chance, log_weight) for part, chance, log_weight in parts]
    least, most, chance, log_weight = (
        np.concatenate([getattr(part, each) for part in chosen]) for each in ("least", "most", "chance", "log_weight")
    )
    return _of(least, most, chance, log_weight, off + max(part.off for part in chosen) + 4 * UNIT)


def in_closed_form(event: Mechanism, hidden: bool = True) -> Revealed | None:
    """The choices of a mechanism, or of it without amplification (``hidden`` False), if releases are Gaussian and in
    range.
    """
    try:
        with in_floating_point():
            return revealed(event if hidden else event.unamplified())
    except ValueError:
        return None


# What is sampled.


def is_sampled(event: Mechanism) -> bool:
    """Whether a person takes part in several hidden rounds. Law and moments are only bounds there."""
    return event.is_private and any(_is_hidden(other) or _is_spaced(other) for other in theorems.factors(event)[1])


def sampled_profile(event: Mechanism, detail: Detail = DEFAULT_DETAIL) -> SampledProfile:
    """The sampler of an event that ``is_sampled``: its hidden rounds one by one, and all the rest as one law.
    ``detail``: of the law that bounds the add direction. NotEvaluable: a round, or the rest, has no numerical law.
    """
    if isinstance(event, events.Group):
        return _sampled_pair(event)
    precision, others = theorems.factors(event)
    spaced = tuple(
        SpacedRounds.of(other, theorems.factors(other.mechanism)[0] ** -0.5, times)
        for other, times in others.items()
        if isinstance(other, (events.BallsInBins, events.Spaced)) and _is_spaced(other)
    )
    others = {other: times for other, times in others.items() if not _is_spaced(other)}
    hidden = [(theorems.participation(other), times) for other, times in others.items() if _is_hidden(other)]
    rest: list[Mechanism] = [events.Repeat(other, times) for other, times in others.items() if not _is_hidden(other)]
    if precision:
        rest.append(events.Gaussian(min(precision**-0.5, 1e50), relation=event.relation or events.Relation.ZERO_OUT))
    if rest:
        hidden.append((theorems.Participation(events.Compose(rest), (0.0, 1.0), 1), 1))
    rounds = [_rounds(found.mechanism) for found, _ in hidden]
    upper, lower = (
        spaced
        + tuple(
            HiddenRounds(each[end], found.chances, found.rounds, times, found.rounding)
            for each, (found, times) in zip(rounds, hidden, strict=True)
        )
        for end in (0, 1)
    )
    run = Run(upper)
    costlier = (
        theorems.hidden_rounds_bounds(event)[::-1]
        if isinstance(event, events.AllocationPrefix | events.CappedPoisson)
        else [event]
    )
    bounds = tuple(partial(numerical_law, each, detail) for each in costlier)
    # The rule for means of Gaussian ratios is for all factors together; a law of known rounds would be far above.
    add = None if spaced and theorems.is_mean_of_gaussians(event) else AddProposal
    if all(above is below for above, below in rounds):
        return SampledProfile(run, run, bounds, add=add)
    below = Run(lower) if theorems.attained_in_draws(event) is event else None
    return SampledProfile(run, below, bounds, add=add)


def _sampled_pair(event: events.Group) -> SampledProfile:
    """Of two people in hidden rounds of Gaussian releases: the worst is that both contribute the same, in every round
    (docs/k-of-t.md, Proposition 7). NotEvaluable: other releases.
    """
    precision, others = theorems.factors(event.mechanism)
    parts: list[HiddenRounds] = []
    for other, times in others.items():
        found = theorems.participation(other)
        signal, rest = theorems.factors(found.mechanism)
        if event.size != 2 or rest or not signal:
            raise NotEvaluable("only two people in rounds of Gaussian noise are sampled together")
        parts.append(PairOfPeople(GaussianRound(signal**-0.5), found.chances, found.rounds, times, found.rounding))
    if precision:
        parts.append(HiddenRounds(GaussianRound(precision**-0.5 / 2), (0.0, 1.0), 1))
    run = Run(tuple(parts))
    return SampledProfile(run, run, add=None)


def is_pair(event: Mechanism) -> bool:
    """Whether it is of two people in hidden rounds."""
    if not isinstance(event, events.Group) or event.size != 2 or not event.is_private:
        return False
    return any(theorems.participation(other).rounds > 1 for other in theorems.factors(event.mechanism)[1])


def _is_spaced(event: Mechanism) -> bool:
    """Whether its rounds are hidden, of correlated noise, and Gaussian."""
    if not isinstance(event, (events.BallsInBins, events.Spaced)) or event.is_empty:
        return False
    precision, others = theorems.factors(event.mechanism)
    return precision > 0 and not others


def _is_hidden(event: Mechanism) -> bool:
    return len(theorems.participation(event).chances) > 2 and not event.releases_nothing


def _rounds(mechanism: Mechanism) -> tuple[Round, Round]:
    """The likelihood ratio of one round, for upper and for lower ends."""
    precision, others = theorems.factors(mechanism)
    if precision and not others:
        one = GaussianRound(precision**-0.5)
        return one, one
    law = numerical_law(mechanism)
    upper = FiniteRound(law.upper, law.rounding)
    return upper, upper if law.lower is law.upper else FiniteRound(law.lower, law.rounding)
