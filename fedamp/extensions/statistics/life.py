"""Compute survival curves and the log-rank test from noisy counts on a public grid of times.

A person adds to one cell: the interval of the time, and whether the event happened then. People at risk are sums of
later cells, so a curve costs one histogram. Kaplan and Meier (1958) and Greenwood (1926) say the rest. Noise is carried
through by the delta method. With few people or events Greenwood's interval covers too rarely. So the wider interval
also has that of the beta product (Fay, Brittain, Proschan 2013), which suits any number of people.

The partial likelihood of Cox is no sum over people: each term divides by a sum over all people at risk, so no bounded
contribution of a person exists.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedamp.base.arrays import Floats
from fedamp.extensions.statistics.intervals import normal_quantile

STEADY = 5.0
"""Deviations of noise that the people at risk must exceed: below it the delta method is no good."""


class CurvePoint(NamedTuple):
    """A point of a survival curve.

    Attributes:
        survival: share of people without the event, in [0, 1].
        lower, upper: interval for noise alone.
        people_lower, people_upper: interval for noise, and for people as a sample.
    """

    survival: float
    lower: float
    upper: float
    people_lower: float
    people_upper: float


def at_risk(cells: Floats, deviation: float) -> tuple[Floats, Floats]:
    """Return the people at risk at the beginning of each interval, and the deviation of their noise.

    Args:
        cells: noisy counts [intervals + 1, 2] of people without and with the event; the last interval is open.
        deviation: of the noise in each cell.
    """
    return cells.sum(1)[::-1].cumsum()[::-1], deviation * np.sqrt(2 * np.arange(len(cells), 0, -1))


def _steady_intervals(risk: Floats, spread: Floats, least: float = 0.0) -> int:
    """Count the intervals from the first one on in which noise does not hide the people at risk, at least ``least``."""
    steady = (risk[:-1] >= least) & (risk[:-1] > STEADY * spread[:-1]) & (risk[:-1] > 0)
    return int(np.argmin(np.append(steady, False)))


def _through_noise(by_risk: Floats, by_events: Floats, intervals: int) -> float:
    """Return the norm of a gradient with respect to the cells.

    Args:
        by_risk, by_events: the gradient with respect to people at risk, and to events, [intervals used].
        intervals: of the grid.
    """
    each = np.zeros(intervals + 1)
    each[: len(by_risk)] = by_risk
    without = each.cumsum()  # a cell counts as at risk in all intervals up to its own
    with_event = without.copy()
    with_event[: len(by_events)] += by_events
    return float(np.sqrt((without**2).sum() + (with_event**2).sum()))


def survival_curve(cells: Floats, deviation: float, errors: Sequence[float]) -> list[CurvePoint]:
    """Estimate the share of people without the event after each interval, as Kaplan and Meier do.

    Where noise hides the people at risk, an interval reaches from 0 to the last upper end: survival does not rise.

    Args:
        cells, deviation: as of :func:`at_risk`.
        errors: probability that the interval of each point misses its number, to first order in the noise.

    Returns:
        A point for each interval; without noise, until nobody is at risk.
    """
    (risk, spread), events = at_risk(cells, deviation), cells[:-1, 1]
    known, alive = _steady_intervals(risk, spread), risk[:-1] - events
    if deviation:  # where noise leaves nobody without the event, the slope of the curve is unknown
        known = int(np.argmin(np.append(alive[:known] > 0, False)))
    curve = _KnownCurve(risk[: known + 1], events[:known], deviation, len(events))
    points = [curve.point(place, error) for place, error in enumerate(errors[:known])]
    shown = points[-1].survival if points else 1.0
    for place in range(known, len(errors) if deviation else known):
        ends = curve.point(known - 1, errors[place]) if known else CurvePoint(1, 0, 1, 0, 1)
        shown *= min(max(alive[place] / risk[place], 0.0), 1.0) if risk[place] > 0 else 1.0
        points.append(CurvePoint(shown, 0.0, ends.upper, 0.0, ends.people_upper))
    return points


class _KnownCurve:
    """The part of a survival curve in which noise does not hide the people at risk.

    Args:
        risk: noisy people at risk at the beginning of each interval, and after the last one.
        events: noisy, in each interval.
        deviation: of the noise in each cell.
        intervals: of the grid.
    """

    def __init__(self, risk: Floats, events: Floats, deviation: float, intervals: int) -> None:
        self._later, used = risk[1:], risk[:-1]
        alive = used - events
        some, stayed = np.maximum(events, 0), np.maximum(alive, 0)
        self._survival = np.cumprod(stayed / used)
        self._shown = np.minimum.accumulate(np.minimum(self._survival, 1.0))
        with np.errstate(all="ignore"):
            self._greenwood = np.cumsum(np.where(alive > 0, some / (used * alive), math.inf))
        self._noise = np.zeros(len(used))
        for place in range(len(used) if deviation else 0):
            past = slice(place + 1)
            by_risk = events[past] / (used[past] * alive[past])
            self._noise[place] = deviation * _through_noise(by_risk, -1 / alive[past], intervals)
        # The shares that stay in each interval are products of independent beta variables, given the people at risk.
        self._first = np.cumprod((stayed + 1) / (stayed + some + 1))
        self._second = self._first * np.cumprod((stayed + 2) / (stayed + some + 2))

    def point(self, place: int, error: float) -> CurvePoint:
        """Return a point with intervals that miss with a probability."""
        quantile, survival, shown = normal_quantile(error), self._survival[place], float(self._shown[place])
        noise, first, second, later = (
            float(each[place]) for each in (self._noise, self._first, self._second, self._later)
        )
        half = quantile * noise * survival
        lower, upper = (min(max(float(end), 0.0), 1.0) for end in (survival - half, survival + half))
        lower, upper = min(lower, shown), max(upper, shown)
        people = [*greenwood_interval(shown, math.hypot(math.sqrt(self._greenwood[place]), noise) * quantile)]
        more = (noise * survival) ** 2
        people.append(_beta_quantile(first, second - first**2 + more, 1 - error / 2, 1.0))
        if later > 0:  # the next event is missing on the lower side
            mean = first * later / (later + 1)
            people.append(_beta_quantile(mean, second * later / (later + 2) - mean**2 + more, error / 2, 0.0))
        else:
            people.append(0.0)
        return CurvePoint(shown, lower, upper, min(lower, *people), max(upper, *people))


def greenwood_interval(survival: float, half: float) -> tuple[float, float]:
    """Return the interval of a survival share, from half the width of that of its logarithm.

    >>> [round(end, 3) for end in greenwood_interval(0.5, 0.2)]
    [0.397, 0.595]
    """
    if survival in (0.0, 1.0):
        return survival, survival
    log = math.log(survival)
    wide = min(half / -log, 700.0)
    return math.exp(log * math.exp(wide)), math.exp(log * math.exp(-wide))


def _beta_quantile(mean: float, variance: float, share: float, end: float) -> float:
    """Return a quantile of the beta variable with a mean and a variance; ``end`` where there is none."""
    from scipy.special import betaincinv  # only here: the import takes long

    both = mean * (1 - mean) / variance - 1 if variance > 0 else 0.0
    return float(betaincinv(mean * both, (1 - mean) * both, share)) if both > 0 and 0 < mean < 1 else end


def log_rank(groups: Floats, deviation: float, least: float, error: float) -> tuple[int, float, float, float, float]:
    """Compare the events of two groups with those expected if both had the same hazard (Mantel 1966).

    Args:
        groups: noisy counts [2, intervals + 1, 2].
        deviation: of the noise in each cell.
        least: a public number of people; with fewer at risk in a group the comparison ends.
        error: probability that the interval misses its number, to first order in the noise.

    Returns:
        How many intervals are compared, until too few people of a group are at risk. Of these: events of the first
        group beyond the expected ones, both ends of its interval for noise alone, and its variance under the hypothesis
        without noise; that of the noise is to be added.
    """
    known = [at_risk(cells, deviation) for cells in groups]
    used = min(_steady_intervals(*each, least) for each in known) if deviation else groups.shape[1] - 1
    (first, second), (gone, others) = ([each[0][:used] for each in known], groups[:, :used, 1])
    risk, events = first + second, gone + others
    share = np.divide(first, risk, out=np.zeros_like(risk), where=risk > 0)
    beyond = float((gone - share * events).sum())
    with np.errstate(all="ignore"):
        spread = np.where(risk > 1, share * (1 - share) * np.maximum(events, 0) * (risk - events) / (risk - 1), 0.0)
        slopes = [
            np.where(risk > 0, side * events * other / risk**2, 0.0) for side, other in ((-1, second), (1, first))
        ]
    norms = [
        _through_noise(slope, by_events, groups.shape[1] - 1)
        for slope, by_events in zip(slopes, (1 - share, -share), strict=True)
    ]
    half = normal_quantile(error) * deviation * math.hypot(*norms)
    return used, beyond, beyond - half, beyond + half, float(np.maximum(spread, 0).sum())
