"""Sweep: play a scenario with every combination of some values, and read the results back.

Results are means over seeds, the best settings, and the cost of choosing among the runs. Finished runs are skipped,
interrupted ones resumed. Several runs play at once in spawned processes: a fork could hang while a library has threads
at work.

:func:`sweep` plays a grid, :func:`read_sweep` reads its folder. Each run is a run folder of its own
(:mod:`fedamp.runs.folder`). Private choice of settings is :mod:`fedamp.extensions.tune.tune`.
"""

import hashlib
import itertools
import json
import math
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import Field
from scipy.special import stdtrit

from fedamp import rng
from fedamp.accounting import Compose, Repeat
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.bounds import finite_or_none
from fedamp.base.files import FileRecord, locked
from fedamp.base.record import Record
from fedamp.base.version import version
from fedamp.data.dataset import TO_TEST
from fedamp.errors import FedampError, InputError, Interrupted, RunFolderError, ScenarioError
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.reader import key_and_value
from fedamp.federation.scenario import Scenario
from fedamp.report import words
from fedamp.runs.folder import read_summary
from fedamp.runs.ledger import fingerprint
from fedamp.runs.records import LedgerRecord
from fedamp.runs.run import Run, read_run
from fedamp.runs.total import check_independent
from fedamp.server.launch import how_to_resume, launch
from fedamp.server.observers import Forewarning, Observers

Grid = dict[str, list[Any]]  # values by key path
RunSettings = dict[str, Any]  # one value for each key of a grid

FILE, RUNS = "sweep.json", "runs"
REPEATED = "seed"
"""Runs that differ in nothing but this key are repetitions of each other."""
VARIANT = "variant"
"""The key of a study whose values are names of several values of the scenario."""
BUDGET = "privacy.epsilon"
CONFIDENCE = 0.95  # of an interval of a mean over seeds

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
    """A run of a sweep, as ``sweep.json`` plans it.

    Attributes:
        folder: its name below ``runs``.
        settings: its values of the grid's keys.
    """

    folder: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9.,=_+-]{0,100}$")]
    settings: RunSettings


class SweepRecord(FileRecord):
    """The content of ``sweep.json``: the planned runs. Their folders hold the results.

    Attributes:
        written_by: name and version of the program.
        scenario: its name.
        grid: values by key.
        runs: in the order of the grid, the last key changing fastest.
    """

    kind: ClassVar[str] = "sweep"

    format: Literal["fedamp sweep 1"] = "fedamp sweep 1"
    written_by: str
    scenario: str
    grid: Grid
    runs: tuple[PlannedRun, ...]


