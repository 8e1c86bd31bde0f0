"""What extensions do around a run: before it begins, before each question to clients, at each release, at its end."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from fedamp.base.arrays import Arrays
from fedamp.base.record import Record
from fedamp.extension import all_offered
from fedamp.federation.plan import Plan
from fedamp.runs.folder import RunFolder


@dataclass(frozen=True)
class RunStart:
    """What is known when a run is about to be played.

    Attributes:
        plan: of the run.
        fingerprint: of its scenario (:func:`fedamp.runs.ledger.fingerprint`).
        folder: of the run, locked.
        has_begun: whether the folder has a ledger: the run is resumed.
        has_ended: whether no round is left to play.
    """

    plan: Plan
    fingerprint: str
    folder: RunFolder
    has_begun: bool
    has_ended: bool


class RunHooks:
    """What is done during one run beside playing it.

    Args:
        inner: hooks that are called in turn. An extension's own hooks have none, and override what they do.
    """

    def __init__(self, inner: Sequence["RunHooks"] = ()) -> None:
        self._inner = inner

    def ledger(self) -> dict[str, Record]:
        """Values of keys in the run's ledger, by the keys (:class:`fedamp.accounting.verify.LedgerKey`)."""
        return {key: value for hooks in self._inner for key, value in hooks.ledger().items()}

    def task_keys(self) -> dict[str, Any]:
        """Values of keys in what clients are told, by the keys (:class:`fedamp.client.task.ClientTask`)."""
        return {key: value for hooks in self._inner for key, value in hooks.task_keys().items()}

    def before_question(self) -> None:
        """Called before messages leave for clients."""
        for hooks in self._inner:
            hooks.before_question()

    def before_release(self, round_: int, parameters: Arrays) -> None:
        """Called before a round is entered in the ledger, with its model."""
        for hooks in self._inner:
            hooks.before_release(round_, parameters)

    def before_end(self, first: Arrays) -> None:
        """Called before the ledger says that the run has ended, with the model before the first round."""
        for hooks in self._inner:
            hooks.before_end(first)

    def has_ended(self) -> None:
        """Called when the ledger says that the run has ended, so that no round will be released any more."""
        for hooks in self._inner:
            hooks.has_ended()


AroundRun = Callable[[RunStart], AbstractContextManager[RunHooks | None]]
"""What an extension offers for the seam ``around_run``: entered before anything of a run happens, and left after it.

It may refuse the run with an :class:`fedamp.errors.InputError`. None: it has nothing to do around this run.
"""


@contextmanager
def around(start: RunStart) -> Iterator[RunHooks]:
    """The hooks of all extensions around a run, which end with the block."""
    with ExitStack() as until:
        entered = (until.enter_context(each(start)) for _, each in all_offered("around_run"))
        yield RunHooks([hooks for hooks in entered if hooks is not None])


BeforeRuns = Callable[[Sequence[tuple[Plan, int]]], None]
"""What an extension offers for the seam ``before_runs``: refuse several runs, each so many times (InputError)."""


def check_several(runs: Sequence[tuple[Plan, int]]) -> None:
    """Refuse several runs, each so many times, before the first of them, where an extension does (InputError)."""
    for _, check in all_offered("before_runs"):
        check(runs)
