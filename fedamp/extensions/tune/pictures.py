"""Draw sweeps: the final scores over the values that vary, and the scores by round."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter

from fedamp.base.text import printable
from fedamp.extensions.tune.sweep import REPEATED, Outcome, Sweep
from fedamp.report import style, words
from fedamp.report.pictures import LINES, round_axis

OF_SEEDS = "public test set; mean ± deviation of the seeds"


@style.usual()
def sweep_pictures(sweep: Sweep) -> dict[str, Figure]:
    """Draw a sweep whose runs have scores, by the picture's name."""
    return {"score": _final_scores(sweep), "rounds": _scores_by_round(sweep)}


def _of_sweep(sweep: Sweep) -> tuple[Figure, Axes, str, int]:
    """Make a figure and its axes; return also the score's name, and 100 where it is read in per cent."""
    name = next((outcome.metric for outcome in sweep.outcomes), "accuracy")
    canvas, (axes,) = style.figure(f"{printable(sweep.scenario)}: {words.metric(name)}", OF_SEEDS, (3.0,))
    return canvas, axes, name, 100 if words.is_share(name) else 1


def _scores_by_round(sweep: Sweep) -> Figure:
    """Draw the mean over the seeds of each combination of settings, in a band of a deviation.

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
        means, spread = scores.mean(0), scores.std(0, ddof=1) if len(each) > 1 else 0.0
        looks = style.look(index).options
        axes.plot(rounds, means, **looks | {"markevery": max(1, len(rounds) // 8), "markersize": 5})
        axes.fill_between(rounds, means - spread, means + spread, color=looks["color"], alpha=0.18, linewidth=0)
        shown += [*(means - spread), *(means + spread)]
        handles.append(Line2D([], [], label=style.shortened(words.settings(outcome.settings), 44), **looks))
    style.quality(axes, words.metric(name), scale == 100, shown)
    round_axis(axes)
    style.key(canvas, handles)
    return canvas


def _final_scores(sweep: Sweep) -> Figure:
    """Draw the mean score with its deviation over the first key that varies.

    Each combination of the other keys is a line; values without an order are points alone.
    """
    canvas, axes, name, scale = _of_sweep(sweep)
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
        looks |= {} if numeric else {"linestyle": ""}  # a line between schemes would say that they have an order
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
