"""Pictures of one run, and of several models side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedamp.base.numbers import at_most, power
from fedamp.report import style, words
from fedamp.report.words import protected
from fedamp.runs.folder import RunFolder
from fedamp.runs.merged import Merged, Model
from fedamp.runs.records import Score
from fedamp.runs.run import Run, read_run

CHARGED, UNAMPLIFIED = style.LOOKS[0], style.LOOKS[1]
LONGEST_NAME = 34  # letters of a run's name in a key


def plot_run(folder: Path) -> list[Path]:
    """Draw a run's pictures into its ``plots`` folder; returns their files (none before the first evaluated round)."""
    files = RunFolder(folder)
    pictures = run_pictures(read_run(folder)) if files.read_rounds() else {}
    return style.save_all(pictures, files.plots) if pictures else []


def run_pictures(run: Run) -> dict[str, Figure]:
    """A run's pictures by name: accuracy (or what leads) and epsilon over rounds, and against each other.

    None before the first evaluated round.
    """
    if not run.evaluated:
        return {}
    pictures = {"rounds": _run_by_round(run)}
    if run.is_private:
        pictures["accuracy-epsilon"] = _run_by_cost(run)
    return pictures


def comparison_pictures(models: Sequence[Model]) -> dict[str, Figure]:
    """Pictures of several models by name: of the runs by round and by client, of all by accuracy and epsilon."""
    evaluated = [model for model in models if model.score is not None]
    runs = [model for model in models if isinstance(model, Run)]
    pictures = {}
    if any(run.evaluated for run in runs):
        pictures["rounds"] = _models_by_round(evaluated)
    if any(model.is_private for model in evaluated):
        pictures["accuracy-epsilon"] = _models_by_cost(evaluated)
    if runs:
        pictures["cost"] = _work_of_a_check_in(runs)
    return pictures


# --- one run ----------------------------------------------------------------------------------------------------------


def _run_by_round(run: Run) -> Figure:
    heights = (2.3, 2.3) if run.is_private else (2.8,)
    canvas, axes = style.figure(run.scenario.name, _protection([run]), heights)
    rounds, quality = _quality_by_round(run)
    marker = CHARGED.marker if len(rounds) < 20 else None
    axes[0].plot(rounds, quality, color=CHARGED.color, marker=marker, clip_on=False)
    _quality_axis(axes[0], [run], quality.min())
    style.at_end(axes[0], _final_words(run), quality[-1])
    axes[-1].set_xlabel("round")
    if run.is_private:
        axes[0].tick_params(labelbottom=False)
        axes[1].sharex(axes[0])
        style.key(canvas, _draw_spending(axes[1], run))
    return canvas


def _draw_spending(axes: Axes, run: Run) -> list[Line2D]:
    """What is spent, what it would be unamplified, and the budget; returns their entries in the key."""
    rounds = np.array([record.round for record in run.rounds])
    spent = np.array([record.epsilon_upper for record in run.rounds], dtype=float)
    axes.step(rounds, spent, where="post", color=CHARGED.color)
    charged = f"charged: {at_most(run.epsilon)}"
    if run.was_stopped_early:
        charged += f" (these rounds: {at_most(spent[-1])})"
    handles, highest = [_handle(CHARGED, charged)], spent[-1]
    if run.is_amplified:
        plain = run.plan.unamplified_epsilon_by_round[rounds - 1]
        axes.step(rounds, plain, where="post", color=UNAMPLIFIED.color, linestyle=UNAMPLIFIED.dash)
        handles.append(_handle(UNAMPLIFIED, f"unamplified, had nothing been hidden: {at_most(plain[-1])}"))
        highest = plain[-1]
    budget = run.scenario.privacy.epsilon
    if budget is not None and budget < 3 * highest:
        axes.axhline(budget, color=style.GREY, linestyle=":")
        handles.append(Line2D([], [], color=style.GREY, linestyle=":", label=f"budget: {budget:g}"))
        highest = max(highest, budget)
    axes.set(ylabel="ε spent, at most", ylim=(0, 1.05 * highest or 1))
    return handles


