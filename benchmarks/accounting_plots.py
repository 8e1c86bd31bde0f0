"""The settings of the papers' figures with our curve among the published bounds.

``python -m benchmarks.accounting_plots [--out FOLDER] [--only NAME]`` writes one PNG a figure. Every line has its own
dashes and markers, so that the figures can be read without colour; ours is the thick black one. Curves the papers draw
by other people's shuffling bounds are left out.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from benchmarks import published
from fedamp.accounting import Allocation, Gaussian, Poisson, Repeat, Submodels
from fedamp.accounting.papers import partitioning

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

RESULTS = Path(__file__).parent / "results" / "plots"
DONG = "Dong, Chen, Özgür 2025"
FELDMAN = "Feldman, Shenfeld 2025"

Style = dict[str, Any]

OURS: Style = {"color": "black", "linewidth": 2.6, "label": "fedamp", "zorder": 5}
POISSON: Style = {"color": "0.35", "linestyle": (0, (5, 2)), "marker": "x", "label": "Poisson, loss distribution"}
POISSON_RDP: Style = {
    "color": "0.55",
    "linestyle": (0, (1, 1.5)),
    "marker": "v",
    "label": "Poisson, Rényi (whole orders)",
}
DIRECT: Style = {"color": "0.25", "linestyle": "-.", "marker": "o", "label": "allocation, direct (Rényi)"}
DECOMPOSITION: Style = {"color": "0.5", "linestyle": "--", "marker": "s", "label": "allocation, decomposition"}
RECURSIVE: Style = {
    "color": "0.4",
    "linestyle": (0, (3, 1, 1, 1, 1, 1)),
    "marker": "^",
    "label": "allocation, recursive",
}
LOOSE: Style = {"color": "0.6", "linestyle": (0, (8, 3)), "marker": "D", "label": "Dong et al., Eq. (3)"}
EXACT: Style = {"color": "0.25", "linestyle": "-.", "marker": "o", "label": "Dong et al., Eq. (2)"}
LOCAL: Style = {"color": "0.7", "linestyle": "-", "marker": "*", "label": "no amplification"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw all figures, or one."""
    figures = (
        dong_figure_1,
        dong_figure_2,
        dong_figure_3,
        feldman_figure_1,
        feldman_figure_2,
        feldman_figure_6,
        feldman_figure_7,
        feldman_figure_11,
    )
    parser = argparse.ArgumentParser(description="The papers' figures with our curve among them.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the PNG files")
    parser.add_argument("--only", choices=[figure.__name__ for figure in figures], help="draw one figure")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        if options.only in (None, figure.__name__):
            path = options.out / f"{figure.__name__}.png"
            figure(path)
            print(path)


def dong_figure_1(path: Path) -> None:
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
    axes = _start(f"{DONG}, Figure 1: rate 0.1, (3, 1e-5)", "rounds", "noise multiplier")
    for epsilon, style in curves:
        axes.plot(rounds, [_smallest_noise(partial(epsilon, int(t)), 3.0) for t in rounds], **style)
    axes.set_xscale("log")
    _finish(axes, path)


def dong_figure_2(path: Path) -> None:
    """Rényi divergence over its order: 4 of 10 rounds, noise multiplier 2."""
    orders = np.arange(2, 19)
    axes = _start(f"{DONG}, Figure 2: 4 of 10 rounds, noise 2", "order", "Rényi divergence")
    axes.plot(orders, 10 * partitioning.poisson_rdp(2, 0.4, orders), **POISSON_RDP)
    axes.plot(orders, partitioning.forward_rdp_upper(2, 10, orders, 4), **LOOSE)
    axes.plot(orders, partitioning.forward_rdp(2, 10, orders, 4), **EXACT)
    axes.plot(orders, Allocation(Gaussian(2.0), 4, 10).rdp(orders.astype(float)), **OURS)
    _finish(axes, path)


def dong_figure_3(path: Path) -> None:
    """Delta at epsilon 8 over the number of rounds: two fifths of them, noise multiplier 2."""
    rounds = np.arange(20, 101, 10)
    orders = np.arange(2, 41)
    epoch = partitioning.forward_rdp(2, 10, np.arange(2, 16), 4)
    axes = _start(f"{DONG}, Figure 3: 0.4 T of T rounds, noise 2, epsilon 8", "rounds", "delta")
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
    _finish(axes, path)


