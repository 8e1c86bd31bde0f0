"""Let others take part in a run: observers are told of it, and hooks of extensions act around it.

Observers are a progress display, a tracker, a custom function. A failure of a display or tracker does not end the run
(:func:`fedamp.errors.fails_alone`). Observers see released numbers and, as the run's owner, private counts. They cannot
change a round. They may refuse a run before its ledger begins, and stop it after a round.

Hooks act before a run begins, before each question to clients, at each release, and at its end. A population that pays,
kept models for an audit, and personal layers are built on them. An extension offers an :data:`AroundRun` for the seam
``around_run`` (:mod:`fedamp.extension`). The round loop enters them all (:mod:`fedamp.server.loop`); the journal calls
those of releases. A custom Flower app has no hooks.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedamp.errors import InputError, StopTraining, fails_alone
from fedamp.extension import all_offered, offered

if TYPE_CHECKING:
    from fedamp.base.arrays import Arrays
    from fedamp.base.record import Record
    from fedamp.federation.plan import Plan
    from fedamp.runs.folder import RunFolder
    from fedamp.runs.records import RoundRecord, Summary
    from fedamp.server.setup import RunInputs

log = logging.getLogger("fedamp.server")

Callback = Callable[["RoundRecord"], object]
"""Function of a round's record, called after its release. The run stops if it returns False."""


class Observer:
    """Base of observers: the events of a run. Any object with some of these methods is an observer.

    Attributes:
        only_tells: names the observer in the warning if it fails, and the run continues. Empty: its errors end the run.

    Example:
        >>> class Printer(Observer):
        ...     def round_done(self, record):
        ...         print(record.round, record.accuracy)
    """

    only_tells = ""

    def opened(self, folder: Path) -> None:
        """Act when the run's folder exists, and nothing else does."""

    def computing(self, busy: bool) -> None:
        """Act when the run begins to wait for the accountant (``busy``), and when it ends to."""

    def prepared(self, inputs: "RunInputs") -> None:
        """Act when data and model are loaded, and the ledger is not begun: an InputError leaves no folder behind.

        Args:
            inputs: the plan with its data and model.
        """

    def started(self, inputs: "RunInputs", finished: "list[RoundRecord]") -> None:
        """Act before the first round.

        Args:
            inputs: the plan with its data and model.
            finished: the rounds of an earlier, interrupted part of the run.
        """

    def round_done(self, record: "RoundRecord") -> None:
        """Act after every released round; StopTraining stops the run."""

    def stopping(self) -> None:
        """Act after the first Ctrl-C, from another thread: the round is finished first."""

    def halted(self) -> None:
        """Act soon after the second Ctrl-C, from another thread, if the main one has not stopped.

        It is inside a long operation, for instance of torch.
        """

    def ended(self, summary: "Summary") -> None:
        """Act when the run has ended, in whatever way; its summary is about to be written."""

    def closed(self) -> None:
        """Act after the run, whatever ended it; also if it never started."""


class Observers(Observer):
    """Many observers as one; a function is called after every round.

    An observer with ``only_tells`` that has failed gets no more events. Errors of other observers are raised, except
    at the end of the run and after Ctrl-C. StopTraining is raised when all have been told of the round.

    Args:
        observers: functions of a round's record, and observers.

    Attributes:
        stopped: whether one of them has asked to stop the run.

    Raises:
        InputError: one is neither a function nor an observer.
    """

    def __init__(self, observers: "Iterable[Callback | object]") -> None:
        self._observers, self.stopped = list(observers), False
        events = [name for name in vars(Observer) if callable(getattr(Observer, name)) and name[0] != "_"]
        for each in self._observers:
            if not (callable(each) or any(hasattr(each, event) for event in events)):
                raise InputError(f"callbacks: {each!r}; expected: functions of a round's record, or observers")
        for event in events:
            setattr(self, event, partial(self._tell, event))

    def _tell(self, what: str, *arguments: object) -> None:
        """Tell every observer of an event, and drop a display or tracker that fails."""
        for observer in list(self._observers):
            heard = getattr(observer, what, observer if what == "round_done" else None)
            name = getattr(observer, "only_tells", "")
            if not callable(heard):
                continue
            raises = not name and what not in ("stopping", "halted", "ended", "closed")
            alone = nullcontext() if raises else fails_alone(name or f"{type(observer).__name__}.{what}")
            with alone, chdir("."):  # the run goes on where it was
                try:
                    self.stopped |= heard(*arguments) is False and what == "round_done"
                except StopTraining:
                    self.stopped = True
                continue
            self._observers = [each for each in self._observers if each is not observer]  # it has failed
        if self.stopped and what == "round_done":
            raise StopTraining


