"""Rules from mechanisms to simpler ones, for upper and for lower ends.

``charged_as`` gives a mechanism that costs at least as much: a theorem each time.
``attained`` gives a mechanism that some federation with this one leaks as much as.
"""

import math
from fractions import Fraction
from functools import singledispatch

import numpy as np

from fedamp.accounting.amplification import (
    Allocation,
    AllocationPrefix,
    CappedPoisson,
    Dropout,
    Hidden,
    Poisson,
    Spaced,
    Submodels,
)
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.groups import Group, WithoutReplacement, exact_group
from fedamp.accounting.mechanism import Mechanism, OfOne, Relation
from fedamp.accounting.merging import JOINT_RELEASE, LinearCombination, RandomSelection
from fedamp.accounting.numeric import UNIT
from fedamp.accounting.participation import best_coin_groups, participation
from fedamp.accounting.releases import (
    NOTHING,
    Approximate,
    Compose,
    FiniteOutcomes,
    Gaussian,
    GaussianMixture,
    GroupPoissonGaussian,
    Laplace,
    MixedCoordinate,
    ModelMix,
    RandomisedResponse,
    Repeat,
)

# What it is charged as.


@singledispatch
def charged_as(event: Mechanism) -> Mechanism:
    """The simpler mechanism that costs at least as much, for evaluators that do not know a kind; else TypeError."""
    raise TypeError(f"no evaluator knows mechanisms of kind {type(event).__name__}")


@charged_as.register
def _(event: Dropout) -> Mechanism:
    """For keep <= 1/2 the mean of floor(1/keep) copies: give every unit one of floor(1/keep) labels with probability
    ``keep`` each, or none, and keep the units of one random label; the labels' supports are disjoint (Dong, Chen, Özgür
    2025, Theorem 3.5 and Corollary 3.7, extended). Above 1/2 two masks of one person overlap in most units, no two
    disjoint labels exist, and no amplification is claimed.
    """
    return Submodels(event.mechanism, max(1, math.floor(1 / event.keep)))


@charged_as.register
def _(event: Allocation) -> Mechanism:
    """A random partition of the rounds into k groups, as even as integers allow, with one round drawn from each, is a
    random choice of k rounds; joint convexity removes the partition, and X is a product of k means (Feldman, Shenfeld
    2025, Theorem 3.1 and Lemmas 3.2 and F.1). Exact for k = 1.
    """
    if event.k == 0:
        return Compose((NOTHING,))
    size, larger = divmod(event.rounds, event.k)
    groups = ((size, event.k - larger), (size + 1, larger))
    return Compose(tuple(Repeat(Submodels(event.mechanism, each), n) for each, n in groups if n))


@charged_as.register
def _(event: AllocationPrefix) -> Mechanism:
    """The number H of a person's rounds among those released is hypergeometric, hence a sum of independent coins of
    probabilities p_i (Vatutin, Mikhailov 1982). Split the released rounds at random into one group per coin, of any
    fixed sizes: one hidden round of group i, if coin i says so, is a random choice of H rounds. By joint convexity in
    the partition X is at most the product of (1 - p_i) + p_i (mean of the group's copies), in convex order. Exact for
    k = 1.
    """
    groups = best_coin_groups(event.k, event.rounds, event.released)
    parts = (Repeat(Poisson(Submodels(event.mechanism, size), p), n) for p, size, n in groups)
    return Compose(tuple(parts) or (NOTHING,))


@charged_as.register
def _(event: CappedPoisson) -> Mechanism:
    """Without the cap: leaving rounds out, by any rule that does not look at releases, never costs (docs/k-of-t.md;
    Feldman, Shenfeld 2025, Corollary 4.7). Exact for a cap of one round.
    """
    if event.at_most > 1:
        return Repeat(Poisson(event.mechanism, event.rate), event.span)
    ever = -math.expm1(event.rounds * math.log1p(-event.rate)) if event.rate < 1 else 1.0
    chance = min(1.0, ever * event.span / event.rounds * (1 + 1e-12))  # up: a larger rate costs more
    return Poisson(Submodels(event.mechanism, event.span), chance) if event.span else NOTHING


@charged_as.register
def _(event: Spaced) -> Mechanism:
    """As if the rounds were known."""
    return event.shown


def hidden_rounds_bounds(event: Allocation | AllocationPrefix | CappedPoisson) -> list[Mechanism]:
    """Mechanisms that each cost at least as much: what the event is charged as and, where that is not exact, a choice
    of more rounds (which never costs less; docs/k-of-t.md).
    """
    bounds = [charged_as(event)]
    if isinstance(event, CappedPoisson) and event.at_most > 1:
        bounds.append(Allocation(event.mechanism, event.at_most, event.rounds).after(event.span))
    elif isinstance(event, AllocationPrefix) and event.k > 1:
        bounds.append(event.whole())
    return bounds


