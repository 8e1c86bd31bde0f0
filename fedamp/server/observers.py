"""Who watches a run: a progress display, a tracker, a function of a person's own.

A run is what is released. What only tells of it fails alone (:func:`fedamp.errors.fails_alone`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedamp.errors import fails_alone

if TYPE_CHECKING:
    from fedamp.runs.records import RoundRecord
    from fedamp.server.setup import Prepared

Callback = Callable[["RoundRecord"], object]
"""A function of a round's record, called after its release."""


class Observer:
    """What a run tells whoever watches it. Any object with some of these methods will do.

    Attributes:
        only_tells: what it is called where it fails alone. Empty: what it raises ends the run.
    """

    only_tells = ""

    def opened(self, folder: Path) -> None:
        """The run's folder is there; nothing else is."""

    def started(self, prepared: "Prepared", finished: "list[RoundRecord]") -> None:
        """Before the first round; ``finished`` holds the rounds of an earlier, interrupted part of the run."""

    def round_done(self, record: "RoundRecord") -> None:
        """After every released round."""

    def stopping(self) -> None:
        """After the first Ctrl-C: the round is finished first. Called from a signal handler."""

    def closed(self) -> None:
        """After the last round, or whatever ended the run; called also where it never started."""


class Observers(Observer):
    """Many observers as one; a function is one that hears of every round.

    One that only tells and has failed is told nothing more. What another one raises is raised, but for what it raises
    when the run is over, or from a signal handler.
    """

    def __init__(self, observers: "Iterable[Callback | object]") -> None:
        self._observers = list(observers)

    def opened(self, folder: Path) -> None:
        self._tell("opened", folder)

    def started(self, prepared: "Prepared", finished: "list[RoundRecord]") -> None:
        self._tell("started", prepared, finished)

    def round_done(self, record: "RoundRecord") -> None:
        self._tell("round_done", record)

    def stopping(self) -> None:
        self._tell("stopping", may_raise=False)

    def closed(self) -> None:
        self._tell("closed", may_raise=False)

    def _tell(self, what: str, *arguments: object, may_raise: bool = True) -> None:
        for observer in list(self._observers):
            heard = getattr(observer, what, observer if what == "round_done" else None)
            name = getattr(observer, "only_tells", "")
            if not callable(heard):
                continue
            if may_raise and not name:
                heard(*arguments)
                continue
            failed = True
            with fails_alone(name or f"{type(observer).__name__}.{what}"):
                heard(*arguments)
                failed = False
            if failed:
                self._observers = [each for each in self._observers if each is not observer]


@contextmanager
def watched(folder: Path, *observers: object) -> Iterator[Observers]:
    """Observers while a run is played in its folder: told that it is open, and at last that it is closed."""
    all_ = Observers(observers)
    try:
        all_.opened(folder)
        yield all_
    finally:
        all_.closed()
