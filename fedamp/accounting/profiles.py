"""Privacy profiles: the common answer of every evaluator, and bounds that are made of other profiles."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.points import DEFAULT_POINTS


class Profile(Protocol):
    """delta as a function of epsilon, and its inverse; both directions, bracketed. A mechanism is one, too.

    What cannot be computed raises ``NotEvaluable``, which says why.
    """

    def epsilon(self, delta: float) -> Bounds:
        """The smallest epsilon >= 0 at a delta in (0, 1)."""
        ...

    def delta(self, epsilon: float) -> Bounds:
        """The smallest delta at an epsilon >= 0."""
        ...


def refined(answer: Callable[[int], Bounds], points: int | None, low: float, high: float) -> Bounds:
    """The answer at so many points. Where no number is given, more are taken while that helps and the answer, between
    ``low`` and ``high``, is known to no better than one part in 1000.
    """
    best = answer(DEFAULT_POINTS if points is None else checks.count("points", points, 50, 20_000))
    for more in (2400, 4800) if points is None else ():
        if not low <= best.upper <= high or best.width <= 1e-3 * best.upper:
            break
        finer = answer(more)
        helps = finer.width < 0.7 * best.width
        method = finer.method if finer.upper < best.upper else best.method
        best = Bounds(max(best.lower, finer.lower), min(best.upper, finer.upper), method)
        if not helps:
            break
    return best


@dataclass(frozen=True)
class Smallest:
    """Several upper bounds of one profile; the smallest counts at each question."""

    profiles: Sequence[Profile]

    def epsilon(self, delta: float) -> Bounds:
        return min((each.epsilon(delta) for each in self.profiles), key=lambda answer: answer.upper)

    def delta(self, epsilon: float) -> Bounds:
        return min((each.delta(epsilon) for each in self.profiles), key=lambda answer: answer.upper)


@dataclass(frozen=True)
class SomeInBatch:
    """A release that concerns the people in question with chance ``share`` alone, and then costs ``profile``.

    delta(epsilon) <= share * delta'(log(1 + (e^epsilon - 1) / share)) (Balle, Barthe, Gaboardi 2018, Theorem 10).
    """

    profile: Profile
    share: float

    def epsilon(self, delta: float) -> Bounds:
        if delta >= self.share:
            return Bounds(0.0, 0.0, "smaller than the chance of being in the batch")
        answer = self.profile.epsilon(delta / self.share)
        upper = math.log1p(self.share * math.expm1(answer.upper)) if answer.upper < 700 else answer.upper
        return Bounds(0.0, upper, answer.method)

    def delta(self, epsilon: float) -> Bounds:
        inner = math.log1p(math.expm1(epsilon) / self.share) if epsilon < 700 else epsilon
        answer = self.profile.delta(inner)
        return Bounds(0.0, self.share * answer.upper, answer.method)


@dataclass(frozen=True)
class WithChanceOfAll:
    """With chance ``weight`` everything is seen (in ``bare`` cases nothing is hidden then), else ``profile`` holds."""

    profile: Profile
    weight: float
    bare: bool

    def epsilon(self, delta: float) -> Bounds:
        if self.weight >= delta:
            return Bounds(math.inf if self.bare else 0.0, math.inf, "a part without noise")
        cost = self.profile.epsilon((delta - self.weight) / (1 - self.weight))
        return cost if self.bare else Bounds(0.0, cost.upper, cost.method)

    def delta(self, epsilon: float) -> Bounds:
        cost = self.profile.delta(epsilon)
        lower, upper = (self.weight + (1 - self.weight) * end for end in (cost.lower, cost.upper))
        return Bounds(lower if self.bare else 0.0, min(upper, 1.0), cost.method)


@dataclass(frozen=True)
class OfGroup:
    """The generic group property: K people are K changes of one person,

    delta_K(epsilon) <= delta(epsilon / K) (e^epsilon - 1) / (e^(epsilon / K) - 1).
    """

    profile: Profile
    size: int

    def delta(self, epsilon: float) -> Bounds:
        if epsilon == 0:
            return Bounds(0.0, min(1.0, self.size * self.profile.delta(0.0).upper), "group property")
        part = self.profile.delta(epsilon / self.size)
        upper = min(1.0, part.upper * math.exp(min(self.log_factor(epsilon), 700.0)))
        return Bounds(0.0, upper, f"group property of {part.method}")

    def log_factor(self, epsilon: float) -> float:
        """log of what delta is multiplied by, at epsilon > 0; it grows with epsilon."""
        log_factor = np.log(np.expm1(epsilon)) if epsilon < 700 else epsilon
        log_factor -= np.log(np.expm1(epsilon / self.size)) if epsilon < 700 * self.size else epsilon / self.size
        return float(log_factor)

    def below(self, known: float, delta: float) -> Bounds:
        """An upper end of epsilon from few questions, given one: the factor there is at least that at a smaller one."""
        for _ in range(2):
            one = self.profile.epsilon(delta * math.exp(-self.log_factor(known)))
            known = min(known, self.size * one.upper)
            if known == 0:
                break
        return Bounds(0.0, known, f"group property of {one.method}")

    def epsilon(self, delta: float) -> Bounds:
        low, high = 0.0, 1.0
        while self.delta(high).upper > delta:
            low, high = high, 2 * high
            if high > 1e4:
                return Bounds(0.0, math.inf, "group property")
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle).upper <= delta else (middle, high)
        return Bounds(0.0, high, self.delta(high).method)