class Forewarning(Observer):
    """Observer that says what is off before the first round (:mod:`fedamp.server.preflight`), and answers Ctrl-C.

    Warnings go to the log in any case.

    Args:
        anyway: False warns, and refuses a hopeless scenario (ScenarioError); True warns; None, as for the runs of a
            sweep, does neither.
    """

    def __init__(self, anyway: bool | None) -> None:
        self._anyway = anyway

    def prepared(self, inputs: "RunInputs") -> None:
        from fedamp.server.preflight import preflight, refuse  # it imports torch

        checks = preflight(inputs.plan, inputs)
        if self._anyway is False:
            refuse(checks)
        for check in checks:
            if not check.passed:
                log.warning("%s: %s", check.name, check.found)
                if self._anyway is not None:
                    with suppress(Warning):  # also where warnings are made errors
                        warnings.warn(f"{check.name}: {check.found}", stacklevel=2)

    def stopping(self) -> None:
        print("finishing this round, then stopping; Ctrl-C again to stop at once", file=sys.stderr, flush=True)


@contextmanager
def watched(folder: Path, *observers: object) -> Iterator[Observers]:
    """Tell observers of a run when its folder is opened and when the run is over.

    Args:
        folder: of the run.
        observers: functions of a round's record, and observers.

    Yields:
        All of them as one observer.

    Raises:
        InputError: one is neither a function nor an observer.
    """
    all_ = Observers(observers)
    try:
        all_.opened(folder)
        yield all_
    finally:
        all_.closed()


def trackers_of(names: Iterable[str]) -> list[Observer]:
    """Make the trackers of a scenario by their names.

    Raises:
        InputError: a package that one needs is not installed.
    """
    return [kind() for name in names for kind in offered("trackers", name)]


# Hooks of extensions.


@dataclass(frozen=True)
class RunStart:
    """The facts that are known when a run is about to be played.

    Attributes:
        plan: of the run, with its secret seed.
        fingerprint: digest of its scenario (:func:`fedamp.runs.ledger.fingerprint`).
        folder: of the run, locked.
        has_begun: whether the folder has a ledger: the run is resumed.
        has_ended: whether no round is left to play.
    """

    plan: "Plan"
    fingerprint: str
    folder: "RunFolder"
    has_begun: bool
    has_ended: bool


class RunHooks:
    """Actions during one run beside playing it. Every method has a default, which does nothing.

    An exception of a hook stops the run. A step whose ``before_..`` hook fails is not taken.

    Args:
        inner: hooks that are called in turn. An extension's own hooks have none, and override some methods.
    """

    def __init__(self, inner: Sequence["RunHooks"] = ()) -> None:
        self._inner = inner

    def ledger(self) -> "dict[str, Record]":
        """Return values of keys in the run's ledger, by the keys (:class:`fedamp.accounting.verify.LedgerKey`)."""
        return {key: value for hooks in self._inner for key, value in hooks.ledger().items()}

    def task_keys(self) -> dict[str, Any]:
        """Return values of keys in what clients are told, by the keys (:class:`fedamp.client.task.ClientTask`)."""
        return {key: value for hooks in self._inner for key, value in hooks.task_keys().items()}

    def before_question(self) -> None:
        """Act before messages leave for clients: from here on, their data may be used."""
        for hooks in self._inner:
            hooks.before_question()

    def units_left(self) -> frozenset[int]:
        """Return the ids of units that are asked nothing from now on, because their people have left.

        They count as zero. The draws and denominators of the others do not change.
        """
        return frozenset[int]().union(*(hooks.units_left() for hooks in self._inner))

    def before_release(self, round_: int, parameters: "Arrays") -> None:
        """Act before a round is entered in the ledger.

        Args:
            round_: from 1; a round that is computed again after a crash comes again.
            parameters: the model that will be released.
        """
        for hooks in self._inner:
            hooks.before_release(round_, parameters)

    def before_end(self, first: "Arrays") -> None:
        """Act before the ledger says that the run has ended.

        Args:
            first: the model before the first round.
        """
        for hooks in self._inner:
            hooks.before_end(first)

    def has_ended(self) -> None:
        """Act when the ledger says that the run has ended, so that no round will be released any more."""
        for hooks in self._inner:
            hooks.has_ended()


AroundRun = Callable[[RunStart], AbstractContextManager[RunHooks | None]]
"""Type of an extension's offer for the seam ``around_run``: entered before anything of a run happens, left after it.

It may refuse the run with an :class:`fedamp.errors.InputError`. None: it has nothing to do around this run.
"""


@contextmanager
def around(start: RunStart) -> Iterator[RunHooks]:
    """Enter the hooks of all extensions around a run; they end with the block.

    Yields:
        Hooks that call those of each extension in turn.

    Raises:
        InputError: an extension refuses the run; nothing has been asked or released.
    """
    with ExitStack() as until:
        entered = (until.enter_context(each(start)) for _, each in all_offered("around_run"))
        yield RunHooks([hooks for hooks in entered if hooks is not None])


BeforeRuns = Callable[["Sequence[tuple[Plan, int]]"], None]
"""Type of an extension's offer for the seam ``before_runs``: it may refuse several runs with an InputError.

Its argument is a list of plans, each with the number of times that it will be played.
"""


def check_several(runs: "Sequence[tuple[Plan, int]]") -> None:
    """Ask the extensions about several runs before the first of them, as a sweep does.

    Args:
        runs: each plan with the number of times that it will be played.

    Raises:
        InputError: an extension refuses them, for instance because people's budgets do not pay for all.
    """
    for _, check in all_offered("before_runs"):
        check(runs)
