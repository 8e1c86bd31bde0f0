"""A sweep from its grid to its runs: it skips finished runs and resumes interrupted ones."""

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from fedamp.base.files import locked
from fedamp.base.version import version
from fedamp.data.dataset import TO_TEST
from fedamp.errors import InputError, Interrupted, RunFolderError
from fedamp.federation.scenario import Scenario
from fedamp.runs.ledger import fingerprint
from fedamp.runs.records import LedgerRecord
from fedamp.studies.sweeps.grid import Settings, checked, folder_name, points
from fedamp.studies.sweeps.results import FILE, RUNS, PlannedRun, Sweep, SweepRecord, finished, is_sweep, read_sweep
from fedamp.studies.sweeps.workers import Job, Watcher, run_apart, run_job

SWEEPS = Path("sweeps")


def sweep(
    load: Callable[[Settings], Scenario],
    grid: Mapping[str, Any],
    out: Path | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> Sweep:
    """Run every combination of a grid's values: see :func:`fedamp.api.sweep`.

    Args:
        load: the scenario with some values changed.
        grid, watcher: as there.
        out: folder; default: ``sweeps/NAME``. Runs that it holds are skipped, or resumed.
        jobs: runs at once, each in its own process; 1: one after the other in this process; default: one per core.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        Interrupted: Ctrl-C; the same call resumes the sweep.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: got {jobs}; expected: a whole number >= 1")
    lists = checked(grid)
    settings = points(lists)
    names = [folder_name(each, lists) for each in settings]
    scenarios = {name: load(each) for name, each in zip(names, settings, strict=True)}
    if not all(each.evaluates for each in scenarios.values()):
        raise InputError(f"sweep: nothing scores its runs; expected: {TO_TEST}, and an evaluation")
    scenario = scenarios[names[0]].name
    folder = out or SWEEPS / scenario
    _make_folder(folder, private=not all(each.known_seed for each in scenarios.values()))
    with locked(folder):
        waiting = []
        for name, each in scenarios.items():
            place = folder / RUNS / name
            if not _is_done(each, place):
                waiting.append(Job(name, each, place, resume=(place / "scenario.yaml").is_file()))
        runs = tuple(PlannedRun(folder=name, settings=each) for name, each in zip(names, settings, strict=True))
        written_by = f"fedamp {version()}"
        SweepRecord(written_by=written_by, scenario=scenario, grid=lists, runs=runs).write(folder / FILE)
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
    apart = run_apart(list(map(_serial, jobs)), processes, tell)
    with closing(apart if processes > 1 else ((job, run_job(job, tell)) for job in jobs)) as done:
        for job, error in done:
            if error:
                errors[job.name] = error
            if watcher:
                watcher.run_done(job, error)
    return errors


def _make_folder(folder: Path, private: bool) -> None:
    """Make the folder, or check that it is empty or holds a sweep; anything else is a RunFolderError."""
    try:
        folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be made ({error.strerror})") from None
    if not is_sweep(folder) and any(path.name != ".lock" for path in folder.iterdir()):
        raise RunFolderError(f"{folder}: not the folder of a sweep, and not empty; expected: another one with --out")


def _is_done(scenario: Scenario, folder: Path) -> bool:
    """Whether the folder holds the finished run; a RunFolderError if it holds a run of another scenario."""
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
    serial = engine.model_copy(update={"kind": "serial"})
    return job._replace(scenario=job.scenario.model_copy(update={"engine": serial}))
