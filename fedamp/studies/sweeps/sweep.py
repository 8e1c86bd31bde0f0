"""A sweep from its grid to its runs: it skips finished runs and resumes interrupted ones."""

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from fedamp.base.version import version
from fedamp.errors import InputError, Interrupted, RunFolderError
from fedamp.federation.scenario import Scenario
from fedamp.runs.files import locked
from fedamp.runs.ledger import fingerprint
from fedamp.runs.records import LedgerRecord
from fedamp.studies.sweeps.grid import Settings, checked, folder_name, points
from fedamp.studies.sweeps.results import FILE, RUNS, PlannedRun, Sweep, SweepRecord, finished, is_sweep, read_sweep
from fedamp.studies.sweeps.workers import Job, Watcher, run_apart, run_here

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
        out: folder; default: ``sweeps/NAME``. Runs that it holds are skipped, or resumed.
        jobs: runs at once, each in its own process; 1: one after the other in this process; default: one per core.
        watcher: follows every round and run.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        Interrupted: Ctrl-C; the same call resumes the sweep.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: got {jobs}; expected: a whole number >= 1")
    lists = checked(grid)
    scenarios = {folder_name(settings, lists): load(settings) for settings in points(lists)}
    scenario = next(iter(scenarios.values())).name
    folder = out or SWEEPS / scenario
    _make_folder(folder, private=not all(each.known_seed for each in scenarios.values()))
    with locked(folder):
        places = {name: folder / RUNS / name for name in scenarios}
        waiting = [
            Job(name, each, places[name], resume=(places[name] / "scenario.yaml").is_file())
            for name, each in scenarios.items()
            if not _is_done(each, places[name])
        ]
        planned = zip(scenarios, points(lists), strict=True)
        SweepRecord(
            written_by=f"fedamp {version()}",
            scenario=scenario,
            grid=lists,
            runs=tuple(PlannedRun(folder=name, settings=settings) for name, settings in planned),
        ).write(folder / FILE)
        try:
            errors = _play(waiting, min(jobs or os.cpu_count() or 1, len(waiting)), watcher)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(f"{folder}: run the same command to resume") from None
    return read_sweep(folder, errors)


def _play(jobs: list[Job], processes: int, watcher: Watcher | None) -> dict[str, str]:
    """Run all jobs; returns errors by the names of the runs that failed."""
    errors, tell = dict[str, str](), watcher.round_done if watcher else lambda job, round_: None
    if watcher:
        watcher.begun(jobs)
    apart = processes > 1
    done = run_apart([_serial(job) for job in jobs], processes, tell) if apart else run_here(jobs, tell)
    with closing(done):
        for job, error in done:
            if error:
                errors[job.name] = error
            if watcher:
                watcher.run_done(job, error)
    return errors


def _make_folder(folder: Path, private: bool) -> None:
    """Make the folder, or check that it is empty or holds a sweep.

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
    """Whether the folder holds the finished run.

    Raises:
        RunFolderError: it holds a run of another scenario.
    """
    ledger = folder / "ledger.json"
    if ledger.is_file():
        record = LedgerRecord.read(ledger)
        if (record.scenario_sha256, record.has_known_seed) != (fingerprint(scenario), scenario.known_seed):
            raise RunFolderError(f"{folder}: a run of another scenario; expected: another folder with --out")
    return finished(folder) is not None


def _serial(job: Job) -> Job:
    """The job on the serial engine where that is allowed: its result is the same, and other runs use the cores."""
    engine, faults = job.scenario.engine, job.scenario.faults
    needs_workers = engine.address is not None or (faults is not None and faults.killed_workers > 0)
    if engine.kind != "auto" or needs_workers:
        return job
    here = engine.model_copy(update={"kind": "serial"})
    return Job(job.name, job.scenario.model_copy(update={"engine": here}), job.folder, job.resume)
