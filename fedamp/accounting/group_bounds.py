"""What groups, and batches of a fixed size, cost: both evaluators."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import laws, moments
from fedamp.accounting.amplification import Poisson
from fedamp.accounting.bounds import Array, Bounds
from fedamp.accounting.groups import Group, WithoutReplacement, chooses_bits, exact_group, group, group_by_rounds
from fedamp.accounting.law import Law
from fedamp.accounting.laws import Detail, Profile, Smallest
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import RandomSelection
from fedamp.accounting.points import DEFAULT_POINTS, NotEvaluable
from fedamp.accounting.releases import RandomisedResponse
from fedamp.accounting.renyi import Moments, answers_for, log_moments


@dataclass(frozen=True)
class Answered:
    """The profile of a mechanism by whichever evaluator is best, at a number of points."""

    event: Mechanism
    points: int | None

    def epsilon(self, delta: float) -> Bounds:
        return self.event.epsilon(delta, points=self.points)

    def delta(self, epsilon: float) -> Bounds:
        return self.event.delta(epsilon, points=self.points)


@dataclass(frozen=True)
class SomeInBatch:
    """A release that concerns the people in question with chance ``share`` alone, and then costs ``profile``.

    delta(epsilon) <= share * delta'(log(1 + (e^epsilon - 1) / share)) (Balle, Barthe, Gaboardi 2018, Theorem 10).
    """

    profile: Profile
    share: float

    def epsilon(self, delta: float) -> Bounds:
        if delta >= self.share:
            return Bounds(0.0, 0.0, "smaller than the chance of being in the batch")
        answer = self.profile.epsilon(delta / self.share)
        upper = math.log1p(self.share * math.expm1(answer.upper)) if answer.upper < 700 else answer.upper
        return Bounds(0.0, upper, answer.method)

    def delta(self, epsilon: float) -> Bounds:
        inner = math.log1p(math.expm1(epsilon) / self.share) if epsilon < 700 else epsilon
        answer = self.profile.delta(inner)
        return Bounds(0.0, self.share * answer.upper, answer.method)


@dataclass(frozen=True)
class OfGroup:
    """The generic group property: K people are K changes of one person,

    delta_K(epsilon) <= delta(epsilon / K) (e^epsilon - 1) / (e^(epsilon / K) - 1).
    """

    profile: Profile
    size: int

    def delta(self, epsilon: float) -> Bounds:
        if epsilon == 0:
            return Bounds(0.0, min(1.0, self.size * self.profile.delta(0.0).upper), "group property")
        part = self.profile.delta(epsilon / self.size)
        upper = min(1.0, part.upper * math.exp(min(_log_factor(epsilon, self.size), 700.0)))
        return Bounds(0.0, upper, f"group property of {part.method}")

    def epsilon(self, delta: float) -> Bounds:
        low, high = 0.0, 1.0
        while self.delta(high).upper > delta:
            low, high = high, 2 * high
            if high > 1e4:
                return Bounds(0.0, math.inf, "group property")
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle).upper <= delta else (middle, high)
        return Bounds(0.0, high, self.delta(high).method)


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
    return Bounds(0.0, known, f"group property of {one.method}")


# Groups.


def other_bounds(event: Group) -> list[Mechanism]:
    """Bounds of a group with hidden choices revealed: all of them, or those inside rounds. The release is a mixture,
    over choices that do not depend on the data, of releases that cost the group no more than that (joint convexity);
    and what is then left, compositions of (sampled) Gaussians, is exact for groups. Where their choices differ, people
    add to different sums, which costs less than if all added to one. Not so with bits: people who choose different bits
    turn several, and all who choose one turn one. There the generic property is all.
    """
    if chooses_bits(event.mechanism):
        return []
    bounds = [exact_group(event.mechanism.unamplified(), event.size)]
    if exact_group(event.mechanism, event.size) is None:
        bounds.append(group_by_rounds(event.mechanism, event.size))
    return [bound for bound in dict.fromkeys(bounds) if bound is not None]


@laws.profile.register
def _(event: Group, points: int | None, with_lower: bool = True) -> Profile:
    """No finer grid than the default makes the generic property much tighter."""
    generic = OfGroup(Answered(event.mechanism, DEFAULT_POINTS if points is None else points), event.size)
    return Smallest([generic, *(Answered(bound, points) for bound in other_bounds(event))])


@answers_for(Group)
class _Group(Moments):
    """Log moments of order a of i + j people are at most half the sum of those of order 2 a of i people and of order
    2 a - 1 of j (Mironov 2017, Corollary 4; Schuchardt et al. 2024, Appendix B.1, corrected). Where they are smaller,
    the other bounds'.
    """

    symmetric = True

    def _raw(self, highest: int) -> Array:
        more = max(highest, min(1024, highest * 2 ** math.ceil(math.log2(self.event.size))))
        generic = of_group(log_moments(self.event.mechanism, more), self.event.size)
        known = min(highest + 1, len(generic))
        result = np.full(highest + 1, np.inf)
        result[:known] = generic[:known]
        return np.asarray(
            np.min([result, *(log_moments(other, highest) for other in other_bounds(self.event))], axis=0)
        )


def of_group(of_one: Array, size: int) -> Array:
    """The log moments of a group at the orders that those of one person suffice for."""
    if size == 1:
        return of_one
    larger, smaller = (of_group(of_one, half) for half in (size - size // 2, size // 2))
    a = np.arange(2, (len(larger) - 1) // 2 + 1)
    return np.concatenate([[0.0, 0.0], (larger[2 * a] + smaller[2 * a - 1]) / 2])


# Batches of a fixed size.


def in_batch(event: WithoutReplacement) -> tuple[NDArray[np.int64], Array]:
    """How many people of the group may be in the batch, and the log of each number's hypergeometric chance."""
    others = event.population - event.size
    hits = np.arange(max(0, event.batch - others), min(event.size, event.batch) + 1)
    logs = moments.log_choose(event.size, hits) + moments.log_choose(others, event.batch - hits)
    return hits, np.asarray(logs - moments.log_sum(logs))


