"""Dong, Chen, Özgür 2025: Leveraging Randomness in Model and Data Partitioning for Privacy Amplification."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers import published
from benchmarks.papers.drawing import EXACT, LOCAL, LOOSE, OURS, POISSON, POISSON_RDP, Style, finish, start
from benchmarks.papers.record import Comparison, Figure
from fedamp.accounting import Allocation, Gaussian, Poisson, Repeat, Submodels
from fedamp.accounting.papers import partitioning

PAPER = "Dong, Chen, Özgür 2025"


def figure_1(path: Path) -> Sequence[Comparison]:
    """Noise for (3, 1e-5) over the number of rounds: rate 0.1, with and without three submodels."""
    rounds = np.array([50, 100, 200, 400, 800, 1600])
    orders = np.arange(2, 101)

    def by_formula(count: int) -> Callable[[int, float], float]:
        moments = partitioning.poisson_rdp_of_moments

        def epsilon(times: int, noise_multiplier: float) -> float:
            powers = np.arange(1, 101)
            rdp = partitioning.submodel_rdp(noise_multiplier, count, powers[1:])
            log_moments = np.concatenate([[0.0, 0.0], rdp * (powers[1:] - 1)])
            return partitioning.epsilon_from_rdp(times * moments(log_moments, 0.1, orders), orders, 1e-5)

        return epsilon

    def by_law(count: int) -> Callable[[int, float], float]:
        def epsilon(times: int, noise_multiplier: float) -> float:
            part = Gaussian(noise_multiplier)
            return Repeat(Poisson(Submodels(part, count) if count > 1 else part, 0.1), times).epsilon(1e-5).upper

        return epsilon

    curves: list[tuple[Callable[[int, float], float], Style]] = [
        (by_formula(1), LOCAL | {"label": "paper, no amplification"}),
        (by_formula(3), EXACT | {"label": "paper, 3 submodels"}),
        (by_law(1), OURS | {"label": "fedamp, no amplification", "linestyle": ":"}),
        (by_law(3), OURS | {"label": "fedamp, 3 submodels"}),
    ]
    axes = start(f"{PAPER}, Figure 1: rate 0.1, (3, 1e-5)", "rounds", "noise multiplier")
    for epsilon, style in curves:
        axes.plot(rounds, [_smallest_noise(partial(epsilon, int(t)), 3.0) for t in rounds], **style)
    axes.set_xscale("log")
    finish(axes, path)
    return []


def figure_2(path: Path) -> Sequence[Comparison]:
    """Rényi divergence over its order: 4 of 10 rounds, noise multiplier 2."""
    orders = np.arange(2, 19)
    axes = start(f"{PAPER}, Figure 2: 4 of 10 rounds, noise 2", "order", "Rényi divergence")
    axes.plot(orders, 10 * partitioning.poisson_rdp(2, 0.4, orders), **POISSON_RDP)
    axes.plot(orders, partitioning.forward_rdp_upper(2, 10, orders, 4), **LOOSE)
    axes.plot(orders, partitioning.forward_rdp(2, 10, orders, 4), **EXACT)
    axes.plot(orders, Allocation(Gaussian(2.0), 4, 10).rdp(orders.astype(float)), **OURS)
    finish(axes, path)
    return []


def figure_3(path: Path) -> Sequence[Comparison]:
    """Delta at epsilon 8 over the number of rounds: two fifths of them, noise multiplier 2."""
    rounds = np.arange(20, 101, 10)
    orders = np.arange(2, 41)
    epoch = partitioning.forward_rdp(2, 10, np.arange(2, 16), 4)
    axes = start(f"{PAPER}, Figure 3: 0.4 T of T rounds, noise 2, epsilon 8", "rounds", "delta")
    by_rdp: list[tuple[Callable[[int], Any], Any, Style]] = [
        (lambda t: t * partitioning.poisson_rdp(2, 0.4, orders), orders, POISSON_RDP),
        (lambda t: partitioning.forward_rdp_upper(2, t, orders, int(0.4 * t)), orders, LOOSE),
        (lambda t: t / 10 * epoch, np.arange(2, 16), EXACT | {"label": "Dong et al., Eq. (2), epochs of 10"}),
    ]
    for rdp, at, style in by_rdp:
        axes.plot(rounds, [math.exp(min(0.0, np.min((at - 1) * (rdp(t) - 8)))) for t in rounds], **style)
    axes.plot(rounds, [published.poisson(2.0, int(t), 0.4).delta(8).upper for t in rounds], **POISSON)
    axes.plot(rounds, [Allocation(Gaussian(2.0), int(t) * 2 // 5, int(t)).delta(8).upper for t in rounds], **OURS)
    axes.set_yscale("log")
    finish(axes, path)
    return []


def _smallest_noise(epsilon_of: Callable[[float], float], epsilon: float) -> float:
    """By bisection, to 1e-2, on the safe side."""
    low, high = 0.3, 20.0
    while high - low > 1e-2:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle) > epsilon else (low, middle)
    return high


FIGURES: Sequence[Figure] = (figure_1, figure_2, figure_3)