class SweptRun(NamedTuple):
    """A run of a sweep.

    Attributes:
        settings: its values of the grid's keys.
        folder: of the run.
        run: None if it has not finished.
        error: why it has not, where that is known.
    """

    settings: RunSettings
    folder: Path
    run: Run | None
    error: str | None = None


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds.

    Attributes:
        mean: of the values.
        deviation: None for a single run.
        seeds: number of the values.
    """

    mean: float
    deviation: float | None
    seeds: int = 1

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval of the mean, by Student's t; None for a single run.

        >>> round(Spread.of([0.5, 0.6, 0.7]).half_width, 4)
        0.2484
        """
        if self.deviation is None:
            return None
        return float(stdtrit(self.seeds - 1, 0.5 + CONFIDENCE / 2)) * self.deviation / math.sqrt(self.seeds)

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of that interval; the mean itself for a single run."""
        return self.mean - (self.half_width or 0.0), self.mean + (self.half_width or 0.0)

    def to_json(self) -> dict[str, float | None]:
        """Return mean, deviation, and half the width of the interval."""
        return {"mean": self.mean, "deviation": self.deviation, "half_width": self.half_width}

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """Compute both; None without values, or where a value is unknown.

        >>> Spread.of([0.5, 0.7]).mean, Spread.of([0.5, None])
        (0.6, None)
        """
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return cls(fmean(known), stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Outcome:
    """The finished runs of one combination of settings, over their seeds.

    Attributes:
        settings: values of the keys that vary.
        runs: at least one.
        asked: name of the metric to compare; None: the main one.
    """

    settings: RunSettings
    runs: tuple[Run, ...]
    asked: str | None = None

    @property
    def metric(self) -> str:
        """Name of the score: accuracy, the main metric of the task, or the one that was asked for."""
        return self.asked or next((run.score[0] for run in self.runs if run.score), "accuracy")

    @cached_property
    def score(self) -> Spread | None:
        """Spread of that metric on the public test set."""
        if self.asked:
            return Spread.of([run.qualities.get(self.asked) for run in self.runs])
        return Spread.of([run.score[1] for run in self.runs if run.score])

    @cached_property
    def validation_score(self) -> Spread | None:
        """Spread of the main metric on the public validation records; None unless every run has it."""
        return Spread.of([run.summary.final.validation_score for run in self.runs])

    @property
    def epsilon(self) -> float | None:
        """Upper bound on what the most expensive run costs by itself; None (infinite) if a run has no noise."""
        found = [run.epsilon for run in self.runs]
        return None if None in found else max(value for value in found if value is not None)

    @property
    def unamplified_epsilon(self) -> float | None:
        """The largest cost of a run without amplification; None if there is none."""
        return max((run.unamplified_epsilon for run in self.runs if run.unamplified_epsilon), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome in the answer of ``fedamp sweep --json``."""
        return {
            "settings": self.settings,
            "runs": len(self.runs),
            "metric": self.metric,
            "score": self.score and self.score.to_json(),
            "validation_score": self.validation_score and self.validation_score.to_json(),
            "epsilon_upper": self.epsilon,
            "unamplified_epsilon_upper": self.unamplified_epsilon,
            "folders": [str(run.folder) for run in self.runs],
        }


class Point(NamedTuple):
    """A cell of a table, and a point of a figure.

    Attributes:
        outcome: its runs.
        is_best: whether its score is the best of its column, or its interval contains the best mean.
    """

    outcome: Outcome
    is_best: bool


class Layout(NamedTuple):
    """The order in which a table and a figure show outcomes: lines over the values of one key.

    Attributes:
        across: the key on the horizontal axis; empty: nothing varies.
        values: of that key, in order; None stands for no noise where the key is the budget.
        lines: by the name of the other settings, points by the place of their value.
        is_numeric: whether the values have a place on an axis.
    """

    across: str
    values: list[Any]
    lines: dict[str, dict[int, Point]]
    is_numeric: bool

    def to_json(self) -> dict[str, Any]:
        """Return rows and columns with the score of each cell."""
        return {
            "across": self.across,
            "values": self.values,
            "lines": {
                name: [
                    (found := points.get(place)) and {**found.outcome.to_json(), "is_best": found.is_best}
                    for place in range(len(self.values))
                ]
                for name, points in self.lines.items()
            },
        }


