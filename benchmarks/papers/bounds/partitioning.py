"""Dong, Chen, Özgür 2025: Rényi divergences of ``chosen`` of ``rounds`` hidden rounds, in nats, a person removed."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from scipy.stats import hypergeom

from benchmarks.papers.bounds.mixtures import Floats
from fedamp.accounting.sampling import hidden_log_moments


def cheap_rdp(noise_multiplier: float, chosen: int, rounds: int, orders: ArrayLike) -> Floats:
    """Corollary 3.14, first term of Eq. (3): an upper bound in ``O(chosen)`` an order, shape (orders,)."""
    order, overlap = np.asarray(orders, dtype=float), np.arange(chosen + 1)
    log_probability = hypergeom.logpmf(overlap, rounds, chosen, chosen)
    return np.asarray(logsumexp(log_probability + order[:, None] * overlap / (2 * noise_multiplier**2), axis=1))


def exact_rdp(noise_multiplier: float, chosen: int, rounds: int, highest: int) -> Floats:
    """Theorem 3.1, first term of Eq. (2): exact, at the orders 2 to ``highest``.

    The sum over tuples of choices is E[X^order] of the likelihood ratio X. fedamp counts the tuples by their overlaps.

    Raises:
        NotEvaluable: the choices overlap in too many ways.
    """
    order = np.arange(highest + 1.0)
    one_round = order * (order - 1) / (2 * noise_multiplier**2)
    moments = hidden_log_moments(one_round, (0.0,) * chosen + (1.0,), rounds)
    return np.asarray(moments[2:] / (order[2:] - 1))


def smallest_noise(epsilon_of: Callable[[float], float], epsilon: float) -> float:
    """The noise multiplier at which a published bound falls to ``epsilon``, to one part in 10^4, on the safe side."""
    low, high = 0.2, 20.0
    while high > low * 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon_of(middle) > epsilon else (low, middle)
    return high
