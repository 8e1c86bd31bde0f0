"""Check-in to exactly k of T rounds, hidden: the whole run, and what is out after some of its rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.basic import Gaussian
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.composition import NOTHING, Compose, RandomSelection, Repeat, mechanism_of
from fedamp.accounting.mechanism import Mechanism, log_moments, negative, raw
from fedamp.accounting.moments import Array
from fedamp.accounting.overlaps import Shift, chosen_rounds, shift_of
from fedamp.accounting.points import DEFAULT_POINTS
from fedamp.accounting.prefixes import (
    best_coin_groups,
    group_moments,
    group_sizes,
    moments_over_rounds,
    most_likely_share,
)
from fedamp.accounting.sampling import Derived, Poisson, Submodels


@dataclass(frozen=True)
class Allocation(Derived):
    """The whole run of ``rounds`` rounds, of which a person takes part in exactly ``k``, drawn at random and hidden.

    A random partition of the rounds into k groups, as even as integers allow, with one round drawn from each, is a
    random choice of k rounds; joint convexity removes the partition, and X is a product of k means (Feldman and
    Shenfeld 2025, Theorem 3.1 and Lemmas 3.2 and F.1). Rényi bounds are, order by order, the smaller of that split's
    and of those from the overlaps of two hidden choices, where noise is Gaussian.

    Args:
        mechanism: one round; it may itself be amplified (``Submodels``) or composed.
        k: 0 to ``rounds``.
        rounds: T >= 1.
    """

    mechanism: Mechanism
    k: int
    rounds: int

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "rounds", checks.count("rounds", self.rounds))
        object.__setattr__(self, "k", checks.count("k", self.k, 0, self.rounds, "rounds"))

    def __str__(self) -> str:
        chosen = "one hidden round" if self.k == 1 else f"{self.k} hidden rounds"
        return f"{chosen} of {self.rounds} ({self.mechanism})"

    @property
    def is_private(self) -> bool:
        return self.k == 0 or self.mechanism.is_private

    @property
    def releases_nothing(self) -> bool:
        return self.k == 0 or self.mechanism.releases_nothing

    @property
    def span(self) -> int:
        return self.rounds

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), self.k)

    def _prefix(self, rounds: int) -> Mechanism:
        return AllocationPrefix(self.mechanism, self.k, self.rounds, rounds)

    def _expansion(self) -> Mechanism:
        groups = (Repeat(Submodels(self.mechanism, size), n) for size, n in group_sizes(self.k, self.rounds))
        return Compose(tuple(groups) or (NOTHING,))

    def _raw(self, highest: int) -> Array:
        split, shift = super()._raw(highest), self._shift(highest)
        return split if shift is None else np.minimum(split, shift.remove())

    def _negative(self, highest: int) -> Array:
        split, shift = super()._negative(highest), self._shift(highest)
        return split if shift is None else np.minimum(split, shift.add())

    def _shift(self, highest: int) -> Shift | None:
        """Several hidden rounds as one hidden shift, where the split is not exact."""
        one = shift_of(self.mechanism, highest) if self.k > 1 else None
        return None if one is None else chosen_rounds(one, self.k, self.rounds)

    def _attack(self) -> Mechanism | None:
        """For k > 1 the split is not attained; the sum of all rounds' releases, or one of them, is an attack."""
        if self.k == 0:
            return NOTHING
        if self.k == 1 and self.mechanism._attack() is self.mechanism:
            return self
        if self.mechanism._linear_signal is not None:
            return Gaussian((self.rounds / self.mechanism._linear_signal) ** 0.5 / self.k)
        return self._prefix(1)._attack()

    def _log_moments_over_rounds(self, rounds: Sequence[int], highest: int) -> Array:
        prefixes = moments_over_rounds(self.mechanism, self.k, self.rounds, rounds, highest)
        whole = np.array(rounds)[:, None] == self.rounds
        open_rounds = np.minimum(rounds, self.k)[:, None] * log_moments(self.mechanism, highest)
        return np.where(whole, log_moments(self, highest), np.minimum(prefixes, open_rounds))