@charged_as.register
def _(event: LinearCombination) -> Mechanism:
    """See the class for both charges."""
    if event.assumption == JOINT_RELEASE:
        used = tuple(part for part, weight in zip(event.mechanisms, event.weights, strict=True) if weight > 0)
        return Compose(used or (NOTHING,))
    times, steps = event.steps()
    sizes = [weight * scale for weight, scale in zip(event.weights, event.scales, strict=True)]
    noise = math.hypot(*(size * multiplier for size, (multiplier, _) in zip(sizes, steps, strict=True)))
    sums, chances = np.zeros(1), np.ones(1)  # over all subsets of the models that a person's data may be in
    for size, (_, rate) in zip(sizes, steps, strict=True):
        sums = np.concatenate([sums, sums + size / noise])
        chances = np.concatenate([chances * (1 - rate), chances * rate])
    mixture = GaussianMixture(
        tuple(sums.tolist()), tuple(chances.tolist()), relation=event.relation or Relation.ZERO_OUT
    )
    return Repeat(mixture, times)


@charged_as.register
def _(event: Approximate) -> Mechanism:
    """The worst mechanism with this guarantee, of which every other one is a function (Kairouz, Oh, Viswanath 2015,
    Theorem 3.4; Murtagh, Vadhan 2016).
    """
    if event.known_epsilon > 690:  # beyond floating point: as if it told everything
        return FiniteOutcomes((1.0, 0.0), (0.0, 1.0), relation=event.relation)
    rest, less = 1 - event.known_delta, 1 / (1 + math.exp(event.known_epsilon))
    present = (event.known_delta, rest * (1 - less), rest * less, 0.0)
    return FiniteOutcomes(present, present[::-1], relation=event.relation)


@charged_as.register
def _(event: GroupPoissonGaussian) -> Mechanism:
    """The number of them in a round is binomial and their contributions point the same way in the worst case: for Rényi
    by Schuchardt et al. 2024, Theorem 4.2, for the hockey-stick by the same supermodularity; hence a numerical law,
    which that paper leaves open.
    """
    size, rate = event.size, event.rate
    if rate == 1:
        return Gaussian(event.noise_multiplier / size, relation=event.relation)
    chances = [math.comb(size, i) * rate**i * (1 - rate) ** (size - i) for i in range(size + 1)]
    total = math.fsum(chances)
    shifts = tuple(i / event.noise_multiplier for i in range(size + 1))
    return GaussianMixture(shifts, tuple(chance / total for chance in chances), relation=event.relation)


# What is attained.


@singledispatch
def attained(event: Mechanism) -> Mechanism:
    """A mechanism that some federation with this one leaks as much as, for lower ends: for most kinds the mechanism
    itself; ``NOTHING`` if none is known.
    """
    return event


@attained.register(OfOne)
@attained.register(RandomSelection)
def _(event: OfOne | RandomSelection) -> Mechanism:
    try:
        return event.with_parts(attained)
    except ValueError:  # the parts' relations differ
        return NOTHING


@attained.register
def _(event: Compose) -> Mechanism:
    try:
        return event.with_parts(attained)
    except ValueError:
        return next(part for part in map(attained, event.mechanisms) if part.relation is not None)


@attained.register
def _(event: Dropout) -> Mechanism:
    """A network of one unit: dropping it silences the person. Or, with a larger second moment where noise is much, the
    limit of many units over which a contribution spreads evenly: its sum over the units has length sqrt(keep).
    """
    signal = signal_to_noise(event.mechanism)
    if signal is not None and signal < 700 and event.keep * signal > math.log1p(event.keep**2 * math.expm1(signal)):
        return Gaussian((event.keep * signal) ** -0.5, relation=event.relation or Relation.ZERO_OUT)
    return Poisson(attained(event.mechanism), event.keep)


@attained.register(Allocation)
@attained.register(AllocationPrefix)
@attained.register(CappedPoisson)
def _(event: Allocation | AllocationPrefix | CappedPoisson) -> Mechanism:
    """Of one hidden round, and of all rounds, the run itself; of more the sum of all rounds' releases, or one round
    alone.
    """
    most = event.at_most if isinstance(event, CappedPoisson) else event.k
    every = isinstance(event, Allocation) and event.k == event.rounds  # nothing is hidden
    if (most == 1 or every) and attained(event.mechanism) is event.mechanism:
        return event
    if isinstance(event, Allocation) and event.k and (signal := signal_to_noise(event)) is not None:
        noise = signal**-0.5
        return Gaussian(noise, relation=event.relation or Relation.ZERO_OUT) if 1e-50 <= noise <= 1e50 else NOTHING
    first = participation(event.after(min(1, event.span)))
    if len(first.chances) < 2:
        return NOTHING
    return Poisson(attained(first.mechanism), first.chances[1] * max(0.0, 1 - first.rounding))


@attained.register
def _(event: ModelMix) -> Mechanism:
    """``linf_coordinates`` coordinates with equal shares of the norm; the worst case at orders from 2 up (checked)."""
    return concentrated(event)


