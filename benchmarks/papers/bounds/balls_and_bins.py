"""Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD": one hidden round of many, Gaussian noise, remove direction.

Feldman and Shenfeld 2025 compare with both functions. Noise multipliers are in clipping norms, epsilon is in nats.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, ndtri

from benchmarks.papers.bounds.mixtures import Floats

_CHUNK = 2**20  # numbers drawn at once


def delta_from_below(noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """The best attack that looks only at the largest round: a lower bound of delta at ``epsilon >= 0``.

    The maximum over thresholds c of P(max >= c) - exp(epsilon) Q(max >= c), where one round's output has mean 1 (in
    clipping norms) under P and none under Q. Exact for one round.
    """
    signal = 1 / noise_multiplier

    def missed(threshold: Floats | float) -> Floats:
        """Minus the attack's delta; ``threshold`` in units of the noise."""
        below, signal_below = log_ndtr(threshold), log_ndtr(threshold - signal)
        seen, false_alarm = -np.expm1(signal_below + (rounds - 1) * below), -np.expm1(rounds * below)
        return np.asarray(math.exp(epsilon) * false_alarm - seen)

    grid = np.linspace(-10.0, signal + epsilon * noise_multiplier + 10.0, 1001)
    best = float(grid[np.argmin(missed(grid))])
    step = float(grid[1] - grid[0])
    refined = minimize_scalar(missed, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-9})
    return max(0.0, -float(min(refined.fun, np.min(missed(grid)))))


def sampled_deltas(
    noise_multiplier: float,
    rounds: int,
    epsilons: Sequence[float],
    samples: int,
    generator: np.random.Generator,
    confidence: float = 0.99,
) -> tuple[Floats, Floats]:
    """Monte Carlo with order statistics: means, and limits that each exceed delta with probability ``confidence``.

    A sample draws the person's round, and of all others' outputs some order statistics only (the 99 largest, then ever
    fewer, as in the authors' code); what lies between two of them is replaced by the larger. So the mean is an upper
    bound's, exact up to 100 rounds. The limit is Chernoff's for variables in [0, 1]: it holds for any number of
    samples, and never falls below ``1 - (1 - confidence) ** (1 / samples)``.

    Returns:
        Two arrays of shape (len(epsilons),); all epsilons (>= 0) share the samples.
    """
    sums = np.zeros(len(epsilons))
    for losses in _losses(noise_multiplier, rounds, samples, generator):
        sums += [float(-np.expm1(-np.maximum(losses - epsilon, 0.0)).sum()) for epsilon in epsilons]
    means = sums / samples
    return means, np.array([_upper_limit(float(mean), -math.log1p(-confidence) / samples) for mean in means])


def _losses(noise_multiplier: float, rounds: int, samples: int, generator: np.random.Generator) -> Iterator[Floats]:
    """Privacy losses, or upper bounds of them, in chunks."""
    orders = _orders(rounds)
    # Each order statistic stands for the rounds from its own rank to the next one's.
    weights = np.diff(np.append(orders, rounds))
    chunk = max(1, _CHUNK // (len(orders) + 1))
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        outputs = np.empty((size, len(orders) + 1))
        outputs[:, 0] = generator.standard_normal(size) + 1 / noise_multiplier
        outputs[:, 1:] = _largest_normals(rounds - 1, orders, size, generator)
        exponents = outputs / noise_multiplier - 1 / (2 * noise_multiplier**2)
        largest = exponents.max(axis=1)
        ratios = np.exp(exponents - largest[:, None]) @ np.append(1, weights)
        yield largest + np.log(ratios / rounds)


def _orders(rounds: int) -> NDArray[np.int64]:
    """The ranks that are drawn among the ``rounds - 1`` rounds without the person; all of them up to 100 rounds."""
    ranks = np.concatenate(
        [np.arange(1, 100), np.arange(100, 500, 10), np.arange(500, 1000, 50), np.arange(1000, max(rounds, 1001), 100)]
    )
    return ranks[ranks < rounds]


def _largest_normals(count: int, ranks: NDArray[np.int64], size: int, generator: np.random.Generator) -> Floats:
    """The order statistics of these ranks (1 is the largest) of ``count`` normals, shape (size, len(ranks)).

    The order statistics of uniforms are partial sums of ``count + 1`` exponentials over their total (Rényi 1953).
    """
    gaps = np.diff(np.concatenate([[0], ranks, [count + 1]]))
    sums = np.cumsum(generator.standard_gamma(gaps, size=(size, len(gaps))), axis=1)
    return -ndtri(sums[:, :-1] / sums[:, -1:])


def _upper_limit(mean: float, divergence: float) -> float:
    """The p >= ``mean`` at which the Kullback-Leibler divergence of the coins ``mean`` and p is ``divergence``."""
    if mean == 0:
        return -math.expm1(-divergence)
    if mean >= 1:
        return 1.0

    def excess(p: float) -> float:
        return mean * math.log(mean / p) + (1 - mean) * (math.log1p(-mean) - math.log1p(-p)) - divergence

    return float(brentq(excess, mean, 1 - 1e-15, xtol=1e-18, rtol=1e-12)) if excess(1 - 1e-15) > 0 else 1.0
