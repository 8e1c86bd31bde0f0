"""Epsilon over the weights of three models trained with the paper's settings for MNIST (Appendix H.1, Figure 2).

Epsilon depends on the settings alone, so that this figure is the paper's own, whatever data there are.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection

from benchmarks.papers import charges
from benchmarks.papers.drawing import make_readable, save
from benchmarks.papers.merging_costs import (
    DELTA,
    MNIST,
    PAPER,
    SELECTION,
    SELECTION_RDP,
    Array,
    loose_epsilon,
    selection_by_rdp,
    simplex,
)
from benchmarks.record import Row
from fedamp.accounting import FIXED_GRADIENTS, Compose, Gaussian, LinearCombination, Repeat

NAMES = ("C = 1, σ = 0.5", "C = 2, σ = 0.5", "C = 1, σ = 2")


def figure_2(path: Path) -> Sequence[Row]:
    """Epsilon over the weights of three models, by each accounting: the paper's own settings for MNIST."""
    weights = simplex(3, 12)
    panels = {
        "selection, Rényi": selection_by_rdp(MNIST.curves, weights),
        "selection, privacy loss: fedamp": MNIST.selection_by_loss(weights),
        "combination by steps, Rényi: no bound": MNIST.steps_by_rdp(weights),
        "combination by steps, privacy loss: no bound": np.array(MNIST.steps_by_loss(weights)),
        "combination, joint release: fedamp": np.array(MNIST.joint(weights)),
    }
    figure, all_axes = plt.subplots(2, 3, figsize=(12, 7.4), layout="constrained")
    figure.suptitle(f"{PAPER}, Figure 2: epsilon over the weights of three models, δ = 1e-5", fontsize=11)
    places = (all_axes[0, 0], all_axes[0, 1], all_axes[1, 0], all_axes[1, 1], all_axes[1, 2])
    for axes, (title, epsilons) in zip(places, panels.items(), strict=True):
        shades = _draw_map(axes, weights, epsilons, title)
    _draw_small_weights(all_axes[0, 2])
    figure.colorbar(shades, ax=all_axes, label="epsilon (in the five maps)", shrink=0.6, pad=0.01)
    save(figure, path)
    return _rows()


def _draw_map(axes: Axes, weights: Array, epsilons: Array, title: str) -> PathCollection:
    """Shades and lines of equal epsilon; the second model has what the other two leave."""
    across, up = weights[:, 0], weights[:, 2]
    shades = axes.scatter(across, up, c=epsilons, cmap="Greys", vmin=0, vmax=14, s=350, marker="s", linewidths=0)
    if len(np.unique(epsilons)) > 10:
        levels = np.unique(np.quantile(epsilons, [0.1, 0.3, 0.5, 0.7, 0.9]).round(2))
        lines = axes.tricontour(across, up, epsilons, levels=levels, colors="black", linewidths=0.9)
        axes.clabel(lines, fmt="%g", fontsize=9)
    axes.set_title(title, fontsize=10)
    axes.set(xlabel=f"weight of {NAMES[0]}", ylabel=f"weight of {NAMES[2]}", xlim=(-0.06, 1.06), ylim=(-0.06, 1.06))
    middle = epsilons[_nearest_to_even(weights)]
    words = [f"{name}: {epsilons[np.argmax(weights[:, index])]:.2f}" for index, name in enumerate(NAMES)]
    lines_of_words = "\n".join(["epsilon alone", *words, f"about even: {middle:.2f}"])
    axes.text(1, 0.98, lines_of_words, ha="right", va="top", fontsize=9, transform=axes.transAxes)
    return shades


def _draw_small_weights(axes: Axes) -> None:
    """Where random selection becomes cheap: weights of the models with little noise around delta."""
    small = np.geomspace(1e-8, 1, 33)
    weights = np.column_stack([small / 2, small / 2, 1 - small])
    axes.plot(small, selection_by_rdp(MNIST.curves, weights), **SELECTION_RDP | {"markevery": 4})
    axes.plot(small, MNIST.selection_by_loss(weights), **SELECTION)
    axes.axvline(DELTA, color="0.5", linestyle=":", label="δ")
    axes.set_title("selection, small weights", fontsize=10)
    words = f"weight of the two models with σ = {MNIST.noises[0]:g} together"
    axes.set(xlabel=words, ylabel="epsilon, at most", xscale="log")
    axes.set_ylim(top=14)
    make_readable(axes)
    axes.legend(fontsize=9, loc="upper left")


def _rows() -> list[Row]:
    """Models alone (the second's clipping norm does not change its cost), and equal weights."""
    even = np.full((1, 3), 1 / 3)
    by_rdp = selection_by_rdp(MNIST.curves, np.concatenate([np.eye(3), even]))
    cells: dict[str, tuple[float, float]] = {
        f"{NAMES[index]} alone": (float(loose_epsilon(MNIST.curves[index])), MNIST.alone[index]) for index in (0, 2)
    }
    cells["equal weights, selection"] = float(by_rdp[-1]), MNIST.selection(*even[0].tolist())
    cells["equal weights, combination by steps: no bound"] = (
        float(MNIST.steps_by_rdp(even)[0]),
        MNIST.steps_by_loss(even)[0],
    )
    rows: list[Row] = [{"": words, "Rényi": rdp, "privacy loss": loss} for words, (rdp, loss) in cells.items()]
    return [
        *rows,
        {"": "any weights > 0, combination, joint release", "Rényi": None, "privacy loss": MNIST.joint(even)[0]},
    ]


def _nearest_to_even(weights: Array) -> int:
    return int(np.argmin(np.abs(weights - 1 / 3).sum(axis=1)))


def two_steps(_: Path) -> Sequence[Row]:
    """Epsilon by steps (Algorithm 4), and beside it what one merged model can really reveal.

    Two models with the noises of the first and the third, everybody in both steps, weights 1/2. In the second step the
    gradients of others write each model's first step into separate coordinates, where the merged model shows it: the
    first step is then released by both models, and only the second step is merged.
    """
    noises = (MNIST.noises[0], MNIST.noises[2])
    runs = tuple(Repeat(Gaussian(noise), 2) for noise in noises)
    merged = Gaussian(math.hypot(*noises) / 2)  # halves of two steps of norm 1 make a step of norm 1
    revealed = Compose((*map(Gaussian, noises), merged))
    claimed = LinearCombination(runs, (0.5, 0.5), FIXED_GRADIENTS, (1.0, 1.0))
    return [
        {
            "two models, two steps, everybody, weights 1/2": "charged by steps",
            "epsilon": charges.epsilon(claimed, DELTA),
        },
        {
            "two models, two steps, everybody, weights 1/2": "revealed by the merged model, at least",
            "epsilon": charges.epsilon(revealed, DELTA, end="lower"),
        },
    ]