def concentrated(event: ModelMix) -> Mechanism:
    """A ModelMix round whose contribution fills ``linf_coordinates`` coordinates and no others."""
    if event.width == 0:
        return Gaussian(event.noise_multiplier, relation=event.relation)
    shift = 1 / math.sqrt(event.linf_coordinates)
    one = MixedCoordinate(event.noise_multiplier, event.width, shift, relation=event.relation)
    return Repeat(one, event.linf_coordinates)


@attained.register
def _(event: LinearCombination) -> Mechanism:
    """The merged model may hide its parts: under the joint release nothing is known."""
    return NOTHING if event.assumption == JOINT_RELEASE and len(event.mechanisms) > 1 else event


@attained.register
def _(event: Spaced) -> Mechanism:
    """Only sampling knows lower ends."""
    return NOTHING


@attained.register
def _(event: Group) -> Mechanism:
    """All of the group contribute the same, where they are chosen independently; else one of them alone."""
    of_one = attained(event.mechanism)
    if event.mechanism.contains(WithoutReplacement):
        return of_one
    try:
        return exact_group(of_one, event.size)
    except NotEvaluable:
        if (signal := signal_to_noise(event.mechanism)) is None:
            return of_one
        return Gaussian(signal**-0.5 / event.size, relation=event.relation or Relation.ZERO_OUT)


@attained.register
def _(event: WithoutReplacement) -> Mechanism:
    """An attacker who knows the rest of the batch, and one person of the group whose contribution is zeroed."""
    return Poisson(attained(event.mechanism), event.batch / event.population)


def signal_to_noise(event: Mechanism) -> float | None:
    """Squared signal-to-noise ratio of a fixed linear statistic that is Gaussian in both worlds; None if there is none.
    For submodels, and hidden rounds, it is the sum over all: the signal is in some, the noise in all.
    """
    if isinstance(event, Gaussian):
        return event.change**2 / event.noise_multiplier**2
    if isinstance(event, (Repeat, Submodels)):
        signal = signal_to_noise(event.mechanism)
        times = event.times if isinstance(event, Repeat) else 1 / event.count
        return None if signal is None else times * signal
    if isinstance(event, Allocation):
        signal = signal_to_noise(event.mechanism)
        return None if signal is None else event.k**2 / event.rounds * signal
    if isinstance(event, Compose):
        signals = [signal_to_noise(part) for part in event.mechanisms]
        return None if None in signals else sum(signal for signal in signals if signal is not None)
    return None


def factors(event: Mechanism, times: int = 1) -> tuple[float, dict[Mechanism, int]]:
    """The factors of a product: one Gaussian (sum of 1 / noise multiplier^2), and the others with multiplicities."""
    if isinstance(event, Gaussian):
        return times * event.change**2 / event.noise_multiplier**2, {}
    if isinstance(event, Repeat):
        return factors(event.mechanism, times * event.times) if event.times else (0.0, {})
    if isinstance(event, LinearCombination) and event.assumption == JOINT_RELEASE:
        return factors(charged_as(event), times)
    if not isinstance(event, Compose):
        return 0.0, {event: times}
    precision, others = 0.0, dict[Mechanism, int]()
    for part in event.mechanisms:
        more, rest = factors(part, times)
        precision += more
        for other, count in rest.items():
            others[other] = others.get(other, 0) + count
    return precision, others


# Pure differential privacy.


def largest_loss(event: Mechanism) -> Fraction:
    """A bound on |log X|, which is an epsilon at every delta: losses add up under composition, and a hidden choice
    adds none. NotEvaluable: none is known.
    """
    match event:
        case Laplace(scale):
            return Fraction(event.change) / Fraction(scale)
        case RandomisedResponse(probability) if 0 < probability < 1:
            return Fraction(abs(math.log(probability) - math.log1p(-probability)) * (1 + 8 * UNIT))
        case Approximate(known, 0):
            return Fraction(known)
        case FiniteOutcomes(present, absent) if all((p > 0) == (q > 0) for p, q in zip(present, absent, strict=True)):
            logs = [(math.log(p), math.log(q)) for p, q in zip(present, absent, strict=True) if p]
            return Fraction(max(abs(p - q) - 4 * UNIT * (p + q) for p, q in logs) * (1 + 4 * UNIT))
        case Compose(mechanisms):
            return sum(map(largest_loss, mechanisms), Fraction(0))
        case Repeat(inner, times):
            return times * largest_loss(inner) if times else Fraction(0)
        case Group(inner, size):
            return size * largest_loss(inner)
        case RandomSelection():
            return max(map(largest_loss, event.used[0]))
        case Poisson(inner, rate) if (most := largest_loss(inner)) < 700:  # the remove direction is the larger one
            return Fraction(math.log1p(rate * math.expm1(float(most))) * (1 + 8 * UNIT * (1 + float(most))))
        case Hidden() if (plain := event.unamplified()) != event:
            return largest_loss(plain)
    raise NotEvaluable("losses without a bound")


def epsilon_of_losses(event: Mechanism) -> float:
    """``largest_loss``, rounded up, or infinity."""
    try:
        exact = largest_loss(event)
    except NotEvaluable:
        return math.inf
    nearest = float(exact)
    return nearest if nearest >= exact else math.nextafter(nearest, math.inf)
