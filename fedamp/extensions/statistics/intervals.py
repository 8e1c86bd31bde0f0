"""Compute intervals that cover Gaussian noise: of ratios of sums, of moments, and of quantiles.

Cells are sums over people with independent Gaussian noise of one known deviation. A ratio has the interval of Fieller
(1954), which is exact. A variance or a correlation is a ratio of linear forms once some means are known. Its interval
is the union over an interval of these means; the two errors add up (Berger and Boos 1994). Nothing here covers that the
people are a sample.
"""

import math
from itertools import product
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from fedamp.base.arrays import Floats

NUISANCE = 0.1
"""Share of the error that the intervals of the unknown means spend."""
SELECTION = 0.01
"""Share of the error that is spent on the lower end of a count that decides whether a number is shown."""
_PLACES = 9  # of each unknown mean at which the ratio is computed


def normal_quantile(error: float) -> float:
    """Return the number of deviations that a Gaussian number exceeds, on either side, with a probability.

    >>> round(normal_quantile(0.05), 3)
    1.96
    """
    return NormalDist().inv_cdf(1 - error / 2)


def shown_error(error: float, count: float, noise: float, least: float) -> float:
    """Return an error for an interval of a number that is shown only where a noisy count reached a threshold.

    Noise has lifted such a count more often than it has lowered it. Among the results in which the number is shown, the
    interval misses with at most the wanted error: one part of it is spent on a lower end of the true count, given that
    the count is shown. With that end the number is shown with a known probability at least, and the other part is
    multiplied by that (an event of probability p has at most 1 / p times the probability if the number is shown).

    Args:
        error: that is wanted.
        count: the noisy count, at least ``least``.
        noise: deviation of the count's noise.
        least: the threshold.

    >>> shown_error(0.05, 1000.0, 4.0, 10.0)
    0.0495
    """
    if not noise:
        return error
    part, low, high = SELECTION * error, max(0.0, count - 9 * noise), count
    if count > least + 12 * noise:
        return error - part
    for _ in range(20):
        middle = (low + high) / 2
        above, shown = (0.5 * math.erfc((end - middle) / noise / math.sqrt(2)) for end in (count, least))
        low, high = (middle, high) if above < part * shown else (low, middle)
    shown = 0.5 * math.erfc((least - low) / noise / math.sqrt(2))
    return (error - part) * max(shown, 1e-9)  # what is rarer than that does not happen


def ratio_interval(
    cells: Floats, top: ArrayLike, bottom: ArrayLike, deviation: float, error: float, ends: tuple[float, float]
) -> tuple[float, float]:
    """Return an interval of the ratio of two linear forms of cells, for each of several pairs: their union.

    Args:
        cells: noisy sums, [cells].
        top, bottom: coefficients of the forms, [cells] or [pairs, cells].
        deviation: of the noise in each cell, at least 0.
        error: probability that the interval misses the ratio, in (0, 1).
        ends: the least and the largest possible ratio; where noise hides the bottom, the interval is both.

    >>> ratio_interval(np.array([50.0, 100.0]), [1, 0], [0, 1], 0.0, 0.05, (0.0, 1.0))
    (0.5, 0.5)
    """
    over, under = np.atleast_2d(np.asarray(top, float)), np.atleast_2d(np.asarray(bottom, float))
    scale = (normal_quantile(error) * deviation) ** 2
    above, below = over @ cells, under @ cells
    square = below**2 - scale * (under**2).sum(1)
    middle = above * below - scale * (over * under).sum(1)
    constant = above**2 - scale * (over**2).sum(1)
    with np.errstate(all="ignore"):
        half = np.sqrt(np.maximum(middle**2 - square * constant, 0.0))
        lower, upper = (
            np.where(square > 0, (middle + sign * half) / square, end) for sign, end in ((-1, ends[0]), (1, ends[1]))
        )
    return float(np.clip(lower.min(), *ends)), float(np.clip(upper.max(), *ends))