def _run_by_cost(run: Run) -> Figure:
    canvas, (axes,) = style.figure(f"{run.scenario.name}: what {_metric([run])} costs", _protection([run]))
    rounds, quality = _quality_by_round(run)
    costs = np.array([record.epsilon_upper for record in run.evaluated], dtype=float)
    handles = [_draw_costs(axes, costs, quality, CHARGED, "charged")]
    if run.is_amplified:
        plain = run.plan.unamplified_epsilon_by_round[rounds - 1]
        handles.append(_draw_costs(axes, plain, quality, UNAMPLIFIED, "unamplified, had nothing been hidden"))
        costs = np.concatenate([costs, plain])
    budget = run.scenario.privacy.epsilon
    if budget is not None and budget < 3 * costs.max():
        axes.axvline(budget, color=style.GREY, linestyle=":", zorder=0)
        handles.append(Line2D([], [], color=style.GREY, linestyle=":", label=f"budget: {budget:g}"))
        costs = np.append(costs, budget)
    axes.set(xlabel="privacy cost ε, at most (less is better)")
    left, right = max(costs.min() / 1.3, costs.max() / 300), costs.max() * 1.6
    axes.set_xlim(left or 0.1, right or 1.0)  # a run can cost nothing: at a delta of a half, say
    style.logarithmic(axes)
    _quality_axis(axes, [run], quality.min())
    style.at_end(axes, _final_words(run), quality[-1])
    style.key(canvas, handles)
    return canvas


def _draw_costs(
    axes: Axes, costs: NDArray[np.float64], quality: NDArray[np.float64], look: style.Look, name: str
) -> Line2D:
    """A line that ends in a marker; returns its entry in the key."""
    shown = np.where(costs > 0, costs, np.nan)  # zero has no place on a logarithmic axis
    axes.plot(shown, quality, color=look.color, linestyle=look.dash)
    face = look.color if look is CHARGED else "white"
    axes.plot(
        shown[-1:], quality[-1:], look.marker, color=look.color, markerfacecolor=face, markersize=8, clip_on=False
    )
    handle = _handle(look, f"{name}: {at_most(costs[-1])}")
    handle.set(marker=look.marker, markerfacecolor=face)
    return handle


def _handle(look: style.Look, name: str) -> Line2D:
    return Line2D([], [], color=look.color, linestyle=look.dash, label=name)


# --- several models ---------------------------------------------------------------------------------------------------


def _models_by_round(models: Sequence[Model]) -> Figure:
    """A merged model has no rounds of its own; its place among the looks stays free."""
    runs = {index: model for index, model in enumerate(models) if isinstance(model, Run)}
    private = any(run.is_private for run in runs.values())
    subtitle = _protection(list(runs.values()))
    canvas, axes = style.figure(f"{_metric(models)} and privacy cost by round", subtitle, (2.4,) * (1 + private))
    lowest = 0.0
    for index, run in runs.items():
        rounds, quality = _quality_by_round(run)
        lowest = min(lowest, quality.min())
        axes[0].plot(rounds, quality, **_line(index, len(rounds)), clip_on=False)
        if run.is_private:
            spent = [record.epsilon_upper or 0.0 for record in run.rounds]
            line = _line(index, len(spent))
            axes[1].plot([record.round for record in run.rounds], spent, drawstyle="steps-post", **line)
    _quality_axis(axes[0], models, lowest)
    axes[-1].set_xlabel("round")
    if private:
        axes[1].sharex(axes[0])
        axes[0].tick_params(labelbottom=False)
        axes[1].set(ylabel="ε spent, at most")
        axes[1].set_ylim(bottom=0)
    _add_key(canvas, runs)
    return canvas


def _models_by_cost(models: Sequence[Model]) -> Figure:
    """Every final model at what it was charged (filled), a run's also at what it would cost unamplified (hollow)."""
    canvas, (axes,) = style.figure(f"what {_metric(models)} costs", _protection(models), (3.2,))
    costs: list[float] = []
    for index, model in enumerate(models):
        look, quality = style.look(index), _final(model)
        if model.epsilon is None:
            axes.axhline(quality, color=look.color, linestyle=look.dash, linewidth=1.2)
            continue
        if isinstance(model, Run) and model.unamplified_epsilon is not None:
            ends = [model.epsilon, model.unamplified_epsilon]
            axes.plot(ends, [quality, quality], color=style.GREY, linestyle=":", linewidth=1.2)
            axes.plot(ends[1], quality, look.marker, color=look.color, mfc="white", markersize=9, clip_on=False)
            costs += ends[1:]
        axes.plot(model.epsilon, quality, look.marker, color=look.color, markersize=9, clip_on=False)
        costs.append(model.epsilon)
    axes.set(xlabel="privacy cost ε, at most (less is better)")
    style.logarithmic(axes)
    axes.set_xlim(min(costs) / 1.5, max(costs) * 1.5)
    lowest = min(map(_final, models))
    _quality_axis(axes, models, lowest)
    if _in_percent(models):
        axes.set_ylim(max(0, 10 * np.floor(lowest / 10) - 10), 100)
    circle: dict[str, Any] = {"color": style.GREY, "marker": "o", "linestyle": ""}
    shown = [Line2D([], [], label="charged", **circle)]
    if any(isinstance(model, Run) and model.is_amplified for model in models):
        shown.append(Line2D([], [], label="unamplified, had nothing been hidden", mfc="white", **circle))
    _add_key(canvas, dict(enumerate(models)), shown)
    return canvas


