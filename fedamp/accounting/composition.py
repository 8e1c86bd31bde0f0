"""Releases after one another, and a release drawn at random from several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedamp.accounting import checks, moments, transform
from fedamp.accounting.basic import Gaussian, NotPrivate
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.mechanism import Detail, Mechanism, central, log_moments, negative, numerical_law, raw
from fedamp.accounting.moments import Array
from fedamp.accounting.renyi import HIGHEST_ORDER
from fedamp.accounting.transform import Transform

if TYPE_CHECKING:
    from fedamp.accounting.law import Law


def mechanisms_of(name: str, values: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """A non-empty tuple of mechanisms, or ValueError."""
    items = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not items or not all(isinstance(item, Mechanism) for item in items):
        raise ValueError(f"{name} must be one or more mechanisms, got {values!r}")
    return items


def mechanism_of(value: Mechanism) -> Mechanism:
    """A mechanism, or ValueError."""
    if not isinstance(value, Mechanism):
        raise ValueError(f"mechanism must be a mechanism such as Gaussian(1.0), got {value!r}")
    return value


@dataclass(frozen=True)
class Compose(Mechanism):
    """Releases after one another, each may depend on those before (Zhu et al. 2022, Theorem 10): X is the product.

    If every part is a single release they make one round together (for instance the shared and the split part of a
    model); if some part spans several rounds, the parts' rounds follow one another.

    Args:
        mechanisms: one or more.
    """

    mechanisms: Sequence[Mechanism]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", mechanisms_of("mechanisms", self.mechanisms))

    def __str__(self) -> str:
        return "[" + "; then ".join(map(str, self.mechanisms)) + "]"

    @property
    def span(self) -> int:
        spans = [part.span for part in self.mechanisms]
        return 1 if all(span == 1 for span in spans) else sum(spans)

    def unamplified(self) -> Mechanism:
        return Compose(tuple(part.unamplified() for part in self.mechanisms))

    def _prefix(self, rounds: int) -> Mechanism:
        released: list[Mechanism] = []
        for part in self.mechanisms:
            taken = min(rounds, part.span)
            if taken:
                released.append(part.after(taken))
            rounds -= taken
        return Compose(tuple(released)) if released else NOTHING

    def _central(self, highest: int) -> Array:
        product = central(self.mechanisms[0], highest)
        for part in self.mechanisms[1:]:
            product = moments.multiply(product, central(part, highest))
        return product

    def _raw(self, highest: int) -> Array:
        return np.sum([raw(part, highest) for part in self.mechanisms], axis=0)

    def _negative(self, highest: int) -> Array:
        return np.sum([negative(part, highest) for part in self.mechanisms], axis=0)

    def _transform(self, u: Array) -> Transform:
        return _product_transform(self, u)

    def _law(self, detail: Detail) -> "Law":
        return _product_law(self, detail)

    def _attack(self) -> Mechanism | None:
        attacks = [part._attack() for part in self.mechanisms]
        if all(attack is part for attack, part in zip(attacks, self.mechanisms, strict=True)):
            return self
        known = tuple(attack for attack in attacks if attack is not None)
        return Compose(known) if known else None

    @property
    def _linear_signal(self) -> float | None:
        signals = [part._linear_signal for part in self.mechanisms]
        return None if None in signals else sum(signal for signal in signals if signal is not None)

    @property
    def _is_symmetric(self) -> bool:
        return all(part._is_symmetric for part in self.mechanisms)

    def _log_moments_over_rounds(self, rounds: Sequence[int], highest: int) -> Array:
        result = np.zeros((len(rounds), highest + 1))
        left = np.asarray(rounds)
        for part in self.mechanisms:
            taken = np.minimum(left, part.span)
            if taken.any():
                result[taken > 0] += part._log_moments_over_rounds(taken[taken > 0].tolist(), highest)
            left = left - taken
        return result


@dataclass(frozen=True)
class Repeat(Mechanism):
    """The same mechanism several times, one after another, with fresh randomness each time.

    Args:
        mechanism: what is repeated.
        times: >= 0; 0 releases nothing.
    """

    mechanism: Mechanism
    times: int

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "times", checks.count("times", self.times, 0))

    def __str__(self) -> str:
        return f"{self.times} times ({self.mechanism})" if self.times else "nothing"

    @property
    def is_private(self) -> bool:
        return self.times == 0 or self.mechanism.is_private

    @property
    def releases_nothing(self) -> bool:
        return self.times == 0 or self.mechanism.releases_nothing

    @property
    def span(self) -> int:
        return self.times * self.mechanism.span

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), self.times)

    def _prefix(self, rounds: int) -> Mechanism:
        whole, rest = divmod(rounds, self.mechanism.span)
        released = Repeat(self.mechanism, whole)
        return Compose((released, self.mechanism.after(rest))) if rest else released

    def _central(self, highest: int) -> Array:
        result, base, times = moments.constant(highest), None, self.times
        while times:
            base = central(self.mechanism, highest) if base is None else moments.multiply(base, base)
            if times & 1:
                result = moments.multiply(result, base)
            times >>= 1
        return result

    def _raw(self, highest: int) -> Array:
        return self.times * raw(self.mechanism, highest) if self.times else np.zeros(highest + 1)

    def _negative(self, highest: int) -> Array:
        return self.times * negative(self.mechanism, highest) if self.times else np.zeros(highest)

    def _transform(self, u: Array) -> Transform:
        return _product_transform(self, u)

    def _law(self, detail: Detail) -> "Law":
        return _product_law(self, detail)

    def _attack(self) -> Mechanism | None:
        attack = self.mechanism._attack()
        if attack is self.mechanism:
            return self
        return None if attack is None else Repeat(attack, self.times)

    @property
    def _linear_signal(self) -> float | None:
        signal = self.mechanism._linear_signal
        return None if signal is None else self.times * signal

    @property
    def _is_symmetric(self) -> bool:
        return self.mechanism._is_symmetric

    def _log_moments_over_rounds(self, rounds: Sequence[int], highest: int) -> Array:
        if self.mechanism.span > 1:
            span = self.mechanism.span
            rest = sorted({r % span for r in rounds} - {0})
            parts = np.zeros((span, highest + 1))
            if rest:
                parts[rest] = self.mechanism._log_moments_over_rounds(rest, highest)
            whole = np.array([r // span for r in rounds])[:, None] * log_moments(self.mechanism, highest)
            return whole + parts[[r % span for r in rounds]]
        return np.asarray(rounds)[:, None] * log_moments(self.mechanism, highest)


@dataclass(frozen=True)
class RandomSelection(Mechanism):
    """One of several mechanisms, drawn with the given weights; only its release is seen, and even the draw may be.

    X follows the mixture of the laws, not the mean of the variables (Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2). A
    mechanism without privacy costs its whole weight in delta, at every epsilon, and no Rényi divergence is finite.

    Args:
        mechanisms: one or more.
        weights: one per mechanism, >= 0, sum 1; independent of the data.
    """

    mechanisms: Sequence[Mechanism]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", mechanisms_of("mechanisms", self.mechanisms))
        object.__setattr__(self, "weights", checks.weights("weights", self.weights, len(self.mechanisms)))

    def __str__(self) -> str:
        pairs = zip(self.weights, self.mechanisms, strict=True)
        return "one of (" + ", ".join(f"{weight:g}: {part}" for weight, part in pairs) + ")"

    def epsilon(self, delta: float, *, points: int | None = None) -> Bounds:
        open_weight, private = self._without_open()
        if not open_weight or private is None:
            return super().epsilon(delta, points=points)
        if open_weight >= checks.delta(delta):
            return Bounds(math.inf if self._is_bare else 0.0, math.inf, "a part without noise")
        cost = private.epsilon((delta - open_weight) / (1 - open_weight), points=points)
        return cost if self._is_bare else Bounds(0.0, cost.upper, cost.method)

    def delta(self, epsilon: float, *, points: int | None = None) -> Bounds:
        open_weight, private = self._without_open()
        if not open_weight or private is None:
            return super().delta(epsilon, points=points)
        cost = private.delta(epsilon, points=points)
        lower, upper = (open_weight + (1 - open_weight) * end for end in (cost.lower, cost.upper))
        return Bounds(lower if self._is_bare else 0.0, min(upper, 1.0), cost.method)

    @property
    def is_private(self) -> bool:
        return not self._without_open()[0]

    @property
    def releases_nothing(self) -> bool:
        return all(part.releases_nothing for part in self._used()[0])

    @property
    def _is_bare(self) -> bool:
        """Whether what has no privacy hides nothing at all."""
        return not any(part.parts for part in self._used()[0] if not part.is_private)

    def _without_open(self) -> tuple[float, Mechanism | None]:
        """The weight of what has no privacy, and the selection among the rest; None if nothing is left."""
        used, weights = self._used()
        open_weight = math.fsum(weight for part, weight in zip(used, weights, strict=True) if not part.is_private)
        kept = [(part, weight) for part, weight in zip(used, weights, strict=True) if part.is_private]
        total = math.fsum(weight for _, weight in kept)
        if not kept:
            return open_weight, None
        return open_weight, RandomSelection([part for part, _ in kept], [weight / total for _, weight in kept])

    def unamplified(self) -> Mechanism:
        return RandomSelection(tuple(part.unamplified() for part in self.mechanisms), self.weights)

    def _used(self) -> tuple[list[Mechanism], tuple[float, ...]]:
        used = [(part, weight) for part, weight in zip(self.mechanisms, self.weights, strict=True) if weight > 0]
        return [part for part, _ in used], tuple(weight for _, weight in used)

    def _central(self, highest: int) -> Array:
        used, weights = self._used()
        return moments.mixture([central(part, highest) for part in used], weights)

    def _raw(self, highest: int) -> Array:
        used, weights = self._used()
        return moments.mixture([raw(part, highest) for part in used], weights)

    def _negative(self, highest: int) -> Array:
        used, weights = self._used()
        return moments.mixture([negative(part, highest) for part in used], weights)

    def _transform(self, u: Array) -> Transform:
        used, weights = self._used()
        return transform.mixture([part._transform(u) for part in used], weights)

    def _law(self, detail: Detail) -> "Law":
        from fedamp.accounting.law import Law

        used, weights = self._used()
        return Law.mixture([numerical_law(part, detail) for part in used], list(weights))

    def _attack(self) -> Mechanism | None:
        attacks = [part._attack() for part in self.mechanisms]
        if all(attack is part for attack, part in zip(attacks, self.mechanisms, strict=True)):
            return self
        return RandomSelection(tuple(NOTHING if attack is None else attack for attack in attacks), self.weights)

    @property
    def _is_symmetric(self) -> bool:
        return all(part._is_symmetric for part in self.mechanisms)


NOTHING = Repeat(NotPrivate(), 0)
"""The release that tells nothing: X = 1."""


def _factors(mechanism: Mechanism, times: int = 1) -> tuple[float, dict[Mechanism, int]]:
    """A product as one Gaussian (the sum of 1 / noise multiplier^2) and what else there is, with multiplicities."""
    if isinstance(mechanism, Gaussian):
        return times / mechanism.noise_multiplier**2, {}
    if isinstance(mechanism, Repeat):
        return _factors(mechanism.mechanism, times * mechanism.times) if mechanism.times else (0.0, {})
    if not isinstance(mechanism, Compose):
        return 0.0, {mechanism: times}
    precision, others = 0.0, dict[Mechanism, int]()
    for part in mechanism.mechanisms:
        more, rest = _factors(part, times)
        precision += more
        for other, count in rest.items():
            others[other] = others.get(other, 0) + count
    return precision, others


def _product_transform(mechanism: Mechanism, u: Array) -> Transform:
    """Exact for a Gaussian times at most one other factor; from second and negative moments otherwise."""
    precision, others = _factors(mechanism)
    if not others:
        return transform.gaussian(precision**-0.5, u) if precision else Transform(-u, np.zeros_like(u))
    if len(others) == 1 and max(others.values()) == 1:
        other = next(iter(others))
        return transform.times_gaussian(precision**-0.5, other._transform, u) if precision else other._transform(u)
    return transform.from_moments(raw(mechanism, HIGHEST_ORDER), negative(mechanism, HIGHEST_ORDER), u)


def _product_law(mechanism: Mechanism, detail: Detail) -> "Law":
    from fedamp.accounting.law import Law

    precision, others = _factors(mechanism)
    gaussian = [(numerical_law(Gaussian(precision**-0.5), detail), 1)] if precision else []
    rest = [(numerical_law(other, detail), times) for other, times in others.items() if not other.releases_nothing]
    return Law.product(gaussian + rest)