@dataclass(frozen=True)
class Sweep:
    """A grid of runs, as its folder has them.

    Attributes:
        folder: of the sweep.
        scenario: its name.
        grid: values by key.
        runs: in the order of the grid.
        metric: that is compared; None: the main one.
    """

    folder: Path
    scenario: str
    grid: Mapping[str, list[Any]]
    runs: tuple[SweptRun, ...]
    metric: str | None = None

    @property
    def finished(self) -> tuple[Run, ...]:
        """Runs that have finished."""
        return tuple(swept.run for swept in self.runs if swept.run is not None)

    @property
    def unfinished(self) -> tuple[SweptRun, ...]:
        """Runs that have not."""
        return tuple(swept for swept in self.runs if swept.run is None)

    @property
    def varied(self) -> list[str]:
        """Keys with several values, without the repeated one (``seed``); variants are among them even if alone."""
        several = {key for key, values in self.grid.items() if len(values) > 1} | {VARIANT}
        return [key for key in self.grid if key in several and key != REPEATED]

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Outcomes for each combination of settings with a finished run, in the order of the grid."""
        found: dict[str, tuple[RunSettings, list[Run]]] = {}
        for swept in self.runs:
            settings = {key: swept.settings[key] for key in self.varied}
            if swept.run is not None:
                found.setdefault(json.dumps(settings, default=str), (settings, []))[1].append(swept.run)
        return [Outcome(settings, tuple(runs), self.metric) for settings, runs in found.values()]

    def layout(self) -> Layout:
        """Put the first numeric key that varies on the horizontal axis; the other settings name the lines.

        Without a numeric key the first one that varies is there, and lines have no order. Variants always name lines.
        """
        first = [BUDGET] if VARIANT in self.grid and BUDGET in self.grid else [*self.varied, ""]
        across = next(filter(self._is_numeric, self.varied), "" if first[0] == VARIANT else first[0])
        values = sorted(self.grid.get(across, [None]), key=lambda value: _order_of(value, self._is_numeric(across)))
        lines: dict[str, dict[int, Outcome]] = {}
        for outcome in self.outcomes:
            others = {key: value for key, value in outcome.settings.items() if key != across}
            lines.setdefault(settings_in_words(others) or "all runs", {})[
                values.index(outcome.settings.get(across, values[0]))
            ] = outcome
        best = {place: _best_end([points.get(place) for points in lines.values()]) for place in range(len(values))}
        told = {
            name: {place: Point(each, _reaches(each, best[place])) for place, each in points.items()}
            for name, points in lines.items()
        }
        return Layout(across, values, told, self._is_numeric(across))

    def _is_numeric(self, key: str) -> bool:
        """Say whether all values of a key are numbers; None is a budget without noise."""
        found = [value for value in self.grid.get(key, []) if not (value is None and key == BUDGET)]
        return bool(found) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)

    @cached_property
    def best(self) -> list[Outcome]:
        """Outcomes with the highest mean validation score; empty without validation records.

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
        """Return the answer of ``fedamp sweep --json``."""
        missing = self.unfinished
        return {
            "folder": str(self.folder),
            "scenario": self.scenario,
            "grid": dict(self.grid),
            "varied": self.varied,
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "best": [outcome.to_json() for outcome in self.best],
            "unfinished": [{"settings": it.settings, "folder": str(it.folder), "error": it.error} for it in missing],
            "choosing": cost_of_choosing(
                {run: LedgerRecord.read(run / "ledger.json") for run in begun_in(self.folder)}
            ),
        }


def _order_of(value: Any, is_numeric: bool) -> float:
    """Return the place of a value: numbers by size, no noise last, others as they are given."""
    return 0.0 if not is_numeric else math.inf if value is None else float(value)


def _best_end(found: Sequence[Outcome | None]) -> float | None:
    """Return the best mean of a column; None where nothing is scored."""
    scores = [(each.score.mean, words.is_better_low(each.metric)) for each in found if each and each.score]
    return (min if scores[0][1] else max)(mean for mean, _ in scores) if scores else None


def _reaches(outcome: Outcome, best: float | None) -> bool:
    """Say whether the interval of an outcome contains the best mean."""
    return best is not None and outcome.score is not None and outcome.score.ends[0] <= best <= outcome.score.ends[1]


def is_sweep(folder: Path) -> bool:
    """Say whether a folder holds a sweep."""
    return (folder / FILE).is_file()


def read_sweep(folder: Path, errors: Mapping[str, str] | None = None) -> Sweep:
    """Read the folder of a sweep.

    Args:
        folder: of the sweep.
        errors: why runs did not finish, by the names of their folders.

    Raises:
        RunFolderError: ``sweep.json`` is missing or damaged, or a run in it is damaged.
    """
    record, errors = SweepRecord.read(folder / FILE), errors or {}
    swept = [(planned, folder / RUNS / planned.folder) for planned in record.runs]
    runs = [SweptRun(each.settings, place, finished(place), errors.get(each.folder)) for each, place in swept]
    return Sweep(folder, record.scenario, record.grid, tuple(runs))


