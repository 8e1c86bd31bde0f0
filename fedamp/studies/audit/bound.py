"""From statistics in two worlds to a lower bound on epsilon that holds with a stated confidence.

If a release is (epsilon, delta)-private, then P(event | one world) <= e^epsilon P(event | the other) + delta, for every
event and in both directions. An event is chosen on some of the repetitions and counted on the others.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

Array = NDArray[np.float64]
Attacks = dict[str, Array]
"""Statistics of the repetitions by the name of the attack; large ones indicate the canary."""

_THRESHOLDS = 60  # to try for each statistic
_POINTS = 120  # probabilities to search for the worst
_DRAWN = 10  # repetitions of each kind to add before an event is chosen; this number finds most in experiments


class Claim(NamedTuple):
    """A claim of the accountant: (epsilon, delta)-private."""

    epsilon: float
    delta: float


class Event(NamedTuple):
    """An observation: a statistic (``attack``) is ``above`` the threshold, which indicates the canary, or it is not."""

    attack: str
    above: bool
    threshold: float

    def happened(self, attacks: Attacks) -> NDArray[np.bool_]:
        """The repetitions in which the event happened."""
        return np.asarray((attacks[self.attack] > self.threshold) == self.above)


class Finding(NamedTuple):
    """The result of testing a claim by an event: its counts in the world that makes it likely, and in the other."""

    claim: Claim
    event: Event
    likely: int
    unlikely: int
    lower: float

    @property
    def refutes(self) -> bool:
        """Whether the claim is false."""
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
    """Test the first claim, and the least plausible one.

    Args:
        chosen_on, counted_on: some repetitions to choose events, and others.
        claims: the one to report, then others from the accountant's privacy profile.
        error: probability that any lower bound in the findings is too high.
    """
    events = _events(chosen_on)
    above = np.array([event.above for event in events])
    present, absent = (np.array([event.happened(world).mean() for event in events]) for world in chosen_on)
    likely, unlikely = np.where(above, present, absent), np.where(above, absent, present)
    # An estimate of e to the lower bound of each event, for counts with the same frequencies.
    counts = np.multiply([likely, unlikely], counted_on.repetitions)
    least, most = _interval(counts, counted_on.repetitions, error / 2)
    lowers = np.maximum((least[0] - claims[0].delta) / most[1], 1.0)
    doubts = np.array([_doubt(likely, unlikely, claim, chosen_on.repetitions) for claim in claims])
    claim, event = np.unravel_index(np.argmax(doubts), doubts.shape)
    return (
        _count(claims[0], events[int(np.argmax(lowers))], counted_on, error / 2),
        _count(claims[claim], events[event], counted_on, error / 2),
    )


def lower_bound(likely: int, unlikely: int, repetitions: int, delta: float, error: float) -> float:
    """A lower bound on epsilon at ``delta`` from the counts of an event in two worlds of so many repetitions each.

    Args:
        likely, unlikely: counts in the world that makes the event likely, and in the other.
        error: probability that the bound is too high.
    """

    def refuted(epsilon: float) -> bool:
        return p_value(likely, unlikely, repetitions, Claim(epsilon, delta), error / 20) <= error

    if not refuted(0.0):
        return 0.0
    # Upwards to the first epsilon that is not refuted: p-values need not be monotone beyond it.
    epsilon, step = 0.0, 0.25
    while step > 1e-3:
        while refuted(epsilon + step):
            epsilon += step
        step /= 4
    return epsilon


def p_value(likely: int, unlikely: int, repetitions: int, claim: Claim, reserve: float = 1e-4) -> float:
    """The p-value of counts: their largest probability, or of stronger evidence, over all releases that meet the claim.

    The exact unconditional test of two binomial probabilities p <= e^epsilon q + delta (Barnard 1947), with the
    difference of both sides as its statistic. The probability grows with p, so each q is paired with the largest p.
    Only plausible p and q are searched, for which ``reserve`` is added (Berger, Boos 1994).

    Args:
        likely, unlikely, repetitions: as for :func:`lower_bound`.
        reserve: probability that p or q is outside the searched interval; the p-value is not below it.
    """
    factor = math.exp(claim.epsilon)
    ends = _interval(np.array([likely, unlikely], dtype=np.float64), repetitions, reserve / 2)
    (least_p, least_q), (most_p, most_q) = (end.tolist() for end in ends)
    least_q = max(least_q, (least_p - claim.delta) / factor)  # smaller ones contradict the claim or p
    if least_q > most_q:
        return reserve
    # Even in the root, where the standard error is constant. The interval is about ten of them long.
    q = np.linspace(math.sqrt(least_q), math.sqrt(most_q), _POINTS) ** 2
    p = np.minimum(factor * q + claim.delta, most_p)
    # Counts within seven of the largest standard errors; others have probability < 5e-11 (Hoeffding 1963).
    width = 10 + 4 * math.isqrt(repetitions)
    counts = np.rint(q * repetitions)[:, None] + np.arange(-width, width + 1)
    # For each count of the unlikely event, the least count of the likely one with at least this difference.
    fewest = np.ceil(likely + factor * (counts - unlikely) - 1e-9)
    chances = binom.pmf(counts, repetitions, q[:, None]) * binom.sf(fewest - 1, repetitions, p[:, None])
    return min(1.0, float(chances.sum(1).max()) + 1e-10 + reserve)


def _interval(counts: Array, repetitions: int, error: float) -> tuple[Array, Array]:
    """Clopper and Pearson's (1934) two-sided intervals for binomial probabilities."""
    least = np.where(counts > 0, beta.ppf(error / 2, counts, repetitions - counts + 1), 0.0)
    return least, np.where(counts < repetitions, beta.isf(error / 2, counts + 1, repetitions - counts), 1.0)


def _events(worlds: Worlds) -> list[Event]:
    found = []
    for attack, present in worlds.present.items():
        both = np.sort(np.concatenate([present, worlds.absent[attack]]))
        for threshold in np.unique(both[np.linspace(0, len(both) - 1, _THRESHOLDS, dtype=int)]):
            found += [Event(attack, above, float(threshold)) for above in (True, False)]
    return found


def _doubt(likely: Array, unlikely: Array, claim: Claim, repetitions: int) -> Array:
    """Standard errors by which the claim is missed. Frequencies are shrunk towards 1/2: the maximum favours luck."""
    p, q = ((rate * repetitions + _DRAWN) / (repetitions + 2 * _DRAWN) for rate in (likely, unlikely))
    factor = math.exp(claim.epsilon)
    errors = np.sqrt(p * (1 - p) + factor**2 * q * (1 - q))
    return np.asarray((p - factor * q - claim.delta) / errors)


def _count(claim: Claim, event: Event, worlds: Worlds, error: float) -> Finding:
    present, absent = (int(event.happened(world).sum()) for world in worlds)
    likely, unlikely = (present, absent) if event.above else (absent, present)
    lower = lower_bound(likely, unlikely, worlds.repetitions, claim.delta, error)
    return Finding(claim, event, likely, unlikely, lower)
