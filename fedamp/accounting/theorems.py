"""Theorems, one function each: from an event to simpler ones that cost at least as much, or that it attains.

``charged_as``: a mechanism that costs at least as much, for kinds whose law is not known.
``attained``: a mechanism that some federation with this one leaks as much as, for lower ends.
``unamplified``: the same run with all hidden choices known.
``exact_group``, ``group``, ``group_by_rounds``, ``substituted``: several people, and other neighbours.
``participation``: in how many released rounds a person takes part.
``largest_loss``: pure differential privacy. ``factors``, ``signal_to_noise``: what Gaussians add up to.
"""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, singledispatch

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import checks, events
from fedamp.accounting.arithmetic import BUFFERS, UNIT, Array, log_choose, log_sum, rounding_of_chances
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.events import Mechanism

# The same release.


@lru_cache(maxsize=512)
def normal(event: Mechanism, of_a_class: bool = True) -> Mechanism:
    """The same release without what changes nothing, inside and out: one of one is the thing itself. All evaluators see
    only this form, and the run ``of_a_class`` with the fewest rounds in place of ``Cyclic`` (ours:
    docs/correlated-noise.md).
    """
    event = event.with_parts(lambda part: normal(part, of_a_class))
    if isinstance(event, events.Cyclic) and of_a_class:
        return normal(event.of_a_class)
    try:
        simpler = _simpler(event)
    except ValueError:  # no rule, or the noise of the simpler one is out of range
        return event
    return event if simpler is event else normal(simpler, of_a_class)


def _simpler(event: Mechanism) -> Mechanism:
    match event:
        case (
            events.Repeat(inner, 1)
            | events.Poisson(inner, 1)
            | events.Submodels(inner, 1)
            | events.Dropout(inner, 1)
            | events.Group(inner, 1)
            | events.Compose((inner,))
        ):
            return inner
        case events.Compose(parts) if any(part.releases_nothing for part in parts):
            return events.Compose(tuple(part for part in parts if not part.releases_nothing) or (events.NOTHING,))
        case events.RandomSelection() if len(used := event.used[0]) == 1:
            return used[0]
        case events.LinearCombination(parts, weights) if event.assumption == events.JOINT_RELEASE and max(weights) == 1:
            return parts[weights.index(1)]
        case events.Cyclic(_, _, _, 1):
            return event.of_a_class
        case events.Allocation(inner, k, rounds) | events.AllocationPrefix(inner, k, rounds) if k == rounds:
            return events.Repeat(inner, event.span)
        case events.AllocationPrefix(_, _, rounds, released) if released == rounds:
            return event.whole()
        case events.CappedPoisson(inner, rate, at_most, rounds) if at_most == rounds:  # the cap is never met
            return events.Repeat(events.Poisson(inner, rate), event.span)
        case events.CappedPoisson(inner, 1, at_most, rounds):
            return events.Allocation(inner, at_most, rounds).after(event.span)
        case events.Spaced(inner, k, rounds, gap) if not event.coefficients and 1 in (k, gap):
            return events.Allocation(inner, k, rounds).after(event.span)
        case events.Spaced() if event.sets == 1 and event.released is None and not event.coefficients:
            return spaced_rounds_known(event)  # with correlated noise the last columns may be cut off: less
        case events.BallsInBins(inner, rounds, gap) if gap == rounds and not event.coefficients:
            return events.Allocation(inner, 1, rounds).after(event.span)
        case events.ModelMix(noise, 0):
            return events.Gaussian(noise, relation=event.relation)
        case events.GaussianMixture((shift,)):
            return events.Gaussian(1 / shift, relation=event.relation) if shift else events.NOTHING
        case events.GroupPoissonGaussian(noise, rate, size) if size == 1 or rate == 1:
            return events.Poisson(events.Gaussian(noise / size, relation=event.relation), rate)
        case events.SubstitutedPoissonGaussian(noise, 1):
            return events.Gaussian(noise, relation=events.Relation.SUBSTITUTION)
        case events.Group(inner, size):
            return exact_group(inner, size)
        case events.WithoutReplacement(inner, batch, population, size) if batch == population:
            return exact_group(substituted(inner), size)
    return event


def unamplified(event: Mechanism) -> Mechanism:
    """See ``Mechanism.unamplified``: given all hidden choices, by joint convexity of hockey-stick divergences."""
    match event:
        case events.Repeat(inner, times):
            return events.Repeat(unamplified(inner), times)
        case events.Allocation(inner, k):
            return events.Repeat(unamplified(inner), k)
        case events.AllocationPrefix():
            return events.Repeat(unamplified(event.mechanism), min(event.k, event.released))
        case events.CappedPoisson():
            return events.Repeat(unamplified(event.mechanism), min(event.at_most, event.span))
        case events.Cyclic():
            return unamplified(event.of_a_class)
        case events.BallsInBins() | events.Spaced():
            return unamplified(spaced_rounds_known(event))
        case events.Hidden(inner):
            return unamplified(inner)
        case events.Compose() | events.RandomSelection():
            return event.with_parts(unamplified)
        case events.LinearCombination(parts):
            return events.Compose(tuple(map(unamplified, parts)))
        case events.ModelMix(noise):
            return events.Gaussian(noise, relation=event.relation)
        case events.GroupPoissonGaussian(noise, _, size):
            return events.Gaussian(noise / size, relation=event.relation)
        case events.SubstitutedPoissonGaussian(noise):
            return events.Gaussian(noise, relation=events.Relation.SUBSTITUTION)
        case events.Group(inner, size):
            return group(unamplified(with_own_bits(inner, size)), size)
        case events.WithoutReplacement():
            people = min(event.size, event.batch)
            opened = unamplified(with_own_bits(event.mechanism, people))
            try:
                return group(substituted(opened), people)
            except NotEvaluable:
                return events.WithoutReplacement(opened, event.batch, event.batch, people)
    return event


