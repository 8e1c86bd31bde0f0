"""Pictures of studies: the scores of a sweep, and the cost of the weights of a merged model."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from fedamp.base.numbers import power
from fedamp.base.text import printable
from fedamp.report import style, words
from fedamp.studies.merging.merge import Merger
from fedamp.studies.swept import REPEATED, Outcome, Sweep

Array = NDArray[np.float64]
COST = "ε, at most"
SUBTITLE = "public test set; mean ± deviation of the seeds"
LINES = 8  # that a reader can tell apart
CHARGED, CHOSEN = style.LOOKS[0], style.LOOKS[1]


def sweep_pictures(sweep: Sweep) -> dict[str, Figure]:
    """The final scores of a sweep, and the scores by round, by name."""
    return {"score": _final_scores(sweep), "rounds": _scores_by_round(sweep)}


def _canvas(sweep: Sweep) -> tuple[Figure, Axes, str, int]:
    """A figure and its axes, the score's name, and 100 where it is read in per cent."""
    name = next((outcome.metric for outcome in sweep.outcomes), "accuracy")
    canvas, (axes,) = style.figure(f"{printable(sweep.scenario)}: {words.metric(name)}", SUBTITLE, (3.0,))
    return canvas, axes, name, 100 if words.is_share(name) else 1


