"""Compute survival curves and the log-rank test from noisy counts on a public grid of times.

A person adds to one cell: the interval of the time, and whether the event happened then. People at risk are sums of
later cells, so a curve costs one histogram. Kaplan and Meier (1958) and Greenwood (1926) say the rest. Noise is carried
through by the delta method. The partial likelihood of Cox is no sum over people: each term divides by a sum over all
people at risk, so no bounded contribution of a person exists.
"""

import math
from typing import NamedTuple

import numpy as np

from fedamp.base.arrays import Floats
from fedamp.extensions.statistics.intervals import normal_quantile

STEADY = 5.0
"""Deviations of noise that the people at risk must exceed, or a curve ends: below it the delta method is no good."""


class CurvePoint(NamedTuple):
    """A point of a survival curve.

    Attributes:
        at_risk: noisy number of people at risk.
        survival: share of people without the event, in [0, 1].
        lower, upper: interval for noise alone.
        people_lower, people_upper: interval for noise, and for people as a sample (Greenwood's, on the scale of the
            logarithm of minus the logarithm).
    """

    at_risk: float
    survival: float
    lower: float
    upper: float
    people_lower: float
    people_upper: float


def at_risk(cells: Floats, deviation: float, least: float) -> tuple[Floats, Floats, int]:
    """Return people at risk and events in each interval, and how many intervals have enough people at risk.

    Args:
        cells: noisy counts [intervals + 1, 2] of people without and with the event; the last interval is open.
        deviation: of the noise in each cell.
        least: a public number of people; with fewer the curve ends.
    """
    later = cells.sum(1)[::-1].cumsum()[::-1][:-1]
    noise = deviation * np.sqrt(2 * np.arange(len(cells), 1, -1))
    steady = (later >= least) & (later > STEADY * noise) & (later > 0)
    return later, cells[:-1, 1], int(np.argmin(np.append(steady, False)))


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


def survival_curve(cells: Floats, deviation: float, least: float, error: float) -> list[CurvePoint]:
    """Estimate the share of people without the event after each interval, as Kaplan and Meier do.

    Args:
        cells, deviation, least: as of :func:`at_risk`.
        error: probability that an interval misses its number, to first order in the noise.

    Returns:
        A point for each interval, until too few people are at risk.
    """
    risk, events, last = at_risk(cells, deviation, least)
    quantile, points = normal_quantile(error), list[CurvePoint]()
    survival, shown, greenwood = 1.0, 1.0, 0.0
    for place in range(last):
        alive = risk[place] - events[place]
        if alive <= 0 and deviation:  # noise hides the end of the curve
            break
        survival *= max(alive, 0.0) / risk[place]
        shown = min(shown, max(survival, 0.0))
        greenwood += max(events[place], 0.0) / (risk[place] * alive) if alive > 0 else math.inf
        noise = 0.0
        if alive > 0:
            used, gone = risk[: place + 1], events[: place + 1]
            noise = deviation * _through_noise(gone / (used * (used - gone)), -1 / (used - gone), len(risk))
        half = quantile * noise * survival
        ends = [min(max(end, 0.0), 1.0) for end in (survival - half, survival + half)]
        both = _greenwood(shown, math.sqrt(greenwood + noise**2) * quantile)
        people = min(both[0], ends[0]), max(both[1], ends[1])
        points.append(CurvePoint(float(risk[place]), shown, *(min(ends[0], shown), max(ends[1], shown)), *people))
    return points


def _greenwood(survival: float, half: float) -> tuple[float, float]:
    """Return the interval of a survival share, from half the width of that of its logarithm."""
    if survival in (0.0, 1.0):
        return survival, survival
    log = math.log(survival)
    wide = min(half / -log, 700.0)
    return math.exp(log * math.exp(wide)), math.exp(log * math.exp(-wide))


def log_rank(groups: Floats, deviation: float, least: float, error: float) -> tuple[int, float, float, float, float]:
    """Compare the events of two groups with those expected if both had the same hazard (Mantel 1966).

    Args:
        groups: noisy counts [2, intervals + 1, 2].
        deviation, least, error: as of :func:`survival_curve`.

    Returns:
        How many intervals are compared, until too few people of a group are at risk. Of these: events of the first
        group beyond the expected ones, both ends of its interval for noise alone, and its variance under the hypothesis
        without noise; that of the noise is to be added.
    """
    (first, gone, last), (second, others, end) = (at_risk(cells, deviation, least) for cells in groups)
    used = min(last, end) if deviation else len(first)
    first, gone, second, others = (each[:used] for each in (first, gone, second, others))
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
