"""Epsilon over the weights of a merged model: a curve for two models, a heat map for three.

A random selection feels weights as small as delta, so its pictures have logarithmic axes: the most private model has
what the others leave.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fedamp.base.numbers import power
from fedamp.report import style
from fedamp.studies.merging.merge import Merger

Array = NDArray[np.float64]

CHARGED, TAKEN = style.LOOKS[0], style.LOOKS[1]


def plot_merger(merger: Merger) -> list[Path]:
    """Draw what the weights of a merger cost into its ``plots`` folder; for two and three models."""
    request, decision = merger.request, merger.decision
    picture = epsilon_over_weights(
        [model.name for model in merger.candidates.models],
        decision.epsilons,
        (request.epsilon, request.delta),
        decision.weights,
        logarithmic=request.method == "random-selection",
    )
    return [] if picture is None else style.save_all({"epsilon-over-weights": picture}, merger.folder.plots)


def epsilon_over_weights(
    names: Sequence[str],
    epsilons: Callable[[Array], Array],
    budget: tuple[float, float],
    taken: Sequence[float],
    logarithmic: bool,
) -> Figure | None:
    """The cost of all weights, the budget, and the weights that were taken; None but for two or three models.

    Args:
        names: of the models.
        epsilons: what each row of weights costs, at most.
        budget: epsilon and delta.
        taken: the weights that were taken.
        logarithmic: whether weights are shown on logarithmic axes.
    """
    if len(names) not in (2, 3):
        return None
    epsilon, delta = budget
    # The most private model first: it has no axis.
    order = np.argsort(epsilons(np.eye(len(names))), kind="stable")
    short = [style.shortened(names[index], 20) for index in order]
    ticks = np.geomspace(delta / 10, 1, 46) if logarithmic else np.linspace(0, 1, 51 if len(names) == 2 else 21)
    subtitle = f"{short[0]} has the rest; δ = {power(delta)}"
    canvas, (axes,) = style.figure("What the weights cost", subtitle, (3.4 if len(names) == 2 else 4.0,))
    scale = "log" if logarithmic else "linear"
    axes.set(xlabel=f"weight of {short[1]}", xscale=scale)
    shown = np.maximum(np.asarray(taken)[order], ticks[0])
    if len(names) == 2:
        _draw_curve(axes, ticks, epsilons(_weights(order, ticks)), epsilon, float(shown[1]))
    else:
        axes.set(ylabel=f"weight of {short[2]}", yscale=scale)
        second, third = np.meshgrid(ticks, ticks)
        inside = second + third <= 1 + 1e-12
        costs = np.full(second.shape, np.nan)
        costs[inside] = epsilons(_weights(order, second[inside], third[inside]))
        _draw_heat(axes, ticks, costs, epsilon, (float(shown[1]), float(shown[2])))
    axes.minorticks_off()
    return canvas


def _weights(order: NDArray[np.int64], *others: Array) -> Array:
    """Rows of weights in the models' own order."""
    rows = np.empty((len(others[0]), len(order)))
    rows[:, order[1:]] = np.stack(others, axis=1)
    rows[:, order[0]] = np.maximum(1 - np.sum(others, axis=0), 0.0)
    return rows


def _draw_curve(axes: Axes, weights: Array, costs: Array, budget: float, taken: float) -> None:
    finite = np.isfinite(costs)
    axes.plot(weights, np.where(finite, costs, np.nan), color=CHARGED.color)
    axes.axhline(budget, color=style.GREY, linestyle=":")
    style.label(axes, f"budget: {budget:g}", (float(weights[-1]), budget), (-2, 3), ha="right", color=style.GREY)
    axes.axvline(taken, color=TAKEN.color, linestyle=TAKEN.dash)
    style.label(axes, "taken", (taken, 0), (3, 4), color=TAKEN.color)
    axes.set(ylabel="ε, at most", ylim=(0, 1.15 * max([budget, *costs[finite]])))


def _draw_heat(axes: Axes, ticks: Array, costs: Array, budget: float, taken: tuple[float, float]) -> None:
    infinite = np.isposinf(costs)
    finite = np.where(np.isfinite(costs), costs, np.nan)
    highest = float(np.nanmax(finite))
    heat = axes.pcolormesh(ticks, ticks, finite, cmap="cividis", vmin=0, vmax=highest, shading="nearest")
    axes.figure.colorbar(heat, ax=axes).set_label("ε, at most")
    words = f"budget, ε = {budget:g}"
    if budget < highest or infinite.any():
        levels = np.where(infinite, 1e3 * max(highest, budget), finite)
        axes.contour(ticks, ticks, levels, [budget], colors="white", linewidths=2.5)
        handles = [Patch(facecolor="white", edgecolor=style.GREY, linewidth=2, label=f"line: {words}")]
    else:
        handles = [Patch(facecolor="none", edgecolor="none", label=f"{words}: all weights keep it")]
    if infinite.any():
        # Hatched: a plain grey would look like a cost.
        where = np.where(np.isnan(costs), np.nan, infinite)
        axes.contourf(ticks, ticks, where, [0.5, 1.5], colors=["white"], hatches=["////"])
        handles.append(Patch(facecolor="white", edgecolor="black", hatch="////", label="no privacy"))
    axes.plot(*taken, "o", color="white", markeredgecolor="black", markersize=10, clip_on=False, zorder=4)
    at_the_top = taken[1] > ticks[len(ticks) // 2]
    style.label(axes, "taken", taken, (9, -16 if at_the_top else 6), zorder=5)
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=style.TEXT)
