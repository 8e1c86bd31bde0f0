"""Rényi divergences of the base mechanisms that the subsampling theorems take as input.

A base mechanism is given as a function ``divergence(orders, distance)``: the largest Rényi divergence, in nats, between
its outputs on two batches ``distance`` neighbouring steps apart (an array like ``orders``, which may hold infinity).
Steps are insertions and removals, or substitutions, as the theorem at hand says; the sensitivity is that of one step.
"""

import math
from collections.abc import Callable

import numpy as np

from benchmarks.papers.bounds.arguments import Floats, check_positive, check_probability

BaseDivergence = Callable[[Floats, int], Floats]


def gaussian(noise_multiplier: float) -> BaseDivergence:
    """Gaussian noise of standard deviation ``noise_multiplier`` times the l2 sensitivity: ``a k^2 / (2 s^2)``.

    Schuchardt et al. 2024 print this without the 2 after Proposition E.5.
    """
    check_positive("noise_multiplier", noise_multiplier)
    return lambda orders, distance: np.asarray(orders) * distance**2 / (2 * noise_multiplier**2)


def laplace(scale: float) -> BaseDivergence:
    """Laplace noise of ``scale`` times the l1 sensitivity (Mironov 2017, Table II), here for shifts of ``distance``."""
    check_positive("scale", scale)

    def divergence(orders: Floats, distance: int) -> Floats:
        a, shift = np.asarray(orders, dtype=float), distance / scale
        finite = np.where(np.isfinite(a), a, 2.0)
        log_moment = np.logaddexp(
            np.log(finite / (2 * finite - 1)) + (finite - 1) * shift,
            np.log((finite - 1) / (2 * finite - 1)) - finite * shift,
        )
        return np.where(np.isfinite(a), log_moment / (finite - 1), shift)

    return divergence


def randomized_response(true_response: float) -> BaseDivergence:
    """One bit, answered truly with probability ``true_response``; the bit may be any function, so distance is moot."""
    check_probability("true_response", true_response)

    def divergence(orders: Floats, distance: int) -> Floats:
        a = np.asarray(orders, dtype=float)
        if distance == 0 or true_response == 0.5:
            return np.zeros_like(a)
        if true_response in (0, 1):
            return np.full_like(a, np.inf)
        odds = abs(math.log(true_response / (1 - true_response)))
        yes, no = math.log(max(true_response, 1 - true_response)), math.log(min(true_response, 1 - true_response))
        finite = np.where(np.isfinite(a), a, 2.0)
        log_moment = np.logaddexp(finite * yes + (1 - finite) * no, finite * no + (1 - finite) * yes)
        return np.where(np.isfinite(a), log_moment / (finite - 1), odds)

    return divergence


def log_moments(base: BaseDivergence, powers: Floats, distance: int) -> Floats:
    """``log Psi_l = (l - 1) D_l`` of the base mechanism for ``powers`` l >= 0; it is 0 for l = 0 and 1."""
    values = np.zeros_like(powers)
    above = powers >= 2
    values[above] = (powers[above] - 1) * base(powers[above], distance)
    return values
