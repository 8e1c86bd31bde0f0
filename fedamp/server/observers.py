"""Observers of a run: a progress display, a tracker, a custom function.

A failure of a display or tracker does not end the run (:func:`fedamp.errors.fails_alone`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedamp.errors import StopTraining, fails_alone

if TYPE_CHECKING:
    from fedamp.runs.records import RoundRecord
    from fedamp.server.setup import Prepared

Callback = Callable[["RoundRecord"], object]
"""A function of a round's record, called after its release. Where it returns False, the run stops."""


class Observer:
    """The events of a run. Any object with some of these methods is an observer.

    ``only_tells`` names it in the warning if it fails, and the run continues. Empty: its errors end the run.
    """

    only_tells = ""

    def opened(self, folder: Path) -> None:
        """The run's folder exists; nothing else does."""

    def started(self, prepared: "Prepared", finished: "list[RoundRecord]") -> None:
        """Before the first round; ``finished`` holds the rounds of an earlier, interrupted part of the run."""

    def round_done(self, record: "RoundRecord") -> None:
        """After every released round."""

    def stopping(self) -> None:
        """After the first Ctrl-C: the round is finished first. Called from a signal handler."""

    def closed(self) -> None:
        """After the run, whatever ended it; also if it never started."""


class Observers(Observer):
    """Many observers as one; a function is called after every round.

    An observer with ``only_tells`` that has failed gets no more events. Errors of other observers are raised, except
    at the end of the run and in a signal handler. StopTraining is raised when all have been told of the round.
    """

    def __init__(self, observers: "Iterable[Callback | object]") -> None:
        self._observers, self.stopped = list(observers), False
        for event in ("opened", "started", "round_done", "stopping", "closed"):
            setattr(self, event, partial(self._tell, event))

    def _tell(self, what: str, *arguments: object) -> None:
        for observer in list(self._observers):
            heard = getattr(observer, what, observer if what == "round_done" else None)
            name = getattr(observer, "only_tells", "")
            if not callable(heard):
                continue
            raises = not name and what not in ("stopping", "closed")
            with nullcontext() if raises else fails_alone(name or f"{type(observer).__name__}.{what}"):
                try:
                    self.stopped |= heard(*arguments) is False and what == "round_done"
                except StopTraining:
                    self.stopped = True
                continue
            self._observers = [each for each in self._observers if each is not observer]  # it has failed
        if self.stopped and what == "round_done":
            raise StopTraining


@contextmanager
def watched(folder: Path, *observers: object) -> Iterator[Observers]:
    """Observers of a run in its folder, told when it is opened and closed."""
    all_ = Observers(observers)
    try:
        all_.opened(folder)
        yield all_
    finally:
        all_.closed()
