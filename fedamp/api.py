"""fedamp from Python, as ``fedamp.load`` and so on: the commands, with values in and objects out.

Everything heavy (torch, Flower, Ray, plots) is imported by the function that needs it.
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedamp.errors import Interrupted, RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.scenario import Scenario
from fedamp.server.observers import Callback, Forewarning, Observer, Observers

if TYPE_CHECKING:
    from fedamp.report.notebook import Answer
    from fedamp.report.views import Run, Sweep
    from fedamp.runs.records import RoundRecord
    from fedamp.studies.sweeps.workers import Watcher

Shown = TypeVar("Shown")
Source = str | Path | Mapping[str, Any] | Scenario
"""A YAML file, the name of a shipped scenario (``"digits"``), the content of such a file, or a scenario."""


def load(source: Source, /, **overrides: Any) -> Scenario:
    """Read and validate a scenario.

    ``overrides`` are values by key, as ``**{"privacy.epsilon": 2}`` or ``privacy={"epsilon": 2}``. A mapping changes
    only the keys that it names. With a scheme or a name, as ``check_in={"scheme": "poisson", "rate": 0.1}``, it is the
    whole section.

    Raises:
        ScenarioError: one line that names the key, the value found, and the values expected.
    """
    if isinstance(source, Scenario):
        return reader.load(source.model_dump(mode="json"), changes=overrides) if overrides else source
    return reader.load(source, changes=overrides)


def privacy(scenario: Source, groups: bool = False) -> "Answer":
    """The cost of a scenario, without running it: the object of ``fedamp privacy --json``; printed it is the table.

    ``groups`` computes the cost of groups of units even if that takes seconds. An InputError says what is wrong.
    """
    from fedamp.federation.cost import privacy_cost
    from fedamp.report.notebook import Answer
    from fedamp.report.tables import privacy_table
    from fedamp.server.traffic import traffic

    asked = load(scenario)
    return Answer(privacy_cost(asked, groups) | {"traffic": traffic(asked)}, privacy_table)


def run(
    scenario: Source,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback | Observer] = (),
    anyway: bool = False,
) -> "Run":
    """Run a federation to its end or its budget, and leave a run folder. Ctrl-C stops after the round.

    Args:
        out: run folder; default: a new one under ``runs``, or the newest one to resume.
        resume: continue an interrupted run.
        callbacks: functions of the record of every released round, or objects with methods of ``Observer``.
        anyway: run a new scenario that ``fedamp check`` finds hopeless, too.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        FederationError: the run failed; the folder can be resumed.
        Interrupted: Ctrl-C; the message says how to resume.
    """
    from fedamp.server.launch import how_to_resume, launch

    checks = Forewarning(None if resume else anyway, "anyway=True")
    folder = launch(load(scenario), Observers([checks, *callbacks]), _folder(out), resume)
    finished = open(folder)
    if finished.summary.stopped_because == "interrupted":
        raise Interrupted(how_to_resume(folder))
    return finished


def play(scenario: Source, out: str | Path | None = None, resume: bool = False) -> "Generator[RoundRecord, None, Path]":
    """:func:`run` as an iterator over the records of its rounds, each after its release.

    Leaving the loop, or closing the iterator, stops after the round; the folder can then be opened, and resumed. Its
    epsilon is that of all rounds, because the releases may have decided when to stop. Between rounds, files that this
    process makes are as private as the run folder.
    """
    from fedamp.server.launch import rounds

    asked = load(scenario)
    if asked.engine.kind == "flower":
        raise ScenarioError("engine.kind: flower cannot be played round by round; expected: auto, ray, serial")
    return rounds(asked, Observers(()), _folder(out), resume)


def sweep(
    scenario: Source,
    grid: Mapping[str, Any],
    out: str | Path | None = None,
    jobs: int | None = None,
    watcher: "Watcher | None" = None,
) -> "Sweep":
    """Run a scenario with every combination of some values. Finished runs are kept, interrupted ones are resumed.

    Args:
        grid: values by key, as ``{"privacy.epsilon": [1, 2, 4], "seed": range(1, 6)}``; ``seed`` repeats a run.
        out: folder; default: ``sweeps/NAME``.
        jobs: number of runs at once, each in a process of its own; default: the number of cores.
        watcher: follows every round and run.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        Interrupted: Ctrl-C; the same call resumes the sweep.
    """
    from fedamp.report.views import Sweep
    from fedamp.studies.sweeps import sweep

    swept = sweep(lambda settings: load(scenario, **settings), grid, _folder(out), jobs, watcher)
    return _shown_as(Sweep, swept)


def open(folder: str | Path) -> "Run":
    """Read the folder of a run that has released a round and has ended.

    Raises:
        RunFolderError: one line that names the file that is missing or damaged.
    """
    from fedamp.report.views import Run
    from fedamp.runs.folder import RunFolder
    from fedamp.runs.run import read_run

    if RunFolder(Path(folder)).certificate.is_file():
        raise RunFolderError(f"{folder}: a merged model; expected: the folder of a run")
    return _shown_as(Run, read_run(Path(folder)))


def _shown_as(kind: type[Shown], read: Any) -> Shown:
    """The same values in the class that also shows them."""
    return kind(**{field.name: getattr(read, field.name) for field in fields(read)})


def _folder(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)