# What it is charged as.


@singledispatch
def charged_as(event: Mechanism) -> Mechanism:
    """The simpler mechanism that costs at least as much, for evaluators that do not know a kind; else TypeError."""
    raise TypeError(f"no evaluator knows mechanisms of kind {type(event).__name__}")


@charged_as.register
def dropout_as_submodels(event: events.Dropout) -> Mechanism:
    """For keep <= 1/2 the mean of floor(1/keep) copies: give every unit one of floor(1/keep) labels with probability
    ``keep`` each, or none, and keep the units of one random label; the labels' supports are disjoint (Dong, Chen, Özgür
    2025, Theorem 3.5 and Corollary 3.7, extended). Above 1/2 two masks of one person overlap in most units, no two
    disjoint labels exist, and no amplification is claimed.
    """
    return events.Submodels(event.mechanism, max(1, math.floor(1 / event.keep)))


@charged_as.register
def rounds_in_groups(event: events.Allocation) -> Mechanism:
    """A random partition of the rounds into k groups, as even as integers allow, with one round drawn from each, is a
    random choice of k rounds; joint convexity removes the partition, and X is a product of k means (Feldman, Shenfeld
    2025, Theorem 3.1 and Lemmas 3.2 and F.1). Exact for k = 1.
    """
    if event.k == 0:
        return events.Compose((events.NOTHING,))
    size, larger = divmod(event.rounds, event.k)
    groups = ((size, event.k - larger), (size + 1, larger))
    return events.composed((events.Submodels(event.mechanism, each), n) for each, n in groups if n)


@charged_as.register
def prefix_by_coins(event: events.AllocationPrefix) -> Mechanism:
    """The number H of a person's rounds among those released is hypergeometric, hence a sum of independent coins of
    probabilities p_i (Vatutin, Mikhailov 1982). Split the released rounds at random into one group per coin, of any
    fixed sizes: one hidden round of group i, if coin i says so, is a random choice of H rounds. By joint convexity in
    the partition X is at most the product of (1 - p_i) + p_i (mean of the group's copies), in convex order. Exact for
    k = 1.
    """
    groups = best_coin_groups(event.k, event.rounds, event.released)
    return events.composed((events.Poisson(events.Submodels(event.mechanism, size), p), n) for p, size, n in groups)


@charged_as.register
def without_cap(event: events.CappedPoisson) -> Mechanism:
    """Without the cap: leaving rounds out, by any rule that does not look at releases, never costs (docs/k-of-t.md;
    Feldman, Shenfeld 2025, Corollary 4.7). Exact for a cap of one round.
    """
    if event.at_most > 1:
        return events.Repeat(events.Poisson(event.mechanism, event.rate), event.span)
    ever = -math.expm1(event.rounds * math.log1p(-event.rate)) if event.rate < 1 else 1.0
    chance = min(1.0, ever * event.span / event.rounds * (1 + 1e-12))  # up: a larger rate costs more
    return events.Poisson(events.Submodels(event.mechanism, event.span), chance) if event.span else events.NOTHING


@charged_as.register(events.BallsInBins)
@charged_as.register(events.Spaced)
def spaced_rounds_known(event: events.BallsInBins | events.Spaced) -> Mechanism:
    """As if the rounds were known; sampling credits the hidden choice (ours: docs/correlated-noise.md). NotEvaluable:
    the rows of different participations meet, and releases are not Gaussian.
    """
    if event.is_banded:
        return events.Repeat(event.mechanism, event.times)
    precision, others = factors(unamplified(event.mechanism))
    if others:
        raise NotEvaluable("only Gaussian releases are charged beside noise without bands")
    signal = (precision * event.known_signal + BUFFERS**2) * (1 + 1e-12)
    return events.Gaussian(signal**-0.5, relation=event.relation or events.Relation.ZERO_OUT)


def hidden_rounds_bounds(
    event: events.Allocation | events.AllocationPrefix | events.CappedPoisson,
) -> list[Mechanism]:
    """Mechanisms that each cost at least as much: what the event is charged as and, where that is not exact, a choice
    of more rounds (which never costs less; docs/k-of-t.md).
    """
    bounds = [charged_as(event)]
    if isinstance(event, events.CappedPoisson) and event.at_most > 1:
        bounds.append(events.Allocation(event.mechanism, event.at_most, event.rounds).after(event.span))
    elif isinstance(event, events.AllocationPrefix) and event.k > 1:
        bounds.append(event.whole())
    return bounds


