"""Pictures of one run, and of several models side by side."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedamp.base.numbers import at_most, power
from fedamp.data import LabelCounts
from fedamp.report import style, words
from fedamp.runs.folder import RunFolder
from fedamp.runs.records import RoundRecord, Score
from fedamp.runs.run import ReleasedModel, Run, read_run

COST = "privacy cost ε, at most (less is better)"
WITHOUT = "without amplification"
LINES = 8  # that a reader can tell apart
GREY: dict[str, Any] = {"color": style.GREY, "linestyle": ":"}


def plot_run(folder: Path) -> list[Path]:
    """Draw a run's pictures into its ``plots`` folder; returns their files, none where there is nothing to show."""
    files = RunFolder(folder)
    pictures = run_pictures(read_run(folder)) if files.read_rounds() else {}
    return style.save_all(pictures, files.plots) if pictures else []


@style.usual()
def run_pictures(run: Run) -> dict[str, Figure]:
    """Quality and epsilon over rounds, by name: what there is of the two."""
    return {"rounds": _by_round([run])} if run.evaluated or run.is_private else {}


@style.usual()
def comparison_pictures(models: Sequence[ReleasedModel]) -> dict[str, Figure]:
    """Pictures of several models by name: of the runs by round, of all by quality and epsilon."""
    evaluated = [model for model in models if model.score is not None]
    runs = [model for model in models if isinstance(model, Run)]
    pictures = {}
    if any(run.evaluated for run in runs):
        pictures["rounds"] = _by_round(evaluated)
    if any(model.is_private for model in evaluated):
        pictures["accuracy-epsilon"] = _models_by_cost(evaluated)
    return pictures


def _by_round(models: Sequence[ReleasedModel]) -> Figure:
    """Quality, if it was measured, and epsilon of runs; of one alone also without amplification, and the budget."""
    runs = {index: model for index, model in enumerate(models) if isinstance(model, Run)}  # others have no rounds
    measured, private = (
        any(found) for found in zip(*((it.evaluated, it.is_private) for it in runs.values()), strict=True)
    )
    alone = models[0] if len(models) == 1 and isinstance(models[0], Run) else None
    title = alone.scenario.name if alone else f"{_metric(models)} and privacy cost by round"
    canvas, axes = style.figure(title, _protection(list(runs.values())), (2.4,) * (measured + private))
    highest = 0.0
    for index, run in runs.items():
        quality = _quality(run)
        if measured:
            axes[0].plot(_rounds(run.evaluated), quality, **_line(index, len(quality)), clip_on=False)
        for place, costs in _curves(run, run.rounds, index).items():
            if place == index or alone:
                line = _line(place, len(costs))
                axes[-1].plot(_rounds(run.rounds), costs, drawstyle="steps-post", **line)
                highest = max(highest, costs[-1])
    if measured:
        _quality_axis(axes[0], models, np.concatenate([_quality(run) for run in runs.values()]))
    round_axis(axes[-1])
    if alone:
        highest = _add_cost_key(canvas, axes, alone)
    else:
        _add_key(canvas, runs)
    if private:
        axes[-1].set(ylabel="ε spent, at most", ylim=(0, 1.05 * highest or 1))
    if measured and private:
        axes[1].sharex(axes[0])
        axes[0].tick_params(labelbottom=False)
    return canvas


def _models_by_cost(models: Sequence[ReleasedModel]) -> Figure:
    """Every final model at its charged epsilon (filled), and each run also without amplification (hollow)."""
    canvas, (axes,) = style.figure(f"what {_metric(models)} costs", _protection(models))
    costs: list[float] = []
    for index, model in enumerate(models):
        look, quality = style.look(index), _shown(model.score)
        if model.epsilon is None:
            axes.axhline(quality, color=look.color, linestyle=look.dash, linewidth=1.2)
            continue
        point: dict[str, Any] = {"marker": look.marker, "color": look.color, "markersize": 9, "clip_on": False}
        if isinstance(model, Run) and model.unamplified_epsilon is not None:
            ends = [model.epsilon, model.unamplified_epsilon]
            axes.plot(ends, [quality, quality], linewidth=1.2, **GREY)
            axes.plot(ends[1], quality, mfc="white", **point)
            costs += ends[1:]
        axes.plot(model.epsilon, quality, **point)
        costs.append(model.epsilon)
    style.logarithmic(axes)
    axes.set(xlabel=COST, xlim=(min(costs) / 1.5, max(costs) * 1.5))
    _quality_axis(axes, models, [_shown(model.score) for model in models])
    circle: dict[str, Any] = {"color": style.GREY, "marker": "o", "linestyle": ""}
    shown = [Line2D([], [], label="charged", **circle)]
    if any(isinstance(model, Run) and model.is_amplified for model in models):
        shown.append(Line2D([], [], label=WITHOUT, mfc="white", **circle))
    _add_key(canvas, dict(enumerate(models)), shown)
    return canvas


