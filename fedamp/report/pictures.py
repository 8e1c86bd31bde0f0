"""Draw pictures of one run, and of several models side by side.

Each epsilon in a picture is an upper end, as the ledger has it. How lines and figures look is in
:mod:`fedamp.report.style`. Nothing here decides what may be released: the picture of a partition says whether the
records are private.
"""

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
    """Draw a run's pictures into its ``plots`` folder.

    Args:
        folder: of the run; a run without any finished round has nothing to show.

    Returns:
        The files; empty where there is nothing to show.

    Raises:
        RunFolderError: the folder cannot be read or written.
    """
    files = RunFolder(folder)
    pictures = run_pictures(read_run(folder)) if files.read_rounds() else {}
    return style.save_all(pictures, files.plots) if pictures else []


@style.usual()
def run_pictures(run: Run) -> dict[str, Figure]:
    """Draw quality and epsilon over rounds, by the picture's name: what there is of the two."""
    return {"rounds": _by_round([run])} if run.evaluated or run.is_private else {}


@style.usual()
def comparison_pictures(models: Sequence[ReleasedModel]) -> dict[str, Figure]:
    """Draw several models: the runs by round, and all models by quality and epsilon.

    Returns:
        Pictures by name; none where no model was evaluated.
    """
    evaluated = [model for model in models if model.score is not None]
    runs = [model for model in models if isinstance(model, Run)]
    pictures = {}
    if any(run.evaluated for run in runs):
        pictures["rounds"] = _by_round(evaluated)
    if any(model.is_private for model in evaluated):
        pictures["accuracy-epsilon"] = _models_by_cost(evaluated)
    return pictures


def _by_round(models: Sequence[ReleasedModel]) -> Figure:
    """Draw quality, if it was measured, and epsilon of runs, one below the other.

    Args:
        models: merged ones have no rounds, and only take a look. A single run is also drawn without amplification, and
            with its budget.
    """
    runs = {index: model for index, model in enumerate(models) if isinstance(model, Run)}  # others have no rounds
    measured, private = (
        any(found) for found in zip(*((it.evaluated, it.is_private) for it in runs.values()), strict=True)
    )
    alone = models[0] if len(models) == 1 and isinstance(models[0], Run) else None
    title = alone.scenario.name if alone else f"{_leading_metric(models)} and privacy cost by round"
    canvas, axes = style.figure(title, _protection_in_words(list(runs.values())), (2.4,) * (measured + private))
    highest = 0.0
    for index, run in runs.items():
        quality = _quality_by_round(run)
        if measured:
            axes[0].plot(_round_numbers(run.evaluated), quality, **_line_look(index, len(quality)), clip_on=False)
        for place, costs in _cost_curves(run, run.rounds, index).items():
            if place == index or alone:
                line = _line_look(place, len(costs))
                axes[-1].plot(_round_numbers(run.rounds), costs, drawstyle="steps-post", **line)
                highest = max(highest, costs[-1])
    if measured:
        _quality_axis(axes[0], models, np.concatenate([_quality_by_round(run) for run in runs.values()]))
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
    """Draw every final model at its charged epsilon (filled), and each run also without amplification (hollow).

    A model without privacy is a line across the picture, because it has no epsilon.
    """
    canvas, (axes,) = style.figure(f"what {_leading_metric(models)} costs", _protection_in_words(models))
    costs: list[float] = []
    for index, model in enumerate(models):
        look, quality = style.look(index), _shown_score(model.score)
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
    _quality_axis(axes, models, [_shown_score(model.score) for model in models])
    circle: dict[str, Any] = {"color": style.GREY, "marker": "o", "linestyle": ""}
    shown = [Line2D([], [], label="charged", **circle)]
    if any(isinstance(model, Run) and model.is_amplified for model in models):
        shown.append(Line2D([], [], label=WITHOUT, mfc="white", **circle))
    _add_key(canvas, dict(enumerate(models)), shown)
    return canvas


