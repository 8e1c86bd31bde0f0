"""Privacy of a group of people (or of one person's many records) together."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.basic import Gaussian, Laplace, NotPrivate, RandomisedResponse
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.composition import Compose, Repeat, mechanism_of
from fedamp.accounting.mechanism import Mechanism, log_moments
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
    Gaussians and their compositions, else the smallest of several bounds of the whole (``Group``).

    Args:
        mechanism: what one person goes through.
        size: >= 1; the people choose and are sampled independently of one another.
    """
    mechanism_of(mechanism)
    if checks.count("size", size) == 1:
        return mechanism
    return _exact_group(mechanism, size) or Group(mechanism, size)


def _exact_group(mechanism: Mechanism, size: int) -> Mechanism | None:
    if isinstance(mechanism, (NotPrivate, RandomisedResponse)):
        return mechanism
    if isinstance(mechanism, Gaussian):
        return Gaussian(mechanism.noise_multiplier / size)
    if isinstance(mechanism, Laplace):
        return Laplace(mechanism.scale / size)
    if isinstance(mechanism, Poisson) and (round_ := _as_gaussian(mechanism.mechanism)) is not None:
        return GroupPoissonGaussian(round_.noise_multiplier, mechanism.rate, size)
    if isinstance(mechanism, Poisson) and isinstance(mechanism.mechanism, RandomisedResponse):
        # Schuchardt et al. 2024, Theorem G.1: the worst is a bit that anybody of the group turns.
        return Poisson(mechanism.mechanism, 1 - (1 - mechanism.rate) ** size)
    return _composed(mechanism, size, _exact_group)


def _group_by_rounds(mechanism: Mechanism, size: int) -> Mechanism | None:
    """Who takes part stays hidden; what is hidden inside a round (submodels, masks) is given away."""
    from fedamp.accounting.replacement import WithoutReplacement  # which charges groups itself

    if isinstance(mechanism, Poisson):
        return _exact_group(Poisson(mechanism.mechanism.unamplified(), mechanism.rate), size)
    if isinstance(mechanism, WithoutReplacement):
        people = min(mechanism.size * size, mechanism.population)
        opened = mechanism.mechanism.unamplified()
        if _exact_group(opened, 2) is None:
            return None
        return WithoutReplacement(opened, mechanism.batch, mechanism.population, people)
    if isinstance(mechanism, (Repeat, Compose)):
        return _composed(mechanism, size, _group_by_rounds)
    return _exact_group(mechanism.unamplified(), size)


def _composed(mechanism: Mechanism, size: int, rule: Callable[[Mechanism, int], Mechanism | None]) -> Mechanism | None:
    """A composition by a rule for its parts. (Composed, the generic property of parts costs more than of the whole.)"""
    if isinstance(mechanism, Repeat):
        repeated = rule(mechanism.mechanism, size)
        return None if repeated is None else Repeat(repeated, mechanism.times)
    if isinstance(mechanism, Compose):
        parts = [rule(part, size) for part in mechanism.mechanisms]
        known = tuple(part for part in parts if part is not None)
        return Compose(known) if len(known) == len(parts) else None
    return None


def _as_gaussian(mechanism: Mechanism) -> Gaussian | None:
    """Releases with Gaussian noise that one coin decides together are one, of all their signal."""
    if isinstance(mechanism, Gaussian):
        return mechanism
    if isinstance(mechanism, Compose):
        parts = [_as_gaussian(part) for part in mechanism.mechanisms]
        noises = [part.noise_multiplier for part in parts if part is not None]
        return Gaussian(sum(noise**-2 for noise in noises) ** -0.5) if len(noises) == len(parts) else None
    return None


@dataclass(frozen=True)
class Group(Mechanism):
    """Any mechanism by the generic group property; ``group`` uses it where it knows nothing exact.

    delta_K(epsilon) <= delta(epsilon / K) (e^epsilon - 1) / (e^(epsilon / K) - 1), K people being K changes of one
    person. Rényi: the log moment of order a of i + j people is at most half the sum of that of order 2 a of i people
    and of that of order 2 a - 1 of j (Mironov 2017, Corollary 4; Schuchardt et al. 2024, Appendix B.1, corrected).

    Both grow fast with K. Where it is smaller, the cost with hidden choices given away is taken, all of them or those
    inside a round: the release is a mixture, over choices that do not depend on the data, of releases that cost the
    group no more than that (joint convexity); and what is then left, compositions of (sampled) Gaussians, is exact for
    groups.

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
        """Log moments from those of one person, shape (groups, orders), and from the other bounds."""
        generic = _moments_of_group(of_one, self.size)
        known = min(highest + 1, generic.shape[1])
        result = np.full((len(groups), highest + 1), np.inf)
        result[:, :known] = generic[:, :known]
        for row, group_ in zip(result, groups, strict=True):
            for other in group_._others:
                np.minimum(row, log_moments(other, highest), out=row)
        return result

    @property
    def _others(self) -> list[Mechanism]:
        """Other bounds, with hidden choices given away: all of them, or those inside rounds."""
        bounds = [_exact_group(self.mechanism.unamplified(), self.size)]
        if _exact_group(self.mechanism, self.size) is None:
            bounds.append(_group_by_rounds(self.mechanism, self.size))
        return [bound for bound in dict.fromkeys(bounds) if bound is not None]

    def _law_delta(self, epsilon: float, points: int | None) -> Bounds:
        others = [part.delta(epsilon, points=points) for part in self._others]
        return min(self._generic_delta(epsilon, points), *others, key=lambda cost: cost.upper)

    def _law_epsilon(self, delta: float, points: int | None) -> Bounds:
        others = [part.epsilon(delta, points=points) for part in self._others]
        return min(self._generic_epsilon(delta, points), *others, key=lambda cost: cost.upper)

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


def _moments_of_group(of_one: Array, size: int) -> Array:
    """The log moments of a group at the orders that those of one person, shape (..., orders), suffice for."""
    if size == 1:
        return of_one
    larger, smaller = (_moments_of_group(of_one, half) for half in (size - size // 2, size // 2))
    a = np.arange(1, (larger.shape[-1] - 1) // 2 + 1)
    result = np.zeros((*of_one.shape[:-1], len(a) + 1))
    result[..., 2:] = ((larger[..., 2 * a] + smaller[..., 2 * a - 1]) / 2)[..., 1:]
    return result
