"""Xiao, Wan, Devadas 2022: one step of ModelMix at real orders.

With the two mixed models ``tau`` apart and step size ``eta``, one coordinate of the noise is N(0, sigma^2) plus an
independent uniform of width ``tau / eta``. ``noise_multiplier`` and ``width`` are in clipping norms of the same update.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, logsumexp

from benchmarks.papers.bounds.mixtures import Floats

_TAIL = 12.0  # standard deviations kept on either side: exp(-12^2 / 2) = 5e-32


def one_coordinate_rdp(noise_multiplier: float, width: float, orders: ArrayLike, rate: float = 1.0) -> Floats:
    """One coordinate that takes the whole norm, Poisson sampled, at real orders > 1: **not a proved bound**.

    At whole orders it is Theorem 4.1. Between them the binomial sum of that theorem does not exist, and no proof says
    that one coordinate is the worst case. The epsilons of section 4.3 come out with orders 1.25 and 1.5 only.
    """
    divergences = []
    for order in np.atleast_1d(np.asarray(orders, dtype=float)):
        # The order narrows the features of the integrand from s to s / sqrt(order) at most.
        step = noise_multiplier / (8 + 8 * math.sqrt(order))
        left, right = -width / 2 - _TAIL * noise_multiplier, width / 2 + order + _TAIL * noise_multiplier
        z = np.arange(left, right + step, step)
        out = _log_density(z, noise_multiplier, width)
        with np.errstate(divide="ignore"):  # rates 0 and 1
            sampled = np.logaddexp(np.log1p(-rate), np.log(rate) + _log_density(z - 1, noise_multiplier, width) - out)
        divergences.append((logsumexp(order * sampled + out) + math.log(step)) / (order - 1))
    return np.array(divergences)


def _log_density(z: Floats, noise_multiplier: float, width: float) -> Floats:
    """Log density of a centred normal plus a uniform of ``width``, taken on the left, where the tails keep digits."""
    if width == 0:
        return np.asarray(-((z / noise_multiplier) ** 2) / 2 - math.log(noise_multiplier * math.sqrt(2 * math.pi)))
    left = -np.abs(z)
    high = log_ndtr((left + width / 2) / noise_multiplier)
    low = log_ndtr((left - width / 2) / noise_multiplier)
    return np.asarray(high + np.log(-np.expm1(low - high)) - math.log(width))
