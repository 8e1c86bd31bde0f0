"""fedamp from Python: the commands of the shell, with Python objects as arguments and results.

The package ``fedamp`` exports these functions, so that a notebook writes ``fedamp.load`` and ``fedamp.run``. Each
function reads a scenario, calls the part of fedamp that does the work, and wraps the result for display. No function
computes anything itself. The commands in :mod:`fedamp.cli` call the same parts.

A reader goes on in :mod:`fedamp.server.launch` for a run, in :mod:`fedamp.federation.cost` for a cost, and in
:mod:`fedamp.report.views` for the results. docs/python.md has longer examples, also with arrays and modules of one's
own.

Torch, Flower, Ray and plots are slow to import. The function that needs one imports it.
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
"""A YAML file, the name of a shipped scenario, the content of such a file, or a scenario.

None: the settings alone describe the scenario.
"""


class InFolder(Protocol):
    """A result that lies in a folder, such as a run or a sweep; :func:`compare` takes it in place of the path."""

    @property
    def folder(self) -> Path: ...


@contextmanager
def from_python() -> Iterator[None]:
    """Wrap each call from Python, so that it behaves the same in every program.

    Errors name arguments of Python (``out=``, ``resume=True``) in place of options of the command line. Settings of
    torch that the program has changed, for example a default dtype, are set back inside, so that they change no number.
    """
    with in_words_of(OF_PYTHON), usual_state():
        yield


@from_python()
def load(source: Source = None, /, **settings: Any) -> LoadedScenario:
    """Read and validate a scenario.

    A scenario holds all that decides a run. It is immutable: ``fedamp.load(scenario, rounds=20)`` gives a changed copy.

    Args:
        source: a YAML file, the name of a shipped scenario (``"digits"``), a mapping with the content of such a file,
            or a scenario. Default: the settings alone describe it.
        settings: values by key, as ``**{"privacy.epsilon": 2}`` or ``privacy={"epsilon": 2}``. A mapping changes only
            the keys that it names. A mapping with a scheme or a name, as ``check_in={"scheme": "poisson", "rate":
            0.1}``, is the whole section.

    Five settings may be objects of Python. The scenario holds digests of them:

    - ``model``: a class or function that gives a torch module, or a module: training starts from its weights.
    - ``data``, ``test``: arrays (x, y, client) or (x, y), and the public (x, y) to test on; a row for each record.
    - ``loss``: a function of outputs and labels that gives [records], a subclass of ``Loss``, or a name.
    - ``metrics``: functions of all test outputs and labels, by name, in place of the loss's own. The first one leads.

    Returns:
        The scenario, with defaults filled in. Its noise is not calibrated yet: that takes the data.

    Raises:
        InputError: one line that names the key, the value found, and the values expected.

    Example:
        >>> import fedamp
        >>> scenario = fedamp.load("digits", rounds=20, check_in={"k": 4})
        >>> scenario.rounds, scenario.check_in.k, scenario.privacy.epsilon
        (20, 4, 8.0)
        >>> fedamp.load("digits", rounds=0)
        Traceback (most recent call last):
            ...
        fedamp.errors.ScenarioError: rounds=0: got 0; expected: an integer >= 1 and <= 1e+06
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
    """Compute the privacy cost of a scenario, without running it.

    Args:
        scenario: as :func:`load` takes it.
        groups: also compute the cost for groups of units, which may take seconds.
        settings: those of :func:`load`.

    Returns:
        The object of ``fedamp privacy --json``, a mapping. Printed, it is the table of ``fedamp privacy``. ``epsilon``
        is a bracket: the true value lies between ``lower`` and ``upper``, and a budget spends ``upper``.

    Raises:
        InputError: the scenario is wrong, or no noise meets its budget; one line says which.

    Example:
        >>> import fedamp
        >>> cost = fedamp.privacy("digits", rounds=2, check_in={"k": 1})
        >>> round(cost["epsilon"]["upper"], 2), cost["units"], round(cost["noise_multiplier"], 3)
        (8.0, 479, 0.561)
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
        scenario: as :func:`load` takes it.
        out: run folder; default: a new one under ``runs``, or the newest one to resume.
        resume: continue an interrupted run; objects that it was given must be given again.
        callbacks: functions of the record of every released round, or objects with methods of ``Observer``. One that
            returns False, or raises ``StopTraining``, stops the run, which can be resumed.
        anyway: run a new scenario even if ``fedamp check`` fails.
        settings: those of :func:`load`, also objects: ``model=Net, data=(x, y, client), test=(x, y)``.

    Returns:
        The finished run, as :func:`open` reads it: ``epsilon`` (its upper end), ``accuracy``, ``plan``, ``predict``, ..

    Raises:
        InputError: nothing was run; one line names the fault.
        FederationError: the run failed; the folder can be resumed.
        Interrupted: Ctrl-C; the message says how to resume.

    Example:
        >>> import fedamp
        >>> small = fedamp.load("digits", rounds=2, check_in={"k": 1}, engine={"kind": "serial"})
        >>> spent = []
        >>> finished = fedamp.run(small, "runs/small", callbacks=lambda record: spent.append(record.epsilon_upper))
        >>> round(finished.epsilon, 2), [round(each, 2) for each in spent]
        (8.0, [7.72, 8.0])
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
    """Run a federation round by round: iterate over the records of its rounds, each after its release.

    Leaving the loop, or closing the iterator, stops the run after the round. The folder can then be opened, and
    resumed. Its epsilon is that of all planned rounds, because the releases may have decided when to stop.

    Args:
        scenario, out, resume, settings: as in :func:`run`.

    Returns:
        An iterator of ``RoundRecord``; the value of its ``StopIteration`` is the run folder.

    Raises:
        InputError, FederationError: as in :func:`run`; also while the rounds are played.

    Example:
        >>> import fedamp
        >>> small = fedamp.load("digits", rounds=2, check_in={"k": 1}, engine={"kind": "serial"})
        >>> [record.round for record in fedamp.play(small, out="runs/played")]
        [1, 2]
    """
    from fedamp.server.launch import launch_by_round

    progress = _told(launch_by_round(load(scenario, **settings), Observers(()), given_folder(out), resume))
    weakref.finalize(progress, _close, weakref.ref(progress))  # at the latest when Python ends, while it can write
    return progress


@from_python()
def compare(runs: "Iterable[str | Path | InFolder]") -> "Published":
    """Put runs, other models and series of runs side by side.

    Args:
        runs: their folders, or objects with a folder: results of :func:`run`, :func:`open` and ``fedamp.sweep``.

    Returns:
        A table that prints as that of ``fedamp compare``, and has ``frame()``, ``csv()``, ``latex()`` and ``plot()``.
        One series alone, such as a sweep, has a table of its own form.

    Raises:
        RunFolderError: a folder is missing, damaged or given twice.

    Example:
        >>> import fedamp
        >>> small = fedamp.load("digits", rounds=1, check_in={"k": 1}, engine={"kind": "serial"})
        >>> both = [fedamp.run(small, out=f"runs/{rate}", server={"learning_rate": rate}) for rate in (1.0, 2.0)]
        >>> len(fedamp.compare(both).rows())
        2
    """
    with needs_extras():
        from fedamp.report.comparison import compare

    return compare([Path(each) if isinstance(each, str | Path) else each.folder for each in runs])


@from_python()
def open(folder: str | Path) -> "OpenedRun":
    """Read the folder of a run that has released a round and has ended.

    Args:
        folder: the run folder.

    Returns:
        The run: its ``epsilon`` (the upper end for the whole run), ``accuracy``, ``plan``, ``files`` and ``scenario``;
        ``predict``, ``score``, ``plot``, ``report`` and ``verify`` compute from the folder.

    Raises:
        RunFolderError: one line that names the file that is missing or damaged.

    Example:
        >>> import fedamp
        >>> small = fedamp.load("digits", rounds=1, check_in={"k": 1}, engine={"kind": "serial"})
        >>> folder = fedamp.run(small, out="runs/opened").folder
        >>> fedamp.open(folder).scenario.rounds
        1
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
    """Close an iterator of :func:`play` that is no longer in use, unless another thread is inside it."""
    if held := progress():
        with suppress(ValueError):  # another thread is inside it
            held.close()


def _told(progress: "Generator[RoundRecord, None, Path]") -> "Generator[RoundRecord, None, Path]":
    """Play the same rounds, each in the folder in which the first one began, with the errors and settings of a call."""
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
    """Return the folder that a caller gave as text or path; None: it gave none."""
    return None if out is None else Path(out)
