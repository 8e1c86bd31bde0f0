"""A sweep from its grid to its runs: what is finished is not run again, what was begun is gone on with."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedamp import __version__
from fedamp.errors import InputError, Interrupted, RunFolderError
from fedamp.federation.scenario import Scenario
from fedamp.runs.files import locked
from fedamp.runs.ledger import fingerprint
from fedamp.runs.records import LedgerRecord
from fedamp.studies.sweeps.grid import Settings, checked, folder_name, points
from fedamp.studies.sweeps.results import FILE, RUNS, PlannedRun, Sweep, SweepRecord, finished, is_sweep, read_sweep
from fedamp.studies.sweeps.workers import Job, Watcher, play_apart, play_here

SWEEPS = Path("sweeps")


def sweep(
    load: Callable[[Settings], Scenario],
    grid: Mapping[str, Any],
    out: Path | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> Sweep:
    """Run every combination of a grid's values.

    Args:
        load: the scenario with some values changed.
        grid: values by key path; ``seed`` repeats a run.
        out: folder; left out: ``sweeps/NAME``. One in which the same runs were made, or begun, is gone on with.
        jobs: how many runs at once, each in a process of its own; 1: one after the other in this process. Left out: as
            many as there are cores.
        watcher: told of every round and run.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        Interrupted: Ctrl-C; the same call goes on where it stopped.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: got {jobs}; expected: a whole number >= 1")
    lists = checked(grid)
    scenarios = {folder_name(settings, lists): load(settings) for settings in points(lists)}
    name = next(iter(scenarios.values())).name
    folder = out or SWEEPS / name
    _made(folder, private=not all(scenario.known_seed for scenario in scenarios.values()))
    errors: dict[str, str] = {}
    with locked(folder):
        waiting = [
            _job(name, scenario, folder / RUNS / name)
            for name, scenario in scenarios.items()
            if not _is_done(scenario, folder / RUNS / name)
        ]
        planned = zip(scenarios, points(lists), strict=True)
        SweepRecord(
            written_by=f"fedamp {__version__}",
            scenario=name,
            grid=lists,
            runs=tuple(PlannedRun(folder=name, settings=settings) for name, settings in planned),
        ).write(folder / FILE)
        _play(waiting, min(jobs or os.cpu_count() or 1, len(waiting)), _Noting(errors, watcher), folder)
    return read_sweep(folder, errors)


def _play(jobs: list[Job], processes: int, watcher: Watcher, folder: Path) -> None:
    watcher.begun(jobs)
    try:
        if processes > 1:
            play_apart([_alone(job) for job in jobs], processes, watcher)
        else:
            play_here(jobs, watcher)
    except Interrupted:
        raise Interrupted(f"{folder}: the same command goes on where it stopped") from None


def _made(folder: Path, private: bool) -> None:
    """Make the folder, or see that it is one of a sweep, or empty.

    Raises:
        RunFolderError: it holds something else, or cannot be made.
    """
    try:
        folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be made ({error.strerror})") from None
    if not is_sweep(folder) and any(path.name != ".lock" for path in folder.iterdir()):
        raise RunFolderError(f"{folder}: not the folder of a sweep, and not empty; expected: another one with --out")


def _is_done(scenario: Scenario, folder: Path) -> bool:
    """Whether the run is there and has come to its end.

    Raises:
        RunFolderError: a run is there, and of another scenario.
    """
    ledger = folder / "ledger.json"
    if ledger.is_file():
        record = LedgerRecord.read(ledger)
        if (record.scenario_sha256, record.has_known_seed) != (fingerprint(scenario), scenario.known_seed):
            raise RunFolderError(f"{folder}: a run of another scenario; expected: another folder with --out")
    return finished(folder) is not None


def _job(name: str, scenario: Scenario, folder: Path) -> Job:
    return Job(name, scenario, folder, resume=(folder / "scenario.yaml").is_file())


def _alone(job: Job) -> Job:
    """Beside other runs a run trains in its own process: the results do not depend on it."""
    engine, faults = job.scenario.engine, job.scenario.faults
    needs_workers = engine.address is not None or (faults is not None and faults.killed_workers > 0)
    if engine.kind != "auto" or needs_workers:
        return job
    here = engine.model_copy(update={"kind": "serial"})
    return Job(job.name, job.scenario.model_copy(update={"engine": here}), job.folder, job.resume)


class _Noting(Watcher):
    """Notes why runs ended before their end, and tells a watcher."""

    def __init__(self, errors: dict[str, str], watcher: Watcher | None) -> None:
        self._errors, self._watcher = errors, watcher

    def begun(self, jobs: Sequence[Job]) -> None:
        if self._watcher:
            self._watcher.begun(jobs)

    def round_done(self, job: Job, round_: int) -> None:
        if self._watcher:
            self._watcher.round_done(job, round_)

    def run_done(self, job: Job, error: str | None) -> None:
        if error:
            self._errors[job.folder.name] = error
        if self._watcher:
            self._watcher.run_done(job, error)
