"""Amplification by what stays hidden: sampling, submodels, dropout, and check-in to k of T rounds.

All conditions are the same: the hidden choice is independent across people, fresh, and unknown to whoever sees the
releases.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedamp.accounting import checks, moments, transform
from fedamp.accounting.composition import mechanism_of
from fedamp.accounting.mechanism import Detail, Mechanism, central, negative, numerical_law, raw
from fedamp.accounting.moments import Array
from fedamp.accounting.transform import Transform

if TYPE_CHECKING:
    from fedamp.accounting.law import Law


@dataclass(frozen=True)
class Poisson(Mechanism):
    """A person takes part with probability ``rate``, by a private coin: X becomes (1 - rate) + rate X (Zhu et al.
    2022, Theorem 11).

    Parts that share the coin (the shared and the split part of one round) must be composed first and sampled together.

    Args:
        mechanism: what a participant's data goes through.
        rate: in [0, 1].
    """

    mechanism: Mechanism
    rate: float

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "rate", checks.probability("rate", self.rate))

    def __str__(self) -> str:
        return f"Poisson sampling at rate {self.rate:g} of ({self.mechanism})"

    @property
    def is_private(self) -> bool:
        return self.rate == 0 or self.mechanism.is_private

    @property
    def releases_nothing(self) -> bool:
        return self.rate == 0 or self.mechanism.releases_nothing

    @property
    def span(self) -> int:
        return self.mechanism.span

    def unamplified(self) -> Mechanism:
        return self.mechanism.unamplified()

    def _prefix(self, rounds: int) -> Mechanism:
        return Poisson(self.mechanism.after(rounds), self.rate)

    def _central(self, highest: int) -> Array:
        return moments.thin(central(self.mechanism, highest), self.rate) if self.rate else moments.constant(highest)

    def _raw(self, highest: int) -> Array:
        return raw(self.mechanism, highest) if self.rate == 1 else moments.raw(central(self, highest))

    def _negative(self, highest: int) -> Array:
        if self.rate == 1:
            return negative(self.mechanism, highest)
        if self.mechanism._is_symmetric:  # the remove direction is the larger: Mironov et al. 2019, Theorem 5
            return raw(self, highest)[1:]
        return transform.negative_moments(self._transform, highest)

    def _transform(self, u: Array) -> Transform:
        return transform.thin(self.mechanism._transform, self.rate, u)

    def _law(self, detail: Detail) -> "Law":
        return numerical_law(self.mechanism, detail).thin(self.rate)

    def _attack(self) -> Mechanism | None:
        attack = self.mechanism._attack()
        if attack is self.mechanism:
            return self
        return None if attack is None else Poisson(attack, self.rate)

    @property
    def _is_symmetric(self) -> bool:
        return self.rate == 1 and self.mechanism._is_symmetric


@dataclass(frozen=True)
class Submodels(Mechanism):
    """A person trains one of ``count`` disjoint submodels, drawn at random and hidden: X becomes the mean of
    ``count`` copies.

    Dong, Chen and Özgür 2025, Theorem 3.4 (proof A.9; the quasi-convexity it uses holds for hockey-stick divergences
    too). Submodels drawn afresh each round are ``Repeat(Submodels(m, d), T)``; drawn once for the run,
    ``Submodels(Repeat(m, T), d)``. Whatever is not silenced outside a submodel (the output layer, normalisation) is
    shared: compose it inside the round, with its own clipping norm.

    Args:
        mechanism: one submodel's release.
        count: >= 1.
    """

    mechanism: Mechanism
    count: int

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "count", checks.count("count", self.count))

    def __str__(self) -> str:
        return f"one hidden submodel of {self.count} ({self.mechanism})"

    @property
    def span(self) -> int:
        return self.mechanism.span

    def unamplified(self) -> Mechanism:
        return self.mechanism.unamplified()

    def _prefix(self, rounds: int) -> Mechanism:
        return Submodels(self.mechanism.after(rounds), self.count)

    def _central(self, highest: int) -> Array:
        return moments.mean(central(self.mechanism, highest), self.count)

    def _raw(self, highest: int) -> Array:
        return raw(self.mechanism, highest) if self.count == 1 else moments.raw(central(self, highest))

    def _negative(self, highest: int) -> Array:
        if self.count == 1:
            return negative(self.mechanism, highest)
        # Jensen: the mean is at least the geometric mean, so E[mean^-b] <= E[copy^(-b/n)]^n. Between whole powers the
        # log moment of a copy is convex, so its linear interpolation is above it.
        exact = transform.negative_moments(self._transform, highest)
        powers, of_a_copy = np.arange(float(highest)), negative(self.mechanism, highest)
        return np.minimum(exact, self.count * np.interp(powers / self.count, powers, of_a_copy))

    def _transform(self, u: Array) -> Transform:
        return transform.mean(self.mechanism._transform, self.count, self.count, u)

    def _law(self, detail: Detail) -> "Law":
        return numerical_law(self.mechanism, detail).mean(self.count)

    def _attack(self) -> Mechanism | None:
        attack = self.mechanism._attack()
        if attack is self.mechanism:
            return self
        return None if attack is None else Submodels(attack, self.count)

    @property
    def _linear_signal(self) -> float | None:
        """The sum over the submodels: the signal is in one of them, the noise in all."""
        signal = self.mechanism._linear_signal
        return None if signal is None else signal / self.count

    @property
    def _is_symmetric(self) -> bool:
        return self.count == 1 and self.mechanism._is_symmetric


@dataclass(frozen=True)
class Derived(Mechanism, is_kind=False):
    """A mechanism that is accounted for as another expression."""

    def _expansion(self) -> Mechanism:
        raise NotImplementedError

    def _central(self, highest: int) -> Array:
        return central(self._expansion(), highest)

    def _raw(self, highest: int) -> Array:
        return raw(self._expansion(), highest)

    def _negative(self, highest: int) -> Array:
        return negative(self._expansion(), highest)

    def _transform(self, u: Array) -> Transform:
        return self._expansion()._transform(u)

    def _law(self, detail: Detail) -> "Law":
        return numerical_law(self._expansion(), detail)

    @property
    def _is_symmetric(self) -> bool:
        return self._expansion()._is_symmetric


@dataclass(frozen=True)
class Dropout(Derived):
    """A person keeps each unit with probability ``keep``, one mask a person and round, hidden from whoever sees the
    release.

    For keep <= 1/2 it costs no more than the mean of floor(1/keep) copies: give every unit one of floor(1/keep)
    labels with probability ``keep`` each, or none, and keep the units of one random label; the labels' supports are
    disjoint (Dong, Chen and Özgür 2025, Theorem 3.5 and Corollary 3.7, extended to any keep <= 1/2). Above 1/2 two
    masks of one person overlap in most units, no two disjoint labels exist, and the mean of the likelihood ratios of
    overlapping masks may be as spread as one of them: no amplification is claimed.

    Args:
        mechanism: the release of the whole model.
        keep: in (0, 1].
    """

    mechanism: Mechanism
    keep: float

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "keep", checks.probability("keep", self.keep))
        if self.keep == 0:
            raise ValueError("keep must be in (0, 1], got 0.0")

    def __str__(self) -> str:
        return f"hidden dropout, keep {self.keep:g}, of ({self.mechanism})"

    @property
    def span(self) -> int:
        return self.mechanism.span

    def unamplified(self) -> Mechanism:
        return self.mechanism.unamplified()

    def _expansion(self) -> Mechanism:
        return Submodels(self.mechanism, max(1, math.floor(1 / self.keep)))

    def _prefix(self, rounds: int) -> Mechanism:
        return Dropout(self.mechanism.after(rounds), self.keep)

    def _attack(self) -> Mechanism | None:
        """A network of one unit: dropping it silences the person."""
        attack = self.mechanism._attack()
        return None if attack is None else Poisson(attack, self.keep)