def moments_interval(cells: Floats, wanted: str, deviation: float, error: float) -> tuple[float, float, float]:
    """Estimate a variance, a covariance or a correlation from noisy moments, with an interval.

    Args:
        cells: noisy sums of 1, x, x^2, or of 1, x, y, x^2, y^2, x y, for x and y in [-1, 1].
        wanted: ``variance`` of x, ``covariance``, or ``correlation``.
        deviation: of the noise in each cell.
        error: probability that the interval misses the number.

    Returns:
        The number, and both ends of its interval.
    """
    places = (1,) if wanted == "variance" else (1, 2)
    unknown = len(places) + 2 * (wanted == "correlation")
    each = NUISANCE * error / unknown if deviation else error
    count = np.eye(len(cells))[0]
    grids = []
    for place in places:
        ends = ratio_interval(cells, np.eye(len(cells))[place], count, deviation, each, (-1.0, 1.0))
        grids.append(np.linspace(*ends, _PLACES))
    main = (1 - NUISANCE) * error
    if wanted == "variance":
        means = np.stack(grids[0:1], 1)
        form, ends = _centred(means[:, 0], means[:, 0], (1, 1, 2), len(cells)), (0.0, 1.0)
        lower, upper = ratio_interval(cells, form, np.broadcast_to(count, form.shape), deviation, main, ends)
    else:
        x, y = np.array(list(product(*grids))).T
        shared = _centred(x, y, (1, 2, 5), len(cells))
        if wanted == "covariance":
            pairs = shared, np.broadcast_to(count, shared.shape)
        else:
            spreads = [_spread(cells, place, deviation, each) for place in (1, 2)]
            (least_x, most_x), (least_y, most_y) = spreads
            logs = np.linspace(math.log(least_x / most_y), math.log(most_x / least_y), _PLACES) / 2
            factors = np.exp(logs)[:, None, None]  # deviation of x over that of y
            of_x, of_y = _centred(x, x, (1, 1, 3), len(cells)), _centred(y, y, (2, 2, 4), len(cells))
            both = (of_x / factors + of_y * factors).reshape(-1, len(cells))
            pairs = np.broadcast_to(2 * shared, (_PLACES, *shared.shape)).reshape(both.shape), both
        lower, upper = ratio_interval(cells, *pairs, deviation, main, (-1.0, 1.0))
    return min(max(_estimate(cells, wanted), lower), upper), lower, upper


def _spread(cells: Floats, place: int, deviation: float, error: float) -> tuple[float, float]:
    """Return both ends of the variance of x or y, among the moments of two numbers; never 0."""
    _, lower, upper = moments_interval(cells[[0, place, place + 2]], "variance", deviation, error)
    return max(lower, 1e-9), max(upper, 1e-9)


def _centred(x: Floats, y: Floats, places: tuple[int, int, int], cells: int) -> Floats:
    """Return coefficients of the sum of (x - mean)(y - mean), [means, cells].

    Args:
        x, y: the means.
        places: of the sums of x, of y and of their product among the cells.
        cells: their number.
    """
    form = np.zeros((len(x), cells))
    form[:, places[2]] = 1.0
    form[:, places[0]] -= y
    form[:, places[1]] -= x
    form[:, 0] += x * y
    return form


def _estimate(cells: Floats, wanted: str) -> float:
    """Estimate a variance, covariance or correlation from noisy moments; 0 where noise leaves none."""
    if cells[0] <= 0:
        return 0.0
    moments = cells / cells[0]
    if wanted == "variance":
        return float(moments[2] - moments[1] ** 2)
    shared = float(moments[5] - moments[1] * moments[2])
    if wanted == "covariance":
        return shared
    square = float((moments[3] - moments[1] ** 2) * (moments[4] - moments[2] ** 2))
    return shared / math.sqrt(square) if square > 0 else 0.0


def quantile_interval(cells: Floats, share: float, deviation: float, error: float) -> tuple[int, float, int, int]:
    """Find the bin of a quantile of a noisy histogram, with a set of bins that covers it.

    A bin is in the set unless its lower edge has significantly more than the share below it, or its upper edge
    significantly less. Each is a test of half the error, so the bin of the quantile is left out with at most the error.

    Args:
        cells: noisy counts by bin, in order.
        share: of the count that is below the quantile, in (0, 1).
        deviation: of the noise in each count.
        error: probability that the set misses the bin.

    Returns:
        The bin; how far into it the quantile is, in [0, 1]; and the first and the last bin of the set.

    >>> quantile_interval(np.array([10.0, 20.0, 10.0]), 0.5, 0.0, 0.05)
    (1, 0.5, 1, 1)
    """
    below = np.arange(len(cells) + 1)
    found = np.concatenate([[0.0], np.cumsum(cells)]) - share * cells.sum()
    room = normal_quantile(error) * deviation * np.sqrt(below * (1 - share) ** 2 + (len(cells) - below) * share**2)
    slack = 1e-9 * (1 + abs(cells.sum()))  # of rounding
    inside = np.flatnonzero((found[:-1] <= room[:-1] + slack) & (found[1:] >= -room[1:] - slack))
    rising = np.maximum.accumulate(found)
    bin_ = min(max(int(np.searchsorted(rising, 0.0)) - 1, 0), len(cells) - 1)
    first, last = (int(inside[0]), int(inside[-1])) if len(inside) else (0, len(cells) - 1)
    bin_ = min(max(bin_, first), last)
    step = rising[bin_ + 1] - rising[bin_]
    part = float(np.clip(-rising[bin_] / step, 0, 1)) if step > 0 else 0.5
    return bin_, part, first, last