def _as_one_coin(event: WithoutReplacement) -> Mechanism | None:
    """A bit is told rightly with a chance that the batch decides: p = r (1 - w) + o w with the people in question, and
    r (1 - w) + n w with their substitutes, w the chance that any of them is in it, and r, o, n between both chances of
    the bit. Divergences are jointly convex, so that extreme points are the worst, and those are the two laws of a
    sampled bit (Schuchardt et al. 2024, Theorem 3.7), in either order. Moments are taken for the larger direction.
    """
    if not isinstance(event.mechanism, RandomisedResponse):
        return None
    hits, logs = in_batch(event)
    return Poisson(event.mechanism, min(1.0, math.exp(moments.log_sum(logs[hits > 0]))))


@laws.profile.register
def _(event: WithoutReplacement, points: int | None, with_lower: bool = True) -> Profile:
    """A single release: given that i >= 1 of the group are in the batch, it differs from one of their substitutes by a
    change of 2 i; joint convexity in i.
    """
    if (coin := _as_one_coin(event)) is not None:
        return laws.profile(coin, points, with_lower)
    hits, logs = in_batch(event)
    some = hits > 0
    share = min(1.0, math.exp(moments.log_sum(logs[some])))
    charged = [group(event.mechanism, 2 * int(i)) for i in hits[some]]
    weights = np.exp(logs[some] - moments.log_sum(logs[some]))
    drawn = charged[0] if len(charged) == 1 else RandomSelection(charged, tuple(weights / weights.sum()))
    return SomeInBatch(Answered(drawn, points), share)


def _no_law(event: Mechanism, detail: Detail) -> Law:
    raise NotEvaluable(f"{type(event).__name__} has no numerical law")


laws.law_by_kind.register(Group)(_no_law)
laws.law_by_kind.register(WithoutReplacement)(_no_law)


@answers_for(WithoutReplacement)
class _WithoutReplacement(Moments):
    """With w_i the hypergeometric chance that i people of the group are in the batch, p = 1 - w_0, and M_l(i) the
    moments of a change of 2 i: the smaller of the mean of M_a(i) over i (Schuchardt et al. 2024, Proposition E.5,
    corrected) and 1 + sum over l >= 2 of C(a, l) p^(l-1) times the sum over i >= 1 of w_i m_l(i), with
    m_2 = min(4 (M_2 - 1), 2 M_2) and m_l = 2 M_l. The latter is Wang, Balle, Kasiviswanathan 2019, Theorem 9, for
    size 1 (Schuchardt et al. 2024, Theorem 3.6 and Proposition E.2). For a group, condition as they do on "none of it
    is in the batch"; |x - y|^l z^(1-l) is jointly convex, so that the number i may be revealed there. Both
    directions, also under composition.
    """

    symmetric = True

    def _raw(self, highest: int) -> Array:
        if (coin := _as_one_coin(self.event)) is not None:
            return log_moments(coin, highest)
        hits, logs = in_batch(self.event)
        nobody = np.zeros(highest + 1)
        charged = partial(group, self.event.mechanism)
        moved = np.stack([log_moments(charged(2 * int(i)), highest) if i else nobody for i in hits])
        number_seen = moments.log_sum(logs[:, None] + moved, axis=0)
        if hits[0] > 0:
            return number_seen
        twice = math.log(2) + moved[1:]
        twice[:, 2] += np.minimum(0.0, math.log(2) + np.log(np.maximum(-np.expm1(-moved[1:, 2]), 1e-300)))
        a, share = np.arange(highest + 1), float(moments.log_sum(logs[1:]))
        terms = moments.log_binomials(highest) + (a - 1) * share + moments.log_sum(logs[1:, None] + twice, axis=0)
        bound = np.logaddexp(0.0, moments.log_sum(terms[:, 2:]))
        return np.minimum(np.where(a < 2, 0.0, bound), number_seen)