@charged_as.register
def merged_models(event: events.LinearCombination) -> Mechanism:
    """See the class for both charges (Yin, Zaheer, Li 2026, Theorem 6.1, or 6.2 and 6.4 under its assumption)."""
    if event.assumption == events.JOINT_RELEASE:
        used = tuple(part for part, weight in zip(event.mechanisms, event.weights, strict=True) if weight > 0)
        return events.Compose(used or (events.NOTHING,))
    times, steps = event.steps()
    sizes = [weight * scale for weight, scale in zip(event.weights, event.scales, strict=True)]
    noise = math.hypot(*(size * multiplier for size, (multiplier, _) in zip(sizes, steps, strict=True)))
    sums, chances = np.zeros(1), np.ones(1)  # over all subsets of the models that a person's data may be in
    for size, (_, rate) in zip(sizes, steps, strict=True):
        sums = np.concatenate([sums, sums + size / noise])
        chances = np.concatenate([chances * (1 - rate), chances * rate])
    relation = event.relation or events.Relation.ZERO_OUT
    return events.Repeat(events.GaussianMixture(sums.tolist(), chances.tolist(), relation=relation), times)


_MOST_KNOWN = 690.0  # beyond, the probabilities of a black box leave floating point


@charged_as.register
def worst_black_box(event: events.Approximate) -> Mechanism:
    """The worst mechanism with this guarantee, of which every other one is a function (Kairouz, Oh, Viswanath 2015,
    Theorem 3.4; Murtagh, Vadhan 2016).
    """
    if event.known_epsilon > _MOST_KNOWN:  # as if it told everything
        return events.FiniteOutcomes((1.0, 0.0), (0.0, 1.0), relation=event.relation)
    rest, less = 1 - event.known_delta, 1 / (1 + math.exp(event.known_epsilon))
    present = (event.known_delta, rest * (1 - less), rest * less, 0.0)
    return events.FiniteOutcomes(present, present[::-1], relation=event.relation)


@charged_as.register
def collinear_group(event: events.GroupPoissonGaussian) -> Mechanism:
    """The number of them in a round is binomial and their contributions point the same way in the worst case, for Rényi
    (Schuchardt et al. 2024, Theorem 4.2) and, by the same supermodularity, for the hockey-stick; hence a numerical law,
    which that paper leaves open.
    """
    size, rate = event.size, event.rate
    if rate == 1:
        return events.Gaussian(event.noise_multiplier / size, relation=event.relation)
    chances = [math.comb(size, i) * rate**i * (1 - rate) ** (size - i) for i in range(size + 1)]
    total = math.fsum(chances)
    shifts = [i / event.noise_multiplier for i in range(size + 1)]
    return events.GaussianMixture(shifts, [chance / total for chance in chances], relation=event.relation)


# What is attained.


@singledispatch
def attained(event: Mechanism) -> Mechanism:
    """A mechanism that some federation with this one leaks as much as, for lower ends; ``NOTHING`` if none is known, as
    of a kind that is not registered.
    """
    return events.NOTHING


@attained.register
def attained_by_black_box(event: events.Approximate) -> Mechanism:
    """The worst one; what is private at a smaller epsilon is so at a larger one."""
    return event if event.known_epsilon <= _MOST_KNOWN else replace(event, known_epsilon=_MOST_KNOWN)


@attained.register(events.FiniteOutcomes)
@attained.register(events.Gaussian)
@attained.register(events.GaussianMixture)
@attained.register(events.GroupPoissonGaussian)
@attained.register(events.Laplace)
@attained.register(events.MixedCoordinate)
@attained.register(events.NotPrivate)
@attained.register(events.RandomisedResponse)
@attained.register(events.SubstitutedPoissonGaussian)
def itself(event: Mechanism) -> Mechanism:
    """An exact kind: its law is that of a real release, and what it is charged as is the same release."""
    return event


@attained.register(events.Compose)
@attained.register(events.Poisson)
@attained.register(events.RandomSelection)
@attained.register(events.Repeat)
@attained.register(events.Submodels)
def attained_in_parts(event: Mechanism) -> Mechanism:
    """Exact in what it is made of (Zhu, Dong, Wang 2022, Theorems 10 and 11; Dong, Chen, Özgür 2025, Theorem 3.4)."""
    try:
        return event.with_parts(attained)
    except ValueError:  # the parts' relations differ: of releases after one another, one
        known = map(attained, event.parts) if isinstance(event, events.Compose) else ()
        return next((part for part in known if part.relation is not None), events.NOTHING)


@attained.register
def attained_by_dropout(event: events.Dropout) -> Mechanism:
    """A network of one unit: dropping it silences the person. Or, with a larger second moment where noise is much, the
    limit of many units over which a contribution spreads evenly: its sum over the units has length sqrt(keep).
    """
    signal = signal_to_noise(event.mechanism)
    if signal is not None and signal < 700 and event.keep * signal > math.log1p(event.keep**2 * math.expm1(signal)):
        return events.Gaussian((event.keep * signal) ** -0.5, relation=event.relation or events.Relation.ZERO_OUT)
    return events.Poisson(attained(event.mechanism), event.keep)


