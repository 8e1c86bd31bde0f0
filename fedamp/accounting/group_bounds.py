"""Groups, and batches of a fixed size, by both evaluators."""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.amplification import Poisson
from fedamp.accounting.bounds import Array, Bounds, NotEvaluable
from fedamp.accounting.conversion import DeltaAt, Question
from fedamp.accounting.groups import Group, WithoutReplacement, chooses_bits, exact_group, group, group_by_rounds
from fedamp.accounting.law import Law
from fedamp.accounting.laws import Detail, answer_by_law, law_by_kind
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import RandomSelection
from fedamp.accounting.numeric import crossing, log_binomials, log_choose, log_sum
from fedamp.accounting.points import DEFAULT_POINTS
from fedamp.accounting.releases import RandomisedResponse
from fedamp.accounting.renyi import Moments, answers_for, log_moments

# The generic group property.


def _group_property(event: Group, question: Question, points: int) -> Bounds:
    """K people are K changes of one: delta_K(epsilon) <= delta(epsilon / K) (e^epsilon - 1) / (e^(epsilon / K) - 1).

    Answers have no lower end.
    """

    def delta_at(epsilon: float) -> Bounds:
        part = event.mechanism.delta(epsilon / event.size, points=points)
        if epsilon == 0:
            return Bounds(0.0, min(1.0, event.size * part.upper), "group property")
        upper = min(1.0, part.upper * math.exp(min(_log_factor(epsilon, event.size), 700.0)))
        return Bounds(0.0, upper, f"group property of {part.method}")

    if isinstance(question, DeltaAt):
        return delta_at(question.epsilon)
    upper = crossing(lambda epsilon: delta_at(epsilon).upper, question.delta, 1e4, 1e-4)[1]
    return Bounds(0.0, upper, delta_at(upper).method if upper < math.inf else "group property")


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
    and the rest, compositions of (sampled) Gaussians, is exact for groups. Where their choices differ, people
    add to different sums, which costs less than if all added to one. Not so with bits: people who choose different bits
    turn several, and all who choose one turn one. There the generic property is all.
    """
    bounds: list[Mechanism] = []
    if chooses_bits(event.mechanism):
        return bounds
    with suppress(NotEvaluable):
        bounds.append(exact_group(event.mechanism.unamplified(), event.size))
    try:
        exact_group(event.mechanism, event.size)
    except NotEvaluable:
        with suppress(NotEvaluable):
            bounds.append(group_by_rounds(event.mechanism, event.size))
    return list(dict.fromkeys(bounds))


@answer_by_law.register
def _(event: Group, question: Question, points: int | None = None, with_lower: bool = True) -> Bounds:
    """The smallest. A grid finer than the default hardly helps the generic property."""
    generic = _group_property(event, question, DEFAULT_POINTS if points is None else points)
    others = [question.ask(bound, points=points) for bound in other_bounds(event)]
    return min(generic, *others, key=attrgetter("upper")) if others else generic


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
    logs = log_choose(event.size, hits) + log_choose(others, event.batch - hits)
    return hits, np.asarray(logs - log_sum(logs))


def _as_one_coin(event: WithoutReplacement) -> Mechanism | None:
    """A bit is true with a chance that the batch decides: p = r (1 - w) + o w with the people in question, and
    r (1 - w) + n w with their substitutes, w the chance that any of them is in it, and r, o, n between both chances of
    the bit. Divergences are jointly convex, so that extreme points are the worst, and those are the two laws of a
    sampled bit (Schuchardt et al. 2024, Theorem 3.7), in either order. Moments are taken for the larger direction.
    """
    if not isinstance(event.mechanism, RandomisedResponse):
        return None
    hits, logs = in_batch(event)
    return Poisson(event.mechanism, min(1.0, math.exp(log_sum(logs[hits > 0]))))


@answer_by_law.register
def _(event: WithoutReplacement, question: Question, points: int | None = None, with_lower: bool = True) -> Bounds:
    """A single release: given that i >= 1 of the group are in the batch, it differs from one of their substitutes by a
    change of 2 i; joint convexity in i. The batch holds any of the group with a chance p, and
    delta(epsilon) <= p delta'(log(1 + (e^epsilon - 1) / p)) (Balle, Barthe, Gaboardi 2018, Theorem 10).
    """
    if (coin := _as_one_coin(event)) is not None:
        return answer_by_law(coin, question, points, with_lower)
    hits, logs = in_batch(event)
    some = hits > 0
    share = min(1.0, math.exp(log_sum(logs[some])))
    charged = [group(event.mechanism, 2 * int(i)) for i in hits[some]]
    weights = np.exp(logs[some] - log_sum(logs[some]))
    drawn = charged[0] if len(charged) == 1 else RandomSelection(charged, tuple(weights / weights.sum()))
    if isinstance(question, DeltaAt):
        inner = math.log1p(math.expm1(question.epsilon) / share) if question.epsilon < 700 else question.epsilon
        answer = drawn.delta(inner, points=points)
        return Bounds(0.0, share * answer.upper, answer.method)
    if question.delta >= share:
        return Bounds(0.0, 0.0, "smaller than the chance of being in the batch")
    answer = drawn.epsilon(question.delta / share, points=points)
    upper = math.log1p(share * math.expm1(answer.upper)) if answer.upper < 700 else answer.upper
    return Bounds(0.0, upper, answer.method)


def _no_law(event: Group | WithoutReplacement, detail: Detail) -> Law:
    raise NotEvaluable(f"{type(event).__name__} has no numerical law")


law_by_kind.register(Group, _no_law)
law_by_kind.register(WithoutReplacement, _no_law)


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
        none = np.zeros(highest + 1)
        charged = partial(group, self.event.mechanism)
        moved = np.stack([log_moments(charged(2 * int(i)), highest) if i else none for i in hits])
        number_seen = log_sum(logs[:, None] + moved, axis=0)
        if hits[0] > 0:
            return number_seen
        twice = math.log(2) + moved[1:]
        twice[:, 2] += np.minimum(0.0, math.log(2) + np.log(np.maximum(-np.expm1(-moved[1:, 2]), 1e-300)))
        a, share = np.arange(highest + 1), float(log_sum(logs[1:]))
        terms = log_binomials(highest) + (a - 1) * share + log_sum(logs[1:, None] + twice, axis=0)
        bound = np.logaddexp(0.0, log_sum(terms[:, 2:]))
        return np.minimum(np.where(a < 2, 0.0, bound), number_seen)
