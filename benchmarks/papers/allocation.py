"""Feldman, Shenfeld 2025: Privacy amplification by random allocation. Epsilon at a given delta.

Settings are the captions'; what they leave open (which noise, how many points) is taken from the authors' package
random-allocation 1.0.5. Curves that the paper draws by other people's shuffling bounds are left out.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import published
from benchmarks.papers.allocation_delta import figure_8, figure_10
from benchmarks.papers.allocation_directions import figure_1, figure_4, figure_5, figure_9
from benchmarks.papers.allocation_mean import figure_3
from benchmarks.papers.drawing import (
    COMBINED,
    DECOMPOSITION,
    DIRECT,
    LOOSE,
    LOWER,
    OURS,
    POISSON,
    finish,
    make_readable,
    save,
    start,
)
from benchmarks.papers.drawing import POISSON_RDP as POISSON_RDP_WHOLE
from benchmarks.papers.record import Comparison, Figure
from fedamp.accounting import Allocation, Gaussian

PAPER = "Feldman, Shenfeld 2025"
POISSON_RDP = POISSON_RDP_WHOLE | {"label": "Poisson, Rényi", "markersize": 9}
Curve = NDArray[np.float64]


def figure_2(path: Path) -> Sequence[Comparison]:
    """Epsilon over the noise multiplier for three numbers of rounds, delta 1e-10."""
    panels = [
        (100, (0.8, 2.5), (0.8, 1.0, 1.5, 2.0, 2.5)),
        (1000, (0.65, 2.0), (0.7, 1.0, 1.5, 2.0)),
        (10_000, (0.6, 0.9), (0.6, 0.7, 0.8, 0.9)),
    ]
    figure, all_axes = plt.subplots(1, 3, figsize=(12, 4.6), layout="constrained")
    numbers: list[Comparison] = []
    for axes, (rounds, limits, ticks) in zip(all_axes, panels, strict=True):
        numbers += one_of(axes, rounds, np.geomspace(*limits, 10), delta=1e-10)
        axes.set_xticks(ticks)
        axes.set_xticks([], minor=True)
    figure.suptitle(f"{PAPER}, Figure 2: delta 1e-10", fontsize=11)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    save(figure, path)
    return numbers


def one_of(axes: plt.Axes, rounds: int, noise: Curve, delta: float) -> list[Comparison]:
    """One panel of Figure 2."""
    best = curve(lambda s: published.combined_epsilon(s, rounds, delta), noise)
    poisson = curve(lambda s: published.poisson_epsilon(s, rounds, 1 / rounds, delta), noise)
    brackets = [Allocation(Gaussian(s), 1, rounds).epsilon(delta) for s in noise.tolist()]
    ours = np.array([bracket.upper for bracket in brackets])
    lower = curve(lambda s: published.lower_epsilon(s, rounds, delta), noise)
    axes.plot(noise, curve(lambda s: published.loose_rdp_epsilon(s, rounds, delta), noise), **LOOSE)
    axes.plot(noise, best, **COMBINED)
    axes.plot(noise, poisson, **POISSON)
    axes.plot(noise, lower, **LOWER)
    axes.plot(noise, ours, **OURS)
    axes.set(title=f"1 of {rounds} rounds", xlabel="noise multiplier", ylabel="epsilon", xscale="log", yscale="log")
    make_readable(axes)
    at, width = f"1 of {rounds}", max(bracket.upper / bracket.lower for bracket in brackets)
    return [
        *(at_point(f"{at}, noise {noise[i]:.3g}", ours[i], poisson[i], best[i]) for i in (0, -1)),
        Comparison(
            f"{at}: the paper's best bound / Poisson",
            1.1,
            float(np.median(best / poisson)),
            f"median of the curve; {np.min(best / poisson):.3g} to {np.max(best / poisson):.3g}",
        ),
        Comparison(
            f"{at}: ours / Poisson",
            None,
            float(np.median(ours / poisson)),
            f"median; {spread(ours / poisson)}",
        ),
        Comparison(
            f"{at}: ours / the lower bound",
            None,
            float(np.median(ours / lower)),
            f"median; at most {np.max(ours / lower):.3g}; our own lower end: {width:.5f}",
        ),
    ]


def figure_6(path: Path) -> Sequence[Comparison]:
    """Epsilon over the number of rounds: 1 of t, little noise."""
    rounds, noise, delta = np.arange(25, 551, 50), 0.3, 1e-4
    axes = start(f"{PAPER}, Figure 6: 1 of t rounds, noise 0.3, delta 1e-4", "rounds t", "epsilon")
    poisson_rdp = curve(lambda t: published.poisson_rdp_epsilon(noise, int(t), 1 / t, delta), rounds)
    decomposition = curve(lambda t: published.decomposition_epsilon(noise, int(t), delta), rounds)
    poisson = curve(lambda t: published.poisson_epsilon(noise, int(t), 1 / t, delta), rounds)
    direct = curve(lambda t: published.direct_epsilon(noise, int(t), delta), rounds)
    ours = curve(lambda t: published.fedamp_epsilon(noise, int(t), delta), rounds)
    axes.plot(rounds, poisson_rdp, **POISSON_RDP)
    axes.plot(rounds, decomposition, **DECOMPOSITION)
    axes.plot(rounds, poisson, **POISSON)
    axes.plot(rounds, direct, **DIRECT)
    axes.plot(rounds, ours, **OURS)
    finish(axes, path)
    return [
        *(at_point(f"t = {rounds[i]}", ours[i], poisson[i], direct[i], "direct") for i in (0, 4, -1)),
        Comparison(
            "direct / Poisson",
            None,
            float(np.max(direct / poisson)),
            "the largest over t; the paper: below Poisson, although by Rényi divergences",
        ),
    ]


def figure_7(path: Path) -> Sequence[Comparison]:
    """Epsilon over the number of epochs, each 1 of ten thousand rounds."""
    epochs, noise, rounds, delta = np.array([1, 3, 10, 30, 100, 300, 1000]), 1.0, 10_000, 1e-8
    axes = start(f"{PAPER}, Figure 7: 1 of 10^4 rounds an epoch, noise 1, delta 1e-8", "epochs", "epsilon")
    poisson_rdp = curve(lambda e: published.poisson_rdp_epsilon(noise, int(e) * rounds, 1 / rounds, delta), epochs)
    direct = curve(lambda e: published.direct_epsilon(noise, rounds, delta, epochs=int(e)), epochs)
    poisson = curve(lambda e: published.poisson_epsilon(noise, int(e) * rounds, 1 / rounds, delta), epochs)
    ours = curve(lambda e: published.fedamp_epsilon(noise, rounds, delta, epochs=int(e)), epochs)
    axes.plot(epochs, poisson_rdp, **POISSON_RDP)
    axes.plot(epochs, direct, **DIRECT)
    axes.plot(epochs, poisson, **POISSON)
    axes.plot(epochs, ours, **OURS)
    axes.set_xscale("log")
    finish(axes, path)
    return [
        *(at_point(f"epochs: {epochs[i]}", ours[i], poisson[i], direct[i], "direct") for i in (0, 4, -1)),
        Comparison(
            "direct / Poisson by Rényi",
            None,
            float(np.max(direct / poisson_rdp)),
            "the largest over the epochs; the paper: hardly to be told apart",
        ),
        Comparison(
            "what Rényi costs: direct / ours, 300 epochs",
            1.15,
            float(direct[5] / ours[5]),
            f"the paper: typically 1.1 to 1.2; {direct[4] / ours[4]:.3g} at 100, {direct[-1] / ours[-1]:.3g} at 1000",
        ),
    ]


def figure_11(path: Path) -> Sequence[Comparison]:
    """Epsilon over the number of allocations: k of 1024 rounds."""
    chosen, noise, rounds, delta = 2 ** np.arange(7), 0.6, 2**10, 1e-6
    axes = start(f"{PAPER}, Figure 11: k of 1024 rounds, noise 0.6, delta 1e-6", "allocations k", "epsilon")
    poisson_rdp = curve(lambda k: published.poisson_rdp_epsilon(noise, rounds, k / rounds, delta), chosen)
    loose = curve(lambda k: published.loose_rdp_epsilon(noise, rounds, delta, int(k)), chosen)
    direct = curve(lambda k: published.direct_epsilon(noise, rounds, delta, int(k)), chosen)
    ours = curve(lambda k: published.fedamp_epsilon(noise, rounds, delta, int(k)), chosen)
    axes.plot(chosen, poisson_rdp, **POISSON_RDP)
    axes.plot(chosen, loose, **LOOSE)
    axes.plot(chosen, direct, **DIRECT)
    axes.plot(chosen, ours, **OURS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(chosen)
    axes.set_yscale("log")
    finish(axes, path)
    return [
        Comparison(
            f"k = {chosen[i]}",
            None,
            ours[i],
            f"direct {direct[i]:.4g}, Dong et al. {loose[i]:.4g}, Poisson by Rényi {poisson_rdp[i]:.4g}, "
            f"exactly {published.poisson_epsilon(noise, rounds, chosen[i] / rounds, delta):.4g}",
        )
        for i in range(len(chosen))
    ]


def curve(bound: Callable[[float], float], at: NDArray) -> Curve:
    """``bound`` at each point, shape (points,)."""
    return np.array([bound(float(x)) for x in at])


def spread(ratios: Curve) -> str:
    """The smallest and the largest."""
    return f"{np.min(ratios):.5f} to {np.max(ratios):.5f}"


def at_point(where: str, ours: float, poisson: float, best: float, name: str = "the paper's best bound") -> Comparison:
    """Our epsilon beside the two that a reader would use instead."""
    return Comparison(f"epsilon, {where}", None, float(ours), f"Poisson {poisson:.4g}, {name} {best:.4g}")


FIGURES: Sequence[Figure] = (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_9,
    figure_10,
    figure_11,
)
