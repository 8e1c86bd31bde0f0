"""The results of a sweep: its runs, their means over seeds, the best settings, and the cost of choosing among them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from fedamp.accounting import Compose, Repeat
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import finite
from fedamp.base.files import FileRecord
from fedamp.base.record import Record
from fedamp.runs.folder import read_summary
from fedamp.runs.run import Run, read_run

Grid = dict[str, list[Any]]  # values by key path
Settings = dict[str, Any]  # one value for each key of a grid

FILE, RUNS = "sweep.json", "runs"
REPEATED = "seed"
"""Runs that differ in nothing but this key are repetitions of each other."""

NOT_CHARGED = (
    "Nothing is charged for choosing: each run's ledger charges that run alone. Scores on public records add nothing "
    "to what the runs released. But the choice of the best run depends on every run that was scored."
)
UNKNOWN = (
    "The joint cost of the runs is not computed: a seed is known, a run has no privacy, or the runs protect different "
    "units or use a different delta."
)
JOINT = (
    "If all runs trained on the same private records, the choice is covered by their joint cost: epsilon = {:.4g} at "
    "delta = {:g} for all {}. The chosen run's own epsilon does not cover it."
)
ALTERNATIVES = (
    "Choosing costs nothing if the runs train on public records; then train once on the private ones. Scores on "
    "private records would be further releases, each with its own noise and charge."
)


class PlannedRun(Record):
    """A run of a sweep: its folder below ``runs``, and its values of the grid's keys."""

    folder: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9.,=_+-]{0,100}$")]
    settings: Settings


class SweepRecord(FileRecord):
    """``sweep.json``: the planned runs. Their folders hold the results."""

    kind: ClassVar[str] = "sweep"

    format: Literal["fedamp sweep 1"] = "fedamp sweep 1"
    written_by: str
    scenario: str
    grid: Grid
    runs: tuple[PlannedRun, ...]


class SweptRun(NamedTuple):
    """A run of a sweep. ``run`` is None if it has not finished, and ``error`` says why, where that is known."""

    settings: Settings
    folder: Path
    run: Run | None
    error: str | None = None


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds; the deviation is None for a single run."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """None without values, or where a value is unknown."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return cls(fmean(known), stdev(known) if len(known) > 1 else None)