def _work_of_a_check_in(runs: Sequence[Run]) -> Figure:
    """Bars: what a client receives and sends when it checks in, and the wall time of a check-in."""
    height = 0.9 + 0.42 * len(runs)
    canvas, panels = style.figure("what a client's check-in costs", "received and sent; wall time", (height, height))
    bars = {
        "kB a check-in": [run.bytes_per_check_in / 1000 for run in runs],
        "ms a check-in, on the machine of the run": [1000 * run.seconds_per_check_in for run in runs],
    }
    places = np.arange(len(runs))
    for axes, (unit, values) in zip(panels, bars.items(), strict=True):
        axes.barh(places, values, color=[style.look(place).color for place in places], height=0.62)
        for place, value in zip(places, values, strict=True):
            style.label(axes, f"{value:,.3g}", (value, place), (4, 0), va="center")
        axes.set(yticks=places, yticklabels=[style.shortened(run.name, 18) for run in runs], xlabel=unit)
        axes.set_xlim(0, 1.2 * max(values))
        axes.invert_yaxis()
        axes.set_axisbelow(True)
        axes.grid(False, axis="y")
    return canvas


def _add_key(canvas: Figure, models: Mapping[int, Model], also: Sequence[Line2D] = ()) -> None:
    """What each look stands for, the most accurate model first, below the picture."""
    handles = list(also)
    for index, model in sorted(models.items(), key=lambda item: -_final(item[1])):
        merged = ", merged" if isinstance(model, Merged) else ""
        name = style.shortened(model.name, LONGEST_NAME - len(merged))
        label = f"{name}{merged}: {_final_words(model)}"
        handles.append(Line2D([], [], label=label, **_line(index, 0)))
    style.key(canvas, handles)


def _line(index: int, points: int) -> dict[str, Any]:
    """The look of a line with about eight markers, beside those of the other lines."""
    look, every = style.look(index), max(1, points // 8)
    looks = {"color": look.color, "linestyle": look.dash, "marker": look.marker}
    return looks | {"markersize": 5, "markevery": (3 * index % every, every)}


# --- facts ------------------------------------------------------------------------------------------------------------


def _quality_by_round(run: Run) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The evaluated rounds, and the metric that leads; accuracy in per cent."""
    quality = [_shown(record.score) for record in run.evaluated]
    return np.array([record.round for record in run.evaluated]), np.array(quality)


def _final(model: Model) -> float:
    return _shown(model.score)


def _shown(score: Score | None) -> float:
    name, value = score or ("accuracy", 0.0)
    return 100 * value if words.is_share(name) else value


def _final_words(model: Model) -> str:
    name, value = model.score or ("accuracy", 0.0)
    return f"{100 * value:.1f} %" if words.is_share(name) else f"{words.metric(name)} {value:.3g}"


def _names(models: Sequence[Model]) -> list[str]:
    return sorted({model.score[0] for model in models if model.score})


def _metric(models: Sequence[Model]) -> str:
    """What leads, in words; of models of several tasks, all that lead."""
    return " or ".join(map(words.metric, _names(models)))


def _in_percent(models: Sequence[Model]) -> bool:
    return any(map(words.is_share, _names(models)))


def _quality_axis(axes: Axes, models: Sequence[Model], lowest: float) -> None:
    style.quality(axes, _metric(models), _in_percent(models), lowest)


def _protection(models: Sequence[Model]) -> str:
    """Whom the guarantees are about, and at which delta."""
    private = [model.promise for model in models if model.is_private]
    if not private:
        return "no privacy: epsilon is infinite"
    units = " or ".join(sorted({protected(promise["unit"], promise["group_size"]) for promise in private}))
    deltas = " or ".join(power(delta) for delta in sorted({promise["delta"] for promise in private}))
    of = f" of {models[0].ledger.units:,}" if len(models) == 1 and isinstance(models[0], Run) else ""
    known = "; known seed" if any(model.is_private and model.has_known_seed for model in models) else ""
    return f"protected: {units}{of}, δ = {deltas}{known}"
