"""Privacy of a group of people (or of one person's many records) together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.basic import Gaussian, NotPrivate
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.composition import Compose, Repeat, mechanism_of
from fedamp.accounting.mechanism import Mechanism, log_moments, raw
from fedamp.accounting.mixtures import GaussianMixture
from fedamp.accounting.moments import Array
from fedamp.accounting.points import DEFAULT_POINTS
from fedamp.accounting.sampling import Derived, Poisson
from fedamp.accounting.transform import Transform


@dataclass(frozen=True)
class GroupPoissonGaussian(Derived):
    """``size`` people together under Poisson sampling and Gaussian noise, each sampled by an own coin.

    The number of them in a round is binomial and their contributions point the same way in the worst case: for Rényi
    by Schuchardt et al. 2024 (group privacy by conditional couplings), Theorem 4.2, for the hockey-stick by the same
    supermodularity; hence a numerical law, which that paper leaves open.

    Args:
        noise_multiplier: > 0, in units of one person's clipping norm.
        rate: in [0, 1].
        size: >= 1.
    """

    noise_multiplier: float
    rate: float
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", checks.positive("noise_multiplier", self.noise_multiplier))
        object.__setattr__(self, "rate", checks.probability("rate", self.rate))
        object.__setattr__(self, "size", checks.count("size", self.size, 1, 500))

    def __str__(self) -> str:
        return (
            f"a group of {self.size} under Poisson sampling at rate {self.rate:g} and "
            f"Gaussian noise of multiplier {self.noise_multiplier:g}"
        )

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier / self.size)

    def _expansion(self) -> Mechanism:
        if self.rate == 1:
            return Gaussian(self.noise_multiplier / self.size)
        chances = [
            math.comb(self.size, i) * self.rate**i * (1 - self.rate) ** (self.size - i) for i in range(self.size + 1)
        ]
        total = math.fsum(chances)
        shifts = tuple(i / self.noise_multiplier for i in range(self.size + 1))
        return GaussianMixture(shifts, tuple(chance / total for chance in chances))


def group(mechanism: Mechanism, size: int) -> Mechanism:
    """The mechanism as a group of ``size`` people sees it, by the tightest known rule: exact for (Poisson sampled)
    Gaussians and their compositions, else the generic group property of the whole.

    Args:
        mechanism: what one person goes through.
        size: >= 1; the people choose and are sampled independently of one another.
    """
    mechanism_of(mechanism)
    if checks.count("size", size) == 1:
        return mechanism
    return _exact_group(mechanism, size) or Group(mechanism, size)


def _exact_group(mechanism: Mechanism, size: int) -> Mechanism | None:
    if isinstance(mechanism, NotPrivate):
        return mechanism
    if isinstance(mechanism, Gaussian):
        return Gaussian(mechanism.noise_multiplier / size)
    if isinstance(mechanism, Poisson) and isinstance(mechanism.mechanism, Gaussian):
        return GroupPoissonGaussian(mechanism.mechanism.noise_multiplier, mechanism.rate, size)
    if isinstance(mechanism, Repeat):
        repeated = _exact_group(mechanism.mechanism, size)
        return None if repeated is None else Repeat(repeated, mechanism.times)
    if isinstance(mechanism, Compose):
        # The generic property of a part, composed, costs more than the generic property of the whole.
        parts = [_exact_group(part, size) for part in mechanism.mechanisms]
        known = tuple(part for part in parts if part is not None)
        return Compose(known) if len(known) == len(parts) else None
    return None


@dataclass(frozen=True)
class Group(Mechanism):
    """The generic group property of any mechanism; ``group`` uses it where it knows nothing better.

    delta_K(epsilon) <= delta(epsilon / K) (e^epsilon - 1) / (e^(epsilon / K) - 1), K people being K changes of one
    person; and the Rényi divergence of order a is at most 3^c times that of order 2^c a, where 2^c >= K (Mironov
    2017, Proposition 2).

    Both grow fast with K. Where it is smaller, the cost with all hidden choices given away is taken: the release is a
    mixture, over choices that do not depend on the data, of releases that cost the group no more than that (joint
    convexity); and what is then left, compositions of Gaussians, is exact for groups.

    Args:
        mechanism: what one person goes through.
        size: K >= 1.
    """

    mechanism: Mechanism
    size: int

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "size", checks.count("size", self.size, 1, 1000))

    def __str__(self) -> str:
        return f"a group of {self.size}: {self.mechanism}"

    @property
    def span(self) -> int:
        return self.mechanism.span

    def unamplified(self) -> Mechanism:
        return group(self.mechanism.unamplified(), self.size)

    def _prefix(self, rounds: int) -> Mechanism:
        return Group(self.mechanism.after(rounds), self.size)

    def _raw(self, highest: int) -> Array:
        return self._of_group(log_moments(self.mechanism, self._highest(highest))[None], [self], highest)[0]

    def _log_moments_over_rounds(self, rounds: Sequence[int], highest: int) -> Array:
        of_one = self.mechanism._log_moments_over_rounds(rounds, self._highest(highest))
        return self._of_group(of_one, [Group(self.mechanism.after(r), self.size) for r in rounds], highest)

    def _highest(self, highest: int) -> int:
        """The highest order asked of one person."""
        return max(highest, min(1024, highest * 2 ** math.ceil(math.log2(self.size))))

    def _of_group(self, of_one: Array, groups: "Sequence[Group]", highest: int) -> Array:
        """Log moments from those of one person and from the open release, both of shape (groups, orders)."""
        halvings = math.ceil(math.log2(self.size))
        orders = np.arange(2, highest + 1)
        asked = orders * 2**halvings
        known = asked < of_one.shape[1]
        result = np.full((len(groups), highest + 1), np.inf)
        result[:, :2] = 0.0
        share = (orders[known] - 1) * 3**halvings / (asked[known] - 1)
        result[:, 2 : 2 + len(share)] = share * of_one[:, asked[known]]
        for row, group_ in zip(result, groups, strict=True):
            if (open_ := group_._given_away) is not None:
                np.minimum(row, raw(open_, highest), out=row)
        return result

    @property
    def _given_away(self) -> Mechanism | None:
        """The group's cost with all hidden choices given away, where it is exact and the same in both directions."""
        open_ = _exact_group(self.mechanism.unamplified(), self.size)
        return open_ if open_ is not None and open_._is_symmetric else None

    def _law_delta(self, epsilon: float, points: int | None) -> Bounds:
        generic, open_ = self._generic_delta(epsilon, points), self._given_away
        if open_ is not None and (cost := open_.delta(epsilon, points=points)).upper < generic.upper:
            return Bounds(0.0, cost.upper, f"{cost.method}, hidden choices given away")
        return generic

    def _law_epsilon(self, delta: float, points: int | None) -> Bounds:
        generic, open_ = self._generic_epsilon(delta, points), self._given_away
        if open_ is not None and (cost := open_.epsilon(delta, points=points)).upper < generic.upper:
            return Bounds(0.0, cost.upper, f"{cost.method}, hidden choices given away")
        return generic

    def _law_upper(self, delta: float, points: int) -> float:
        return self._law_epsilon(delta, points).upper

    def _generic_delta(self, epsilon: float, points: int | None) -> Bounds:
        if epsilon == 0:
            return Bounds(0.0, min(1.0, self.size * self.mechanism.delta(0.0, points=points).upper), "group property")
        part = self.mechanism.delta(epsilon / self.size, points=points)
        log_factor = np.log(np.expm1(epsilon)) if epsilon < 700 else epsilon
        log_factor -= np.log(np.expm1(epsilon / self.size)) if epsilon < 700 * self.size else epsilon / self.size
        upper = min(1.0, part.upper * math.exp(min(float(log_factor), 700.0)))
        return Bounds(0.0, upper, f"group property of {part.method}")

    def _generic_epsilon(self, delta: float, points: int | None) -> Bounds:
        points = DEFAULT_POINTS if points is None else points  # a bound that no finer grid makes much tighter
        low, high = 0.0, 1.0
        while self._generic_delta(high, points).upper > delta:
            low, high = high, 2 * high
            if high > 1e4:
                return Bounds(0.0, math.inf, "group property")
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self._generic_delta(middle, points).upper <= delta else (middle, high)
        return Bounds(0.0, high, self._generic_delta(high, points).method)

    def _attack(self) -> Mechanism | None:
        return self.mechanism._attack()

    @property
    def _is_symmetric(self) -> bool:
        return True  # the bound above is of both directions

    def _central(self, highest: int) -> Array:
        raise ValueError("Group of a mechanism cannot be sampled or allocated; apply it to the whole run")

    def _transform(self, u: Array) -> Transform:
        raise ValueError("Group of a mechanism cannot be sampled or allocated; apply it to the whole run")
