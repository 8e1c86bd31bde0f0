"""What uses of people's data cost together when each is chosen after seeing the earlier ones: a privacy filter.

The uses of a series that was fixed in advance cost what ``Compose`` says. Where an operator chooses the next use by
earlier releases, that theorem does not apply. A budget (epsilon, delta) is then kept in two parts, fixed before the
first use: a Gaussian parameter mu, and a part of delta. A use costs a *share* s of both: the smallest s with

    delta(e)  <=  Gaussian delta of parameter sqrt(s) mu at e  +  s * (the part of delta)

for every e, in both directions. All uses together keep the budget as long as their shares sum up to at most 1, for each
person (docs/budget.md, Theorem 1 with its proof; Smith, Thakurta 2022, arXiv 2210.17520; Koskela, Tobaben, Honkela
2022, arXiv 2209.15596).
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from operator import methodcaller
from typing import NamedTuple

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.answers import is_sampled, sampled_profile
from fedamp.accounting.arithmetic import UNIT, Array, crossing, delta_left, gaussian_delta
from fedamp.accounting.bounds import Bounds, NotEvaluable, in_floating_point
from fedamp.accounting.convolve import DEFAULT_POINTS
from fedamp.accounting.events import Mechanism
from fedamp.accounting.law import Law
from fedamp.accounting.sampling import CHARGE, Pilot, SampledProfile, certify
from fedamp.accounting.theorems import normal

LARGEST_EPSILON = 70.0  # of a budget: up to here ``SAMPLER`` pays for the finite precision of the noise

PART = 0.1
"""The part of a budget's delta that pays for the tails of uses: for one to eight uses of the kinds in docs/budget.md
the least epsilon needs between 3 and 25 per cent."""

_MOST_USES = 1_000_000  # whose finite precision ``SAMPLER`` pays for
_POINTS, _END = 200, 1e-7  # of a curve; over ``PART`` of delta, the delta at which it ends
_FARTHEST = 300.0  # the largest epsilon of a curve
_NORMAL = 1e-12  # relative; scipy's normal distribution and its quantile err by some 1e-14 together
_HARDLY = 1.06  # the law's delta over a first estimate, up to which sampling gains nothing
_SAMPLED, _PRECISION = 8, 0.02  # epsilons that are sampled at once, and how precisely delta is known there


class Lines(NamedTuple):
    """Straight lines c - a x over x = e^epsilon >= 1, whose largest is at least delta everywhere. Shapes (n,)."""

    a: Array
    c: Array
    epsilon: Array  # where each line begins to be the largest


@dataclass(frozen=True)
class Budget:
    """A privacy budget for uses that are chosen one after the other: ``epsilon`` in (0, 70], ``delta`` in (0, 1).

    ValueError: they are not, or delta is too small for the finite precision of noise.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not checks.positive("epsilon", self.epsilon) <= LARGEST_EPSILON:
            raise ValueError(f"epsilon must be at most {LARGEST_EPSILON:g}, got {self.epsilon!r}")
        checks.delta(self.delta)
        delta_left(self.delta, _MOST_USES)  # refuses what is too small

    @property
    def _left(self) -> float:
        """The part of delta without the finite precision of the noise (docs/accounting.md, "Noise in finite
        precision") of all uses.
        """
        return delta_left(self.delta, _MOST_USES)

    @property
    def tails(self) -> float:
        """The part of delta that pays for what no Gaussian explains."""
        return PART * self._left

    @cached_property
    def mu(self) -> float:
        """The Gaussian parameter whose delta at epsilon is the rest, rounded down."""

        def kept(size: float) -> float:
            return -float(gaussian_delta(np.array([size**2]), self.epsilon, 1)[0])

        return crossing(kept, -(self._left - self.tails), 1e3, 1e-12)[0]

    def share(self, mechanism: Mechanism, sampled: bool = True) -> float:
        """The share of this budget that a use costs, rounded up; infinite: no budget pays for it.

        Without ``sampled`` hidden rounds are bounded by their law, which is quicker and a few per cent more. A sampled
        curve fails with a probability of at most 1e-6 times the delta that the use is charged.
        """
        if mechanism.releases_nothing:
            return 0.0
        if not mechanism.is_private:
            return math.inf
        lines = curve(mechanism, self.tails * _END)
        found = self._share_of(lines)
        if not sampled or not found < math.inf or not is_sampled(normal(mechanism)):
            return found
        level = 2.0 ** math.ceil(math.log2(found * self.tails))
        return min(found, self._share_of(_sampled_curve(mechanism, self.tails * _END, level), 1 + CHARGE))

    def _share_of(self, lines: Lines, dearer: float = 1.0) -> float:
        """The smallest share at which no line is above the Gaussian's delta and the part for tails, rounded up."""
        from scipy.special import ndtr, ndtri  # a slow import

        with np.errstate(divide="ignore"):
            quantiles = ndtri(lines.a)

        def missing(share: float) -> float:
            # inf over x >= 0 of (Gaussian delta + a x) is the true positive rate at the false positive rate a.
            power = ndtr(quantiles + self.mu * math.sqrt(share)) * (1 - _NORMAL)
            above = float(np.max(lines.c - power)) - share * self.tails / dearer
            return above if above == above else math.inf  # no number: it is not shown that the share is enough

        return crossing(missing, 0.0, 1e12, 1e-7)[1]

    def spent(self, share: float) -> float:
        """The epsilon, at this delta, of a budget that is ``share`` of this one in both parts, rounded up."""
        if share == 0:
            return 0.0
        left = self._left - share * self.tails
        signal = np.array([share * self.mu**2 * (1 + 4 * UNIT)])
        if not left > 0 or not math.isfinite(share):
            return math.inf
        return crossing(lambda epsilon: float(gaussian_delta(signal, epsilon, 1)[0]), left, 1e6, 1e-9)[1]


