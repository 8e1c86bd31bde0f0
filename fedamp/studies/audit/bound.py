"""From statistics in two worlds to a lower bound on epsilon that holds with a stated confidence.

If a release is (epsilon, delta)-private, then P(event | one world) <= e^epsilon P(event | the other) + delta, for every
event and in both directions. An event is chosen on some of the repetitions and counted on the others.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from fedamp.studies.audit.attacks import Attacks

Array = NDArray[np.float64]

# Thresholds of each statistic that are tried, and probabilities among which the worst is looked for.
_THRESHOLDS, _POINTS = 60, 120

# Repetitions of each kind that are added to those on which an event is chosen (found by trying what finds most).
_DRAWN = 10


class Claim(NamedTuple):
    """What the accountant says: (epsilon, delta)-private."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Event:
    """Something that an adversary can see: that a statistic (``attack``) is ``above`` the threshold, which speaks for
    the canary, or is not, which speaks against it.
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
    """How a claim stood its test by an event.

    Attributes:
        claim, event: what was tested, and by which event.
        likely, unlikely: how often it happened in the world that makes it likely, and in the other.
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
    events = _events(chosen_on)
    likely, unlikely = _frequencies(events, chosen_on)
    lowers = _promise(likely, unlikely, claims[0].delta, counted_on.repetitions, error / 2)
    doubts = np.array([_doubt(likely, unlikely, claim, chosen_on.repetitions) for claim in claims])
    claim, event = np.unravel_index(np.argmax(doubts), doubts.shape)
    return (
        _count(claims[0], events[int(np.argmax(lowers))], counted_on, error / 2),
        _count(claims[claim], events[event], counted_on, error / 2),
    )


def lower_bound(likely: int, unlikely: int, repetitions: int, delta: float, error: float) -> float:
    """Epsilon that a release has at least, from how often an event happened in two worlds.

    Args:
        likely, unlikely: number of times in the world that makes it likely, and in the other.
        repetitions: of each world.
        delta: at which epsilon is asked.
        error: chance that the answer is too high.
    """

    def refuted(epsilon: float) -> bool:
        return p_value(likely, unlikely, repetitions, Claim(epsilon, delta), error / 20) <= error

    if not refuted(0.0):
        return 0.0
    # Upwards from below to the first epsilon that is not refuted: p-values need not be monotone beyond it.
    epsilon, step = 0.0, 0.25
    while step > 1e-3:
        while refuted(epsilon + step):
            epsilon += step
        step /= 4
    return epsilon


def p_value(likely: int, unlikely: int, repetitions: int, claim: Claim, reserve: float = 1e-4) -> float:
    """Largest chance, over all releases for which the claim is true, of counts that speak against it as these do.

    The exact unconditional test of two binomial probabilities p <= e^epsilon q + delta (Barnard 1947), with the
    difference of both sides as its statistic. The chance grows with p, so for each q the largest p is looked at; and
    only where p and q are plausible, for which ``reserve`` is added (Berger, Boos 1994).

    Args:
        likely, unlikely, repetitions: as for :func:`lower_bound`.
        claim: that is tested.
        reserve: chance that p or q is not where it is looked for; the p-value is not below it.
    """
    factor = math.exp(claim.epsilon)
    (least_p, most_p), (least_q, most_q) = (_interval(count, repetitions, reserve / 2) for count in (likely, unlikely))
    least_q = max(least_q, (least_p - claim.delta) / factor)  # no smaller one leaves the claim and p in peace
    if least_q > most_q:
        return reserve
    # Even in the root, in which the standard error is the same everywhere. The interval is some ten of them long.
    q = np.linspace(math.sqrt(least_q), math.sqrt(most_q), _POINTS) ** 2
    p = np.minimum(factor * q + claim.delta, most_p)
    # Counts within seven of the largest standard errors; Hoeffding (1963) bounds the chance of others by 5e-11.
    width = 10 + 4 * math.isqrt(repetitions)
    counts = np.rint(q * repetitions)[:, None] + np.arange(-width, width + 1)
    # As many of the likely event, or more, as make the difference no smaller, for each count of the unlikely one.
    fewest = np.ceil(likely + factor * (counts - unlikely) - 1e-9)
    chances = binom.pmf(counts, repetitions, q[:, None]) * binom.sf(fewest - 1, repetitions, p[:, None])
    return min(1.0, float(chances.sum(1).max()) + 1e-10 + reserve)


def _interval(count: int, repetitions: int, error: float) -> tuple[float, float]:
    """Clopper and Pearson's (1934) two-sided interval for a binomial probability."""
    least = beta.ppf(error / 2, count, repetitions - count + 1) if count > 0 else 0.0
    most = beta.isf(error / 2, count + 1, repetitions - count) if count < repetitions else 1.0
    return float(least), float(most)


def _promise(likely: Array, unlikely: Array, delta: float, repetitions: int, error: float) -> Array:
    """About what :func:`lower_bound` would say, had the events happened as often; by Clopper and Pearson's bounds."""
    least = beta.ppf(error / 2, likely * repetitions, (1 - likely) * repetitions + 1)
    most = beta.isf(error / 2, unlikely * repetitions + 1, (1 - unlikely) * repetitions)
    least, most = np.where(likely == 0, 0.0, least), np.where(unlikely == 1, 1.0, most)
    return np.asarray(np.log(np.maximum((least - delta) / most, 1.0)))


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
    """By how many standard errors the claim is missed; frequencies are drawn to one half, as luck wins this contest."""
    p, q = ((rate * repetitions + _DRAWN) / (repetitions + 2 * _DRAWN) for rate in (likely, unlikely))
    factor = math.exp(claim.epsilon)
    errors = np.sqrt(p * (1 - p) + factor**2 * q * (1 - q))
    return np.asarray((p - factor * q - claim.delta) / errors)


def _count(claim: Claim, event: Event, worlds: Worlds, error: float) -> Finding:
    present, absent = (int(event.happened(world).sum()) for world in worlds)
    likely, unlikely = (present, absent) if event.above else (absent, present)
    lower = lower_bound(likely, unlikely, worlds.repetitions, claim.delta, error)
    return Finding(claim, event, likely, unlikely, lower)