@attained.register(events.Allocation)
@attained.register(events.AllocationPrefix)
@attained.register(events.CappedPoisson)
def attained_in_hidden_rounds(
    event: events.Allocation | events.AllocationPrefix | events.CappedPoisson,
) -> Mechanism:
    """Of one hidden round, and of all rounds, the run of what a round attains; of more the sum of all rounds' releases,
    or one round alone (``attained_in_draws`` knows more).
    """
    most = event.at_most if isinstance(event, events.CappedPoisson) else event.k
    every = isinstance(event, events.Allocation) and event.k == event.rounds  # nothing is hidden
    if most == 1 or every:
        return event.with_parts(attained)
    if isinstance(event, events.Allocation) and event.k and (signal := signal_to_noise(event)) is not None:
        if not 1e-50 <= (noise := signal**-0.5) <= 1e50:
            return events.NOTHING
        return events.Gaussian(noise, relation=event.relation or events.Relation.ZERO_OUT)
    first = participation(event.after(min(1, event.span)))
    if len(first.chances) < 2:
        return events.NOTHING
    return events.Poisson(attained(first.mechanism), first.chances[1] * max(0.0, 1 - first.rounding))


def attained_in_draws(event: Mechanism) -> Mechanism:
    """As ``attained``, for sampling, which needs no law of several hidden rounds: the run of what a round attains."""
    match event:
        case events.Allocation() | events.AllocationPrefix() | events.CappedPoisson():
            return event.with_parts(attained)
        case events.Compose() | events.Repeat() | events.Poisson():
            return event.with_parts(attained_in_draws)
    return event if isinstance(event, (events.BallsInBins, events.Group, events.Spaced)) else attained(event)


@attained.register
def concentrated(event: events.ModelMix) -> Mechanism:
    """``linf_coordinates`` coordinates with equal shares of the norm; the worst case at orders from 2 up (checked)."""
    if event.width == 0:
        return events.Gaussian(event.noise_multiplier, relation=event.relation)
    shift = 1 / math.sqrt(event.linf_coordinates)
    one = events.MixedCoordinate(event.noise_multiplier, event.width, shift, relation=event.relation)
    return events.Repeat(one, event.linf_coordinates)


@attained.register
def attained_by_merging(event: events.LinearCombination) -> Mechanism:
    """The merged model may hide its parts: under the joint release nothing is known."""
    return events.NOTHING if event.assumption == events.JOINT_RELEASE and len(event.mechanisms) > 1 else event


@attained.register(events.BallsInBins)
@attained.register(events.Spaced)
def attained_by_spaced(event: events.BallsInBins | events.Spaced) -> Mechanism:
    """Only sampling knows lower ends."""
    return events.NOTHING


@attained.register
def attained_by_group(event: events.Group) -> Mechanism:
    """All of the group contribute the same, where they are chosen independently; else one of them alone."""
    of_one = attained(event.mechanism)
    if event.mechanism.contains(events.WithoutReplacement):
        return of_one
    try:
        return exact_group(of_one, event.size)
    except NotEvaluable:
        if (signal := signal_to_noise(event.mechanism)) is None:
            return of_one
        return events.Gaussian(signal**-0.5 / event.size, relation=event.relation or events.Relation.ZERO_OUT)


@attained.register
def attained_by_batch(event: events.WithoutReplacement) -> Mechanism:
    """All others send the same number, and the people in question that one, or minus it: a changed batch itself, or of
    several people under Gaussian noise one around as many shifts. Else zeroed contributions of one person.
    """
    precision, others = factors(event.mechanism)
    if event.size > 1 and precision and not others:
        hits, logs = people_in_batch(event)
        weights = np.exp(logs) / np.exp(logs).sum()
        return events.GaussianMixture((2 * precision**0.5 * hits).tolist(), weights.tolist())
    if event.size == 1 and event.mechanism.unamplified() == attained(event.mechanism):
        with suppress(NotEvaluable):
            return changed_batch(event)
    return events.Poisson(attained(event.mechanism), event.batch / event.population)


def signal_to_noise(event: Mechanism) -> float | None:
    """Squared signal-to-noise ratio of a fixed linear statistic that is Gaussian in both worlds; None if there is none.
    For submodels, and hidden rounds, it is the sum over all: the signal is in some, the noise in all; for dropout that
    of ``attained_by_dropout``.
    """
    match event:
        case events.Gaussian(noise):
            return event.change**2 / noise**2
        case events.Compose(parts):
            signals = [signal_to_noise(part) for part in parts]
            return None if None in signals else sum(signal for signal in signals if signal is not None)
        case events.Repeat(inner, times):
            share = float(times)
        case events.Submodels(inner, count):
            share = 1 / count
        case events.Dropout(inner, keep):
            share = keep
        case events.Allocation(inner, k, rounds):
            share = k**2 / rounds
        case _:
            return None
    signal = signal_to_noise(inner)
    return None if signal is None else share * signal


def factors(event: Mechanism, times: int = 1) -> tuple[float, dict[Mechanism, int]]:
    """The factors of a product: one Gaussian (sum of 1 / noise multiplier^2), and the others with multiplicities."""
    if isinstance(event, events.Gaussian):
        return times * event.change**2 / event.noise_multiplier**2, {}
    if isinstance(event, events.Repeat):
        return factors(event.mechanism, times * event.times) if event.times else (0.0, {})
    if isinstance(event, events.LinearCombination) and event.assumption == events.JOINT_RELEASE:
        return factors(charged_as(event), times)
    if not isinstance(event, events.Compose):
        return 0.0, {event: times}
    precision, others = 0.0, Counter[Mechanism]()
    for part in event.mechanisms:
        more, rest = factors(part, times)
        precision += more
        others.update(rest)
    return precision, dict(others)


