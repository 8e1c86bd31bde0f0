"""Pictures of a run, readable in grey and on a phone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedamp import scenario_file
from fedamp.plan import make_plan, privacy_units
from fedamp.server.run_folder import RoundRecord, RunFolder

AMPLIFIED = {"color": "#0b5fa5", "linestyle": "-", "label": "amplified (charged)"}
UNAMPLIFIED = {"color": "#c2571a", "linestyle": "--", "label": "without amplification"}


def plot_run(folder: Path) -> list[Path]:
    """Draw a run's pictures into its ``plots`` folder; returns their files (none before the first round)."""
    run = RunFolder(folder)
    records = run.read_rounds()
    evaluated = [record for record in records if record.accuracy is not None]
    if not evaluated:
        return []
    run.plots.mkdir(exist_ok=True)
    scenario = scenario_file.load(run.scenario)
    plan = make_plan(scenario, privacy_units(scenario))
    files = [run.plots / "rounds.png"]
    _plot_rounds(files[0], records, evaluated, scenario.name)
    if plan.is_private:
        files.append(run.plots / "accuracy-epsilon.png")
        rounds = np.array([record.round for record in evaluated]) - 1
        amplified, plain = plan.epsilon_by_round[rounds], plan.unamplified_epsilon_by_round[rounds]
        _plot_accuracy(files[1], evaluated, amplified, plain, f"{scenario.name}, delta = {scenario.privacy.delta:g}")
    return files


def _plot_rounds(file: Path, records: list[RoundRecord], evaluated: list[RoundRecord], name: str) -> None:
    with figure(file, rows=2) as (quality, cost):
        quality.plot([r.round for r in evaluated], [100 * (r.accuracy or 0) for r in evaluated], color="#0b5fa5")
        quality.set(title=name, ylabel="accuracy, %", ylim=(0, 100))
        spent = [(r.round, r.epsilon_upper) for r in records if r.epsilon_upper is not None]
        if spent:
            cost.step(*zip(*spent, strict=True), where="post", color="#0b5fa5")
        else:
            cost.text(0.5, 0.5, "no privacy: epsilon is infinite", ha="center", transform=cost.transAxes)
        cost.set(xlabel="round", ylabel="epsilon spent, at most")
        cost.set_ylim(bottom=0)


def _plot_accuracy(file: Path, evaluated: list[RoundRecord], amplified: Any, plain: Any, title: str) -> None:
    accuracy = [100 * (record.accuracy or 0) for record in evaluated]
    with figure(file) as (axes,):
        axes.plot(amplified, accuracy, **AMPLIFIED)
        axes.plot(plain, accuracy, **UNAMPLIFIED)
        axes.set(title=title, xlabel="epsilon spent, at most", ylabel="accuracy, %", ylim=(0, 100), xscale="log")
        axes.legend(loc="lower right")


@contextmanager
def figure(file: Path, rows: int = 1) -> Iterator[Any]:
    """Axes, one below the other, that are saved to ``file`` when the block ends."""
    canvas = Figure(figsize=(6.4, 4.0 if rows == 1 else 2.6 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0]
    for each in axes:
        each.grid(alpha=0.3)
    yield axes
    canvas.savefig(file)
