"""Feldman, Shenfeld 2025: Privacy amplification by random allocation.

Curves the paper draws by other people's shuffling bounds are left out.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.papers import published
from benchmarks.papers.drawing import (
    DECOMPOSITION,
    DIRECT,
    LOCAL,
    LOOSE,
    OURS,
    POISSON,
    POISSON_RDP,
    RECURSIVE,
    finish,
    make_readable,
    start,
)
from benchmarks.papers.record import Comparison, Figure

PAPER = "Feldman, Shenfeld 2025"


def figure_1(path: Path) -> Sequence[Comparison]:
    """Epsilon over the noise multiplier: 1 of a million rounds, delta 1e-10."""
    noise, rounds, delta = np.geomspace(0.3, 2, 10), 10**6, 1e-10
    axes = start(f"{PAPER}, Figure 1: 1 of 10^6 rounds, delta 1e-10", "noise multiplier", "epsilon")
    axes.plot(noise, [published.local_epsilon(s, delta) for s in noise], **LOCAL)
    axes.plot(noise, [published.decomposition_epsilon(s, rounds, delta) for s in noise], **DECOMPOSITION)
    axes.plot(noise, [published.recursive_epsilon(s, rounds, delta) for s in noise], **RECURSIVE)
    axes.plot(noise, [published.direct_epsilon(s, rounds, delta) for s in noise], **DIRECT)
    axes.plot(noise, [published.poisson_epsilon(s, rounds, 1 / rounds, delta) for s in noise], **POISSON)
    axes.plot(noise, [published.fedamp_epsilon(s, rounds, delta) for s in noise], **OURS)
    axes.set_xscale("log")
    axes.set_yscale("log")
    finish(axes, path)
    return []


def figure_2(path: Path) -> Sequence[Comparison]:
    """Epsilon over the noise multiplier for three numbers of rounds, delta 1e-10."""
    panels = [(100, (0.8, 2.5)), (1000, (0.65, 2.0)), (10_000, (0.6, 0.9))]
    figure, all_axes = plt.subplots(1, 3, figsize=(12, 4.6), layout="constrained")
    for axes, (rounds, limits) in zip(all_axes, panels, strict=True):
        noise, delta = np.geomspace(*limits, 8), 1e-10
        axes.plot(noise, [published.loose_rdp_epsilon(s, rounds, delta) for s in noise], **LOOSE)
        best = [
            min(f(s, rounds, delta) for f in (published.direct_epsilon, published.decomposition_epsilon)) for s in noise
        ]
        axes.plot(noise, best, **DIRECT | {"label": "allocation, best of direct and decomposition"})
        axes.plot(noise, [published.poisson_epsilon(s, rounds, 1 / rounds, delta) for s in noise], **POISSON)
        axes.plot(noise, [published.fedamp_epsilon(s, rounds, delta) for s in noise], **OURS)
        axes.set(title=f"1 of {rounds} rounds", xlabel="noise multiplier", ylabel="epsilon", yscale="log")
        make_readable(axes)
    figure.suptitle(f"{PAPER}, Figure 2: delta 1e-10")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return []


def figure_6(path: Path) -> Sequence[Comparison]:
    """Epsilon over the number of rounds: 1 of t, little noise."""
    rounds, noise, delta = np.arange(25, 551, 75), 0.3, 1e-4
    axes = start(f"{PAPER}, Figure 6: 1 of t rounds, noise 0.3, delta 1e-4", "rounds t", "epsilon")
    axes.plot(rounds, [published.poisson_rdp_epsilon(noise, int(t), 1 / t, delta) for t in rounds], **POISSON_RDP)
    axes.plot(rounds, [published.decomposition_epsilon(noise, int(t), delta) for t in rounds], **DECOMPOSITION)
    axes.plot(rounds, [published.poisson_epsilon(noise, int(t), 1 / t, delta) for t in rounds], **POISSON)
    axes.plot(rounds, [published.direct_epsilon(noise, int(t), delta) for t in rounds], **DIRECT)
    axes.plot(rounds, [published.fedamp_epsilon(noise, int(t), delta) for t in rounds], **OURS)
    axes.set_yscale("log")
    finish(axes, path)
    return []


def figure_7(path: Path) -> Sequence[Comparison]:
    """Epsilon over the number of epochs, each 1 of ten thousand rounds."""
    epochs, noise, rounds, delta = np.array([1, 3, 10, 30, 100, 300, 1000]), 1.0, 10_000, 1e-8
    axes = start(f"{PAPER}, Figure 7: 1 of 10^4 rounds an epoch, noise 1, delta 1e-8", "epochs", "epsilon")
    poisson_runs = [int(e) * rounds for e in epochs]
    axes.plot(epochs, [published.poisson_rdp_epsilon(noise, t, 1 / rounds, delta) for t in poisson_runs], **POISSON_RDP)
    axes.plot(epochs, [published.direct_epsilon(noise, rounds, delta, epochs=int(e)) for e in epochs], **DIRECT)
    axes.plot(epochs, [published.poisson_epsilon(noise, t, 1 / rounds, delta) for t in poisson_runs], **POISSON)
    axes.plot(epochs, [published.fedamp_epsilon(noise, rounds, delta, epochs=int(e)) for e in epochs], **OURS)
    axes.set_xscale("log")
    finish(axes, path)
    return []


def figure_11(path: Path) -> Sequence[Comparison]:
    """Epsilon over the number of allocations: k of 1024 rounds."""
    chosen, noise, rounds, delta = 2 ** np.arange(7), 0.6, 2**10, 1e-6
    axes = start(f"{PAPER}, Figure 11: k of 1024 rounds, noise 0.6, delta 1e-6", "allocations k", "epsilon")
    axes.plot(chosen, [published.poisson_rdp_epsilon(noise, rounds, k / rounds, delta) for k in chosen], **POISSON_RDP)
    axes.plot(chosen, [published.loose_rdp_epsilon(noise, rounds, delta, int(k)) for k in chosen], **LOOSE)
    axes.plot(chosen, [published.direct_epsilon(noise, rounds, delta, int(k)) for k in chosen], **DIRECT)
    axes.plot(chosen, [published.fedamp_epsilon(noise, rounds, delta, int(k)) for k in chosen], **OURS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(chosen)
    axes.set_yscale("log")
    finish(axes, path)
    return []


FIGURES: Sequence[Figure] = (figure_1, figure_2, figure_6, figure_7, figure_11)
