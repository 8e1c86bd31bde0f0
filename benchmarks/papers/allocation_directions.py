"""Feldman, Shenfeld 2025, Figures 1, 4, 5 and 9: epsilon over the noise multiplier by every bound, by direction.

"Remove" is the divergence of a run with a person from one without, "add" the other direction. What holds for both is
the larger one. Ranges that the captions leave open are those of the authors' package random-allocation 1.0.5. Curves
that the paper draws by shuffling bounds of other papers are left out.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from benchmarks.papers import charges
from benchmarks.papers.bounds import allocation as bounds
from benchmarks.papers.bounds.allocation import allocated, poisson
from benchmarks.papers.charges import Direction
from benchmarks.papers.drawing import DECOMPOSITION, DIRECT, LOCAL, OURS, POISSON, RECURSIVE, Style, make_readable, save
from benchmarks.record import Row

PAPER = "Feldman, Shenfeld 2025"
Curve = NDArray[np.float64]
LOOKS: dict[str, Style] = {
    "local": LOCAL,
    "decomposition": DECOMPOSITION,
    "recursive": RECURSIVE,
    "direct": DIRECT,
    "poisson": POISSON,
    "ours": OURS,
}


class Setting(NamedTuple):
    """``chosen`` of ``rounds`` hidden rounds."""

    rounds: int
    delta: float
    chosen: int = 1


MILLION = Setting(10**6, 1e-10)
NOISE = np.geomspace(0.2, 2, 11)


@cache
def epsilon(bound: str, noise: float, setting: Setting, direction: Direction) -> float:
    """By a bound of the paper, Poisson sampling at the same rate, or fedamp; infinite where a bound has no answer."""
    rounds, delta, chosen = setting
    if bound == "local":
        return bounds.local_epsilon(noise / chosen**0.5, delta)
    if bound == "decomposition":  # for one chosen round only
        return bounds.decomposition_epsilon(noise, rounds, delta, direction)
    if bound == "recursive":
        return bounds.recursive_epsilon(noise, rounds, delta, chosen, direction)
    if bound == "direct":
        return bounds.direct_epsilon(noise, rounds, delta, chosen, direction=direction)
    run = poisson(noise, rounds, chosen / rounds) if bound == "poisson" else allocated(noise, rounds, chosen)
    return charges.epsilon(run, delta, direction=direction)


Curves = dict[str, Sequence[float]]
"""By name of a bound; "best" is the paper's smallest, in each direction."""


def curves(noise: Curve, setting: Setting, directions: Sequence[Direction] = ("remove", "add")) -> Curves:
    """Every bound over noise multipliers, the larger one of some directions."""
    names = [bound for bound in LOOKS if setting.chosen == 1 or bound != "decomposition"]
    each = {
        bound: [[epsilon(bound, s, setting, which) for s in noise.tolist()] for which in directions] for bound in names
    }
    each["best"] = np.min([each[bound] for bound in names if bound not in ("poisson", "ours")], axis=0).tolist()
    return {bound: [max(values) for values in zip(*of, strict=True)] for bound, of in each.items()}


def draw(axes: Axes, noise: Curve, found: Mapping[str, Sequence[float]], title: str = "") -> None:
    """Epsilons on logarithmic axes."""
    for bound in LOOKS:
        if bound in found:
            axes.plot(noise, found[bound], **LOOKS[bound])
    axes.set(title=title, xscale="log", yscale="log", xlabel="noise multiplier", ylabel="epsilon")
    make_readable(axes)


def figure_1(path: Path) -> Sequence[Row]:
    """Epsilon over the noise multiplier: 1 of a million rounds, delta 1e-10."""
    found = curves(NOISE, MILLION)
    figure, (axes, ratios) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    draw(axes, NOISE, found)
    draw(ratios, NOISE, {bound: np.divide(values, found["poisson"]) for bound, values in found.items()})
    axes.set(ylim=(1e-3, 100))
    ratios.set(ylabel="epsilon / epsilon of Poisson sampling", yscale="linear", ylim=(0.45, 1.75))
    axes.legend(fontsize=9, loc="lower left")
    figure.suptitle(f"{PAPER}, Figure 1: 1 of 10^6 rounds, delta 1e-10", fontsize=11)
    save(figure, path)
    return [
        _at_point(f"noise {NOISE[i]:.3g}", i, found) | {"decomposition / Poisson": _ratio(found, "decomposition", i)}
        for i in (0, 4, 7, 10)
    ]


def figure_4(path: Path) -> Sequence[Row]:
    """Epsilon over the noise multiplier by direction: 1 of a million rounds, delta 1e-10."""
    return _by_direction(path, "Figure 4: 1 of 10^6 rounds", NOISE, MILLION)


def figure_5(path: Path) -> Sequence[Row]:
    """Epsilon over the noise multiplier by direction: 10 of a million rounds, delta 1e-10."""
    return _by_direction(path, "Figure 5: 10 of 10^6 rounds", np.geomspace(0.5, 4, 9), Setting(10**6, 1e-10, 10))


def figure_9(path: Path) -> Sequence[Row]:
    """Epsilon over the noise multiplier at the settings of Chua et al. 2024: four numbers of rounds, delta 1e-7."""
    noise = np.linspace(0.1, 0.5, 5)
    figure, all_axes = plt.subplots(2, 2, figsize=(12, 7.4), layout="constrained")
    rows = []
    for axes, rounds in zip(all_axes.flat, (35_938, 12_500, 4_492, 1_563), strict=True):
        found = curves(noise, Setting(rounds, 1e-7))
        draw(axes, noise, found, f"1 of {rounds:,} rounds")
        axes.set_xticks(noise, labels=[f"{s:g}" for s in noise])
        axes.set_xticks([], minor=True)
        rows += [_at_point(f"1 of {rounds:,}, noise {noise[i]:g}", i, found) for i in (0, 4)]
    figure.suptitle(f"{PAPER}, Figure 9: delta 1e-7", fontsize=11)
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    save(figure, path)
    return rows


def _by_direction(path: Path, title: str, noise: Curve, setting: Setting) -> Sequence[Row]:
    figure, all_axes = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained", sharey=True)
    directions: tuple[Direction, Direction] = ("add", "remove")
    rows = []
    for axes, direction in zip(all_axes, directions, strict=True):
        found = curves(noise, setting, (direction,))
        draw(axes, noise, found, direction)
        rows += [_at_point(f"{direction}, noise {noise[i]:.3g}", i, found) for i in (0, len(noise) // 2)]
    figure.suptitle(f"{PAPER}, {title}, delta {setting.delta:g}, each direction by itself", fontsize=11)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    save(figure, path)
    return rows


def _at_point(where: str, index: int, found: Curves) -> Row:
    """Epsilon, beside the two that a reader would use instead."""
    columns = {"fedamp": "ours", "Poisson": "poisson", "paper's best bound": "best"}
    return {"": where} | {column: found[bound][index] for column, bound in columns.items()}


def _ratio(found: Curves, bound: str, index: int) -> float:
    return found[bound][index] / found["poisson"][index]