def finished_in(folder: Path) -> list[Path]:
    """List the folders of the finished runs of a sweep."""
    return [run.folder for run in read_sweep(folder).finished]


def begun_in(folder: Path) -> list[Path]:
    """List the folders of the runs of a sweep that have begun."""
    return sorted(ledger.parent for ledger in (folder / RUNS).glob("*/ledger.json"))


def finished(folder: Path) -> Run | None:
    """Read the finished run of a folder; None if there is none.

    Raises:
        RunFolderError: the run is damaged.
    """
    if not (folder / "summary.json").is_file() or read_summary(folder).rounds_completed == 0:
        return None
    run = read_run(folder, folder.name)
    return None if run.was_stopped_early else run


def cost_of_choosing(folders: Mapping[Path, LedgerRecord]) -> dict[str, Any]:
    """Compute the cost of publishing which run was best, beyond what each run's ledger charges for that run alone.

    Runs that have begun and not finished belong to it: the choice depends on what they released, too.

    Args:
        folders: ledgers of the runs that have begun, by the run's folder.

    Returns:
        ``charged``: always 0. ``all_runs_epsilon``: at most the joint cost of all runs, which covers any choice among
            them; None if runs have different guarantees, a known seed or no noise. ``delta``; ``in_words``.

    Raises:
        RunFolderError: two runs are not independent.
    """
    runs = list(folders.values())
    promises = {tuple(map(str, run.promise.values())) for run in runs}
    delta, together, said = runs[0].delta if runs else None, None, [NOT_CHARGED, UNKNOWN]
    fine = all(run.mechanism.is_private and not run.has_known_seed for run in runs)
    if delta is not None and len(promises) == 1 and fine:
        check_independent([(folder, run.content()) for folder, run in folders.items()])
        counts = Counter(run.mechanism for run in runs)
        joint = Compose(tuple(Repeat(mechanism, count) for mechanism, count in counts.items()))
        together = finite_or_none(KEPT.epsilon(joint, delta_left(delta, len(runs))).upper)
    if together is not None:
        said = [NOT_CHARGED, JOINT.format(together, delta, len(runs))]
    choice = {"charged": 0, "runs": len(runs), "delta": delta, "all_runs_epsilon": together}
    return choice | {"in_words": [*said, ALTERNATIVES]}


# --- playing it -----------------------------------------------------------------------------------------------------

SWEEPS = Path("sweeps")
MOST_RUNS = 10_000
LONGEST_NAME = 80  # letters of a run's folder
STOP_DEADLINE = 10.0  # seconds that an idle process may take to end


class SweepJob(NamedTuple):
    """A run to start, or to resume.

    Attributes:
        name: of the run's folder.
        scenario: with the run's values.
        folder: of the run.
        resume: whether it has begun.
        settings: of the run, in words.
    """

    name: str
    scenario: Scenario
    folder: Path
    resume: bool
    settings: str = ""


class Watcher(Protocol):
    """Follows the runs of a sweep; any object with these methods does."""

    def begun(self, jobs: Sequence[SweepJob]) -> None:
        """Called before the first run, with the runs to play; in a tuning by halving, before each stage."""

    def round_done(self, job: SweepJob, round_: int) -> None:
        """Called after every released round of a run."""

    def run_done(self, job: SweepJob, error: str | None) -> None:
        """Called after a run, with one line that says why it stopped before its end; None: it did not."""


Ended = tuple[SweepJob, str | None]  # and one line that says why it stopped before its end
Tell = Callable[[SweepJob, int], object]  # called with the number of every released round


