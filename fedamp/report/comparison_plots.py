"""Pictures of several runs: accuracy and epsilon over rounds, accuracy against epsilon, bytes and seconds a client."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedamp.numbers import power
from fedamp.report import style
from fedamp.runs.merged import Merged, Model
from fedamp.runs.run import Run

LONGEST_NAME = 34  # letters of a run's name in a key


def comparison_pictures(models: Sequence[Model]) -> dict[str, Figure]:
    """Pictures of several models by name: of the runs by round and by client, of all by accuracy and epsilon."""
    evaluated = [model for model in models if model.accuracy is not None]
    runs = [model for model in models if isinstance(model, Run)]
    pictures = {}
    if any(isinstance(model, Run) for model in evaluated):
        pictures["rounds"] = _over_rounds(evaluated)
    if any(model.is_private for model in evaluated):
        pictures["accuracy-epsilon"] = _accuracy_against_epsilon(evaluated)
    if runs:
        pictures["cost"] = _cost(runs)
    return pictures


def _over_rounds(models: Sequence[Model]) -> Figure:
    """A merged model has no rounds of its own; its place among the looks stays free."""
    runs = {index: model for index, model in enumerate(models) if isinstance(model, Run)}
    private = any(run.is_private for run in runs.values())
    protected = _protection(list(runs.values()))
    canvas, axes = style.figure("accuracy and privacy cost by round", protected, (2.4,) * (1 + private))
    for index, run in runs.items():
        records = run.evaluated
        axes[0].plot([r.round for r in records], [100 * (r.accuracy or 0) for r in records], **_line(index, records))
        if run.is_private:
            spent = [record.epsilon_upper or 0.0 for record in run.rounds]
            axes[1].plot([r.round for r in run.rounds], spent, drawstyle="steps-post", **_line(index, run.rounds))
    style.percent(axes[0])
    axes[-1].set_xlabel("round")
    if private:
        axes[1].sharex(axes[0])
        axes[0].tick_params(labelbottom=False)
        axes[1].set(ylabel="ε spent, at most")
        axes[1].set_ylim(bottom=0)
    _key(canvas, runs)
    return canvas


def _accuracy_against_epsilon(models: Sequence[Model]) -> Figure:
    """Every final model at what it was charged (filled), a run's also at what it would have cost (hollow)."""
    canvas, (axes,) = style.figure("what accuracy costs", _protection(models), (3.2,))
    costs: list[float] = []
    for index, model in enumerate(models):
        look, accuracy = style.look(index), _final(model)
        if model.epsilon is None:
            axes.axhline(accuracy, color=look.color, linestyle=look.dash, linewidth=1.2)
            continue
        if isinstance(model, Run) and model.unamplified_epsilon is not None:
            ends = [model.epsilon, model.unamplified_epsilon]
            axes.plot(ends, [accuracy, accuracy], color=style.GREY, linestyle=":", linewidth=1.2)
            axes.plot(ends[1], accuracy, look.marker, color=look.color, mfc="white", markersize=9)
            costs += ends[1:]
        axes.plot(model.epsilon, accuracy, look.marker, color=look.color, markersize=9)
        costs.append(model.epsilon)
    axes.set(xlabel="privacy cost ε, at most (less is better)")
    style.logarithmic(axes)
    axes.set_xlim(min(costs) / 1.5, max(costs) * 1.5)
    lowest = 10 * np.floor(min(_final(model) for model in models) / 10) - 10
    axes.set(ylabel="accuracy, %", ylim=(max(0, lowest), 103))
    shown = [Line2D([], [], color=style.GREY, marker="o", linestyle="", label="charged")]
    if any(isinstance(model, Run) and model.is_amplified for model in models):
        hollow = Line2D([], [], color=style.GREY, marker="o", mfc="white", linestyle="", label="without amplification")
        shown.append(hollow)
    axes.legend(handles=shown, loc="lower right", fontsize=10)
    _key(canvas, dict(enumerate(models)))
    return canvas


def _cost(runs: Sequence[Run]) -> Figure:
    height = 0.9 + 0.42 * len(runs)
    canvas, axes = style.figure("what a client's check-in costs", "received and sent; wall time", (height, height))
    kilobytes = [run.bytes_per_check_in / 1000 for run in runs]
    milliseconds = [1000 * run.seconds_per_check_in for run in runs]
    _bars(axes[0], runs, kilobytes, "kB a check-in")
    _bars(axes[1], runs, milliseconds, "ms a check-in, on the machine of the run")
    return canvas


def _bars(axes: Axes, runs: Sequence[Run], values: Sequence[float], words: str) -> None:
    places = np.arange(len(runs))
    axes.barh(places, values, color=[style.look(place).color for place in places], height=0.62)
    for place, value in zip(places, values, strict=True):
        style.label(axes, f"{value:,.3g}", (value, place), (4, 0), va="center")
    axes.set(yticks=places, yticklabels=[_short(run.name, 18) for run in runs], xlabel=words)
    axes.set_xlim(0, 1.2 * max(values))
    axes.invert_yaxis()
    axes.set_axisbelow(True)
    axes.grid(False, axis="y")


def _key(canvas: Figure, models: Mapping[int, Model]) -> None:
    """What each look stands for, the most accurate model first, below the picture."""
    order = sorted(models, key=lambda index: -_final(models[index]))
    handles = [Line2D([], [], **_line(index, []), label=_label(models[index])) for index in order]
    canvas.set_figheight(canvas.get_figheight() + 0.24 * len(handles) + 0.1)
    canvas.legend(handles=handles, loc="outside lower left", handlelength=4, frameon=False, fontsize=style.TEXT)


def _label(model: Model) -> str:
    merged = ", merged" if isinstance(model, Merged) else ""
    return f"{_short(model.name, LONGEST_NAME - len(merged))}{merged}: {_final(model):.1f} %"


def _line(index: int, points: Sequence[object]) -> dict[str, Any]:
    look = style.look(index)
    return {
        "color": look.color,
        "linestyle": look.dash,
        "marker": look.marker,
        "markersize": 5,
        "markevery": (3 * index % max(1, len(points) // 8), max(1, len(points) // 8)),
    }


def _final(model: Model) -> float:
    return 100 * (model.accuracy or 0.0)


def _protection(models: Sequence[Model]) -> str:
    private = [model.promise for model in models if model.is_private]
    if not private:
        return "no privacy: epsilon is infinite"
    units = " or ".join(sorted({f"one {promise['unit']}" for promise in private}))
    deltas = " or ".join(power(delta) for delta in sorted({promise["delta"] for promise in private}))
    return f"protected: {units}, δ = {deltas}"


def _short(name: str, longest: int) -> str:
    return name if len(name) <= longest else "…" + name[1 - longest :]
