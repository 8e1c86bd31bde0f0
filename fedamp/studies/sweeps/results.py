"""What came of a sweep: its runs, their means over seeds, and the best settings by records kept apart for choosing."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedamp.base.record import Record
from fedamp.base.text import harmless
from fedamp.runs import merged
from fedamp.runs.folder import read_summary
from fedamp.runs.records import FileRecord
from fedamp.runs.run import Run, frame_of, read_run
from fedamp.studies.sweeps.choosing import cost_of_choosing
from fedamp.studies.sweeps.grid import Settings

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

FILE = "sweep.json"
RUNS = "runs"
REPEATED = "seed"
"""Runs that differ in nothing but this key are repetitions of each other."""


class PlannedRun(Record):
    """A run of a sweep: its folder below ``runs``, and its values of the grid's keys."""

    folder: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9.,=_+-]{0,100}$")]
    settings: dict[str, Any]


class SweepRecord(FileRecord):
    """``sweep.json``: what was asked for. What came of it stands in the folders of the runs."""

    kind: ClassVar[str] = "sweep"

    format: Literal["fedamp sweep 1"] = "fedamp sweep 1"
    written_by: str
    scenario: str
    grid: dict[str, list[Any]]
    runs: tuple[PlannedRun, ...]


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep: ``run`` is None where it has not come to its end, ``error`` why, where that is known."""

    settings: Settings
    folder: Path
    run: Run | None
    error: str | None = None


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the latter None for a single run."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None without values."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None) if values else None

    def to_json(self) -> dict[str, float | None]:
        """Both numbers."""
        return {"mean": self.mean, "deviation": self.deviation}


@dataclass(frozen=True)
class Outcome:
    """The finished runs of one combination of settings, over their seeds."""

    settings: Settings
    runs: tuple[Run, ...]

    @property
    def metric(self) -> str:
        """What the score is: accuracy, or what leads in the task."""
        return next((run.score[0] for run in self.runs if run.score), "accuracy")

    @cached_property
    def score(self) -> Spread | None:
        """The metric that leads, on the public test set."""
        return Spread.of([run.score[1] for run in self.runs if run.score])

    @cached_property
    def validation_score(self) -> Spread | None:
        """The same on the public records that are kept apart for choosing; None unless every run has it."""
        found = [run.summary.final.validation_score for run in self.runs]
        return None if None in found else Spread.of([value for value in found if value is not None])

    @property
    def epsilon(self) -> float | None:
        """What the costliest run guarantees by itself, at most; None (infinite) where one is without noise."""
        found = [run.epsilon for run in self.runs]
        return None if None in found else max(value for value in found if value is not None)

    def to_json(self) -> dict[str, Any]:
        """As ``fedamp sweep --json`` prints it."""
        return {
            "settings": self.settings,
            "runs": len(self.runs),
            "metric": self.metric,
            "score": self.score and self.score.to_json(),
            "validation_score": self.validation_score and self.validation_score.to_json(),
            "epsilon_upper": self.epsilon,
            "folders": [str(run.folder) for run in self.runs],
        }


@dataclass(frozen=True)
class Sweep:
    """A grid of runs."""

    folder: Path
    scenario: str
    grid: Mapping[str, list[Any]]
    runs: tuple[SweptRun, ...]

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that have come to their end."""
        return tuple(swept.run for swept in self.runs if swept.run is not None)

    @property
    def unfinished(self) -> tuple[SweptRun, ...]:
        """The runs that have not."""
        return tuple(swept for swept in self.runs if swept.run is None)

    @property
    def varied(self) -> list[str]:
        """The keys that take several values, without the repeated one."""
        return [key for key, values in self.grid.items() if len(values) > 1 and key != REPEATED]

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """One for each combination of settings of which a run is finished, in the order of the grid."""
        alike: dict[str, tuple[Settings, list[Run]]] = {}
        for swept in self.runs:
            settings = {key: swept.settings[key] for key in self.varied}
            if swept.run is not None:
                alike.setdefault(json.dumps(settings, default=str), (settings, []))[1].append(swept.run)
        return [Outcome(settings, tuple(runs)) for settings, runs in alike.values()]

    @cached_property
    def best(self) -> list[Outcome]:
        """The settings of the highest mean score on the records kept apart for choosing; empty where none are.

        Keys of ``privacy`` say what is asked for, and are not chosen among: one for each combination of theirs.
        """
        found: dict[str, Outcome] = {}
        for outcome in self.outcomes:
            asked = json.dumps({key: value for key, value in outcome.settings.items() if key.startswith("privacy.")})
            score = outcome.validation_score
            if score is None:
                return []
            so_far = found.get(asked)
            if so_far is None or score.mean > _score(so_far):
                found[asked] = outcome
        return list(found.values())

    @cached_property
    def choosing(self) -> dict[str, Any]:
        """What choosing costs: see :func:`fedamp.studies.sweeps.choosing.cost_of_choosing`."""
        return cost_of_choosing(self.finished)

    def to_json(self) -> dict[str, Any]:
        """As ``fedamp sweep --json`` prints it."""
        return {
            "folder": str(self.folder),
            "scenario": self.scenario,
            "grid": dict(self.grid),
            "varied": self.varied,
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "best": [outcome.to_json() for outcome in self.best],
            "unfinished": [
                {"settings": swept.settings, "folder": str(swept.folder), "error": swept.error}
                for swept in self.unfinished
            ],
            "choosing": self.choosing,
        }

    def frame(self) -> "pandas.DataFrame":
        """A row for each finished run: its settings, scores, and epsilon.

        Raises:
            InputError: pandas is not installed.
        """
        return frame_of(
            swept.settings
            | {
                **dict([swept.run.score] if swept.run.score else []),
                "validation_score": swept.run.summary.final.validation_score,
                "epsilon": swept.run.epsilon,
                "folder": str(swept.folder),
            }
            for swept in self.runs
            if swept.run is not None
        )

    def plot(self) -> "Figure":
        """Mean score, with its deviation, over the first key that varies; a line for each of the others' values."""
        from fedamp.report.sweep import sweep_picture

        return sweep_picture(self)

    def __str__(self) -> str:
        from fedamp.report import notebook
        from fedamp.report.sweep import sweep_table

        return notebook.as_text(sweep_table(harmless(self.to_json())))

    def _repr_html_(self) -> str:
        from fedamp.report import notebook, style
        from fedamp.report.sweep import sweep_table

        picture = f'<img src="{style.inline(self.plot())}">' if self.outcomes else ""
        return notebook.as_html(sweep_table(harmless(self.to_json()))) + picture


