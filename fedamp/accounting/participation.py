"""In how many hidden rounds a person takes part: what allocations, caps, refusals and prefixes have in common."""

import math
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.amplification import Allocation, AllocationPrefix, CappedPoisson, Poisson
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.moments import UNIT, log_choose
from fedamp.accounting.points import Array


@dataclass(frozen=True)
class Participation:
    """A person takes part in H of ``rounds`` released rounds: H is drawn, then a uniform set of that size.

    Attributes:
        mechanism: one round.
        chances: of H = 0, 1, ..; the last one is positive.
        rounds: how many are released.
        rounding: bound on the relative error of ``chances``.
    """

    mechanism: Mechanism
    chances: tuple[float, ...]
    rounds: int
    rounding: float = 0.0

    def with_refusals(self) -> "Participation":
        """Poisson sampling inside the rounds told as a smaller number of them: a uniform set, thinned, is uniform."""
        found = self
        while isinstance(found.mechanism, Poisson) and 0 < found.mechanism.rate < 1:
            rate, h = found.mechanism.rate, np.arange(len(found.chances))
            logs = log_choose(h, np.minimum(h[:, None], h)) + h[:, None] * math.log(rate)
            chances = _mixed(logs + (h - h[:, None]) * math.log1p(-rate), h[:, None] <= h, np.array(found.chances))
            rounding = found.rounding + _rounding(len(h), rate)
            found = Participation(found.mechanism.mechanism, chances, found.rounds, rounding)
        return found


@singledispatch
def participation(event: Mechanism) -> Participation | None:
    """How often a person takes part in the rounds of an event; None for events that are no choice of rounds."""
    return None


@participation.register
def _(event: Allocation) -> Participation:
    return Participation(event.mechanism, (0.0,) * event.k + (1.0,), event.rounds).with_refusals()


@participation.register
def _(event: AllocationPrefix) -> Participation:
    chosen = np.zeros(event.k + 1)
    chosen[-1] = 1.0
    return _first_rounds(event.mechanism, chosen, event.rounds, event.released, 0.0)


@participation.register
def _(event: CappedPoisson) -> Participation:
    if event.rate in (0.0, 1.0):
        chosen = np.zeros(int(event.rate) * event.at_most + 1)
        chosen[-1] = 1.0
        return _first_rounds(event.mechanism, chosen, event.rounds, event.span, 0.0)
    h = np.arange(event.rounds + 1)
    logs = log_choose(event.rounds, h) + h * math.log(event.rate) + h[::-1] * math.log1p(-event.rate)
    chances = np.exp(logs)
    capped = np.append(chances[: event.at_most], chances[event.at_most :].sum())
    return _first_rounds(event.mechanism, capped, event.rounds, event.span, _rounding(event.rounds, event.rate))


@participation.register
def _(event: Poisson) -> Participation | None:
    inner = participation(event.mechanism)
    if inner is None or not 0 < event.rate <= 1:
        return None
    chances = event.rate * np.array(inner.chances)
    chances[0] += 1 - event.rate
    return Participation(inner.mechanism, tuple(chances.tolist()), inner.rounds, inner.rounding + 4 * UNIT)


def _first_rounds(mechanism: Mechanism, chances: Array, rounds: int, released: int, rounding: float) -> Participation:
    """Of a uniform set of h of all rounds, the part among those released is uniform, of a hypergeometric size."""
    if released < rounds:
        h, j = np.arange(len(chances)), np.arange(min(len(chances) - 1, released) + 1)[:, None]
        there = (j <= h) & (h - j <= rounds - released)
        outside = np.where(there, h - j, 0)
        logs = log_choose(released, j) + log_choose(rounds - released, outside) - log_choose(rounds, h)
        chances = np.array(_mixed(logs, there, chances))
        rounding += _rounding(rounds)
    return Participation(mechanism, tuple(chances.tolist()), released, rounding).with_refusals()


def _mixed(logs: Array, there: NDArray[np.bool_], chances: Array) -> tuple[float, ...]:
    """The chances of j = 0, 1, .., given those of j under each h (``logs``, by j and h) and those of h."""
    mixed = np.where(there, np.exp(np.where(there, logs, -np.inf)), 0.0) @ chances
    return tuple(np.trim_zeros(mixed, "b").tolist())


def _rounding(rounds: int, rate: float = 0.5) -> float:
    """Three log binomials of three log factorials each, powers of ``rate``, and sums, each rounded to a few units."""
    return 64 * (math.lgamma(rounds + 1) + rounds * -math.log(min(rate, 1 - rate)) + rounds + 1) * UNIT
