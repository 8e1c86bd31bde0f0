"""Feldman, Shenfeld 2025, Figures 8 and 10: delta over epsilon, with what Monte Carlo tells of it."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import published
from benchmarks.papers.bounds import balls_and_bins
from benchmarks.papers.drawing import COMBINED, OURS, POISSON, SAMPLED, SAMPLED_LIMIT, make_readable, save
from benchmarks.papers.record import Comparison
from fedamp import rng
from fedamp.accounting import Allocation, Gaussian

SAMPLES, CONFIDENCE = 500_000, 0.99
Curve = NDArray[np.float64]


def figure_8(path: Path) -> Sequence[Comparison]:
    """Delta over epsilon, 1 of t rounds: bounds, Poisson sampling, and Monte Carlo of half a million samples."""
    panels = ((100, 0.75), (100, 0.5), (10_000, 0.75), (10_000, 0.5))
    return _deltas(path, "Figure 8", panels, np.linspace(0.5, 4.0, 10).tolist())


def figure_10(path: Path) -> Sequence[Comparison]:
    """Delta over epsilon at the settings of Chua et al. 2024: the rounds of an epoch of their data sets."""
    panels = ((35_938, 0.3), (4_492, 0.4), (12_500, 0.3), (1_563, 0.4))
    return _deltas(path, "Figure 10", panels, np.linspace(1.0, 10.0, 10).tolist())


def _deltas(
    path: Path, title: str, panels: Sequence[tuple[int, float]], epsilons: Sequence[float]
) -> Sequence[Comparison]:
    """A panel for every number of rounds and noise multiplier."""
    figure, all_axes = plt.subplots(2, 2, figsize=(12, 7.4), layout="constrained", sharex=True)
    numbers: list[Comparison] = []
    unreliable = 0.0
    for panel, (axes, (rounds, noise)) in enumerate(zip(all_axes.flat, panels, strict=True)):
        generator = rng.public_stream(8, "balls and bins", panel)
        means, limits = balls_and_bins.sampled_deltas(noise, rounds, epsilons, SAMPLES, generator, CONFIDENCE)
        combined = [published.combined_delta(noise, rounds, epsilon) for epsilon in epsilons]
        poisson = [published.poisson(noise, rounds, 1 / rounds).delta(epsilon).upper for epsilon in epsilons]
        ours = [Allocation(Gaussian(noise), 1, rounds).delta(epsilon).upper for epsilon in epsilons]
        axes.plot(epsilons, combined, **COMBINED)
        axes.plot(epsilons, poisson, **POISSON)
        axes.plot(epsilons, limits, **SAMPLED_LIMIT)
        axes.plot(epsilons, np.where(means > 0, means, np.nan), **SAMPLED)
        axes.plot(epsilons, ours, **OURS)
        axes.set(title=f"1 of {rounds:,} rounds, noise multiplier {noise:g}", ylabel="delta", yscale="log")
        make_readable(axes)
        numbers += compare(rounds, noise, epsilons, np.array(ours), np.array(combined), np.array(poisson), means)
        unreliable = max(unreliable, float(np.max(np.array(ours)[limits > 2 * np.array(ours)], initial=0.0)))
    for axes in all_axes[-1]:
        axes.set_xlabel("epsilon")
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle(f"Feldman, Shenfeld 2025, {title}", fontsize=11)
    save(figure, path)
    return [*numbers, *reach(unreliable)]


def reach(unreliable: float) -> list[Comparison]:
    """How small a delta the Monte Carlo limit can show."""
    smallest = 1 - (1 - CONFIDENCE) ** (1 / SAMPLES)
    return [
        Comparison(
            "delta from which down the Monte Carlo limit is more than twice ours",
            1e-4,
            unreliable,
            "of the points drawn, the largest; the paper: loose below 1e-4",
        ),
        Comparison(
            "smallest Monte Carlo limit that there can be", None, smallest, f"{SAMPLES} samples, none of them bad"
        ),
    ]


def compare(
    rounds: int,
    noise: float,
    epsilons: Sequence[float],
    ours: Curve,
    combined: Curve,
    poisson: Curve,
    means: Curve,
) -> list[Comparison]:
    """Everything as multiples of our delta, which its own lower end holds to a part in a hundred or less."""
    at = f"1 of {rounds}, noise {noise:g}"
    best = combined / ours
    numbers = [
        Comparison(
            f"{at}: delta at epsilon {epsilons[-1]:g}",
            None,
            float(ours[-1]),
            f"Poisson / ours, median of the curve: {np.median(poisson / ours):.3g}",
        ),
        Comparison(
            f"{at}: the paper's best bound of delta / ours",
            None,
            float(np.median(best)),
            f"median of the curve; {np.min(best):.3g} to {np.max(best):.3g}",
        ),
    ]
    if ours[0] * SAMPLES < 50:  # no sample, or too few, of a loss so large
        return numbers
    mean = Comparison(f"{at}: Monte Carlo mean / ours, epsilon {epsilons[0]:g}", None, float(means[0] / ours[0]))
    return [*numbers, mean]
