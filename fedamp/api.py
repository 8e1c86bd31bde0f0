"""fedamp from Python, as ``fedamp.load`` and so on: the commands, with values in and objects out.

Everything heavy (torch, Flower, Ray, plots) is imported by the function that needs it.
"""

import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from fedamp.base.devices import usual_state
from fedamp.errors import OF_PYTHON, Interrupted, RunFolderError, in_words_of, needs_extras
from fedamp.errors import StopTraining as StopTraining
from fedamp.federation import reader
from fedamp.federation.scenario import Scenario
from fedamp.report.scenarios import LoadedScenario
from fedamp.server.observers import Callback, Forewarning, Observer, Observers

if TYPE_CHECKING:
    from fedamp.report.comparison import Published
    from fedamp.report.views import OpenedRun, PrintedAnswer
    from fedamp.runs.records import RoundRecord

Source = str | Path | Mapping[str, Any] | Scenario | None
"""A YAML file, the name of a shipped scenario (``"digits"``), the content of such a file, or a scenario; None: all of
it is in the settings."""


class InFolder(Protocol):
    """A result that lies in a folder, as a run or a sweep."""

    @property
    def folder(self) -> Path: ...


@contextmanager
def from_python() -> Iterator[None]:
    """For each call: errors are in words of Python, and what the program has set for itself changes no number."""
    with in_words_of(OF_PYTHON), usual_state():
        yield


@from_python()
def load(source: Source = None, /, **settings: Any) -> LoadedScenario:
    """Read and validate a scenario.

    ``settings`` are values by key, as ``**{"privacy.epsilon": 2}`` or ``privacy={"epsilon": 2}``. A mapping changes
    only the keys that it names. With a scheme or a name, as ``check_in={"scheme": "poisson", "rate": 0.1}``, it is the
    whole section. Five settings may be objects of Python, of which the scenario holds digests:

    - ``model``: a class or function that gives a torch module, or a module: training starts from its weights.
    - ``data``, ``test``: arrays (x, y, client) or (x, y), and the public (x, y) to test on; a row for each record.
    - ``loss``: a function of outputs and labels that gives [records], a subclass of ``Loss``, or a name.
    - ``metrics``: functions of all test outputs and labels, by name, in place of the loss's own. The first one leads.

    Raises:
        InputError: one line that names the key, the value found, and the values expected.
    """
    from fedamp.federation.objects import with_digests

    if isinstance(source, Scenario):
        if not settings:
            return LoadedScenario.of(source)
        source = source.model_dump(mode="json")
    raw, changes = with_digests({} if source is None else source, settings) if settings else (source or {}, {})
    return LoadedScenario.of(reader.load(raw, changes=changes))


@from_python()
def privacy(scenario: Source = None, groups: bool = False, **settings: Any) -> "PrintedAnswer":
    """The cost of a scenario, without running it: the object of ``fedamp privacy --json``; printed it is the table.

    ``groups`` computes the cost of groups of units even if that takes seconds. ``settings`` are those of :func:`load`.
    An InputError says what is wrong.
    """
    from fedamp.federation.cost import privacy_cost
    from fedamp.report.tables import privacy_table
    from fedamp.report.views import PrintedAnswer
    from fedamp.server.traffic import traffic

    asked = load(scenario, **settings)
    return PrintedAnswer(privacy_cost(asked, groups) | {"traffic": traffic(asked)}, privacy_table)


@from_python()
def run(
    scenario: Source = None,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Callback | Observer | Iterable[Callback | Observer] = (),
    anyway: bool = False,
    **settings: Any,
) -> "OpenedRun":
    """Run a federation to its end or its budget, and leave a run folder. Ctrl-C stops after the round.

    Args:
        out: run folder; default: a new one under ``runs``, or the newest one to resume.
        resume: continue an interrupted run; objects that it was given must be given again.
        callbacks: functions of the record of every released round, or objects with methods of ``Observer``. One that
            returns False, or raises ``StopTraining``, stops the run, which can be resumed.
        anyway: run a new scenario that ``fedamp check`` finds hopeless, too.
        settings: those of :func:`load`, also objects: ``model=Net, data=(x, y, client), test=(x, y)``.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        FederationError: the run failed; the folder can be resumed.
        Interrupted: Ctrl-C; the message says how to resume.
    """
    from fedamp.report.views import notebook_cell
    from fedamp.server.launch import how_to_resume, launch

    checks = Forewarning(None if resume else anyway)
    several = callbacks if isinstance(callbacks, Iterable) else [callbacks]
    observers = Observers([checks, *several, *notebook_cell()])
    folder = launch(load(scenario, **settings), observers, given_folder(out), resume)
    finished = open(folder)
    if finished.summary.stopped_because == "interrupted" and not observers.stopped:
        raise Interrupted(how_to_resume(folder))
    return finished


@from_python()
def play(
    scenario: Source = None, out: str | Path | None = None, resume: bool = False, **settings: Any
) -> "Generator[RoundRecord, None, Path]":
    """:func:`run` as an iterator over the records of its rounds, each after its release.

    Leaving the loop, or closing the iterator, stops after the round; the folder can then be opened, and resumed. Its
    epsilon is that of all rounds, because the releases may have decided when to stop. Between rounds, files that this
    process makes are as private as the run folder.
    """
    from fedamp.server.launch import launch_by_round

    progress = _told(launch_by_round(load(scenario, **settings), Observers(()), given_folder(out), resume))
    weakref.finalize(progress, _close, weakref.ref(progress))  # at the latest when Python ends, while it can write
    return progress


@from_python()
def compare(runs: "Iterable[str | Path | InFolder]") -> "Published":
    """Put runs, other models and series of runs side by side, given by their folders or as objects.

    It prints as the table of ``fedamp compare``, and has ``frame()``, ``csv()``, ``latex()`` and ``plot()``. One series
    alone, as a sweep, is shown in its own way.

    Raises:
        RunFolderError: a folder is missing, damaged or given twice.
    """
    with needs_extras():
        from fedamp.report.comparison import compare

    return compare([Path(each) if isinstance(each, str | Path) else each.folder for each in runs])


@from_python()
def open(folder: str | Path) -> "OpenedRun":
    """Read the folder of a run that has released a round and has ended.

    Raises:
        RunFolderError: one line that names the file that is missing or damaged.
    """
    from fedamp.report.views import OpenedRun
    from fedamp.runs.folder import reader_of
    from fedamp.runs.run import read_run

    if other := reader_of(Path(folder)):
        raise RunFolderError(f"{folder}: {other.called}; expected: the folder of a run")
    read = read_run(Path(folder))
    values = {field.name: getattr(read, field.name) for field in fields(read)}
    return OpenedRun(**values | {"scenario": LoadedScenario.of(read.scenario)})


def _close(progress: "weakref.ref[Generator[RoundRecord, None, Path]]") -> None:
    if held := progress():
        with suppress(ValueError):  # another thread is inside it
            held.close()


def _told(progress: "Generator[RoundRecord, None, Path]") -> "Generator[RoundRecord, None, Path]":
    """The same rounds, each played as a call from where the first one was."""
    place = Path.cwd()
    try:
        while True:
            with from_python(), chdir(place):
                try:
                    record = next(progress)
                except StopIteration as end:
                    return cast(Path, end.value)
            yield record
    finally:
        with from_python(), chdir(place):
            progress.close()


def given_folder(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)
