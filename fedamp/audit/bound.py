"""From statistics in two worlds to a lower bound on epsilon that holds with a stated confidence.

If a release is (epsilon, delta)-private, then P(event | one world) <= e^epsilon P(event | the other) + delta, for every
event and in both directions. An event is chosen on some of the repetitions and counted on the others; Clopper and
Pearson (1934) bound its two probabilities.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from fedamp.audit.attacks import Attacks

Array = NDArray[np.float64]

_THRESHOLDS = 60


@dataclass(frozen=True)
class Claim:
    """What the accountant says: (epsilon, delta)-private.

    Attributes:
        epsilon: the upper bound.
        delta: at which it holds.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Event:
    """Something that an adversary can see.

    Attributes:
        attack: name of the statistic.
        above: whether the event is that the statistic is above the threshold, which speaks for the canary; or that it
            is not, which speaks against it.
        threshold: of the statistic.
    """

    attack: str
    above: bool
    threshold: float

    def happened(self, attacks: Attacks) -> NDArray[np.bool_]:
        """In which repetitions."""
        above: NDArray[np.bool_] = attacks[self.attack] > self.threshold
        return above if self.above else ~above


@dataclass(frozen=True)
class Finding:
    """How a claim stood its test.

    Attributes:
        claim: what was tested.
        event: by which event.
        likely: how often it happened in the world that makes it likely.
        unlikely: how often in the other.
        lower: lower bound on epsilon at the claim's delta.
    """

    claim: Claim
    event: Event
    likely: int
    unlikely: int
    lower: float

    @property
    def refutes(self) -> bool:
        """Whether the claim cannot be true."""
        return self.lower > self.claim.epsilon


class Worlds(NamedTuple):
    """The same statistics in both worlds."""

    present: Attacks
    absent: Attacks

    @property
    def repetitions(self) -> int:
        """Of each world."""
        return len(next(iter(self.present.values())))


def examine(chosen_on: Worlds, counted_on: Worlds, claims: list[Claim], error: float) -> tuple[Finding, Finding]:
    """Test the first claim, and that one which looks least true.

    Args:
        chosen_on: repetitions on which events are chosen.
        counted_on: other repetitions.
        claims: the one to report, and others that the same accountant makes (its privacy profile).
        error: chance that a lower bound is too high, in any of the findings.
    """
    each = error / 4  # two findings of two probabilities
    events = _events(chosen_on)
    likely, unlikely = _frequencies(events, chosen_on)
    repetitions = counted_on.repetitions
    lowers = lower_bound(likely * repetitions, unlikely * repetitions, repetitions, claims[0].delta, each)
    doubts = np.array([_doubt(likely, unlikely, claim, chosen_on.repetitions) for claim in claims])
    claim, event = np.unravel_index(np.argmax(doubts), doubts.shape)
    return (
        _count(claims[0], events[int(np.argmax(lowers))], counted_on, each),
        _count(claims[claim], events[event], counted_on, each),
    )


def lower_bound(likely: Array, unlikely: Array, repetitions: int, delta: float, error: float) -> Array:
    """Epsilon that a release must have at least, from how often an event happened in two worlds.

    Args:
        likely: number of times in the world that makes it likely.
        unlikely: number of times in the other.
        repetitions: of each world.
        delta: at which epsilon is asked.
        error: chance that one of the two probabilities is outside its one-sided Clopper-Pearson bound, for each.
    """
    least = beta.ppf(error, likely, repetitions - likely + 1)
    most = beta.isf(error, unlikely + 1, repetitions - unlikely)
    least, most = np.where(likely == 0, 0.0, least), np.where(unlikely == repetitions, 1.0, most)
    return np.log(np.maximum((least - delta) / most, 1.0))


def _events(worlds: Worlds) -> list[Event]:
    found = []
    for attack, present in worlds.present.items():
        both = np.sort(np.concatenate([present, worlds.absent[attack]]))
        for threshold in np.unique(both[np.linspace(0, len(both) - 1, _THRESHOLDS, dtype=int)]):
            found += [Event(attack, above, float(threshold)) for above in (True, False)]
    return found


def _frequencies(events: list[Event], worlds: Worlds) -> tuple[Array, Array]:
    """How often each event happened in the world that makes it likely, and in the other."""
    present = np.array([event.happened(worlds.present).mean() for event in events])
    absent = np.array([event.happened(worlds.absent).mean() for event in events])
    above = np.array([event.above for event in events])
    return np.where(above, present, absent), np.where(above, absent, present)


def _doubt(likely: Array, unlikely: Array, claim: Claim, repetitions: int) -> Array:
    """By how many standard errors the claim is missed."""
    p, q = ((rate * repetitions + 0.5) / (repetitions + 1) for rate in (likely, unlikely))
    factor = math.exp(claim.epsilon)
    errors = np.sqrt(p * (1 - p)) + factor * np.sqrt(q * (1 - q))
    return (p - factor * q - claim.delta) / errors


def _count(claim: Claim, event: Event, worlds: Worlds, error: float) -> Finding:
    present, absent = (int(event.happened(world).sum()) for world in worlds)
    likely, unlikely = (present, absent) if event.above else (absent, present)
    lower = lower_bound(np.array(likely), np.array(unlikely), worlds.repetitions, claim.delta, error)
    return Finding(claim, event, likely, unlikely, float(lower))
