"""Several people: a mechanism as a group of them sees it.

``group`` finds the tightest known rule. Where a kind has an exact one (``Mechanism.exact_group``), the answer is that
of another mechanism. Else :class:`Group` holds the smallest of several bounds. Two people in hidden rounds of Gaussian
noise are sampled together.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from operator import attrgetter
from typing import Annotated, ClassVar

import numpy as np

from fedamp.accounting.arithmetic import UNIT, Array, level_crossing, log_factorials, paired_means
from fedamp.accounting.bounds import (
    Bounds,
    DeltaAt,
    EpsilonAt,
    Method,
    NotEvaluable,
    Origin,
    Question,
    Relation,
    check_count,
)
from fedamp.accounting.law import DEFAULT_DETAIL, DEFAULT_POINTS, Detail, Law
from fedamp.accounting.mechanism import (
    LARGEST_SAMPLED,
    Fact,
    Mechanism,
    MomentsOf,
    OfOne,
    check_mechanism,
    log_moments,
    sampled_bracket,
)
from fedamp.accounting.releases import Gaussian
from fedamp.accounting.renyi import Moments
from fedamp.accounting.sampling import (
    MOST_OVERLAPS,
    Factor,
    GaussianRound,
    HiddenRounds,
    Occupancies,
    SampledProfile,
    SampledRun,
    logs_in_range,
    merged_rows,
    occupancies,
)


def group(mechanism: Mechanism, size: int) -> Mechanism:
    """Return the mechanism as a group of people sees it, by the tightest known rule.

    The rule is exact for (Poisson sampled) Gaussians and their compositions, for flipped bits and Laplace noise. Else
    it is the smallest of several bounds of the whole (:class:`Group`).

    Args:
        mechanism: as one person sees it.
        size: the number of people, 1 to 1000. They choose and are sampled independently of one another.

    Returns:
        A mechanism whose epsilon protects all of the group together.

    Raises:
        ValueError: the size is out of its range, or a group under this mechanism is not charged.

    Example:
        >>> group(Gaussian(4.0), 2)
        Gaussian(noise_multiplier=2.0)
    """
    check_mechanism("mechanism", mechanism)
    if check_count("size", size) == 1:
        return mechanism
    try:
        return mechanism.exact_group(size)
    except NotEvaluable:
        return Group(mechanism, size)


@dataclass(frozen=True)
class Group(OfOne):
    """A mechanism as several people together see it, who choose and are sampled independently of one another.

    Release: M, with K people in or out together.

    The function :func:`group` uses it where it knows nothing exact. The upper end is the smaller of bounds with hidden
    choices revealed, and of the group property (Mironov 2017, Corollary 4)

        delta_K(epsilon) <= delta(epsilon / K) (e^epsilon - 1) / (e^(epsilon / K) - 1).

    Args:
        mechanism: as one person sees it.
        size: K, the number of people, 1 to 1000.

    Raises:
        ValueError: rows of correlated noise of several people meet; such groups are not charged.

    Example:
        >>> from fedamp.accounting import Submodels
        >>> print(Group(Submodels(Gaussian(4.0), 3), 2).epsilon(1e-5))
        1.107 (at least 1.084)
    """

    size: Annotated[int, partial(check_count, largest=1000)]
    text = "a group of {0.size}: {0.mechanism.in_words}"
    is_group = is_symmetric = True
    own_facts = (Fact.SEVERAL_BOUNDS, Fact.OF_WHOLE_RUN)

    def check(self) -> None:
        """Refuse several people under correlated noise whose rows meet (ValueError)."""
        if self.size > 1 and Fact.ROWS_MEET in self.mechanism.facts:
            raise ValueError("a group of people whose rows meet in correlated noise is not charged; expected: size 1")

    def simplified(self) -> Mechanism:
        """One person is the mechanism itself; an exact rule replaces the group."""
        return self.mechanism if self.size == 1 else self.mechanism.exact_group(self.size)

    def unamplified(self) -> Mechanism:
        """Return the group under the mechanism without amplification, each with an own bit where bits are chosen."""
        return group(self.mechanism.with_own_bits(self.size).unamplified(), self.size)

    def other_bounds(self) -> list[Mechanism]:
        """List bounds with hidden choices revealed: all of them, or those inside rounds.

        The release is a mixture over choices that do not depend on the data. By joint convexity it costs the group no
        more than with these choices revealed. The rest, compositions of (sampled) Gaussians, is exact for groups. Where
        their choices differ, people add to different sums, which costs less than if all added to one.

        Bits are another case: people who choose different bits turn several, and all who choose one turn one. There the
        generic property is all.
        """
        bounds: list[Mechanism] = []
        if self.mechanism.with_own_bits(2) != self.mechanism:  # a hidden choice decides which bit is a person's
            return bounds
        with suppress(NotEvaluable):
            bounds.append(self.mechanism.unamplified().exact_group(self.size))
        try:
            self.mechanism.exact_group(self.size)
        except NotEvaluable:
            with suppress(NotEvaluable):
                bounds.append(self.mechanism.group_by_rounds(self.size))
        return list(dict.fromkeys(bounds))

    def attained_mechanism(self) -> Mechanism | None:
        """Let all of the group contribute the same, where they are chosen independently; else one of them alone."""
        of_one = self.mechanism.attained_mechanism()
        if Fact.LESS_BY_MOMENTS in self.mechanism.facts or of_one is None:
            return of_one
        try:
            return of_one.exact_group(self.size)
        except NotEvaluable:
            if (signal := self.mechanism.signal_to_noise()) is None:
                return of_one
            return Gaussian(signal**-0.5 / self.size, relation=self.relation or Relation.ZERO_OUT)

    def attained_in_draws(self) -> Mechanism:
        """The sampler of two people is exact for them."""
        return self

    def certain_loss(self) -> Fraction:
        """Return K times the loss of one person."""
        return self.size * self.mechanism.certain_loss()

    def law(self, detail: Detail) -> Law:
        """A group has no law of its own: its bounds are profiles."""
        raise NotEvaluable("Group has no numerical law")

    def by_law(self, question: Question) -> Bounds:
        """Return the group property (Mironov 2017, Corollary 4) or, if it is smaller, a bound with choices revealed."""
        generic = self.by_group_property(question)
        others = [question.ask(bound, points=question.points) for bound in self.other_bounds()]
        return min(generic, *others, key=attrgetter("upper")) if others else generic

    def by_group_property(self, question: Question) -> Bounds:
        """Charge K people as K changes of one (Mironov 2017, Corollary 4); see the class.

        A grid finer than the default hardly helps.
        """
        points = DEFAULT_POINTS if question.points is None else question.points

        def delta_at(epsilon: float) -> Bounds:
            part = self.mechanism.delta(epsilon / self.size, points=points)
            if epsilon == 0 or part.upper == 0:
                return Bounds(0.0, min(1.0, self.size * part.upper), Origin(Method.GROUP_PROPERTY_ALONE))
            upper = min(1.0, part.upper * math.exp(min(_log_factor(epsilon, self.size), 700.0)))
            return Bounds(0.0, upper, part.origin.used_by(Method.GROUP_PROPERTY))

        if isinstance(question, DeltaAt):
            return delta_at(question.epsilon)
        upper = level_crossing(lambda epsilon: delta_at(epsilon).upper, question.delta, 1e4, 1e-4)[1]
        return Bounds(0.0, upper, delta_at(upper).origin if upper < math.inf else Origin(Method.GROUP_PROPERTY_ALONE))

    def moments(self) -> Moments:
        return GroupMoments(self)

    @property
    def is_pair(self) -> bool:
        """Whether it is of two people in several rounds."""
        if self.size != 2 or not self.is_private:
            return False
        return any(other.participation().rounds > 1 for other in self.mechanism.product_factors()[1])

    def sampled_profile(self, detail: Detail = DEFAULT_DETAIL) -> SampledProfile:
        """Return the sampler of two people in hidden rounds of Gaussian releases.

        The worst is that both contribute the same, in every round (docs/research/k-of-t.md, Proposition 7).

        Raises:
            NotEvaluable: other releases, or more people.
        """
        beside, others = self.mechanism.product_factors()
        parts: list[Factor] = []
        for other, times in others.items():
            found = other.participation()
            signal, rest = found.mechanism.product_factors()
            if self.size != 2 or rest or not signal:
                raise NotEvaluable("only two people in rounds of Gaussian noise are sampled together")
            parts.append(PairOfPeople(GaussianRound(signal**-0.5), found.chances, found.rounds, times, found.rounding))
        if beside:
            parts.append(HiddenRounds(GaussianRound(beside**-0.5 / 2), (0.0, 1.0), 1))
        run = SampledRun(tuple(parts))
        return SampledProfile(run, run, is_one_sided=True)

    def narrowed_bracket(self, found: Bounds, delta: float, precision: float) -> Bounds:
        """Narrow the answer by draws of two people, or of one of them and the group property."""
        if found.lower >= (1 - precision) * found.upper or found.upper > LARGEST_SAMPLED * self.size:
            return found
        coarser = min(2 * precision, 0.1)
        with suppress(NotEvaluable):
            if self.is_pair:
                return self.bracket_intersection(found, sampled_bracket(self, EpsilonAt(delta), coarser))
        with suppress(NotEvaluable):
            if self.mechanism.is_sampled:
                of_one = lambda spent: sampled_bracket(self.mechanism, EpsilonAt(spent), coarser)  # noqa: E731
                return self.bracket_intersection(found, _epsilon_below(found.upper, delta, self.size, of_one))
        return found


def _log_factor(epsilon: float, size: int) -> float:
    """Return log of the factor by which the group property multiplies delta, at epsilon > 0; it grows with epsilon."""
    log_factor = np.log(np.expm1(epsilon)) if epsilon < 700 else epsilon
    log_factor -= np.log(np.expm1(epsilon / size)) if epsilon < 700 * size else epsilon / size
    return float(log_factor)


def _epsilon_below(known: float, delta: float, size: int, of_one: Callable[[float], Bounds]) -> Bounds:
    """Return the group property's epsilon from few questions, given an upper end.

    The factor there is at least that at a smaller epsilon.

    Args:
        known: an upper end of the group's epsilon.
        delta: of the group.
        size: the number of people.
        of_one: answers with the epsilon of one person at a delta.
    """
    for _ in range(2):
        one = of_one(delta * math.exp(-_log_factor(known, size)))
        known = min(known, size * one.upper)
        if known == 0:
            break
    return Bounds(0.0, known, one.origin.used_by(Method.GROUP_PROPERTY))


class GroupMoments(MomentsOf[Group]):
    """Moments of a group: by the group property, or, where they are smaller, those of the other bounds.

    Log moments of order a of i + j people are at most half the sum of those of order 2 a of i people and of order 2 a -
    1 of j (Mironov 2017, Corollary 4; Schuchardt et al. 2024, Appendix B.1, corrected).
    """

    def _raw_moments(self, highest: int) -> Array:
        """Take the moments of the group property, or those of the other bounds where they are smaller."""
        more = max(highest, min(1024, highest * 2 ** math.ceil(math.log2(self.event.size))))
        generic = of_group(log_moments(self.event.mechanism, more), self.event.size)[: highest + 1]
        result = np.append(generic, np.full(highest + 1 - len(generic), np.inf))
        others = [log_moments(other, highest) for other in self.event.other_bounds()]
        return np.asarray(np.min([result, *others], axis=0))


def of_group(of_one: Array, size: int) -> Array:
    """Return the log moments of a group at the orders that those of one person suffice for.

    Args:
        of_one: log moments of one person at orders 0..A, shape (A + 1,).
        size: the number of people.
    """
    if size == 1:
        return of_one
    larger, smaller = (of_group(of_one, half) for half in (size - size // 2, size // 2))
    a = np.arange(2, (len(larger) - 1) // 2 + 1)
    return np.concatenate([[0.0, 0.0], (larger[2 * a] + smaller[2 * a - 1]) / 2])


@dataclass(frozen=True, eq=False)
class PairOfPeople(HiddenRounds):
    """Two people who choose independently and contribute the same; one factor of X.

    A round with c of them has the ratio exp(c z / s - c^2 / (2 s^2)), s the noise of one of them. X is a mean over both
    choices.
    """

    people: ClassVar[int] = 2

    @property
    def draw_steps(self) -> int:
        return self.rounds * ((self.most_rounds + 1) * (self.most_rounds + 2) + 16) + 100

    @property
    def ratio_rounding(self) -> float:
        return 2 * super().ratio_rounding + 8 * self.rounds * UNIT

    def log_ratios(self, ratios: Array) -> Array:
        """Return log X for rows of ratios of one person, shape (draws, rounds)."""
        rate = min(self.expected_share, 1.0)
        damp, weights = math.exp(-self.round.log_moment(2.0)), self.chance_ratios(rate)
        means, largest = paired_means(ratios, rate, weights, damp)
        return logs_in_range(means, largest * max(weights.max(), 1.0), 1e100)

    def log_tilt(self, ratios: Array, log_ratio: Array, order: float) -> Array:
        """Return log X^2, or beyond order 2 that of X_1^(2 order), X_1 the ratio of one of them: X is at most X_1^2."""
        return 2 * log_ratio if order == 2 else 2 * order * super().log_ratios(ratios)

    def tilted_occupancies(self, order: float) -> tuple[Array, Array, Occupancies]:
        """Return how rounds are held under ``log_tilt``; X^2 is a mean over two pairs of sets.

        At order 2 rounds held a times by the first pair and b times by the second are of the classes (a + b, a b) =
        (0, 0), (1, 0), (2, 0), (2, 1), (3, 2), (4, 4), and weigh exp(a b / s^2).

        Raises:
            NotEvaluable: an order below 2, or little noise.
        """
        if order < 2 or self.round.log_moment(2.0) > 600:
            raise NotEvaluable("two people are sampled at whole orders only, and not at little noise")
        if order > 2:
            return super().tilted_occupancies(2 * order)
        both = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 4.0]) * self.round.log_moment(2.0)
        return np.array([0.0, 1.0, 2.0, 2.0, 3.0, 4.0]), both, _pairs_of_pairs(self.chances, self.rounds)


@lru_cache(maxsize=16)
def _pairs_of_pairs(chances: tuple[float, ...], rounds: int) -> Occupancies:
    """Return the classes of ``PairOfPeople.tilted_occupancies`` for two pairs of sets.

    Let n_ab be the number of rounds held a times by one pair and b times by the other. Given how many rounds either
    pair holds 0, 1 and 2 times, they form a contingency table with these margins. Their chance is a multivariate
    hypergeometric one.
    """
    pair = occupancies(chances, rounds, 2)
    largest = pair.counts[:, 1:].max(axis=0)
    if len(pair.counts) ** 2 * int(largest[0] + 1) * int(largest[1] + 1) ** 2 > 40 * MOST_OVERLAPS:
        raise NotEvaluable("the choices of two people overlap in too many ways")
    logs, found = log_factorials(rounds), []
    for (n, one), (m, other) in product(zip(*pair, strict=True), repeat=2):
        grid = np.indices((min(n[1], m[1]) + 1, min(n[1], m[2]) + 1, min(n[2], m[1]) + 1, min(n[2], m[2]) + 1))
        n11, n12, n21, n22 = (each.ravel() for each in grid)
        n10, n20, n01, n02 = n[1] - n11 - n12, n[2] - n21 - n22, m[1] - n11 - n21, m[2] - n12 - n22
        table = np.stack([n[0] - n01 - n02, n01, n02, n10, n11, n12, n20, n21, n22])
        table = table[:, (table >= 0).all(axis=0)]
        log_chance = one + other + logs[n].sum() + logs[m].sum() - logs[rounds] - logs[table].sum(axis=0)
        n00, n01, n02, n10, n11, n12, n20, n21, n22 = table
        counts = np.stack([n00, n01 + n10, n02 + n20, n11, n12 + n21, n22], axis=1)
        found.append(merged_rows(counts.astype(np.int32), log_chance))
    counts, log_chance = (np.concatenate(each) for each in zip(*found, strict=True))
    return Occupancies(*merged_rows(counts, log_chance))