@style.usual()
def partition_picture(counts: LabelCounts, name: str, is_public: bool) -> Figure:
    """The records of each label (where labels are classes) that some clients hold."""
    whose = "public data" if is_public else "PRIVATE: counted without noise, not for release"
    canvas, (axes,) = style.figure(f"{name}: records by client", whose, (max(2.4, 0.16 * len(counts.clients)),))
    places = np.arange(len(counts.clients))
    if counts.counts.shape[1]:
        heat = axes.imshow(counts.counts, cmap="cividis", vmin=0, aspect="auto", interpolation="nearest")
        axes.figure.colorbar(heat, ax=axes, ticks=MaxNLocator(6, integer=True)).set_label("records")
        axes.grid(False)
    else:
        axes.barh(places, counts.sizes[places], color=style.look(0).color)
        axes.invert_yaxis()
    more = f", the first {len(places)} of {len(counts.sizes):,}" if len(counts.sizes) > len(places) else ""
    ticks = places[:: max(1, len(places) // 10)]
    axes.set(xlabel="label" if counts.counts.shape[1] else "records", ylabel=f"client{more}")
    axes.set_yticks(ticks, [str(client) for client in counts.clients[ticks]])
    return canvas


def round_axis(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _line(index: int, points: int) -> dict[str, Any]:
    """The look of a line with about eight markers, beside those of the other lines."""
    every = max(1, points // 8)
    return style.look(index).options | {"markersize": 5, "markevery": (3 * index % every, every)}


def _add_key(canvas: Figure, models: Mapping[int, ReleasedModel], also: Sequence[Line2D] = ()) -> None:
    """The look of each model, the best model first, below the picture."""
    handles = list(also)
    for index, model in sorted(models.items(), key=lambda item: -_shown(item[1].score)):
        merged = ", merged" if model.merged_by else ""
        name = style.shortened(model.name, 34 - len(merged))
        handles.append(Line2D([], [], label=f"{name}{merged}: {_final_words(model)}", **_line(index, 0)))
    style.key(canvas, handles)


def _add_cost_key(canvas: Figure, axes: Sequence[Axes], run: Run) -> float:
    """The final quality of a run, its costs, and a line at the budget, if it is near; returns the highest epsilon."""
    if run.evaluated:
        style.at_end(axes[0], _final_words(run), _quality(run)[-1])
    if not run.is_private:
        return 0.0
    last = run.rounds[-1:]
    names = [f"charged: {at_most(run.epsilon)}", f"{WITHOUT}: {at_most(run.unamplified_epsilon)}"]
    if run.was_stopped_early:
        names[0] += f" (these rounds: {at_most(last[0].epsilon_upper)})"
    curves, budget = _curves(run, last), run.ledger.budget_epsilon
    handles = [Line2D([], [], label=names[place], **_line(place, 0)) for place in curves]
    highest = max(float(costs[-1]) for costs in curves.values())
    if budget is not None and budget < 3 * highest:
        handles.append(Line2D([], [], label=f"budget: {budget:g}", **GREY))
        axes[-1].axhline(budget, zorder=0, **GREY)
        highest = max(highest, budget)
    style.key(canvas, handles)
    return highest


def _rounds(records: Sequence[RoundRecord]) -> NDArray[np.int64]:
    return np.array([record.round for record in records])


def _quality(run: Run) -> NDArray[np.float64]:
    """The leading metric of the evaluated rounds; shares in per cent."""
    return np.array([_shown(record.score) for record in run.evaluated])


def _curves(run: Run, records: Sequence[RoundRecord], place: int = 0) -> dict[int, NDArray[np.float64]]:
    """The cost after each of some rounds, by look: as charged, and without amplification if that is more."""
    if not run.is_private:
        return {}
    curves = {place: np.array([record.epsilon_upper for record in records], dtype=float)}
    if run.is_amplified:
        curves[place + 1] = run.plan.charge.unamplified_epsilon_by_round[_rounds(records) - 1]
    return curves


def _shown(score: Score | None) -> float:
    name, value = score or ("accuracy", 0.0)
    return 100 * value if words.is_share(name) else value


def _final_words(model: ReleasedModel) -> str:
    name, value = model.score or ("accuracy", 0.0)
    return f"{100 * value:.1f} %" if words.is_share(name) else f"{words.metric(name)} {value:.3g}"


def _metric(models: Sequence[ReleasedModel]) -> str:
    """The leading metric; of models of several tasks, all that lead."""
    return " or ".join(map(words.metric, sorted({model.score[0] for model in models if model.score})))


def _quality_axis(axes: Axes, models: Sequence[ReleasedModel], values: Iterable[float]) -> None:
    percent = any(words.is_share(model.score[0]) for model in models if model.score)
    style.quality(axes, _metric(models), percent, values)


def _protection(models: Sequence[ReleasedModel]) -> str:
    """The subjects of the guarantees, and their deltas."""
    private = [model.promise for model in models if model.is_private]
    if not private:
        return "no privacy: epsilon is infinite"
    units = " or ".join(sorted({words.protected(promise["unit"], promise["group_size"]) for promise in private}))
    deltas = " or ".join(power(delta) for delta in sorted({promise["delta"] for promise in private}))
    of = f" of {models[0].ledger.units:,}" if len(models) == 1 and isinstance(models[0], Run) else ""
    known = "; known seed" if any(model.is_private and model.has_known_seed for model in models) else ""
    known = "; a rehearsal" if any(isinstance(model, Run) and model.ledger.rehearsal for model in models) else known
    return f"protected: {units}{of}, δ = {deltas}{known}"