@style.usual()
def partition_picture(counts: LabelCounts, name: str, is_public: bool) -> Figure:
    """Draw the records of each label (where labels are classes) that some clients hold.

    Args:
        counts: of the clients shown.
        name: of the scenario, for the title.
        is_public: whether everybody may know the records; else the picture says PRIVATE.
    """
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
    """Label a horizontal axis of rounds, with whole numbers."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _line_look(index: int, points: int) -> dict[str, Any]:
    """Return the look of a line with about eight markers.

    Args:
        index: of the line; its markers stand beside those of the other lines.
        points: of the line.
    """
    every = max(1, points // 8)
    return style.look(index).options | {"markersize": 5, "markevery": (3 * index % every, every)}


def _add_key(canvas: Figure, models: Mapping[int, ReleasedModel], also: Sequence[Line2D] = ()) -> None:
    """Put the look of each model below the picture, the best model first."""
    handles = list(also)
    for index, model in sorted(models.items(), key=lambda item: -_shown_score(item[1].score)):
        merged = ", merged" if model.merged_by else ""
        name = style.shortened(model.name, 34 - len(merged))
        handles.append(Line2D([], [], label=f"{name}{merged}: {_final_words(model)}", **_line_look(index, 0)))
    style.key(canvas, handles)


def _add_cost_key(canvas: Figure, axes: Sequence[Axes], run: Run) -> float:
    """Write a run's final quality and costs, and draw its budget, if that is near.

    Args:
        canvas: the figure.
        axes: quality above, if there is any, and epsilon below.
        run: drawn alone.

    Returns:
        The highest epsilon shown; 0 without privacy.
    """
    if run.evaluated:
        style.at_end(axes[0], _final_words(run), _quality_by_round(run)[-1])
    if not run.is_private:
        return 0.0
    last = run.rounds[-1:]
    names = [f"charged: {at_most(run.epsilon)}", f"{WITHOUT}: {at_most(run.unamplified_epsilon)}"]
    if run.was_stopped_early:
        names[0] += f" (these rounds: {at_most(last[0].epsilon_upper)})"
    curves, budget = _cost_curves(run, last), run.ledger.budget_epsilon
    handles = [Line2D([], [], label=names[place], **_line_look(place, 0)) for place in curves]
    highest = max(float(costs[-1]) for costs in curves.values())
    if budget is not None and budget < 3 * highest:
        handles.append(Line2D([], [], label=f"budget: {budget:g}", **GREY))
        axes[-1].axhline(budget, zorder=0, **GREY)
        highest = max(highest, budget)
    style.key(canvas, handles)
    return highest


def _round_numbers(records: Sequence[RoundRecord]) -> NDArray[np.int64]:
    """Return the numbers of some rounds, from 1."""
    return np.array([record.round for record in records])


def _quality_by_round(run: Run) -> NDArray[np.float64]:
    """Return the leading metric of the evaluated rounds; shares in per cent."""
    return np.array([_shown_score(record.score) for record in run.evaluated])


def _cost_curves(run: Run, records: Sequence[RoundRecord], place: int = 0) -> dict[int, NDArray[np.float64]]:
    """Return the cost after each of some rounds: as charged, and without amplification if that is more.

    Args:
        run: of the rounds.
        records: of the rounds.
        place: look of the charged cost; the next one is that without amplification.

    Returns:
        Upper ends of epsilon, float64 [rounds], by look; empty without privacy.
    """
    if not run.is_private:
        return {}
    curves = {place: np.array([record.epsilon_upper for record in records], dtype=float)}
    if run.is_amplified:
        curves[place + 1] = run.plan.charge.unamplified_epsilon_by_round[_round_numbers(records) - 1]
    return curves


def _shown_score(score: Score | None) -> float:
    """Return a score as an axis shows it: a share in per cent."""
    name, value = score or ("accuracy", 0.0)
    return 100 * value if words.is_share(name) else value


def _final_words(model: ReleasedModel) -> str:
    """Write a model's final quality in a few letters."""
    name, value = model.score or ("accuracy", 0.0)
    return f"{100 * value:.1f} %" if words.is_share(name) else f"{words.metric(name)} {value:.3g}"


def _leading_metric(models: Sequence[ReleasedModel]) -> str:
    """Name the leading metric; of models of several tasks, all that lead."""
    return " or ".join(map(words.metric, sorted({model.score[0] for model in models if model.score})))


def _quality_axis(axes: Axes, models: Sequence[ReleasedModel], values: Iterable[float]) -> None:
    """Label and limit the vertical axis of quality."""
    percent = any(words.is_share(model.score[0]) for model in models if model.score)
    style.quality(axes, _leading_metric(models), percent, values)


def _protection_in_words(models: Sequence[ReleasedModel]) -> str:
    """Describe the subjects of the guarantees, and their deltas, for a subtitle."""
    private = [model.promise for model in models if model.is_private]
    if not private:
        return "no privacy: epsilon is infinite"
    units = " or ".join(sorted({words.protected(promise["unit"], promise["group_size"]) for promise in private}))
    deltas = " or ".join(power(delta) for delta in sorted({promise["delta"] for promise in private}))
    of = f" of {models[0].ledger.units:,}" if len(models) == 1 and isinstance(models[0], Run) else ""
    known = "; known seed" if any(model.is_private and model.has_known_seed for model in models) else ""
    known = "; a rehearsal" if any(isinstance(model, Run) and model.ledger.rehearsal for model in models) else known
    return f"protected: {units}{of}, δ = {deltas}{known}"