def _scores_by_round(sweep: Sweep) -> Figure:
    """Mean over the seeds of each combination of settings, in a band of a deviation; at most the best ``LINES``."""
    canvas, axes, name, scale = _canvas(sweep)
    best = sorted(sweep.outcomes, key=lambda each: -each.score.mean if each.score else np.inf)[:LINES]
    shown, handles = [], []
    for index, outcome in enumerate(best):
        each = [{record.round: record.score[1] for record in run.evaluated if record.score} for run in outcome.runs]
        rounds = sorted(set.intersection(*map(set, each)))
        scores = scale * np.array([[scores[round_] for round_ in rounds] for scores in each])
        means, spread = scores.mean(0), scores.std(0, ddof=1) if len(each) > 1 else 0.0
        looks = style.look(index).options
        axes.plot(rounds, means, **looks | {"markevery": max(1, len(rounds) // 8), "markersize": 5})
        axes.fill_between(rounds, means - spread, means + spread, color=looks["color"], alpha=0.18, linewidth=0)
        shown += [*(means - spread), *(means + spread)]
        handles.append(Line2D([], [], label=style.shortened(words.settings(outcome.settings), 44), **looks))
    style.quality(axes, words.metric(name), scale == 100, shown)
    axes.set_xlabel("round")
    style.key(canvas, handles)
    return canvas


def _final_scores(sweep: Sweep) -> Figure:
    """Mean score with its deviation over the first key that varies; a line for each combination of the others."""
    canvas, axes, name, scale = _canvas(sweep)
    first, *others = sweep.varied or [""]
    values = sweep.grid.get(first, [None])
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    places = {str(value): float(value if numeric else index) for index, value in enumerate(values)}
    lines: dict[str, list[Outcome]] = {}
    for outcome in sweep.outcomes:
        lines.setdefault(words.settings({key: outcome.settings[key] for key in others}), []).append(outcome)
    shown, handles = [], []
    for index, (line, outcomes) in enumerate(lines.items()):
        looks, scored = style.look(index).options, [each for each in outcomes if each.score is not None]
        means = np.array([scale * each.score.mean for each in scored if each.score])
        deviations = np.array([scale * (each.score.deviation or 0.0) for each in scored if each.score])
        axes.errorbar([places[str(each.settings.get(first))] for each in scored], means, deviations, capsize=4, **looks)
        shown += [*(means - deviations), *(means + deviations)]
        handles.append(Line2D([], [], label=style.shortened(line, 44), **looks))
    found = np.array(list(places.values()))
    if len(found) > 2 and found.min() > 0 and found.max() > 8 * found.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.minorticks_off()
    axes.set_xticks(found, [style.shortened(words.given(value), 16) if first else "" for value in values])
    axes.set_xlabel(words.setting(first, sweep.varied) if first else f"{len(sweep.grid.get(REPEATED, [0]))} seeds")
    axes.margins(x=0.15)
    style.quality(axes, words.metric(name), scale == 100, shown)
    if others:
        style.key(canvas, handles)
    return canvas


def draw_merger(merger: Merger) -> list[Path]:
    """Draw the cost of a merger's weights into its ``plots`` folder, if it has two or three models."""
    request, decision, models = merger.request, merger.decision, merger.candidates.models
    if len(models) not in (2, 3):
        return []
    names, budget = [model.name for model in models], (request.epsilon, request.delta)
    logarithmic = request.method == "random-selection"
    picture = epsilon_over_weights(names, decision.epsilons, budget, decision.weights, logarithmic)
    return style.save_all({"epsilon-over-weights": picture}, merger.folder.plots)


def epsilon_over_weights(
    names: Sequence[str],
    epsilons: Callable[[Array], Array],
    budget: tuple[float, float],
    chosen: Sequence[float],
    logarithmic: bool,
) -> Figure:
    """The cost of all weights, the budget, and the chosen weights: a curve for two models, a heat map for three.

    Args:
        epsilons: the cost of each row of weights, at most.
        budget: epsilon and delta.
        logarithmic: the axes of weights, since a random selection is sensitive to weights as small as delta.
    """
    pair, (epsilon, delta) = len(names) == 2, budget
    order = np.argsort(epsilons(np.eye(len(names))), kind="stable")  # the most private model has the rest, and no axis

    def cost(*weights: Array) -> Array:
        rows = np.empty((len(weights[0]), len(order)))
        rows[:, order[1:]] = np.stack(weights, axis=1)
        rows[:, order[0]] = np.maximum(1 - np.sum(weights, axis=0), 0.0)
        return epsilons(rows)

    short = [style.shortened(names[index], 20) for index in order]
    ticks = np.geomspace(delta / 10, 1, 46) if logarithmic else np.linspace(0, 1, 51 if pair else 21)
    subtitle = f"{short[0]} has the rest; δ = {power(delta)}"
    canvas, (axes,) = style.figure("What the weights cost", subtitle, (3.4 if pair else 4.0,))
    scale = "log" if logarithmic else "linear"
    axes.set(xlabel=f"weight of {short[1]}", xscale=scale)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    place = np.maximum(np.asarray(chosen)[order], ticks[0])[1:]
    if pair:
        _draw_curve(axes, ticks, cost(ticks), epsilon, float(place[0]))
    else:
        axes.set(ylabel=f"weight of {short[2]}", yscale=scale)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        second, third = np.meshgrid(ticks, ticks)
        inside = second + third <= 1 + 1e-12
        costs = np.full(second.shape, np.nan)
        costs[inside] = cost(second[inside], third[inside])
        _draw_heat(axes, ticks, costs, epsilon, (float(place[0]), float(place[1])))
    axes.minorticks_off()
    return canvas


def _draw_curve(axes: Axes, weights: Array, costs: Array, budget: float, chosen: float) -> None:
    finite = np.isfinite(costs)
    axes.plot(weights, np.where(finite, costs, np.nan), color=CHARGED.color)
    axes.axhline(budget, color=style.GREY, linestyle=":")
    style.label(axes, f"budget: {budget:g}", (float(weights[-1]), budget), (-2, 3), ha="right", color=style.GREY)
    axes.axvline(chosen, color=CHOSEN.color, linestyle=CHOSEN.dash)
    style.label(axes, "chosen", (chosen, 0), (3, 4), color=CHOSEN.color)
    axes.set(ylabel=COST, ylim=(0, 1.15 * max([budget, *costs[finite]])))


def _draw_heat(axes: Axes, ticks: Array, costs: Array, budget: float, chosen: tuple[float, float]) -> None:
    infinite = np.isposinf(costs)
    finite = np.where(np.isfinite(costs), costs, np.nan)
    highest = float(np.nanmax(finite))
    heat = axes.pcolormesh(ticks, ticks, finite, cmap="cividis", vmin=0, vmax=highest, shading="nearest")
    axes.figure.colorbar(heat, ax=axes).set_label(COST)
    line = f"budget, ε = {budget:g}"
    if budget < highest or infinite.any():
        levels = np.where(infinite, 1e3 * max(highest, budget), finite)
        axes.contour(ticks, ticks, levels, [budget], colors="white", linewidths=2.5)
        handles = [Patch(facecolor="white", edgecolor=style.GREY, linewidth=2, label=f"line: {line}")]
    else:
        handles = [Patch(facecolor="none", edgecolor="none", label=f"{line}: all weights keep it")]
    if infinite.any():  # hatched: a plain grey would look like a cost
        where = np.where(np.isnan(costs), np.nan, infinite)
        axes.contourf(ticks, ticks, where, [0.5, 1.5], colors=["white"], hatches=["////"])
        handles.append(Patch(facecolor="white", edgecolor="black", hatch="////", label="no privacy"))
    axes.plot(*chosen, "o", color="white", markeredgecolor="black", markersize=10, clip_on=False, zorder=4)
    above = chosen[1] <= ticks[len(ticks) // 2]
    style.label(axes, "chosen", chosen, (9, 6 if above else -16), zorder=5)
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=style.TEXT)