_MEANS = (
    events.Allocation,
    events.AllocationPrefix,
    events.BallsInBins,
    events.CappedPoisson,
    events.Compose,
    events.Gaussian,
    events.GaussianMixture,
    events.Poisson,
    events.Repeat,
    events.Spaced,
    events.Submodels,
)


def is_mean_of_gaussians(event: Mechanism) -> bool:
    """Whether X is a mean of ratios of Gaussian releases, so that the add direction is never the larger one (ours:
    docs/correlated-noise.md).
    """
    return isinstance(event, _MEANS) and all(map(is_mean_of_gaussians, event.parts))


def chance_to_take_part(event: Mechanism) -> Fraction:
    """At least the chance that a person's data enters the release at all. With the person in, the release is a mixture
    over hidden choices, of which no less than the rest of the weight is the one without the person: delta is no more.
    """
    if event.releases_nothing:
        return Fraction(0)
    match event:
        case events.Poisson(inner, rate):
            return Fraction(rate) * chance_to_take_part(inner)
        case events.Allocation(inner, rounds) | events.Repeat(inner, rounds):
            return min(Fraction(1), rounds * chance_to_take_part(inner))
        case events.AllocationPrefix(inner, k, rounds, released):
            return min(Fraction(1), Fraction(k * released, rounds) * chance_to_take_part(inner))
        case events.CappedPoisson(inner, rate):
            return min(Fraction(1), event.span * Fraction(rate) * chance_to_take_part(inner))
        case events.Submodels(inner):
            return chance_to_take_part(inner)
        case events.Compose(parts):
            return min(Fraction(1), sum(map(chance_to_take_part, parts), Fraction(0)))
        case events.RandomSelection():
            parts, weights = event.used
            return sum((Fraction(w) * chance_to_take_part(m) for m, w in zip(parts, weights, strict=True)), Fraction(0))
    return Fraction(1)


# Pure differential privacy, but for a chance.


def losses(event: Mechanism) -> tuple[float, float]:
    """``largest_loss`` as floats that, written as decimals, are no smaller; infinity and 0 where none is known."""
    with suppress(NotEvaluable):
        most, chance = map(_up, largest_loss(event))
        return most, min(chance, 1.0)
    return math.inf, 0.0


def _up(exact: Fraction) -> float:
    nearest = float(exact)
    return nearest if Fraction(str(nearest)) >= exact else math.nextafter(nearest, math.inf)


def largest_loss(event: Mechanism) -> tuple[Fraction, Fraction]:
    """A bound on |log X| that holds but for a chance: both numbers add up under composition (Kairouz, Oh, Viswanath
    2015, Theorem 3.4, a sum in place of one minus a product). What somebody else has proved is the decimal that was
    written: a tenth and nine tenths are one, which the sum of the floats next to them exceeds. NotEvaluable: none is
    known.
    """
    match event:
        case events.Approximate(known, chance):
            return Fraction(str(known)), Fraction(str(chance))
        case events.Compose(mechanisms):
            known_losses, chances = zip(*map(largest_loss, mechanisms), strict=True)
            return sum(known_losses, Fraction(0)), sum(chances, Fraction(0))
        case events.Repeat(inner, times):
            one, rarely = largest_loss(inner) if times else (Fraction(0), Fraction(0))
            return times * one, times * rarely
    return _certain_loss(event), Fraction(0)


def _certain_loss(event: Mechanism) -> Fraction:
    """A bound on |log X|; a hidden choice adds none."""
    match event:
        case events.Approximate() | events.Compose() | events.Repeat():
            most, chance = largest_loss(event)
            if not chance:
                return most
        case events.Laplace(scale):
            return Fraction(event.change) / Fraction(scale)
        case events.RandomisedResponse(probability) if 0 < probability < 1:
            return Fraction(abs(math.log(probability) - math.log1p(-probability)) * (1 + 8 * UNIT))
        case events.FiniteOutcomes(present, absent) if all(
            (p > 0) == (q > 0) for p, q in zip(present, absent, strict=True)
        ):
            logs = [(math.log(p), math.log(q)) for p, q in zip(present, absent, strict=True) if p]
            return Fraction(max(abs(p - q) - 4 * UNIT * (p + q) for p, q in logs) * (1 + 4 * UNIT))
        case events.Group(inner, size):
            return size * _certain_loss(inner)
        case events.RandomSelection():
            return max(map(_certain_loss, event.used[0]))
        # The remove direction is the larger one.
        case events.Poisson(inner, rate) if (most := _certain_loss(inner)) < 700:
            return Fraction(math.log1p(rate * math.expm1(float(most))) * (1 + 8 * UNIT * (1 + float(most))))
        case events.Hidden() if (plain := event.unamplified()) != event:
            return _certain_loss(plain)
    raise NotEvaluable("losses without a bound")


