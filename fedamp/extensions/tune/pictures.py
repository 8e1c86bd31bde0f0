"""Draw sweeps and studies: the final scores over the values that vary, and the scores by round."""

from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from fedamp.base.text import printable
from fedamp.extensions.tune.sweep import BUDGET, REPEATED, Layout, Spread, Sweep, settings_in_words
from fedamp.report import style, words
from fedamp.report.pictures import COST, GREY, LINES, WITHOUT, round_axis

OF_SEEDS = "; mean and its 95 % t interval"  # of several runs


@style.usual()
def sweep_pictures(sweep: Sweep) -> dict[str, Figure]:
    """Draw a sweep whose runs have scores, by the picture's name."""
    return {"score": _final_scores(sweep), "rounds": _scores_by_round(sweep)}


@style.usual()
def study_picture(sweep: Sweep, unamplified: bool) -> Figure:
    """Draw the figure of a study.

    Args:
        sweep: whose runs have scores.
        unamplified: also draw each point at its charge without amplification, hollow, where budgets are across.
    """
    layout = sweep.layout()
    if len(layout.values) == 1 < len(layout.lines) and not unamplified:
        return _scores_by_line(sweep)
    return _final_scores(sweep, unamplified)


def _of_sweep(sweep: Sweep) -> tuple[Figure, Axes, str, int]:
    """Make a figure and its axes; return also the score's name, and 100 where it is read in per cent."""
    name = next((outcome.metric for outcome in sweep.outcomes), "accuracy")
    scored_on = "public test set" + OF_SEEDS * any(len(outcome.runs) > 1 for outcome in sweep.outcomes)
    canvas, (axes,) = style.figure(f"{printable(sweep.scenario)}: {words.metric(name)}", scored_on, (3.0,))
    return canvas, axes, name, 100 if words.is_share(name) else 1