def sweep(
    load: Callable[[RunSettings], Scenario],
    grid: Mapping[str, Any],
    out: Path | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    opened: Callable[[str], object] = lambda scenario: None,
    chosen: Sequence[RunSettings] | None = None,
) -> Sweep:
    """Run every combination of a grid's values, as :func:`fedamp.extensions.tune.functions.sweep`, with its errors.

    Args:
        load: gives the scenario with some values changed.
        grid: values by key.
        out: folder; default: ``sweeps/NAME``.
        jobs: number of runs at once; with 1 they play in this process. Default: the number of cores.
        watcher: follows every round and run.
        opened: called with the scenario's name before the first run, when the folder is there.
        chosen: the combinations to run; default: all.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: got {jobs}; expected: a whole number >= 1")
    lists = checked(grid)
    runs = tuple(PlannedRun(folder=folder_name(each, lists), settings=each) for each in chosen or points(lists))
    scenarios = {run.folder: load(run.settings) for run in runs}
    if not all(each.evaluates or each.side_sum for each in scenarios.values()):
        raise InputError(f"sweep: nothing scores its runs; expected: {TO_TEST}, and an evaluation")
    name = scenarios[runs[0].folder].name
    folder = out or SWEEPS / name
    _make_folder(folder, private=not all(each.known_seed for each in scenarios.values()))
    with locked(folder):
        places = {each: folder / RUNS / each for each in scenarios}
        told = {run.folder: settings_in_words(run.settings) for run in runs}
        waiting = [
            SweepJob(each, scenario, places[each], (places[each] / "scenario.yaml").is_file(), told[each])
            for each, scenario in scenarios.items()
            if not _is_done(scenario, places[each])
        ]
        SweepRecord(written_by=f"fedamp {version()}", scenario=name, grid=lists, runs=runs).write(folder / FILE)
        opened(name)
        try:
            errors = _play_jobs(waiting, min(jobs or os.cpu_count() or 1, len(waiting)), watcher)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(f"{folder}: run the same command to resume") from None
    return read_sweep(folder, errors)


def _make_folder(folder: Path, private: bool) -> None:
    """Make the folder, or check that it is empty or holds a sweep.

    Raises:
        RunFolderError: it holds anything else, or cannot be made.
    """
    try:
        folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be made ({error.strerror})") from None
    if not is_sweep(folder) and any(path.name != ".lock" for path in folder.iterdir()):
        raise RunFolderError(f"{folder}: not the folder of a sweep, and not empty; expected: another one with --out")


def _is_done(scenario: Scenario, folder: Path) -> bool:
    """Say whether the folder holds the finished run.

    Raises:
        RunFolderError: it holds a run of another scenario.
    """
    if (ledger := folder / "ledger.json").is_file():
        record = LedgerRecord.read(ledger)
        if (record.scenario_sha256, record.has_known_seed) != (fingerprint(scenario), scenario.known_seed):
            raise RunFolderError(f"{folder}: a run of another scenario; expected: another folder with --out")
    return finished(folder) is not None


def _play_jobs(jobs: list[SweepJob], processes: int, watcher: Watcher | None) -> dict[str, str]:
    """Play all jobs; return errors by the names of the runs that failed."""
    errors, tell = dict[str, str](), watcher.round_done if watcher else lambda job, round_: None
    if watcher:
        watcher.begun(jobs)
    apart = run_apart(list(map(_serial_job, jobs)), processes, tell)
    with closing(apart if processes > 1 else ((job, run_job(job, tell)) for job in jobs)) as done:
        for job, error in done:
            if error:
                errors[job.name] = error
            if watcher:
                watcher.run_done(job, error)
    return errors


def _serial_job(job: SweepJob) -> SweepJob:
    """Return the job on the serial engine, unless its scenario chooses another or needs workers.

    Its result is the same, and the other runs use the cores.
    """
    engine, faults = job.scenario.engine, job.scenario.faults
    needs_workers = engine.address is not None or (faults is not None and faults.killed_workers > 0)
    if engine.kind != "auto" or needs_workers:
        return job
    serial = engine.model_copy(update={"kind": "serial"})
    return job._replace(scenario=job.scenario.model_copy(update={"engine": serial}))


def run_job(job: SweepJob, tell: Tell) -> str | None:
    """Play a job in this process.

    Args:
        job: to start or resume.
        tell: called with the number of every released round.

    Returns:
        One line that says why it stopped before its end; None: it did not.

    Raises:
        Interrupted: Ctrl-C; the run can be resumed.
    """
    try:
        watching = Observers([Forewarning(None), lambda record: tell(job, record.round)])
        folder = launch(job.scenario, watching, job.folder, job.resume)
        if read_summary(folder).stopped_because == "interrupted":
            raise Interrupted(how_to_resume(folder))
    except Interrupted:
        raise
    except FedampError as error:
        return f"{error.kind}: {error}"
    return None


def run_apart(jobs: Sequence[SweepJob], processes: int, tell: Tell) -> Generator[Ended]:
    """Play jobs in several processes at once; yield each job after its end, with the line of :func:`run_job`.

    A process that dies fails its current run, and no other.

    Args:
        jobs: to start or resume.
        processes: the most at once.
        tell: called with the number of every released round.

    Raises:
        Interrupted: Ctrl-C. Current runs have finished their round; a second Ctrl-C kills them.
    """
    waiting, interrupts = deque(jobs), 0
    busy, idle = dict[Connection, _Worker](), list[_Worker]()
    try:
        while waiting or busy:
            try:
                while waiting and len(busy) < processes:
                    worker = idle.pop() if idle else _Worker(max(1, (os.cpu_count() or 1) // processes))
                    worker.start(waiting.popleft())
                    busy[worker.pipe] = worker
                for pipe in wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    said = worker.receive()
                    if isinstance(said, int):
                        tell(worker.job, said)
                        continue
                    del busy[worker.pipe]
                    if worker.process.is_alive():
                        idle.append(worker)
                    yield worker.job, said
            except KeyboardInterrupt:
                interrupts += 1
                waiting.clear()
                if interrupts == 1:
                    Forewarning(None).stopping()
                for worker in busy.values():
                    if interrupts > 1:
                        worker.process.kill()
                    with suppress(OSError):
                        worker.pipe.send(None)  # it stops after its round
    finally:
        for worker in (*idle, *busy.values()):
            worker.end()
    if interrupts:
        raise Interrupted("")


class _Worker:
    """A process that plays one job after the other, so that it imports torch once.

    It receives jobs through a pipe. It answers with the number of each released round, and with the error or None.

    Args:
        threads: of its libraries.
    """

    job: SweepJob

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve_jobs, args=(theirs, threads))
        # The pipe interrupts it, Ctrl-C does not; the process inherits which signals are blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()

    def start(self, job: SweepJob) -> None:
        """Send a job to the process."""
        self.job = job
        with suppress(OSError):  # a dead process is noticed in receive
            self.pipe.send(job)

    def receive(self) -> int | str | None:
        """Wait for the next answer; a line where the process has ended."""
        with suppress(EOFError, OSError):
            said: int | str | None = self.pipe.recv()
            return said
        self.process.join(STOP_DEADLINE)
        return f"failed: its process ended (exit code {self.process.exitcode})"

    def end(self) -> None:
        """Close the pipe, at which the process ends; after ``STOP_DEADLINE`` seconds it is killed."""
        self.pipe.close()
        self.process.join(STOP_DEADLINE)
        self.process.kill()


def _serve_jobs(pipe: Connection, threads: int) -> None:
    """Play the jobs that a pipe brings, until it is closed. The logs of the runs hold what they print."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))

    def tell(_: SweepJob, round_: int) -> None:
        pipe.send(round_)
        if pipe.poll():
            raise KeyboardInterrupt

    with suppress(EOFError, OSError):
        while True:
            if (job := pipe.recv()) is None:
                continue
            try:
                error = run_job(job, tell)
            except Interrupted as caught:
                error = f"{caught.kind}: {caught}"
            pipe.send(error)