def substituted(mechanism: Mechanism) -> Mechanism:
    """The same release for neighbours that differ by substitution; NotEvaluable if that is not known."""
    match mechanism:
        case events.Gaussian() | events.Laplace() | events.RandomisedResponse():
            return replace(mechanism, relation=events.Relation.SUBSTITUTION)
        case events.NotPrivate():
            return mechanism
        case events.RandomSelection() | events.Repeat() | events.Compose():
            return mechanism.with_parts(substituted)
    raise NotEvaluable(f"{type(mechanism).__name__} under substitution is not known")


def group(mechanism: Mechanism, size: int) -> Mechanism:
    """The mechanism as a group of ``size`` people sees it, by the tightest known rule: exact for (Poisson sampled)
    Gaussians and their compositions, else the smallest of several bounds of the whole (``Group``). The people choose
    and are sampled independently of one another.
    """
    events.mechanism_of("mechanism", mechanism)
    if checks.count("size", size) == 1:
        return mechanism
    try:
        return exact_group(mechanism, size)
    except NotEvaluable:
        return events.Group(mechanism, size)


def exact_group(mechanism: Mechanism, size: int) -> Mechanism:
    """The rules that lose nothing; NotEvaluable if there is none. (For parts alone the generic property costs more than
    for the whole.)
    """
    match mechanism:
        case events.NotPrivate() | events.RandomisedResponse():
            return mechanism
        case events.Gaussian(noise):
            return replace(mechanism, noise_multiplier=noise / size)
        case events.Laplace(scale):
            return replace(mechanism, scale=scale / size)
        case events.Poisson(events.RandomisedResponse() as bit, rate):
            # Schuchardt et al. 2024, Theorem G.1: the worst is a bit that anybody of the group turns.
            return events.Poisson(bit, 1 - (1 - rate) ** size)
        case events.Poisson(inner, rate):
            one = _as_gaussian(inner)
            return events.GroupPoissonGaussian(one.noise_multiplier, rate, size, relation=one.relation)
        case events.Repeat() | events.Compose():
            return mechanism.with_parts(lambda part: exact_group(part, size))
    raise NotEvaluable(f"{type(mechanism).__name__} has no exact rule for groups")


def group_by_rounds(mechanism: Mechanism, size: int) -> Mechanism:
    """The exact rule with choices inside rounds (submodels, masks) revealed, not participation; or NotEvaluable."""
    match mechanism:
        case events.Poisson(inner, rate):
            return exact_group(events.Poisson(inner.unamplified(), rate), size)
        case events.WithoutReplacement(inner, batch, population, people):  # it charges groups itself
            opened = inner.unamplified()
            exact_group(opened, 2)
            return events.WithoutReplacement(opened, batch, population, min(people * size, population))
        case events.Repeat() | events.Compose():
            return mechanism.with_parts(lambda part: group_by_rounds(part, size))
    return exact_group(mechanism.unamplified(), size)


def with_own_bits(mechanism: Mechanism, size: int, chosen: bool = False) -> Mechanism:
    """The same for the worst of all choices: each of ``size`` people has chosen another bit, if a hidden choice inside
    or above (``chosen``) decides which bit is a person's.
    """
    chosen = chosen or isinstance(
        mechanism, (events.Submodels, events.Dropout, events.Allocation, events.AllocationPrefix, events.CappedPoisson)
    )
    if isinstance(mechanism, events.RandomisedResponse):
        return events.Repeat(mechanism, size) if chosen else mechanism
    return mechanism.with_parts(lambda part: with_own_bits(part, size, chosen))


def _as_gaussian(mechanism: Mechanism) -> events.Gaussian:
    """Gaussian releases that one coin decides together as one release; NotEvaluable if they are not Gaussian."""
    match mechanism:
        case events.Gaussian():
            return mechanism
        case events.Compose(parts):
            known = [_as_gaussian(part) for part in parts]
            return replace(known[0], noise_multiplier=sum(part.noise_multiplier**-2 for part in known) ** -0.5)
    raise NotEvaluable(f"{type(mechanism).__name__} is not Gaussian")


@dataclass(frozen=True)
class Participation:
    """A person takes part in H of ``rounds`` released rounds: H is drawn, then a uniform set of that size.
    ``mechanism``: one round. ``chances``: of H = 0, 1, ..; the last one is positive. ``rounds``: the number of released
    rounds. ``rounding``: bound on the relative error of ``chances``.
    """

    mechanism: Mechanism
    chances: tuple[float, ...]
    rounds: int
    rounding: float = 0.0

    def with_refusals(self) -> "Participation":
        """Poisson sampling inside the rounds as a smaller number of rounds: a uniform set, thinned, is uniform."""
        found = self
        while isinstance(found.mechanism, events.Poisson) and 0 < found.mechanism.rate < 1:
            rate, h = found.mechanism.rate, np.arange(len(found.chances))
            logs = log_choose(h, np.minimum(h[:, None], h)) + h[:, None] * math.log(rate)
            chances = _mixed(logs + (h - h[:, None]) * math.log1p(-rate), h[:, None] <= h, np.array(found.chances))
            rounding = found.rounding + rounding_of_chances(len(h), rate)
            found = Participation(found.mechanism.mechanism, chances, found.rounds, rounding)
        return found