def _scores_by_round(sweep: Sweep) -> Figure:
    """Draw the mean over the seeds of each combination of settings, in a band of the 95 % interval of the mean.

    At most the best ``LINES`` are drawn, because a reader can tell no more apart.
    """
    canvas, axes, name, scale = _of_sweep(sweep)
    best = sorted(sweep.outcomes, key=lambda each: -each.score.mean if each.score else np.inf)[:LINES]
    best.sort(key=sweep.outcomes.index)  # as the table has them
    shown, handles = [], []
    for index, outcome in enumerate(best):
        each = [{record.round: record.score[1] for record in run.evaluated if record.score} for run in outcome.runs]
        rounds = sorted(set.intersection(*map(set, each)))
        scores = scale * np.array([[scores[round_] for round_ in rounds] for scores in each])
        spreads = [Spread.of(list(column)) for column in scores.T]
        means, spread = (np.array([getattr(it, key) or 0.0 for it in spreads]) for key in ("mean", "half_width"))
        looks = style.look(index).options
        axes.plot(rounds, means, **looks | {"markevery": max(1, len(rounds) // 8), "markersize": 5})
        axes.fill_between(rounds, means - spread, means + spread, color=looks["color"], alpha=0.18, linewidth=0)
        shown += [*(means - spread), *(means + spread)]
        handles.append(
            Line2D(
                [], [], label=style.shortened(settings_in_words(outcome.settings) or words.settings({}), 44), **looks
            )
        )
    style.quality(axes, words.metric(name), scale == 100, shown)
    round_axis(axes)
    style.key(canvas, handles)
    return canvas


def _final_scores(sweep: Sweep, unamplified: bool = False) -> Figure:
    """Draw the mean score with its interval over a numeric key that varies: a line for each of the other settings.

    Values without an order are points alone. Scores without noise are lines across.
    """
    canvas, axes, name, scale = _of_sweep(sweep)
    layout = sweep.layout()
    numbers = [value for value in layout.values if value is not None]
    places = list(map(float, numbers)) if layout.is_numeric else list(map(float, range(len(layout.values))))
    shown: list[float] = []
    handles: list[Artist] = []
    hollow = unamplified and layout.across == BUDGET
    for index, (line, points) in enumerate(layout.lines.items()):
        looks = style.look(index).options | {"markersize": 5}
        scored = {place: it.outcome for place, it in sorted(points.items()) if it.outcome.score}
        ends = {place: [scale * end for end in it.score.ends] for place, it in scored.items() if it.score}
        means = {place: scale * it.score.mean for place, it in scored.items() if it.score}
        for place in [each for each in scored if each >= len(places)]:  # without noise
            axes.axhline(means[place], color=looks["color"], linestyle=":", linewidth=1.0)
            shown.append(means.pop(place))
        across, heights = [places[place] for place in means], list(means.values())
        low, high = (np.array([ends[place][side] for place in means]) for side in (0, 1))
        if layout.is_numeric:
            axes.plot(across, heights, **looks)
            axes.fill_between(across, low, high, color=looks["color"], alpha=0.18, linewidth=0)
        else:  # a line between schemes would say that they have an order
            bars = [np.array(heights) - low, high - np.array(heights)]
            axes.errorbar(across, heights, bars, capsize=4, **looks | {"linestyle": ""})
        if hollow:
            for place, height in means.items():
                _draw_unamplified(axes, places[place], height, scored[place].unamplified_epsilon, looks)
        shown += [*low, *high, *heights]
        handles.append(Line2D([], [], label=style.shortened(line, 44), **looks))
    if len(numbers) < len(layout.values) and layout.is_numeric:
        handles.append(Line2D([], [], label="without noise", **GREY))
    if any(it.outcome.score and it.outcome.score.half_width for each in layout.lines.values() for it in each.values()):
        handles.append(Patch(color=style.GREY, alpha=0.25, linewidth=0, label="95 % interval of the mean (t)"))
    if hollow:
        handles.append(Line2D([], [], label=WITHOUT, color=style.GREY, marker="o", mfc="white", linestyle=""))
    _label_across(axes, sweep, layout, places, hollow)
    style.quality(axes, words.metric(name), scale == 100, shown)
    if len(handles) > 1 or layout.across != (sweep.varied or [""])[0]:
        style.key(canvas, handles)
    return canvas


def _scores_by_line(sweep: Sweep) -> Figure:
    """Draw the mean score of each variant with its interval, one below the other, where one point of each is there.

    Over one value of a key all points would cover each other.
    """
    canvas, axes, name, scale = _of_sweep(sweep)
    scored = {
        line: it.outcome.score
        for line, points in sweep.layout().lines.items()
        for it in points.values()
        if it.outcome.score
    }
    means = scale * np.array([score.mean for score in scored.values()])
    low, high = scale * np.array([score.ends for score in scored.values()]).T
    rows = np.arange(len(scored))
    looks = style.look(0).options | {"linestyle": "", "markersize": 4}
    axes.errorbar(means, rows, xerr=[means - low, high - means], capsize=2, **looks)
    axes.set_yticks(rows, [style.shortened(line, 30) for line in scored])
    axes.set_ylim(len(scored) - 0.5, -0.5)
    axes.set_xlabel(f"{words.metric(name)}{', %' if scale == 100 else ''} (mean, 95 % interval)")
    canvas.set_figheight(1.2 + 0.3 * len(scored))
    return canvas


def _draw_unamplified(axes: Axes, budget: float, height: float, cost: float | None, looks: dict[str, Any]) -> None:
    """Draw a point also at its charge without amplification, hollow, with a line to its budget."""
    if cost is not None and cost > 1.01 * budget:  # else it would cover the filled point
        axes.plot([budget, cost], [height, height], linewidth=0.8, **GREY)
        axes.plot(cost, height, color=looks["color"], marker=looks["marker"], mfc="white", linestyle="", markersize=5)


def _label_across(axes: Axes, sweep: Sweep, layout: Layout, places: list[float], far: bool) -> None:
    """Put the values and the name of their key on the horizontal axis, logarithmic where they differ much."""
    if far or (layout.is_numeric and len(places) > 2 and min(places) > 0 and max(places) > 7 * min(places)):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.minorticks_off()
    if far:
        style.logarithmic(axes)
    else:
        values = [value for value in layout.values if value is not None or not layout.is_numeric]
        labels = [style.shortened(words.given(value), 16) if layout.across else "" for value in values]
        axes.set_xticks(places, labels)
    named = COST if layout.across == BUDGET else words.setting(layout.across, sweep.varied)
    axes.set_xlabel(named if layout.across else f"{len(sweep.grid.get(REPEATED, [0]))} seeds")
    axes.margins(x=0.05 if layout.is_numeric else 0.15)
