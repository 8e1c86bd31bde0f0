"""fedamp from Python: what the commands do, with values in and objects out. ``fedamp.load`` is :func:`load`, and so on.

Everything heavy (torch, Flower, Ray, plots) is imported by the function that needs it.
"""

from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedamp.errors import Interrupted, RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.scenario import Scenario
from fedamp.server.observers import Callback, Observer, Observers

if TYPE_CHECKING:
    from fedamp.report.notebook import Answer
    from fedamp.runs.records import RoundRecord
    from fedamp.runs.run import Run
    from fedamp.studies.sweeps import Sweep
    from fedamp.studies.sweeps.workers import Watcher

Source = str | Path | Mapping[str, Any] | Scenario
"""A scenario, or where one is: a YAML file, the name of a shipped one, or what stands in such a file."""


def load(source: Source, /, **overrides: Any) -> Scenario:
    """Read and validate a scenario.

    Args:
        source: a YAML file, the name of a shipped scenario (``"digits"``), what stands in such a file, or a scenario.
        overrides: values by key, as ``**{"privacy.epsilon": 2}`` or ``privacy={"epsilon": 2}``. A mapping changes the
            keys that it names, and no others, unless it says which scheme or name it is of (``check_in={"scheme":
            "poisson", "rate": 0.1}``): then it is the whole section.

    Raises:
        ScenarioError: one line that names the key, what was found, and what is accepted.
    """
    if isinstance(source, Scenario):
        return reader.load(source.model_dump(mode="json"), changes=overrides) if overrides else source
    return reader.load(source, changes=overrides)


def privacy(scenario: Source, groups: bool = False) -> "Answer":
    """What a scenario will cost, without running it: what ``fedamp privacy --json`` prints, and shows as its table.

    Args:
        scenario: a scenario, or whatever :func:`load` reads.
        groups: what groups of units cost, even where it takes seconds.

    Raises:
        InputError: one line that says what is wrong.
    """
    from fedamp.federation.cost import privacy_cost
    from fedamp.report.notebook import Answer
    from fedamp.report.tables import privacy_table

    return Answer(privacy_cost(load(scenario), groups), privacy_table)


def run(
    scenario: Source,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback | Observer] = (),
) -> "Run":
    """Run a federation to its end or its budget, and leave a run folder. Ctrl-C stops after the round.

    Args:
        scenario: a scenario, or whatever :func:`load` reads.
        out: run folder; left out: a new one under ``runs``, or the newest one to resume.
        resume: go on where an interrupted run stopped.
        callbacks: functions that are given the record of every released round, or objects with methods of ``Observer``.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        FederationError: the run could not go on; the folder can be resumed.
        Interrupted: Ctrl-C; the message says how to go on.
    """
    from fedamp.server.launch import how_to_resume, launch

    folder = launch(load(scenario), Observers(callbacks), _folder(out), resume)
    finished = open(folder)
    if finished.summary.stopped_because == "interrupted":
        raise Interrupted(how_to_resume(folder))
    return finished


def play(scenario: Source, out: str | Path | None = None, resume: bool = False) -> "Generator[RoundRecord, None, Path]":
    """Run a federation round by round: an iterator over the records of its rounds, each as it is released.

    Leaving the loop, or closing the iterator, stops after the round. The folder can then be opened, and gone on in with
    ``resume``; its epsilon is that of all rounds, because what was seen may have decided when to stop. In between,
    files that this process makes are as private as the run folder.

    Args:
        scenario, out, resume: as for :func:`run`.

    Raises:
        InputError, FederationError, Interrupted: as :func:`run`, when the first round is asked for or a later one.
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
    """Run a scenario with every combination of some values, several runs at once.

    What is finished in the folder is not run again, and what was begun is gone on with.

    Args:
        scenario: a scenario, or whatever :func:`load` reads.
        grid: values by key, as ``{"privacy.epsilon": [1, 2, 4], "seed": range(1, 6)}``; ``seed`` repeats a run.
        out: folder; left out: ``sweeps/NAME``.
        jobs: how many runs at once, each in a process of its own; left out: as many as there are cores.
        watcher: told of every round and run.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        Interrupted: Ctrl-C; the same call goes on where it stopped.
    """
    from fedamp.studies.sweeps import sweep

    return sweep(lambda settings: load(scenario, **settings), grid, _folder(out), jobs, watcher)


def open(folder: str | Path) -> "Run":
    """Read the folder of a run that has released a round and has ended.

    Raises:
        RunFolderError: one line that names the file that is missing or damaged.
    """
    from fedamp.runs.folder import RunFolder
    from fedamp.runs.run import read_run

    if RunFolder(Path(folder)).certificate.is_file():
        raise RunFolderError(f"{folder}: a merged model; expected: the folder of a run")
    return read_run(Path(folder))


def _folder(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)
