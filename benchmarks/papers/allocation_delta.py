"""Feldman, Shenfeld 2025, Figure 8: delta over epsilon, with what Monte Carlo tells of it."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import published
from benchmarks.papers.drawing import COMBINED, OURS, POISSON, SAMPLED, SAMPLED_LIMIT, make_readable
from benchmarks.papers.record import Comparison
from fedamp import rng
from fedamp.accounting import Allocation, Gaussian
from fedamp.accounting.papers import balls_and_bins

SAMPLES, CONFIDENCE = 500_000, 0.99
PANELS = ((100, 0.75), (100, 0.5), (10_000, 0.75), (10_000, 0.5))
EPSILONS = np.linspace(0.5, 4.0, 10).tolist()


def figure_8(path: Path) -> Sequence[Comparison]:
    """Delta over epsilon, 1 of t rounds: bounds, Poisson sampling, and Monte Carlo of half a million samples."""
    figure, all_axes = plt.subplots(2, 2, figsize=(12, 8), layout="constrained", sharex=True)
    numbers = [floor()]
    for panel, (axes, (rounds, noise)) in enumerate(zip(all_axes.flat, PANELS, strict=True)):
        generator = rng.stream(8, "balls and bins", panel)
        means, limits = balls_and_bins.sampled_deltas(noise, rounds, EPSILONS, SAMPLES, generator, CONFIDENCE)
        combined = [published.combined_delta(noise, rounds, epsilon) for epsilon in EPSILONS]
        poisson = [published.poisson(noise, rounds, 1 / rounds).delta(epsilon).upper for epsilon in EPSILONS]
        ours = [Allocation(Gaussian(noise), 1, rounds).delta(epsilon).upper for epsilon in EPSILONS]
        axes.plot(EPSILONS, combined, **COMBINED)
        axes.plot(EPSILONS, poisson, **POISSON)
        axes.plot(EPSILONS, limits, **SAMPLED_LIMIT)
        axes.plot(EPSILONS, np.where(means > 0, means, np.nan), **SAMPLED)
        axes.plot(EPSILONS, ours, **OURS)
        axes.set(title=f"1 of {rounds} rounds, noise multiplier {noise:g}", ylabel="delta", yscale="log")
        make_readable(axes)
        numbers += compare(rounds, noise, np.array(ours), np.array(combined), np.array(limits), means)
    for axes in all_axes[-1]:
        axes.set_xlabel("epsilon")
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return numbers


def floor() -> Comparison:
    """Chernoff's limit when no sample exceeds epsilon at all."""
    smallest = 1 - (1 - CONFIDENCE) ** (1 / SAMPLES)
    return Comparison("smallest delta that the Monte Carlo limit can show", None, smallest, f"{SAMPLES} samples")


def compare(
    rounds: int,
    noise: float,
    ours: NDArray[np.float64],
    combined: NDArray[np.float64],
    limits: NDArray[np.float64],
    means: NDArray[np.float64],
) -> list[Comparison]:
    """Everything as multiples of the true delta, which our bracket holds to a part in a thousand."""
    at = f"1 of {rounds}, noise {noise:g}"
    seen = ours > 1000 / SAMPLES
    return [
        Comparison(f"{at}: delta at epsilon {EPSILONS[-1]:g}", None, ours[-1]),
        Comparison(
            f"{at}: the paper's best bound of delta / ours",
            None,
            float(np.max(combined / ours)),
            f"the largest over epsilon; the smallest is {np.min(combined / ours):.3g}",
        ),
        Comparison(
            f"{at}: Monte Carlo mean / ours",
            None,
            float(np.mean(means[seen] / ours[seen])),
            f"where a thousand samples or more count; the limit / ours at epsilon 4: {limits[-1] / ours[-1]:.3g}",
        ),
    ]