def grid_of(texts: Sequence[str]) -> Grid:
    """Read a grid from ``--set``: ``privacy.epsilon=1,2,4``, ``seed=1..5``, ``model.hidden=[8],[16,8]``.

    Raises:
        ScenarioError: a key without values, a key or value that is given twice, or too many runs.

    >>> grid_of(["privacy.epsilon=1,2", "seed=1..3"])
    {'privacy.epsilon': [1, 2], 'seed': [1, 2, 3]}
    """
    grid: Grid = {}
    for key, values in (key_and_value(text, several=True) for text in texts):
        if key in grid:
            raise ScenarioError(f"--set {key}: given twice; expected: all values together, e.g. {key}=1,2,4")
        grid[key] = [each for value in values for each in _unroll_range(value)]
    return checked(grid)


def checked(grid: Mapping[str, Any]) -> Grid:
    """Check a grid of Python values; a single value becomes a list of one.

    Raises:
        ScenarioError: as :func:`grid_of`.
    """
    lists = {str(key): _as_list(values) for key, values in grid.items()}
    for key, values in lists.items():
        if not values or len(set(map(_value_text, values))) < len(values):
            wrong = "a value is given twice" if values else "no value"
            raise ScenarioError(f"{key}: {wrong}; expected: one value or several different ones")
    if (runs := math.prod(map(len, lists.values()))) > MOST_RUNS:
        raise ScenarioError(f"the grid has {runs:,} runs; expected: at most {MOST_RUNS:,}")
    return lists


