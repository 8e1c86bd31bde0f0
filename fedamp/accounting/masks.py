"""Hidden dropout under Gaussian noise: moments for every chance to keep a unit, and the law that they prove.

X is then a mean of ratios of Gaussian releases, so log X is convex in the noise. Proofs are in
docs/research/accounting.md, "Dropout".
"""

import math
from dataclasses import replace

import numpy as np

from fedamp.accounting.arithmetic import UNIT, Array, convex_hull, mapped
from fedamp.accounting.law import RATIO_LIMIT, Detail, Law, Points, union_of_points

_FINER = 4  # nodes of the integral for each point of the law
_LEVELS = 64  # eigenvalues of the first unit kept that are told apart
_ROUNDING = 1e-9  # above what floating point does to profiles: some 1e-12 for thousands of points
_LARGEST, _SMALLEST = 50.0, 1e-12  # signals: at much signal closed forms answer; near 0 ratios are 1 in floating point


def _largest_eigenvalue(keep: float, gain: Array) -> Array:
    """At least that of 1 + gain K², for the K of any two independent masks, shape as ``gain``."""
    chance = keep * (1 - keep) ** np.arange(_LEVELS + 1)
    squares = np.append(chance[:-1] ** 2, chance[-1] ** 2 / (keep * (2 - keep)))  # the last one stands for all later
    low, first = np.maximum(1.0, gain * keep), gain * keep
    high = (1 + first + np.sqrt((1 - first) ** 2 + 4 * first / (2 - keep))) / 2  # all eigenvalues as the first one
    for _ in range(50):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            found = 1 + np.sum(gain[:, None] * squares / (middle[:, None] - gain[:, None] * chance), axis=1)
        enough = found <= middle
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(high)


def mask_moments(keep: float, signal: float, orders: Array) -> Array:
    """Bound log E[X^a] where hidden masks keep each unit with at most a chance.

    Args:
        keep: the chance, p in (0, 1).
        signal: of the release without masks, 1 / noise multiplier².
        orders: whole numbers a >= 1, shape (n,).

    Returns:
        Shape (n,).
    """
    exponent = np.minimum((orders - 1) * signal / 2, 300.0)
    gain = np.expm1(exponent)
    largest = exponent * keep + _largest_eigenvalue(keep, gain - exponent)
    next_one = gain * keep * (1 - keep)
    next_one += np.maximum(1 + gain * keep - largest, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # order 1 has no gain
        others = orders * np.log(gain * keep * (1 - keep) ** 2) - np.log1p(-((1 - keep) ** orders))
        bound = np.logaddexp.reduce([orders * np.log(largest), orders * np.log(next_one), others])
    pairs = np.log1p(keep * signal + (math.expm1(min(signal, 300.0)) - signal) * keep / (2 - keep))
    bound = np.where(orders == 2, pairs, bound) * (1 + 64 * UNIT) + 64 * orders * UNIT
    bound = np.where(orders * signal < 600, bound, orders * (orders - 1) * signal / 2)  # else without masks
    return np.where(orders == 1, 0.0, bound)


def bound_quantiles(orders: Array, log_moments: Array, z: Array) -> Array:
    """Bound log X at its quantiles of chance Phi(z) under Q, where X is a mean of ratios of Gaussian releases.

    Args:
        orders: a, increasing from 1, shape (m,).
        log_moments: at least log E[X^a], shape (m,).
        z: >= 0, increasing, shape (n,).

    Returns:
        Shape (n,), not falling.
    """
    a = np.interp(np.linspace(0, len(orders) - 1, 8 * len(orders) - 7), np.arange(len(orders)), orders)
    base, found = np.interp(a, orders, log_moments / orders), []
    for some in np.array_split(z, -(-len(z) // 64)):
        # The best order rises with z; any order gives a bound.
        low, high = (int(np.argmin(base + each**2 / (2 * a))) for each in (some[0], some[-1]))
        near = slice(low, high + 1)
        found.append(np.min(base[near] + some[:, None] ** 2 / (2 * a[near]), axis=1))
    return np.asarray(np.maximum.accumulate(np.concatenate(found)))


def law_under_masks(labels: Law, keep: float, signal: float, detail: Detail) -> Law:
    """Return a law above X in convex order: with the smaller profile of ``labels`` and of what the moments prove.

    The add direction is never the larger one, so each point is as likely under P as its inverse under Q.

    Args:
        labels: a law above X.
        keep, signal: as of :func:`mask_moments`.
        detail: how fine, and how far into the tails.
    """
    if not _SMALLEST < signal < _LARGEST:
        return labels
    z = np.linspace(0.0, detail.reach + math.sqrt(signal), _FINER * detail.points + 1)[1:]
    most = max(4.0, min(1 + z[-1] / math.sqrt(keep * signal), 590 / signal))
    spread = np.geomspace(min(64.0, most), most, 150).round()
    orders = np.unique(np.concatenate([np.arange(1.0, min(65.0, most)), np.floor(spread)]))
    log_ratio = bound_quantiles(orders, mask_moments(keep, signal, orders), z)
    rises = np.append(True, np.diff(log_ratio) > 0)
    z, log_ratio = z[rises], log_ratio[rises]
    if log_ratio[-1] > RATIO_LIMIT:
        return labels
    above, excess = labels.remove, np.expm1(log_ratio)
    by_labels = np.minimum(above.upper.delta_at(log_ratio - above.slack) * (1 + above.slack), 1.0)
    rarer = mapped(math.erfc, z[:-1] / math.sqrt(2)) / 2
    beyond = (np.diff(excess) * rarer)[::-1].cumsum()[::-1]
    by_moments = np.append(beyond, 0.0) + by_labels[-1]
    kept = np.arange(len(z) - 1, -1, -_FINER)[::-1]
    excess, log_ratio = excess[kept], log_ratio[kept]
    profile = convex_hull(excess, np.minimum(by_moments, by_labels)[kept] * (1 + _ROUNDING))
    # The profile at 1/r is 1 - 1/r + profile(r)/r. A straight line joins both, from the first r where this is convex.
    slope, across = np.append(np.diff(profile) / np.diff(excess), 0.0), (profile - 1) / (excess + 2)
    first = int(np.argmax(slope >= across))
    mass_out = np.maximum(np.diff(slope[first:], prepend=across[first]), 0.0)
    ratio = np.exp(log_ratio[first:])
    half = Points(log_ratio[first:], ratio * mass_out, mass_out, 0.0, float(profile[-1]))
    upper = union_of_points([half.swapped_law, half])
    return Law(upper, replace(upper), labels.rounding + _ROUNDING, detail.points)
