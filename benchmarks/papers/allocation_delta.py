"""Feldman, Shenfeld 2025, Figures 8 and 10: delta over epsilon, with Monte Carlo estimates of it."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.papers import charges
from benchmarks.papers.bounds import balls_and_bins
from benchmarks.papers.bounds.allocation import allocated, combined_delta, poisson
from benchmarks.papers.drawing import COMBINED, OURS, POISSON, SAMPLED, SAMPLED_LIMIT, make_readable, save
from benchmarks.record import Row

SAMPLES, CONFIDENCE, SEED = 500_000, 0.99, 8


def figure_8(path: Path) -> Sequence[Row]:
    """Delta over epsilon, 1 of t rounds: bounds, Poisson sampling, and Monte Carlo of half a million samples."""
    panels = ((100, 0.75), (100, 0.5), (10_000, 0.75), (10_000, 0.5))
    return _deltas(path, "Figure 8", panels, np.linspace(0.5, 4.0, 10).tolist())


def figure_10(path: Path) -> Sequence[Row]:
    """Delta over epsilon at the settings of Chua et al. 2024: the rounds of an epoch of their data sets."""
    panels = ((35_938, 0.3), (4_492, 0.4), (12_500, 0.3), (1_563, 0.4))
    return _deltas(path, "Figure 10", panels, np.linspace(1.0, 10.0, 10).tolist())


def _deltas(path: Path, title: str, panels: Sequence[tuple[int, float]], epsilons: Sequence[float]) -> Sequence[Row]:
    """A panel for every number of rounds and noise multiplier, and its rows at both ends and in the middle."""
    figure, all_axes = plt.subplots(2, 2, figsize=(12, 7.4), layout="constrained", sharex=True)
    rows: list[Row] = []
    for panel, (axes, (rounds, noise)) in enumerate(zip(all_axes.flat, panels, strict=True)):
        generator = np.random.default_rng((SEED, panel))
        means, limits = balls_and_bins.sampled_deltas(noise, rounds, epsilons, SAMPLES, generator, CONFIDENCE)
        combined = [combined_delta(noise, rounds, epsilon) for epsilon in epsilons]
        sampled = [charges.delta(poisson(noise, rounds, 1 / rounds), epsilon) for epsilon in epsilons]
        ours = [charges.delta(allocated(noise, rounds), epsilon) for epsilon in epsilons]
        axes.plot(epsilons, combined, **COMBINED)
        axes.plot(epsilons, sampled, **POISSON)
        axes.plot(epsilons, limits, **SAMPLED_LIMIT)
        axes.plot(epsilons, np.where(means > 0, means, np.nan), **SAMPLED)
        axes.plot(epsilons, ours, **OURS)
        axes.set(title=f"1 of {rounds:,} rounds, noise multiplier {noise:g}", ylabel="delta", yscale="log")
        make_readable(axes)
        rows += [
            {
                "": f"1 of {rounds:,}, noise {noise:g}, epsilon {epsilons[i]:g}",
                "fedamp": ours[i],
                "Poisson": sampled[i],
                "paper's best bound": combined[i],
                "Monte Carlo limit": limits[i],
            }
            for i in (0, -1)
        ]
    for axes in all_axes[-1]:
        axes.set_xlabel("epsilon")
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle(f"Feldman, Shenfeld 2025, {title}", fontsize=11)
    save(figure, path)
    return rows