@dataclass(frozen=True)
class AllocationPrefix(Derived):
    """The first ``released`` rounds of an ``Allocation``; the others are not out, and may never be.

    Three bounds, besides that of the whole run; the smallest counts.

    1. The number H of a person's rounds among those released is hypergeometric, hence a sum of independent coins of
       probabilities p_i (Vatutin and Mikhailov 1982). Split the released rounds at random into one group per coin, of
       any fixed sizes: one hidden round of group i, if coin i says so, is a random choice of H rounds. By joint
       convexity in the partition X is at most the product of (1 - p_i) + p_i (mean of the group's copies), in convex
       order. With k = 1 this is exact.
    2. Rényi: in the k-fold split of the whole run the numbers of released rounds in the groups are negatively
       associated, and each group's moment increases with its own, so the mean of the product of moments is at most the
       product of their means (Joag-Dev and Proschan 1983).
    3. Numerical law: release every round with probability t, independently. Then each group is the mean of rounds that
       are out with probability t, and what it costs is at least the chance that ``released`` or more rounds are out
       times what the prefix costs, because delta only grows with the rounds.

    Args:
        mechanism: one round.
        k: 0 to ``rounds``.
        rounds: T >= 1, of the whole run.
        released: 0 to ``rounds``.
    """

    mechanism: Mechanism
    k: int
    rounds: int
    released: int

    def __post_init__(self) -> None:
        Allocation(self.mechanism, self.k, self.rounds)
        object.__setattr__(self, "released", checks.count("released", self.released, 0, self.rounds, "rounds"))

    def __str__(self) -> str:
        return f"the first {self.released} rounds of ({self._whole()})"

    @property
    def is_private(self) -> bool:
        return self.k == 0 or self.released == 0 or self.mechanism.is_private

    @property
    def releases_nothing(self) -> bool:
        return self.k == 0 or self.released == 0 or self.mechanism.releases_nothing

    @property
    def span(self) -> int:
        return self.released

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), min(self.k, self.released))

    def _prefix(self, rounds: int) -> Mechanism:
        return AllocationPrefix(self.mechanism, self.k, self.rounds, rounds)

    def _whole(self) -> Mechanism:
        return Allocation(self.mechanism, self.k, self.rounds)

    def _expansion(self) -> Mechanism:
        groups = best_coin_groups(self.k, self.rounds, self.released)
        parts = (Repeat(Poisson(Submodels(self.mechanism, size), p), n) for p, size, n in groups)
        return Compose(tuple(parts) or (NOTHING,))

    def _randomly_released(self) -> tuple[Mechanism, float]:
        """The third bound: its mechanism, and the chance that enough rounds are out."""
        rate, chance = most_likely_share(self.rounds, self.released)
        one_round = RandomSelection((self.mechanism, NOTHING), (rate, 1 - rate))
        groups = (Repeat(Submodels(one_round, size), n) for size, n in group_sizes(self.k, self.rounds))
        return Compose(tuple(groups) or (NOTHING,)), chance

    def _split(self, highest: int) -> tuple[Array, Array]:
        """The second bound: log E[X^a] for a = 0..A and log E[X^-b] for b = 0..A-1."""
        positive, negative = np.zeros(highest + 1), np.zeros(highest)
        for size, n in group_sizes(self.k, self.rounds):
            group = group_moments(self.mechanism, size, self.rounds, self.released, highest)
            positive, negative = positive + n * group[0], negative + n * group[1]
        return positive, negative

    def _raw(self, highest: int) -> Array:
        others = [raw(part, highest) for part in (self._expansion(), *self._certainly_enough())]
        return np.min([self._split(highest)[0], *others], axis=0)

    def _negative(self, highest: int) -> Array:
        helpful = raw(self._expansion(), highest) < 0.99 * self._split(highest)[0]  # else not worth its integrals
        parts = (*((self._expansion(),) if helpful.any() else ()), *self._certainly_enough())
        return np.min([self._split(highest)[1], *(negative(part, highest) for part in parts)], axis=0)

    def _certainly_enough(self) -> tuple[Mechanism, Mechanism]:
        """The whole run, and as many rounds as a person can have among those released, in the open."""
        return self._whole(), Repeat(self.mechanism, min(self.k, self.released))

    def _law_bounds(self) -> list[tuple[Mechanism, float]]:
        """Mechanisms whose delta, over the number beside each, bounds this one's: those of the three that can be the
        best.
        """
        share = self.released / self.rounds
        bounds: list[tuple[Mechanism, float]] = [(self._whole(), 1.0)] if share > 0.5 or self.rounds <= 16 else []
        if min(self.k, self.released) <= 12 or share > 0.85:
            # Whole group sizes make this bound fall here and there as rounds are added; later rounds' bounds hold too.
            later = range(self.released, self.rounds if self.rounds <= 16 else self.released + 1)
            bounds += [(AllocationPrefix(self.mechanism, self.k, self.rounds, r)._expansion(), 1.0) for r in later]
        if self.k > 1 and (self.k > 12 or self.released <= 2 * self.k):
            bounds.append(self._randomly_released())
        return bounds

    def _points(self, points: int | None) -> int | None:
        """For k > 1 the bounds are not exact, and no finer grid than the default is worth its time."""
        return DEFAULT_POINTS if points is None and self.k > 1 else points

    def _law_epsilon(self, delta: float, points: int | None) -> Bounds:
        points = self._points(points)
        answers = [part._law_epsilon(delta * chance, points) for part, chance in self._law_bounds()]
        return min(answers, key=lambda answer: answer.upper)

    def _law_upper(self, delta: float, points: int) -> float:
        return min(part._law_upper(delta * chance, points) for part, chance in self._law_bounds())

    def _law_delta(self, epsilon: float, points: int | None) -> Bounds:
        points = self._points(points)
        answers = [
            Bounds(0.0, min(answer.upper / chance, 1.0), answer.method) if chance < 1 else answer
            for part, chance in self._law_bounds()
            for answer in [part._law_delta(epsilon, points)]
        ]
        return min(answers, key=lambda answer: answer.upper)

    def _attack(self) -> Mechanism | None:
        """For k > 1 no split is attained; one round alone is an attack."""
        if self.k == 0 or self.released == 0:
            return NOTHING
        attack = self.mechanism._attack()
        if self.k == 1 and attack is self.mechanism:
            return self
        return None if attack is None else Poisson(attack, self.k / self.rounds)
