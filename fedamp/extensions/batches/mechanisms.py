"""Batches of a fixed size, drawn without replacement; and Poisson samples that are cut to a largest size.

In a batch, the membership of people depends on each other: one who leaves the batch makes room for another. So the
neighbours differ by substitution, and the batch's release is charged as a change of two contributions. A sample that is
cut is charged for zero-out, where both neighbours have the same sample.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.arithmetic import Array, log_binomials, log_choose, log_sum
from fedamp.accounting.bounds import (
    Bounds,
    CountField,
    DeltaAt,
    Method,
    NotEvaluable,
    Origin,
    ProbabilityField,
    Question,
    Relation,
    UpTo,
)
from fedamp.accounting.groups import group
from fedamp.accounting.hidden import Poisson
from fedamp.accounting.law import Detail, Law
from fedamp.accounting.mechanism import Fact, Hidden, Mechanism, MomentsOf, check_mechanism, log_moments, numerical_law
from fedamp.accounting.releases import NOTHING, GaussianMixture, RandomisedResponse, RandomSelection, attained_part
from fedamp.accounting.renyi import Moments
from fedamp.extensions.batches.game import LARGEST_GAME, MOST_BATCHES, BatchGame, narrowed_by_game

_ROUNDING = 1e-9  # of chances, relative: far above that of scipy's


def cut_chances(rate: float, largest: int, population: int) -> tuple[float, float, float]:
    """Return chances of a person in a Poisson sample of which at most so many people stay.

    Args:
        rate: q in [0, 1].
        largest: B, >= 1.
        population: N, >= 1.

    Returns:
        That at least B others are sampled; that this is so, and the person is sampled and stays; and that the person is
        there in the end, E[min(sampled people, B)] / N.

    >>> [round(chance, 3) for chance in cut_chances(0.5, 1, 2)]
    [0.5, 0.125, 0.375]
    """
    from scipy.stats import binom  # only here: the import takes long

    others = binom(population - 1, rate)
    kept = float(binom.sf(largest, population, rate)) * largest / population
    return float(others.sf(largest - 1)), kept, float(others.cdf(largest - 1)) * rate + kept


@dataclass(frozen=True)
class TruncatedPoisson(Hidden):
    """Sample people with secret coins, and keep a random choice of them where there are too many.

    Release: M of a Poisson sample at rate q of N people; of more than B sampled people, a uniform set of B stays.

    It costs at most the release that also tells whether B *others* are sampled, which the person's coin does not
    decide, and, if so, whether the person stays. With fewer others nothing is cut off: that is Poisson sampling. With
    more, the person stays with a chance of q E[B / (others + 1); others >= B] in all. The others are then the same with
    the contribution and with zero in its place: M, not amplified. Elsewhere both releases are equal (ours). Under
    add/remove another person would move up, and this charge would not hold: only zero-out is charged.

    Args:
        mechanism: the release of a participant, for zero-out.
        rate: q in [0, 1].
        largest: B, 1 to ``population``.
        population: N, >= 1.

    Raises:
        ValueError: the release is for add/remove or substitution.

    Example:
        >>> from fedamp.accounting import Gaussian, Poisson
        >>> Poisson(Gaussian(2.0), 0.1).epsilon(1e-5).upper < TruncatedPoisson(
        ...     Gaussian(2.0), 0.1, 25, 100
        ... ).epsilon(1e-5).upper < Gaussian(2.0).epsilon(1e-5).upper
        True
    """

    rate: ProbabilityField
    largest: Annotated[int, UpTo("population", smallest=1)]
    population: CountField
    text = (
        "Poisson sampling at rate {0.rate:g}, at most {0.largest} of {0.population} people, of ({0.mechanism.in_words})"
    )

    def check(self) -> None:
        """Refuse releases that are not for zero-out (ValueError)."""
        super().check()
        if self.mechanism.relation is not Relation.ZERO_OUT:
            raise ValueError(f"TruncatedPoisson is charged for zero-out, got a mechanism for {self.mechanism.relation}")

    def charged_as(self) -> Mechanism:
        """Reveal whether B others are sampled, then whether the person stays (ours: docs/research/accounting.md)."""
        cut, kept, _ = cut_chances(self.rate, self.largest, self.population)
        kept = min(1.0, kept * (1 + _ROUNDING))
        cut = max(kept, cut * (1 - _ROUNDING))
        parts = Poisson(self.mechanism, self.rate), self.mechanism, NOTHING
        return RandomSelection(parts, (1 - cut, kept, cut - kept))

    def attained_mechanism(self) -> Mechanism | None:
        """Return the release in which all others contribute nothing: the person is there with the chance to stay."""
        _, _, present = cut_chances(self.rate, self.largest, self.population)
        return Poisson(attained_part(self.mechanism), present * (1 - _ROUNDING))


@dataclass(frozen=True)
class WithoutReplacement(Mechanism):
    """Draw a batch of a fixed size uniformly without replacement; its size and that of the population are public.

    Release: M of a uniform batch of n of N people.

    Its neighbours differ by substitution: ``size`` people are replaced by others (or their contributions zeroed). The
    batch's release is written for zero-out; a substitution is charged as a change of two contributions. With p the
    chance that any of the people is in the batch, and delta' that of a changed batch (Balle, Barthe, Gaboardi 2018,
    Theorem 10),

        delta(epsilon) <= p delta'(log(1 + (e^epsilon - 1) / p)).

    Args:
        mechanism: the batch's release, for zero-out or add/remove.
        batch: n, 1 to ``population``.
        population: N, >= 1.
        size: the number of people who are changed together, 1 to ``population``.

    Raises:
        ValueError: the batch's release is for substitution.

    Example:
        >>> from fedamp.accounting import Gaussian
        >>> print(WithoutReplacement(Gaussian(2.0), 10, 100).epsilon(1e-5))
        1.685 (at least 1.684)
    """

    mechanism: Annotated[Mechanism, check_mechanism]
    batch: Annotated[int, UpTo("population", smallest=1)]
    population: CountField
    size: Annotated[int, UpTo("population", smallest=1)] = 1
    own_facts = (Fact.LESS_BY_MOMENTS, Fact.LESS_REPEATED, Fact.OF_WHOLE_RUN)
    relation = Relation.SUBSTITUTION
    is_symmetric = True

    def check(self) -> None:
        """Refuse a batch's release that is for substitution (ValueError)."""
        if self.mechanism.relation is Relation.SUBSTITUTION:
            expected = "WithoutReplacement takes a release for zero-out, and charges substitution itself"
            raise ValueError(f"{expected}; got one for substitution ({self.mechanism.in_words})")

    @property
    def in_words(self) -> str:
        together = "" if self.size == 1 else f", as {self.size} of them together see it"
        return f"{self.batch} of {self.population} people without replacement ({self.mechanism.in_words}){together}"

    def simplified(self) -> Mechanism:
        """A batch of all people hides nothing."""
        whole = self.batch == self.population
        return self.mechanism.under_substitution().exact_group(self.size) if whole else self

    def unamplified(self) -> Mechanism:
        """Charge the changed people as if all of them were in the batch."""
        people = min(self.size, self.batch)
        opened = self.mechanism.with_own_bits(people).unamplified()
        try:
            return group(opened.under_substitution(), people)
        except NotEvaluable:
            return WithoutReplacement(opened, self.batch, self.batch, people)

    def group_by_rounds(self, size: int) -> Mechanism:
        """Return the same batch with more people changed together: it charges groups itself."""
        opened = self.mechanism.unamplified()
        opened.exact_group(2)
        return WithoutReplacement(opened, self.batch, self.population, min(self.size * size, self.population))

    def people_in_batch(self) -> tuple[NDArray[np.int64], Array]:
        """Return how many people of the group may be in the batch, and log chances of these numbers.

        The number is hypergeometric. Both arrays have one entry for each possible number.
        """
        others = self.population - self.size
        hits = np.arange(max(0, self.batch - others), min(self.size, self.batch) + 1)
        logs = log_choose(self.size, hits) + log_choose(others, self.batch - hits)
        return hits, np.asarray(logs - log_sum(logs))

    def some_in_batch(self, rule: Callable[[int], Mechanism]) -> tuple[float, Mechanism]:
        """Return the chance that any of the people are in the batch, and what such a batch costs.

        A batch with i of them, as likely as it is then, is compared with one with their substitutes or with others.

        Args:
            rule: gives the mechanism for a change of 2 i contributions.
        """
        hits, logs = self.people_in_batch()
        some = hits > 0
        share = float(log_sum(logs[some]))
        parts, weights = [rule(2 * int(i)) for i in hits[some]], np.exp(logs[some] - share)
        drawn = parts[0] if len(set(parts)) == 1 else RandomSelection(parts, tuple(weights / weights.sum()))
        return min(1.0, math.exp(share)), drawn

    def changed_batch(self) -> Poisson:
        """Return the costlier order of a changed batch, hidden choices inside revealed.

        It is ours, from Balle, Barthe, Gaboardi 2018, Theorem 10: docs/research/accounting.md. A bit of a batch is a
        sampled bit: the chance that it is true is a mixture that the batch decides, with and without the people in
        question. Extreme points are the worst, in moments too (Schuchardt et al. 2024, Theorem 3.7).

        Raises:
            NotEvaluable: several changes of the mechanism are not one of their sum.
        """
        opened = self.mechanism.with_own_bits(min(self.size, self.batch)).unamplified()
        share, drawn = self.some_in_batch(opened.exact_group)
        return Poisson(drawn, share)

    def attained_mechanism(self) -> Mechanism | None:
        """Return a release in which all others send one number, and the people in question minus it.

        It is a changed batch itself, or, for several people under Gaussian noise, noise around as many shifts. Else
        zeroed contributions of one person are known to occur.
        """
        signal, others = self.mechanism.product_factors()
        if self.size > 1 and signal and not others:
            hits, logs = self.people_in_batch()
            weights = np.exp(logs) / np.exp(logs).sum()
            return GaussianMixture((2 * signal**0.5 * hits).tolist(), weights.tolist())
        if self.size == 1 and self.mechanism.unamplified() == attained_part(self.mechanism):
            with suppress(NotEvaluable):
                return self.changed_batch()
        return Poisson(attained_part(self.mechanism), self.batch / self.population)

    def law(self, detail: Detail) -> Law:
        """Both orders of a changed batch have the profile of ``changed_batch`` (ours: docs/research/accounting.md)."""
        return numerical_law(self.changed_batch(), detail).in_either_order()

    def narrowed_repeats(self, times: int, found: Bounds, delta: float) -> Bounds:
        """Lower the upper end of many batches with Gaussian noise: each has one of two profiles, and the law has both.

        Ours: docs/research/accounting.md.
        """
        signal, others = self.mechanism.product_factors()
        known = signal > 0 and not others and self.size == 1 and self.batch < self.population
        if not known or times > MOST_BATCHES or not 0 < found.upper < LARGEST_GAME or found.lower > 0.99 * found.upper:
            return found
        law = numerical_law(self.changed_batch())
        game = BatchGame(law, signal**0.5, self.batch / self.population, times, found.upper)
        return narrowed_by_game(game, found, delta)

    def by_law(self, question: Question) -> Bounds:
        """Charge a single release, by the number of changed people in the batch.

        Given that i >= 1 of the group are in the batch, it differs from one of their substitutes by a change of 2 i.
        Joint convexity removes i. The batch holds any of the group with a chance p, and delta(epsilon) <= p
        delta'(log(1 + (e^epsilon - 1) / p)) (Balle, Barthe, Gaboardi 2018, Theorem 10).
        """
        if isinstance(self.mechanism, RandomisedResponse):
            return self.changed_batch().by_law(question)
        share, drawn = self.some_in_batch(partial(group, self.mechanism))
        if isinstance(question, DeltaAt):
            inner = math.log1p(math.expm1(question.epsilon) / share) if question.epsilon < 700 else question.epsilon
            answer = drawn.delta(inner, points=question.points)
            return Bounds(0.0, share * answer.upper, answer.origin)
        if question.delta >= share:
            return Bounds(0.0, 0.0, Origin(Method.RARE_BATCH))
        answer = drawn.epsilon(question.delta / share, points=question.points)
        upper = math.log1p(share * math.expm1(answer.upper)) if answer.upper < 700 else answer.upper
        return Bounds(0.0, upper, answer.origin)

    def moments(self) -> Moments:
        return BatchMoments(self)


class BatchMoments(MomentsOf[WithoutReplacement]):
    """Moments of a batch: the smaller of two bounds, order by order, also under composition and in both directions.

    Let w_i be the hypergeometric chance that i people of the group are in the batch, p = 1 - w_0, and M_l(i) the
    moments of a change of 2 i. The first bound is the mean of M_a(i) over i (Schuchardt et al. 2024, Proposition E.5,
    corrected). The second is

        1 + sum over l >= 2 of C(a, l) p^(l-1) sum over i >= 1 of w_i m_l(i),

    with m_2 = min(4 (M_2 - 1), 2 M_2) and m_l = 2 M_l. For size 1 it is Wang, Balle, Kasiviswanathan 2019, Theorem 9
    (Schuchardt et al. 2024, Theorem 3.6 and Proposition E.2). For a group, condition as they do on "none of it is in
    the batch". There the number i may be revealed, because |x - y|^l z^(1-l) is jointly convex.
    """

    def _raw_moments(self, highest: int) -> Array:
        """Take the smaller bound at each order; bits of a batch have moments of their own."""
        if isinstance(self.event.mechanism, RandomisedResponse):
            return log_moments(self.event.changed_batch(), highest)
        hits, logs = self.event.people_in_batch()
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
