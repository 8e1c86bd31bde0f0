"""A sweep as a table and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from fedamp.base.numbers import at_most
from fedamp.base.text import printable
from fedamp.report import style
from fedamp.report.words import is_share, metric, value_of
from fedamp.studies.sweeps.grid import in_words
from fedamp.studies.sweeps.results import REPEATED, Outcome, Sweep

NO_BEST = (
    "No best settings: no public records are kept apart for choosing, and the test set is not chosen by. Accepted: "
    "--set federation.validation_share=0.5"
)


def sweep_table(answer: Mapping[str, Any]) -> RenderableType:
    """Means and deviations over seeds, the best settings, and what choosing costs."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    keys, name = answer["varied"], next((outcome["metric"] for outcome in answer["outcomes"]), "accuracy")
    for key in keys or ["settings"]:
        table.add_column(short(key, keys), overflow="fold")
    for heading in ("runs", metric(name), "validation", "epsilon"):
        table.add_column(heading, justify="right", no_wrap=True)
    for outcome in answer["outcomes"]:
        values = [str(outcome["settings"][key]) for key in keys] or ["as it stands"]
        scores = [_spread(name, outcome[key]) for key in ("score", "validation_score")]
        table.add_row(*values, str(outcome["runs"]), *scores, at_most(outcome["epsilon_upper"]))
    notes = [_unfinished(answer), _best(answer), *answer["choosing"]["in_words"]]
    return Group(table, *(note for note in notes if note))


def sweep_picture(sweep: Sweep) -> Figure:
    """Mean score with its deviation over the first key that varies; a line for each combination of the others."""
    subtitle = "public test set; mean ± deviation of the seeds"
    name = next((outcome.metric for outcome in sweep.outcomes), "accuracy")
    scale = 100 if is_share(name) else 1
    canvas, (axes,) = style.figure(f"{printable(sweep.scenario)}: {metric(name)}", subtitle, (3.0,))
    first, *others = sweep.varied or [""]
    places = _places(sweep.grid.get(first, [None]))
    lines: dict[str, list[Outcome]] = {}
    for outcome in sweep.outcomes:
        lines.setdefault(in_words({short(key, others): outcome.settings[key] for key in others}), []).append(outcome)
    for index, outcomes in enumerate(lines.values()):
        look, shown = style.look(index), [outcome for outcome in outcomes if outcome.score is not None]
        scores = [outcome.score for outcome in shown if outcome.score is not None]
        axes.errorbar(
            [places[_value(outcome, first)] for outcome in shown],
            [scale * score.mean for score in scores],
            [scale * (score.deviation or 0.0) for score in scores],
            color=look.color,
            linestyle=look.dash,
            marker=look.marker,
            capsize=4,
        )
    _name_places(axes, first, places, sweep)
    lowest = min((scale * outcome.score.mean for outcome in sweep.outcomes if outcome.score), default=0.0)
    style.quality(axes, metric(name), is_share(name), lowest)
    if others:
        handles = [
            Line2D([], [], label=style.shortened(words, 44), color=each.color, linestyle=each.dash, marker=each.marker)
            for words, each in zip(lines, map(style.look, range(len(lines))), strict=True)
        ]
        style.key(canvas, handles)
    return canvas


def draw(sweep: Sweep, folder: Path) -> list[str]:
    """Draw the picture into a folder; returns its file (none before the first finished run)."""
    pictures = {"score": sweep_picture(sweep)} if sweep.outcomes else {}
    return [str(file) for file in style.save_all(pictures, folder)] if pictures else []


def _places(values: Sequence[Any]) -> dict[str, float]:
    """Where each value stands on the axis: at itself where all are numbers, else side by side."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return {str(value): float(value) if numbers else float(place) for place, value in enumerate(values)}


def _name_places(axes: Any, key: str, places: dict[str, float], sweep: Sweep) -> None:
    axes.set_xlabel(key or f"{len(sweep.grid.get(REPEATED, [0]))} seeds")
    found = np.array(list(places.values()))
    if len(found) > 2 and found.min() > 0 and found.max() > 8 * found.min():
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(found, [style.shortened(name, 12) if key else "" for name in places])
    axes.margins(x=0.15)


def _value(outcome: Outcome, key: str) -> str:
    return str(outcome.settings.get(key))


def short(key: str, keys: Sequence[str]) -> str:
    """The end of a key, where no other one ends so."""
    end = key.rpartition(".")[2]
    return end if sum(other.rpartition(".")[2] == end for other in keys) == 1 else key


def _spread(name: str, score: Mapping[str, Any] | None) -> str:
    found = [] if score is None else [score["mean"], score["deviation"]]
    return " ± ".join(value_of(name, value) for value in found if value is not None)


def _best(answer: Mapping[str, Any]) -> str:
    if not answer["best"]:
        return NO_BEST if answer["varied"] and answer["outcomes"] else ""
    each = [
        f"{in_words(best['settings'])} ({_spread(best['metric'], best['validation_score'])})" for best in answer["best"]
    ]
    return "Best by the public records kept apart for choosing: " + "; ".join(each)


def _unfinished(answer: Mapping[str, Any]) -> str:
    missing = answer["unfinished"]
    if not missing:
        return ""
    why = next((f": {Path(each['folder']).name}: {each['error']}" for each in missing if each["error"]), "")
    planned = len(missing) + sum(outcome["runs"] for outcome in answer["outcomes"])
    return f"caution: {len(missing)} of {planned} runs have not come to their end{why}"