def feldman_figure_1(path: Path) -> None:
    """Epsilon over the noise multiplier: 1 of a million rounds, delta 1e-10."""
    noise, rounds, delta = np.geomspace(0.3, 2, 10), 10**6, 1e-10
    axes = _start(f"{FELDMAN}, Figure 1: 1 of 10^6 rounds, delta 1e-10", "noise multiplier", "epsilon")
    axes.plot(noise, [published.local_epsilon(s, delta) for s in noise], **LOCAL)
    axes.plot(noise, [published.decomposition_epsilon(s, rounds, delta) for s in noise], **DECOMPOSITION)
    axes.plot(noise, [published.recursive_epsilon(s, rounds, delta) for s in noise], **RECURSIVE)
    axes.plot(noise, [published.direct_epsilon(s, rounds, delta) for s in noise], **DIRECT)
    axes.plot(noise, [published.poisson_epsilon(s, rounds, 1 / rounds, delta) for s in noise], **POISSON)
    axes.plot(noise, [published.fedamp_epsilon(s, rounds, delta) for s in noise], **OURS)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _finish(axes, path)


def feldman_figure_2(path: Path) -> None:
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
        _make_readable(axes)
    figure.suptitle(f"{FELDMAN}, Figure 2: delta 1e-10")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def feldman_figure_6(path: Path) -> None:
    """Epsilon over the number of rounds: 1 of t, little noise."""
    rounds, noise, delta = np.arange(25, 551, 75), 0.3, 1e-4
    axes = _start(f"{FELDMAN}, Figure 6: 1 of t rounds, noise 0.3, delta 1e-4", "rounds t", "epsilon")
    axes.plot(rounds, [published.poisson_rdp_epsilon(noise, int(t), 1 / t, delta) for t in rounds], **POISSON_RDP)
    axes.plot(rounds, [published.decomposition_epsilon(noise, int(t), delta) for t in rounds], **DECOMPOSITION)
    axes.plot(rounds, [published.poisson_epsilon(noise, int(t), 1 / t, delta) for t in rounds], **POISSON)
    axes.plot(rounds, [published.direct_epsilon(noise, int(t), delta) for t in rounds], **DIRECT)
    axes.plot(rounds, [published.fedamp_epsilon(noise, int(t), delta) for t in rounds], **OURS)
    axes.set_yscale("log")
    _finish(axes, path)


def feldman_figure_7(path: Path) -> None:
    """Epsilon over the number of epochs, each 1 of ten thousand rounds."""
    epochs, noise, rounds, delta = np.array([1, 3, 10, 30, 100, 300, 1000]), 1.0, 10_000, 1e-8
    axes = _start(f"{FELDMAN}, Figure 7: 1 of 10^4 rounds an epoch, noise 1, delta 1e-8", "epochs", "epsilon")
    poisson_runs = [int(e) * rounds for e in epochs]
    axes.plot(epochs, [published.poisson_rdp_epsilon(noise, t, 1 / rounds, delta) for t in poisson_runs], **POISSON_RDP)
    axes.plot(epochs, [published.direct_epsilon(noise, rounds, delta, epochs=int(e)) for e in epochs], **DIRECT)
    axes.plot(epochs, [published.poisson_epsilon(noise, t, 1 / rounds, delta) for t in poisson_runs], **POISSON)
    axes.plot(epochs, [published.fedamp_epsilon(noise, rounds, delta, epochs=int(e)) for e in epochs], **OURS)
    axes.set_xscale("log")
    _finish(axes, path)


def feldman_figure_11(path: Path) -> None:
    """Epsilon over the number of allocations: k of 1024 rounds."""
    chosen, noise, rounds, delta = 2 ** np.arange(7), 0.6, 2**10, 1e-6
    axes = _start(f"{FELDMAN}, Figure 11: k of 1024 rounds, noise 0.6, delta 1e-6", "allocations k", "epsilon")
    axes.plot(chosen, [published.poisson_rdp_epsilon(noise, rounds, k / rounds, delta) for k in chosen], **POISSON_RDP)
    axes.plot(chosen, [published.loose_rdp_epsilon(noise, rounds, delta, int(k)) for k in chosen], **LOOSE)
    axes.plot(chosen, [published.direct_epsilon(noise, rounds, delta, int(k)) for k in chosen], **DIRECT)
    axes.plot(chosen, [published.fedamp_epsilon(noise, rounds, delta, int(k)) for k in chosen], **OURS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(chosen)
    axes.set_yscale("log")
    _finish(axes, path)


def _start(title: str, x: str, y: str) -> Axes:
    _, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    axes.set_title(title, fontsize=11)
    axes.set(xlabel=x, ylabel=y)
    return axes


def _finish(axes: Axes, path: Path) -> None:
    _make_readable(axes)
    axes.legend(fontsize=9)
    plt.gcf().savefig(path, dpi=150)
    plt.close()


def _make_readable(axes: Axes) -> None:
    """A pale grid, and plain numbers on logarithmic axes that span a few decades only."""
    axes.grid(color="0.9", which="both")
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log" and limits[1] < 1e4 * limits[0]:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "246" else ""))


def _smallest_noise(epsilon_of: Callable[[float], float], epsilon: float) -> float:
    """By bisection, to 1e-2, on the safe side."""
    low, high = 0.3, 20.0
    while high - low > 1e-2:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle) > epsilon else (low, middle)
    return high


if __name__ == "__main__":
    main()