@singledispatch
def participation(event: Mechanism) -> Participation:
    """The choice of rounds of an event; for most kinds, the event as its only round."""
    return Participation(event, (0.0, 1.0), 1)


@participation.register(events.Allocation)
@participation.register(events.AllocationPrefix)
def rounds_of_allocation(event: events.Allocation | events.AllocationPrefix) -> Participation:
    return _first_rounds(event.mechanism, _exactly(event.k), event.rounds, event.span)


@participation.register
def rounds_of_capped_coins(event: events.CappedPoisson) -> Participation:
    if event.rate in (0.0, 1.0):
        return _first_rounds(event.mechanism, _exactly(int(event.rate) * event.at_most), event.rounds, event.span)
    h = np.arange(event.rounds + 1)
    logs = log_choose(event.rounds, h) + h * math.log(event.rate) + h[::-1] * math.log1p(-event.rate)
    chances = np.exp(logs)
    capped = np.append(chances[: event.at_most], chances[event.at_most :].sum())
    off = rounding_of_chances(event.rounds, event.rate)
    return _first_rounds(event.mechanism, capped, event.rounds, event.span, off)


@participation.register
def rounds_if_sampled(event: events.Poisson) -> Participation:
    inner = participation(event.mechanism)
    if event.rate == 0 or (len(inner.chances) == 2 and inner.rounds == 1):  # the law of one round is exact
        return Participation(event, (0.0, 1.0), 1)
    chances = event.rate * np.array(inner.chances)
    chances[0] += 1 - event.rate
    return Participation(inner.mechanism, tuple(chances.tolist()), inner.rounds, inner.rounding + 4 * UNIT)


def _exactly(k: int) -> Array:
    """The chances of taking part in h = 0..k rounds, where it is k for certain."""
    return np.append(np.zeros(k), 1.0)


def _first_rounds(mechanism: Mechanism, chances: Array, rounds: int, released: int, off: float = 0.0) -> Participation:
    """Of a uniform set of h of all rounds, the part among those released is uniform, of a hypergeometric size."""
    if released < rounds:
        h, j = np.arange(len(chances)), np.arange(min(len(chances) - 1, released) + 1)[:, None]
        there = (j <= h) & (h - j <= rounds - released)
        outside = np.where(there, h - j, 0)
        logs = log_choose(released, j) + log_choose(rounds - released, outside) - log_choose(rounds, h)
        chances = np.array(_mixed(logs, there, chances))
        off += rounding_of_chances(rounds)
    return Participation(mechanism, tuple(chances.tolist()), released, off).with_refusals()


def _mixed(logs: Array, there: NDArray[np.bool_], chances: Array) -> tuple[float, ...]:
    """The chances of j = 0, 1, .., given those of j under each h (``logs``, by j and h) and those of h."""
    mixed = np.where(there, np.exp(np.where(there, logs, -np.inf)), 0.0) @ chances
    return tuple(np.trim_zeros(mixed, "b").tolist())


def blocks_met(chances: tuple[float, ...], blocks: int, size: int) -> tuple[float, ...]:
    """The chances of how many blocks of ``size`` rounds a uniform set meets, whose size is drawn by ``chances``."""
    met, found, h = np.eye(1, len(chances))[0], np.zeros(len(chances)), np.arange(len(chances))
    for taken, chance in enumerate(chances):
        found += chance * met
        left = blocks * size - taken  # the next round: in a block that was met, or in another one
        again, new = np.maximum(h * size - taken, 0) / left, np.maximum(blocks - h, 0) * size / left
        met = met * again + np.concatenate([[0.0], (met * new)[:-1]])
    return tuple(np.trim_zeros(found, "b").tolist())


# The number of rounds as a sum of independent coins.


def _chances(k: int, rounds: int, released: int) -> Array:
    """Probabilities of independent coins whose sum has the law of a person's rounds among the released ones; shape
    (min(k, released),). They are the roots of a Jacobi polynomial: E[C(H, j)] = C(k, j) C(r, j) / C(T, j) makes the
    product of (x - p_i) proportional to 2F1(-n, T - n + 1; |r - k| + 1; x), n = min(k, r). Where k + r > T the coins of
    those not drawn are turned over.
    """
    if min(k, released) == 1:
        return np.array([max(k, released) / rounds])
    if k + released > rounds:
        turned = (k, rounds, rounds - released) if k <= released else (rounds - k, rounds, released)
        hidden = 1 - _chances(*turned)
        return np.concatenate([np.ones(min(k, released) - len(hidden)), hidden])
    n, alpha, beta = min(k, released), abs(released - k), rounds - k - released
    if n == 0:
        return np.zeros(0)
    total, i = alpha + beta, np.arange(1.0, n)
    first = (beta - alpha) / (total + 2)
    diagonal = np.concatenate([[first], (beta - alpha) * total / ((2 * i + total) * (2 * i + total + 2))])
    numerator = 4 * i * (i + alpha) * (i + beta) * (i + total)
    beside = np.sqrt(numerator / ((2 * i + total) ** 2 * (2 * i + total + 1) * (2 * i + total - 1)))
    if n <= 32:  # no slow import
        eigenvalues = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, -1))
    else:
        from scipy.linalg import eigvalsh_tridiagonal

        eigenvalues = eigvalsh_tridiagonal(diagonal, beside)
    return np.clip((1 - eigenvalues) / 2, 0.0, 1.0)