def points(grid: Grid) -> list[RunSettings]:
    """Return every combination of the values; the last key changes fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def random_points(grid: Grid, number: int, seed: int) -> list[RunSettings]:
    """Draw some of a grid's combinations, all sets alike, in the order of the grid (random search).

    Args:
        grid: values by key.
        number: of combinations, from 1 to all.
        seed: public; the same one draws the same combinations.

    Raises:
        ScenarioError: the grid has fewer.
    """
    every = points(grid)
    if not 1 <= number <= len(every):
        raise ScenarioError(f"trials: got {number}; expected: from 1 to the {len(every)} combinations of the grid")
    order = np.argsort(rng.stream(rng.public_seed(seed, "search"), "trials", 0).words(len(every)), kind="stable")
    return [every[place] for place in np.sort(order[:number])]


def settings_in_words(settings: RunSettings) -> str:
    """Write a run's settings; a variant is its name alone."""
    others = {key: value for key, value in settings.items() if key != VARIANT and (key, value) != (BUDGET, None)}
    noise = ["without noise"] if settings.get(BUDGET, 0) is None else []
    return ", ".join(filter(None, [settings.get(VARIANT, ""), words.settings(others) if others else "", *noise]))


def folder_name(settings: RunSettings, grid: Grid) -> str:
    """Name a run's folder by the keys that vary, with their values; a long name ends with a digest.

    In a study all keys are in the name, so that it can get further variants and values.
    """
    varying = {key: value for key, value in settings.items() if len(grid[key]) > 1 or VARIANT in grid}
    name = ",".join(f"{key}={_value_text(value)}" for key, value in (varying or settings).items())
    safe = re.sub(r"[^A-Za-z0-9.,=_+-]+", "", name)
    if safe == name and len(name) <= LONGEST_NAME:
        return name or "run"
    return f"{safe[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _value_text(value: Any) -> str:
    """Write a value as in a folder's name."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _as_list(values: Any) -> list[Any]:
    """Return values as a list of Python objects."""
    values = values.tolist() if isinstance(values, np.ndarray) else values
    several = values if isinstance(values, list | tuple | range) else [values]
    return [value.item() if isinstance(value, np.generic) else value for value in several]


def _unroll_range(value: Any) -> list[Any]:
    """Return the whole numbers from 1 to 5 for ``1..5``, and any other value as it is."""
    ends = re.fullmatch(r"(-?\d{1,9})\.\.(-?\d{1,9})", value) if isinstance(value, str) else None
    if ends is None:
        return [value]
    first, last = map(int, ends.groups())
    if not first <= last < first + MOST_RUNS:
        raise ScenarioError(f"{value}: expected: FIRST..LAST, LAST >= FIRST, at most {MOST_RUNS:,} numbers")
    return list(range(first, last + 1))