@dataclass(frozen=True)
class Outcome:
    """The finished runs of one combination of settings, over their seeds."""

    settings: Settings
    runs: tuple[Run, ...]

    @property
    def metric(self) -> str:
        """The name of the score: accuracy, or the main metric of the task."""
        return next((run.score[0] for run in self.runs if run.score), "accuracy")

    @cached_property
    def score(self) -> Spread | None:
        """The main metric on the public test set."""
        return Spread.of([run.score[1] for run in self.runs if run.score])

    @cached_property
    def validation_score(self) -> Spread | None:
        """The main metric on the public validation records; None unless every run has it."""
        return Spread.of([run.summary.final.validation_score for run in self.runs])

    @property
    def epsilon(self) -> float | None:
        """Upper bound on what the most expensive run costs by itself; None (infinite) if a run has no noise."""
        found = [run.epsilon for run in self.runs]
        return None if None in found else max(value for value in found if value is not None)

    def to_json(self) -> dict[str, Any]:
        """The outcome in the answer of ``fedamp sweep --json``."""
        return {
            "settings": self.settings,
            "runs": len(self.runs),
            "metric": self.metric,
            "score": self.score and self.score._asdict(),
            "validation_score": self.validation_score and self.validation_score._asdict(),
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
        """The finished runs."""
        return tuple(swept.run for swept in self.runs if swept.run is not None)

    @property
    def unfinished(self) -> tuple[SweptRun, ...]:
        """The other runs."""
        return tuple(swept for swept in self.runs if swept.run is None)

    @property
    def varied(self) -> list[str]:
        """The keys with several values, without the repeated one."""
        return [key for key, values in self.grid.items() if len(values) > 1 and key != REPEATED]

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """One for each combination of settings with a finished run, in the order of the grid."""
        found: dict[str, tuple[Settings, list[Run]]] = {}
        for swept in self.runs:
            settings = {key: swept.settings[key] for key in self.varied}
            if swept.run is not None:
                found.setdefault(json.dumps(settings, default=str), (settings, []))[1].append(swept.run)
        return [Outcome(settings, tuple(runs)) for settings, runs in found.values()]

    @cached_property
    def best(self) -> list[Outcome]:
        """The settings with the highest mean validation score; empty without validation records.

        Keys of ``privacy`` are requirements: there is a best outcome for each combination of their values.
        """
        found: dict[str, tuple[float, Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.validation_score is None:
                return []
            required = str({key: value for key, value in outcome.settings.items() if key.startswith("privacy.")})
            mean = outcome.validation_score.mean
            if required not in found or mean > found[required][0]:
                found[required] = mean, outcome
        return [outcome for _, outcome in found.values()]

    def to_json(self) -> dict[str, Any]:
        """The answer of ``fedamp sweep --json``."""
        missing = self.unfinished
        return {
            "folder": str(self.folder),
            "scenario": self.scenario,
            "grid": dict(self.grid),
            "varied": self.varied,
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "best": [outcome.to_json() for outcome in self.best],
            "unfinished": [{"settings": it.settings, "folder": str(it.folder), "error": it.error} for it in missing],
            "choosing": cost_of_choosing(self.finished),
        }


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep."""
    return (folder / FILE).is_file()


def read_sweep(folder: Path, errors: Mapping[str, str] | None = None) -> Sweep:
    """Read the folder of a sweep; ``errors`` tells why runs did not finish, by the names of their folders.

    Raises:
        RunFolderError: ``sweep.json`` is missing or damaged, or a run in it is damaged.
    """
    record, errors = SweepRecord.read(folder / FILE), errors or {}
    swept = [(planned, folder / RUNS / planned.folder) for planned in record.runs]
    runs = [SweptRun(each.settings, place, finished(place), errors.get(each.folder)) for each, place in swept]
    return Sweep(folder, record.scenario, record.grid, tuple(runs))


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders of models, where a sweep stands for its finished runs."""
    each = [[run.folder for run in read_sweep(folder).finished] if is_sweep(folder) else [folder] for folder in folders]
    return [folder for below in each for folder in below]


def finished(folder: Path) -> Run | None:
    """The finished run of a folder; None if there is none, and a RunFolderError if it is damaged."""
    if not (folder / "summary.json").is_file() or read_summary(folder).rounds_completed == 0:
        return None
    run = read_run(folder, folder.name)
    return None if run.was_stopped_early else run


def cost_of_choosing(runs: Sequence[Run]) -> dict[str, Any]:
    """The cost of publishing which run was best, beyond what each run's ledger charges for that run alone.

    Returns:
        ``charged``: always 0. ``all_runs_epsilon``: at most the joint cost of all runs, which covers any choice among
        them; None if runs have different guarantees, a known seed or no noise. ``delta``; ``in_words``.
    """
    promises = {tuple(map(str, run.promise.values())) for run in runs}
    delta, together, words = runs[0].ledger.delta if runs else None, None, [NOT_CHARGED, UNKNOWN]
    if delta is not None and len(promises) == 1 and all(run.is_private and not run.has_known_seed for run in runs):
        counts = Counter(run.ledger.mechanism for run in runs)
        joint = Compose(tuple(Repeat(mechanism, count) for mechanism, count in counts.items()))
        together = finite(joint.epsilon(delta_left(delta, len(runs))).upper)
    if together is not None:
        words = [NOT_CHARGED, JOINT.format(together, delta, len(runs))]
    choice = {"charged": 0, "runs": len(runs), "delta": delta, "all_runs_epsilon": together}
    return choice | {"in_words": [*words, ALTERNATIVES]}