def coin_groups(k: int, rounds: int, released: int, most: int = 12) -> list[tuple[float, int, int]]:
    """The coins of a prefix and the sizes of their groups, at most ``most`` distinct ones: (probability, size, number).
    Sizes are in proportion to the probabilities (the best at order 2). More coins than ``most`` share the largest
    probability and the smallest size of their neighbours, which costs more.
    """
    exact = np.sort(_chances(k, rounds, released))
    if not len(exact):
        return []
    # Up, by what eigenvalues of a matrix of norm 1 may be off: a larger rate costs more.
    off = 8 * UNIT * (len(exact) + 4) if len(exact) > 1 else 0.0
    coins = np.minimum(exact * (1 + 8 * UNIT) + off, 1.0)
    low, high = 0.0, released / coins[-1] * 2
    for _ in range(4):  # the largest multiple of the coins that fits, to one part in 20,000
        tried = np.linspace(low, high, 13)
        fits = np.maximum(1, np.floor(tried[:, None] * coins)).sum(axis=1) <= released
        last = int(np.flatnonzero(fits)[-1])
        low, high = tried[last], tried[min(last + 1, 12)]
    sizes = np.maximum(1, np.floor(low * coins)).astype(int)
    sizes[np.argsort(sizes - low * coins, kind="stable")[: released - sizes.sum()]] += 1
    chunks = np.array_split(np.arange(len(coins)), min(most, len(coins)))
    return [(float(coins[chunk].max()), int(sizes[chunk].min()), len(chunk)) for chunk in chunks]


@lru_cache(maxsize=1024)
def best_coin_groups(k: int, rounds: int, released: int) -> list[tuple[float, int, int]]:
    """The groups of this prefix or, where groups are small, of a longer one: it costs at least as much, but may divide
    better. The second moment, sum of p^2 / size, decides.
    """
    ahead = 31 if released < 3 * k <= 600 else 0
    candidates = [coin_groups(k, rounds, r) for r in range(released, min(rounds, released + ahead) + 1)]
    return min(candidates, key=lambda groups: sum(n * p * p / size for p, size, n in groups))


# Several people.


def other_bounds(event: events.Group) -> list[Mechanism]:
    """Bounds of a group with hidden choices revealed: all of them, or those inside rounds. The release is a mixture,
    over choices that do not depend on the data, of releases that cost the group no more than that (joint convexity);
    and the rest, compositions of (sampled) Gaussians, is exact for groups. Where their choices differ, people
    add to different sums, which costs less than if all added to one. Not so with bits: people who choose different bits
    turn several, and all who choose one turn one. There the generic property is all.
    """
    bounds: list[Mechanism] = []
    if with_own_bits(event.mechanism, 2) != event.mechanism:  # a hidden choice decides which bit is a person's
        return bounds
    with suppress(NotEvaluable):
        bounds.append(exact_group(event.mechanism.unamplified(), event.size))
    try:
        exact_group(event.mechanism, event.size)
    except NotEvaluable:
        with suppress(NotEvaluable):
            bounds.append(group_by_rounds(event.mechanism, event.size))
    return list(dict.fromkeys(bounds))


# Batches of a fixed size.


def people_in_batch(event: events.WithoutReplacement) -> tuple[NDArray[np.int64], Array]:
    """How many people of the group may be in the batch, and the log of each number's hypergeometric chance."""
    others = event.population - event.size
    hits = np.arange(max(0, event.batch - others), min(event.size, event.batch) + 1)
    logs = log_choose(event.size, hits) + log_choose(others, event.batch - hits)
    return hits, np.asarray(logs - log_sum(logs))


def some_in_batch(event: events.WithoutReplacement, rule: Callable[[int], Mechanism]) -> tuple[float, Mechanism]:
    """The chance that any of the people are in the batch, and what a batch with i of them, as likely as it is then,
    costs against one with their substitutes or with others: what the ``rule`` makes of 2 i contributions.
    """
    hits, logs = people_in_batch(event)
    some = hits > 0
    share = float(log_sum(logs[some]))
    parts, weights = [rule(2 * int(i)) for i in hits[some]], np.exp(logs[some] - share)
    drawn = parts[0] if len(set(parts)) == 1 else events.RandomSelection(parts, tuple(weights / weights.sum()))
    return min(1.0, math.exp(share)), drawn


def changed_batch(event: events.WithoutReplacement) -> events.Poisson:
    """The costlier order of a changed batch, hidden choices inside revealed (ours, from Balle, Barthe, Gaboardi 2018,
    Theorem 10: docs/accounting.md). A bit of a batch is a sampled bit: the chance that it is true is a mixture that the
    batch decides, with and without the people in question, and extreme points are the worst, in moments too (Schuchardt
    et al. 2024, Theorem 3.7). NotEvaluable: several changes of the mechanism are not one of their sum.
    """
    opened = unamplified(with_own_bits(event.mechanism, min(event.size, event.batch)))
    share, drawn = some_in_batch(event, lambda changes: exact_group(opened, changes))
    return events.Poisson(drawn, share)