@lru_cache(maxsize=256)
def curve(mechanism: Mechanism, end: float) -> Lines:
    """Lines above delta at every epsilon >= 0, in both directions; from epsilon 0 to where delta is ``end``.

    delta is convex in e^epsilon, so a chord between two upper ends is above it: no epsilon is left out.
    """
    farthest = min(mechanism.epsilon(end, points=DEFAULT_POINTS).upper, _FARTHEST)
    epsilons = np.linspace(0.0, farthest, _POINTS)
    upper = np.array([mechanism.delta(float(epsilon)).upper for epsilon in epsilons])
    return _lines(epsilons, np.minimum(upper, 1.0))


@lru_cache(maxsize=256)
def _sampled_curve(mechanism: Mechanism, end: float, level: float) -> Lines:
    """The same, with delta sampled where it is between ``level`` and 250 times that: there the Gaussian is closest."""
    lines = curve(mechanism, end)
    known = lines.c - lines.a * np.exp(lines.epsilon)
    found, profile = [(lines.epsilon, known)], sampled_profile(normal(mechanism))
    for low, high in ((0.7, 5), (5, 40), (40, 250)):
        near = (known >= low * level) & (known <= high * level)
        if near.sum() > 1:
            at = np.linspace(lines.epsilon[near][0], lines.epsilon[near][-1], _SAMPLED)
            with suppress(NotEvaluable), in_floating_point():
                found.append(
                    (at, _sampled(profile, at, float(known[near][-1]), CHARGE * level / 24))
                )  # ``level`` is at most twice the charge
    epsilons, upper = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(epsilons, kind="stable")
    return _lines(epsilons[order], np.minimum(upper[order], 1.0))


def _sampled(profile: SampledProfile, epsilons: Array, known: float, failure: float) -> Array:
    """Upper ends of delta, which hold together but for a probability of ``failure``; NotEvaluable: too much work, or
    ``known`` is about delta at the last epsilon already.
    """
    last = float(epsilons[-1])
    look = partial(Pilot.at_epsilon, epsilon=last)
    pilot = profile.remove.pilot(profile.upper, methodcaller("log_bound", last), look)
    if known <= _HARDLY * pilot.delta:
        raise NotEvaluable("the law is as good")
    needed = pilot.draws_for(_PRECISION, math.log(2 * _SAMPLED / failure))
    draws = int(min(max(needed, 4096), profile.most_draws()))
    remove = certify(pilot.proposal, epsilons, np.zeros(0), draws, failure)[0] + profile.remove.share(profile.upper)
    add = [profile.known(partial(_add_direction, float(epsilon)), 0.0) for epsilon in epsilons]
    return np.maximum(remove, add)


def _add_direction(epsilon: float, law: Law) -> Bounds:
    return law.add.delta(epsilon)


def _lines(epsilons: Array, upper: Array) -> Lines:
    """The lower convex hull of points (e^epsilon, delta), each at or above a convex falling function."""
    x, kept = np.exp(epsilons), list[int]()
    upper = np.minimum.accumulate(upper)
    for i in range(len(x)):
        while kept and x[i] <= x[kept[-1]]:  # the same point twice: the lower one counts
            kept.pop()
        while len(kept) > 1:
            a, b = kept[-2:]
            if (upper[b] - upper[a]) * (x[i] - x[a]) < (upper[i] - upper[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    x, y = x[kept], upper[kept]
    # Beyond the last point delta only falls, and nowhere faster than 1. Any slope is right if the line is above both
    # ends of its piece: rounding is in the intercepts alone.
    slope = np.minimum(np.r_[-np.diff(y) / np.diff(x), 0.0], 1.0)
    ends = np.r_[y[1:] + slope[:-1] * x[1:], 0.0]
    c = np.maximum(y + slope * x, ends) * (1 + 8 * UNIT)
    return Lines(slope, c, epsilons[kept])
