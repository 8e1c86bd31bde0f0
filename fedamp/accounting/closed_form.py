"""Both ends of the cost of Gaussian releases by revealing their hidden choices: closed forms, close at little noise.

With A all hidden choices, w_A their probabilities, and delta_A the profile of the release given A (ours;
docs/accounting.md, "Little noise", has the proof):

    sum_A w_A delta_A(epsilon - log w_A)  <=  delta(epsilon)  <=  sum_A w_A delta_A(epsilon).

So the ends are apart by at most the largest -log w_A, however much is lost: log C(T, k) for k of T rounds.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial, reduce

import numpy as np

from fedamp.accounting.arithmetic import UNIT, Array, crossing, gaussian_delta, log_choose, repeated
from fedamp.accounting.bounds import Bounds, Method, NotEvaluable, in_floating_point
from fedamp.accounting.events import (
    Allocation,
    AllocationPrefix,
    CappedPoisson,
    Compose,
    Gaussian,
    GaussianMixture,
    Mechanism,
    NotPrivate,
    Poisson,
    RandomSelection,
    Repeat,
    Submodels,
)
from fedamp.accounting.theorems import attained, charged_as, participation

_MOST_KINDS, _RARE, _MOST_SIZES = 512, 1e-40, 2000
"""Kinds of choices that are kept apart, the chance below which they are not, and the most sizes of a set of rounds."""


@dataclass(frozen=True, eq=False)
class Revealed:
    """The kinds of choices that a mechanism hides, each with the Gaussian that is released given one of them.
    ``least``, ``most``: shape (n,): squared signal-to-noise ratio that is attained, and that is charged. ``chance``:
    shape (n,): of all choices of the kind together. ``log_weight``: shape (n,): log w_A of one of them, at least.
    ``off``: bound on the relative errors, and on the absolute one of ``log_weight``.
    """

    least: Array
    most: Array
    chance: Array
    log_weight: Array
    off: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is hidden."""
        return not self.log_weight.any()

    def epsilon(self, delta: float) -> Bounds:
        """The smallest epsilon >= 0 at ``delta``."""
        upper = crossing(partial(self._delta, upper=True), delta, 1e250, 1e-9)[1]
        lower = crossing(partial(self._delta, upper=False), delta, 1e250, 1e-9)[0]
        return Bounds(min(lower, upper), upper, Method.CLOSED_FORM.of())

    def delta(self, epsilon: float) -> Bounds:
        """The smallest delta at ``epsilon`` >= 0."""
        upper = self._delta(epsilon, upper=True)
        return Bounds(min(self._delta(epsilon, upper=False), upper), upper, Method.CLOSED_FORM.of())

    def _delta(self, epsilon: float, upper: bool) -> float:
        """One end of delta."""
        if epsilon == math.inf:
            return float(self.chance[(self.most if upper else self.least) == math.inf].sum())
        off = self.off + 8 * UNIT * len(self.chance)
        if upper:
            return min(1.0, float(self.chance @ gaussian_delta(self.most * (1 + off), epsilon, 1)) * (1 + off))
        lost = epsilon - self.log_weight * (1 + off) + off
        return float(self.chance @ gaussian_delta(self.least * (1 - off), lost, -1)) * (1 - off)

    def times(self, other: "Revealed") -> "Revealed":
        """Of two mechanisms, one after the other."""
        least, most, logs = (
            np.add.outer(getattr(self, each), getattr(other, each)) for each in ("least", "most", "log_weight")
        )
        chance = np.multiply.outer(self.chance, other.chance)
        return _of(least, most, chance, logs, self.off + other.off + 4 * UNIT)

    def chosen(self, chance: float, log_weight: float) -> "Revealed":
        """The release if a choice with this ``chance`` falls on the mechanism."""
        return Revealed(self.least, self.most, chance * self.chance, self.log_weight + log_weight, self.off)


def _of(least: Array, most: Array, chance: Array, log_weight: Array, off: float) -> Revealed:
    """Rows of any shape. The same ones are put together, and so are neighbours where they are too many or too rare."""
    most, log_weight, least, chance = (each.ravel() for each in (most, log_weight, least, chance))
    rare = chance < _RARE
    order = np.lexsort((log_weight, most, ~rare))
    most, log_weight, least, chance, rare = (each[order] for each in (most, log_weight, least, chance, rare))
    same = np.isclose(most[1:], most[:-1], rtol=1e-12, atol=0) & np.isclose(log_weight[1:], log_weight[:-1], 1e-12, 0)
    starts = np.flatnonzero(np.r_[True, ~(rare[1:] | (same & ~rare[:-1]))])
    if len(starts) > _MOST_KINDS:
        starts = starts[np.linspace(0, len(starts), _MOST_KINDS, endpoint=False).astype(int)]
    lowest, total = (partial(each.reduceat, indices=starts) for each in (np.minimum, np.add))
    highest = np.maximum.reduceat(most, starts)
    return Revealed(lowest(least), highest, total(chance), lowest(log_weight), off + len(chance) * UNIT)


