"""Batches of a fixed size, drawn without replacement."""

import math
from dataclasses import dataclass

import numpy as np

from fedamp.accounting import checks, moments
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.composition import RandomSelection, mechanism_of
from fedamp.accounting.groups import group
from fedamp.accounting.mechanism import Mechanism, log_moments
from fedamp.accounting.moments import Array
from fedamp.accounting.sampling import Poisson
from fedamp.accounting.transform import Transform


@dataclass(frozen=True)
class WithoutReplacement(Mechanism):
    """A batch of ``batch`` out of ``population`` people, drawn uniformly without replacement; population and batch
    are public.

    ``size`` people are substituted, or their contributions zeroed; the population stays what it is. With w_i the
    hypergeometric chance that i of them are in the batch, p = 1 - w_0, and given that some are, a batch with i of them
    differs from one of the others, and from one of their substitutes, by i people taken for others: the base
    mechanism is charged for a change of 2 i, with moments M_l(i) = E[X^l] and delta_i.

    * Rényi, both directions, also under composition: the smaller of the mean of M_a(i) over i (Schuchardt et al. 2024,
      Proposition E.5, corrected) and 1 + sum over l >= 2 of C(a, l) p^(l-1) times the sum over i >= 1 of w_i m_l(i),
      with m_2 = min(4 (M_2 - 1), 2 M_2) and m_l = 2 M_l. The latter is Wang, Balle and Kasiviswanathan 2019, Theorem
      9, for size 1 (Schuchardt et al. 2024, Theorem 3.6 and Proposition E.2). For a group, condition as they do on
      "none of it is in the batch"; |x - y|^l z^(1-l) is jointly convex, so that the number i may be given away there.
      At high orders, where a rare i decides, the generic group property is less; ``group`` takes the smaller.
    * A single release: delta(epsilon) <= the sum over i >= 1 of w_i delta_i(log(1 + (e^epsilon - 1) / p)) (Balle,
      Barthe and Gaboardi 2018, Theorem 10, and joint convexity in i).

    Args:
        mechanism: one batch's release.
        batch: 1 to ``population``.
        population: >= 1.
        size: people changed together, 1 to ``population``.
    """

    mechanism: Mechanism
    batch: int
    population: int
    size: int = 1

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "population", checks.count("population", self.population))
        object.__setattr__(self, "batch", checks.count("batch", self.batch, 1, self.population, "population"))
        object.__setattr__(self, "size", checks.count("size", self.size, 1, self.population, "population"))

    def __str__(self) -> str:
        together = "" if self.size == 1 else f", as {self.size} of them together see it"
        return f"{self.batch} of {self.population} people without replacement ({self.mechanism}){together}"

    def unamplified(self) -> Mechanism:
        return group(self.mechanism.unamplified(), 2 * min(self.size, self.batch))

    def _chances(self) -> tuple[Array, Array]:
        """How many people of the group may be in the batch, and the log of each number's hypergeometric chance."""
        others = self.population - self.size
        hits = np.arange(max(0.0, self.batch - others), min(self.size, self.batch) + 1)
        logs = moments.log_choose(self.size, hits) + moments.log_choose(others, self.batch - hits)
        return hits, np.asarray(logs - moments.log_sum(logs))

    def _drawn(self) -> tuple[float, Mechanism]:
        """The chance that anybody of the group is in the batch, and what such a batch costs, their number seen."""
        hits, logs = self._chances()
        some = hits > 0
        share = min(1.0, math.exp(moments.log_sum(logs[some])))
        charged = [group(self.mechanism, 2 * int(i)) for i in hits[some]]
        weights = np.exp(logs[some] - moments.log_sum(logs[some]))
        return share, charged[0] if len(charged) == 1 else RandomSelection(charged, tuple(weights / weights.sum()))

    def _raw(self, highest: int) -> Array:
        hits, logs = self._chances()
        nobody = np.zeros(highest + 1)
        moved = np.stack([log_moments(group(self.mechanism, 2 * int(i)), highest) if i else nobody for i in hits])
        number_seen = moments.log_sum(logs[:, None] + moved, axis=0)
        if hits[0] > 0:
            return number_seen
        twice = math.log(2) + moved[1:]
        twice[:, 2] += np.minimum(0.0, math.log(2) + np.log(np.maximum(-np.expm1(-moved[1:, 2]), 1e-300)))
        a, share = np.arange(highest + 1), float(moments.log_sum(logs[1:]))
        terms = moments.log_binomials(highest) + (a - 1) * share + moments.log_sum(logs[1:, None] + twice, axis=0)
        bound = np.logaddexp(0.0, moments.log_sum(terms[:, 2:]))
        return np.minimum(np.where(a < 2, 0.0, bound), number_seen)

    def _law_delta(self, epsilon: float, points: int | None) -> Bounds:
        share, drawn = self._drawn()
        inner = math.log1p(math.expm1(epsilon) / share) if epsilon < 700 else epsilon
        answer = drawn.delta(inner, points=points)
        return Bounds(0.0, share * answer.upper, answer.method)

    def _law_epsilon(self, delta: float, points: int | None) -> Bounds:
        share, drawn = self._drawn()
        if delta >= share:
            return Bounds(0.0, 0.0, "smaller than the chance of being in the batch")
        answer = drawn.epsilon(delta / share, points=points)
        upper = math.log1p(share * math.expm1(answer.upper)) if answer.upper < 700 else answer.upper
        return Bounds(0.0, upper, answer.method)

    def _law_upper(self, delta: float, points: int) -> float:
        return self._law_epsilon(delta, points).upper

    def _attack(self) -> Mechanism | None:
        """Somebody who knows the rest of the batch, and one person of the group."""
        attack = self.mechanism._attack()
        return None if attack is None else Poisson(attack, self.batch / self.population)

    @property
    def _is_symmetric(self) -> bool:
        return True  # the bound above is of both directions

    def _central(self, highest: int) -> Array:
        raise ValueError("WithoutReplacement cannot be sampled or allocated again")

    def _transform(self, u: Array) -> Transform:
        raise ValueError("WithoutReplacement cannot be sampled or allocated again")
