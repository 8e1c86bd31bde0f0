"""Batches of a fixed size, drawn without replacement."""

import math
from dataclasses import dataclass

import numpy as np

from fedamp.accounting import checks, moments
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.composition import mechanism_of
from fedamp.accounting.groups import group
from fedamp.accounting.mechanism import Mechanism, log_moments
from fedamp.accounting.moments import Array
from fedamp.accounting.sampling import Poisson
from fedamp.accounting.transform import Transform


@dataclass(frozen=True)
class WithoutReplacement(Mechanism):
    """A batch of ``batch`` out of ``population`` people, drawn uniformly without replacement; population and batch
    are public.

    The person is substituted, or their contribution zeroed; the population stays what it is. With or without the
    person, batches differ by one person taken for another, so the base mechanism is charged for a change of two. With
    w = batch / population and M_l = E[X^l]: by Rényi 1 + C(a, 2) w^2 min(4 (M_2 - 1), 2 M_2) + 2 sum over l >= 3 of
    C(a, l) w^l M_l (Wang, Balle and Kasiviswanathan 2019, Theorem 9; Schuchardt et al. 2024, Theorem 3.6 and
    Proposition E.2), in both directions and under composition; for a single release also delta(epsilon) <= w
    delta_2(log(1 + (e^epsilon - 1) / w)) (Balle, Barthe and Gaboardi 2018, Theorem 10).

    Args:
        mechanism: one batch's release.
        batch: 1 to ``population``.
        population: >= 1.
    """

    mechanism: Mechanism
    batch: int
    population: int

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "population", checks.count("population", self.population))
        object.__setattr__(self, "batch", checks.count("batch", self.batch, 1, self.population, "population"))

    def __str__(self) -> str:
        return f"{self.batch} of {self.population} people without replacement ({self.mechanism})"

    def unamplified(self) -> Mechanism:
        return group(self.mechanism.unamplified(), 2)

    def _raw(self, highest: int) -> Array:
        substituted = log_moments(group(self.mechanism, 2), highest)
        if self.batch == self.population:
            return substituted
        a = np.arange(highest + 1)
        terms = moments.log_binomials(highest) + a * math.log(self.batch / self.population) + substituted
        terms[:, 2] += min(0.0, math.log(2) + math.log(max(-math.expm1(-substituted[2]), 1e-300)))
        bound = np.logaddexp(0.0, math.log(2) + moments.log_sum(terms[:, 2:]))
        return np.minimum(np.where(a < 2, 0.0, bound), substituted)

    def _law_delta(self, epsilon: float, points: int | None) -> Bounds:
        share = self.batch / self.population
        inner = math.log1p(math.expm1(epsilon) / share) if epsilon < 700 else epsilon
        answer = group(self.mechanism, 2).delta(inner, points=points)
        return Bounds(0.0, share * answer.upper, answer.method)

    def _law_epsilon(self, delta: float, points: int | None) -> Bounds:
        share = self.batch / self.population
        if delta >= share:
            return Bounds(0.0, 0.0, "smaller than the chance of being in the batch")
        answer = group(self.mechanism, 2).epsilon(delta / share, points=points)
        upper = math.log1p(share * math.expm1(answer.upper)) if answer.upper < 700 else answer.upper
        return Bounds(0.0, upper, answer.method)

    def _law_upper(self, delta: float, points: int) -> float:
        return self._law_epsilon(delta, points).upper

    def _attack(self) -> Mechanism | None:
        """Somebody who knows the rest of the batch."""
        attack = self.mechanism._attack()
        return None if attack is None else Poisson(attack, self.batch / self.population)

    @property
    def _is_symmetric(self) -> bool:
        return True  # the bound above is of both directions

    def _central(self, highest: int) -> Array:
        raise ValueError("WithoutReplacement cannot be sampled or allocated again")

    def _transform(self, u: Array) -> Transform:
        raise ValueError("WithoutReplacement cannot be sampled or allocated again")