_NOTHING = Revealed(np.zeros(1), np.zeros(1), np.ones(1), np.zeros(1))


@lru_cache(maxsize=256)
def revealed(event: Mechanism) -> Revealed:
    """The hidden choices of a mechanism; NotEvaluable if its releases are not Gaussian."""
    if event.releases_nothing:
        return _NOTHING
    match event:
        case Gaussian(noise):
            signal = np.full(1, event.change**2 / noise**2)
            return Revealed(signal, signal, np.ones(1), np.zeros(1), 4 * UNIT)
        case GaussianMixture(shifts, weights):
            signal, chance = np.square(shifts), np.array(weights)
            return Revealed(signal, signal, chance, np.log(chance), 4 * UNIT)
        case NotPrivate():
            signal = np.full(1, np.inf)
            return Revealed(signal, signal, np.ones(1), np.zeros(1))
        case Repeat(inner, times):
            return repeated(revealed(inner), times, Revealed.times)
        case Compose(mechanisms):
            return reduce(Revealed.times, [revealed(part) for part in mechanisms])
        case Submodels(inner, number):
            return revealed(inner).chosen(1.0, -math.log(number))
        case Poisson(inner, 1):
            return revealed(inner)
        case Poisson(inner, rate):
            parts = [(_NOTHING, 1 - rate), (revealed(inner), rate)]
            return _one_of([(part, chance, math.log(chance)) for part, chance in parts])
        case RandomSelection():  # the draw may be seen: it takes no part in the weight
            return _one_of([(revealed(part), weight, 0.0) for part, weight in zip(*event.used, strict=True)])
        case Allocation() | AllocationPrefix() | CappedPoisson():
            return _of_hidden_rounds(event)
    return _between(event)


def _between(event: Mechanism) -> Revealed:
    """From above what it is charged as, or costs without amplification; from below what is attained."""
    known, below = attained(event), _NOTHING
    try:
        other = charged_as(event)
    except TypeError:
        other = event.unamplified()
    else:
        if known is event:  # and what it is charged as is the same
            return revealed(other)
    if other == event:
        raise NotEvaluable(f"{type(event).__name__} is not Gaussian")
    above = revealed(other)
    if known is not event:
        with suppress(NotEvaluable):
            below = revealed(known)
    if below is _NOTHING:
        nothing = np.zeros(len(above.chance))
        return Revealed(nothing, above.most, above.chance, nothing, above.off)
    most = np.full(len(below.chance), above.most.max())
    return Revealed(below.least, most, below.chance, below.log_weight, max(below.off, above.off))


def _of_hidden_rounds(event: Mechanism) -> Revealed:
    """A person takes part in h rounds with a chance c_h; all sets of h rounds are equally likely."""
    found = participation(event)
    one, parts, known, rounds = revealed(found.mechanism), [], _NOTHING, 0
    possible = [h for h, chance in enumerate(found.chances) if chance > 0]
    if len(possible) > _MOST_SIZES:
        raise NotEvaluable("a person may take part in too many different numbers of rounds")
    for h in possible:
        known, rounds = known.times(repeated(one, h - rounds, Revealed.times)) if h else known, h
        parts.append((known, found.chances[h], math.log(found.chances[h]) - float(log_choose(found.rounds, h))))
    return _one_of(parts, found.rounding + 64 * (math.lgamma(found.rounds + 1) + 1) * UNIT)


def _one_of(parts: Sequence[tuple[Revealed, float, float]], off: float = 4 * UNIT) -> Revealed:
    """A choice among mechanisms: triples (a mechanism, its chance, log w of each such choice)."""
    chosen = [part.chosen(chance, log_weight) for part, chance, log_weight in parts]
    least, most, chance, log_weight = (
        np.concatenate([getattr(part, each) for part in chosen]) for each in ("least", "most", "chance", "log_weight")
    )
    return _of(least, most, chance, log_weight, off + max(part.off for part in chosen) + 4 * UNIT)


def in_closed_form(event: Mechanism, hidden: bool = True) -> Revealed | None:
    """The choices of a mechanism, or of it without amplification (``hidden`` False), if releases are Gaussian and in
    range.
    """
    try:
        with in_floating_point():
            return revealed(event if hidden else event.unamplified())
    except ValueError:
        return None