def _score(outcome: Outcome) -> float:
    return outcome.validation_score.mean if outcome.validation_score else 0.0


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return (folder / FILE).is_file()


def read_sweep(folder: Path, errors: Mapping[str, str] | None = None) -> Sweep:
    """Read the folder of a sweep.

    Args:
        folder: where it is.
        errors: why runs did not come to their end, by the names of their folders.

    Raises:
        RunFolderError: ``sweep.json`` is missing or damaged, or a run in it is damaged.
    """
    record, told = SweepRecord.read(folder / FILE), errors or {}
    swept = [(planned, folder / RUNS / planned.folder) for planned in record.runs]
    return Sweep(
        folder,
        record.scenario,
        record.grid,
        tuple(SweptRun(each.settings, place, finished(place), told.get(each.folder)) for each, place in swept),
    )


def read_models(folders: Sequence[Path]) -> list[merged.Model]:
    """Read folders of runs and of merged models; a sweep stands for its finished runs.

    Raises:
        RunFolderError: one of them is missing, damaged, or given twice.
    """
    each = [[run.folder for run in read_sweep(folder).finished] if is_sweep(folder) else [folder] for folder in folders]
    return merged.read_models([folder for below in each for folder in below])


def finished(folder: Path) -> Run | None:
    """A run that has come to its end; None where there is none, or it has not.

    Raises:
        RunFolderError: it is damaged.
    """
    if not (folder / "summary.json").is_file() or read_summary(folder).rounds_completed == 0:
        return None
    run = read_run(folder, folder.name)
    return None if run.was_stopped_early else run
