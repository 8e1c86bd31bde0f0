"""Feldman, Shenfeld 2025: Privacy amplification by random allocation. Figures 2, 6, 7 and 11, and a scenario's cost.

Settings are the captions'. What they leave open (noise, number of points) is taken from the authors' package
random-allocation 1.0.5. Curves that the paper draws by shuffling bounds of other papers are left out.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

import fedamp
from benchmarks.papers import charges
from benchmarks.papers.allocation_delta import figure_8, figure_10
from benchmarks.papers.allocation_directions import figure_1, figure_4, figure_5, figure_9
from benchmarks.papers.allocation_mean import figure_3
from benchmarks.papers.bounds import allocation as bounds
from benchmarks.papers.bounds.allocation import allocated, poisson
from benchmarks.papers.drawing import (
    COMBINED,
    DECOMPOSITION,
    DIRECT,
    LOOSE,
    LOWER,
    OURS,
    POISSON,
    POISSON_RDP,
    finish,
    make_readable,
    save,
    start,
)
from benchmarks.papers.record import Figure
from benchmarks.record import Row
from fedamp.accounting import Allocation, Gaussian, Mechanism, Repeat

PAPER = "Feldman, Shenfeld 2025"
RENYI = POISSON_RDP | {"label": "Poisson, Rényi", "markersize": 9}
Curve = NDArray[np.float64]


def scenario(_: Path) -> Sequence[Row]:
    """The scenario ``balanced``, and Poisson sampling at the same rate."""
    rows: list[Row] = []
    ways = {"6 of 60 rounds": {}, "Poisson, rate 0.1": {"check_in": {"scheme": "poisson", "rate": 0.1}}}
    noise = float(fedamp.privacy(fedamp.load("balanced"))["noise_multiplier"])
    for words, change in ways.items():
        asked = fedamp.load("balanced", **change)
        rounds, budget, delta = asked.rounds, asked.privacy.epsilon, asked.privacy.delta

        def run(s: float, sampled: bool = bool(change), rounds: int = rounds) -> Mechanism:
            return poisson(s, rounds, 0.1) if sampled else allocated(s, rounds, round(0.1 * rounds))

        needed = float(fedamp.privacy(asked)["noise_multiplier"])
        rows.append(
            {
                "": words,
                f"noise multiplier for epsilon {budget:g}": charges.Charged(
                    needed, charges.Question(run(needed), delta, budget)
                ),
                f"epsilon at noise {noise:.3g}": charges.epsilon(run(noise), delta),
            }
        )
    return rows


def figure_2(path: Path) -> Sequence[Row]:
    """Epsilon over the noise multiplier for three numbers of rounds, delta 1e-10."""
    panels = [
        (100, (0.8, 2.5), (0.8, 1.0, 1.5, 2.0, 2.5)),
        (1000, (0.65, 2.0), (0.7, 1.0, 1.5, 2.0)),
        (10_000, (0.6, 0.9), (0.6, 0.7, 0.8, 0.9)),
    ]
    figure, all_axes = plt.subplots(1, 3, figsize=(12, 4.6), layout="constrained")
    rows: list[Row] = []
    for axes, (rounds, limits, ticks) in zip(all_axes, panels, strict=True):
        rows += _one_of(axes, rounds, np.geomspace(*limits, 10), delta=1e-10)
        axes.set_xticks(ticks)
        axes.set_xticks([], minor=True)
    figure.suptitle(f"{PAPER}, Figure 2: delta 1e-10", fontsize=11)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    save(figure, path)
    return rows


def _one_of(axes: Axes, rounds: int, noise: Curve, delta: float) -> list[Row]:
    """One panel of Figure 2, and its rows at both ends."""
    best = curve(lambda s: bounds.combined_epsilon(s, rounds, delta), noise)
    sampled = [charges.epsilon(poisson(s, rounds, 1 / rounds), delta) for s in noise.tolist()]
    ours = [charges.epsilon(allocated(s, rounds), delta) for s in noise.tolist()]
    attack = curve(lambda s: bounds.attacked_epsilon(s, rounds, delta), noise)
    axes.plot(noise, curve(lambda s: bounds.cheap_epsilon(s, rounds, delta), noise), **LOOSE)
    axes.plot(noise, best, **COMBINED)
    axes.plot(noise, sampled, **POISSON)
    axes.plot(noise, attack, **LOWER)
    axes.plot(noise, ours, **OURS)
    axes.set(title=f"1 of {rounds} rounds", xlabel="noise multiplier", ylabel="epsilon", xscale="log", yscale="log")
    make_readable(axes)
    return [
        {
            "": f"1 of {rounds}, noise {noise[i]:.3g}",
            "fedamp": ours[i],
            "Poisson": sampled[i],
            "paper's best bound": best[i],
            "attack": attack[i],
        }
        for i in (0, len(noise) // 2)
    ]


def figure_6(path: Path) -> Sequence[Row]:
    """Epsilon over the number of rounds: 1 of t, little noise."""
    rounds, noise, delta = np.arange(25, 551, 50), 0.3, 1e-4
    axes = start(f"{PAPER}, Figure 6: 1 of t rounds, noise 0.3, delta 1e-4", "rounds t", "epsilon")
    sampled = [charges.epsilon(poisson(noise, t, 1 / t), delta) for t in rounds.tolist()]
    ours = [charges.epsilon(allocated(noise, t), delta) for t in rounds.tolist()]
    direct = curve(lambda t: bounds.direct_epsilon(noise, int(t), delta), rounds)
    axes.plot(rounds, curve(lambda t: bounds.poisson_rdp_epsilon(noise, int(t), 1 / t, delta), rounds), **RENYI)
    axes.plot(rounds, curve(lambda t: bounds.decomposition_epsilon(noise, int(t), delta), rounds), **DECOMPOSITION)
    axes.plot(rounds, sampled, **POISSON)
    axes.plot(rounds, direct, **DIRECT)
    axes.plot(rounds, ours, **OURS)
    finish(axes, path)
    return [
        {"t": f"{rounds[i]}", "fedamp": ours[i], "Poisson": sampled[i], "direct bound": direct[i]} for i in (0, 4, -1)
    ]


def figure_7(path: Path) -> Sequence[Row]:
    """Epsilon over the number of epochs, each 1 of ten thousand rounds."""
    epochs, noise, rounds, delta = np.array([1, 3, 10, 30, 100, 300, 1000]), 1.0, 10_000, 1e-8
    axes = start(f"{PAPER}, Figure 7: 1 of 10^4 rounds an epoch, noise 1, delta 1e-8", "epochs", "epsilon")
    by_rdp = curve(lambda e: bounds.poisson_rdp_epsilon(noise, int(e) * rounds, 1 / rounds, delta), epochs)
    direct = curve(lambda e: bounds.direct_epsilon(noise, rounds, delta, epochs=int(e)), epochs)
    sampled = [charges.epsilon(poisson(noise, e * rounds, 1 / rounds), delta) for e in epochs.tolist()]
    once = Allocation(Gaussian(noise), 1, rounds)
    ours = [charges.epsilon(Repeat(once, e) if e > 1 else once, delta) for e in epochs.tolist()]
    axes.plot(epochs, by_rdp, **RENYI)
    axes.plot(epochs, direct, **DIRECT)
    axes.plot(epochs, sampled, **POISSON)
    axes.plot(epochs, ours, **OURS)
    axes.set_xscale("log")
    finish(axes, path)
    return [
        {
            "epochs": f"{epochs[i]}",
            "fedamp": ours[i],
            "Poisson": sampled[i],
            "Poisson, Rényi": by_rdp[i],
            "direct bound": direct[i],
            "that / fedamp": direct[i] / ours[i],
        }
        for i in (0, 4, 5, 6)
    ]


def figure_11(path: Path) -> Sequence[Row]:
    """Epsilon over the number of allocations: k of 1024 rounds."""
    chosen, noise, rounds, delta = 2 ** np.arange(7), 0.6, 2**10, 1e-6
    axes = start(f"{PAPER}, Figure 11: k of 1024 rounds, noise 0.6, delta 1e-6", "allocations k", "epsilon")
    by_rdp = curve(lambda k: bounds.poisson_rdp_epsilon(noise, rounds, k / rounds, delta), chosen)
    cheap = curve(lambda k: bounds.cheap_epsilon(noise, rounds, delta, int(k)), chosen)
    direct = curve(lambda k: bounds.direct_epsilon(noise, rounds, delta, int(k)), chosen)
    ours = [charges.epsilon(allocated(noise, rounds, k), delta) for k in chosen.tolist()]
    axes.plot(chosen, by_rdp, **RENYI)
    axes.plot(chosen, cheap, **LOOSE)
    axes.plot(chosen, direct, **DIRECT)
    axes.plot(chosen, ours, **OURS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(chosen)
    axes.set_yscale("log")
    finish(axes, path)
    return [
        {
            "k": f"{k}",
            "fedamp": ours[i],
            "Poisson": charges.epsilon(poisson(noise, rounds, k / rounds), delta),
            "direct bound": direct[i],
            "Dong et al., Eq. (3)": cheap[i],
        }
        for i, k in enumerate(chosen.tolist())
    ]


def curve(bound: Callable[[float], float], at: NDArray) -> Curve:
    """``bound`` at each point, shape (points,)."""
    return np.array([bound(float(x)) for x in at])


FIGURES: Sequence[Figure] = (
    scenario,
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
