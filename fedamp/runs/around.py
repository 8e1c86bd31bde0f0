"""Let extensions act around a run: before it begins, before each question to clients, at each release, at its end.

A population that pays, kept models for an audit, and personal layers are built on these hooks. An extension offers an
:data:`AroundRun` for the seam ``around_run`` (:mod:`fedamp.extension`). The round loop enters them all
(:mod:`fedamp.server.loop`); the journal calls those of releases. A custom Flower app has no hooks.
"""

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
    """The facts that are known when a run is about to be played.

    Attributes:
        plan: of the run, with its secret seed.
        fingerprint: digest of its scenario (:func:`fedamp.runs.ledger.fingerprint`).
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
    """Actions during one run beside playing it. Every method has a default, which does nothing.

    An exception of a hook stops the run. A step whose ``before_..`` hook fails is not taken.

    Args:
        inner: hooks that are called in turn. An extension's own hooks have none, and override some methods.
    """

    def __init__(self, inner: Sequence["RunHooks"] = ()) -> None:
        self._inner = inner

    def ledger(self) -> dict[str, Record]:
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

    def before_release(self, round_: int, parameters: Arrays) -> None:
        """Act before a round is entered in the ledger.

        Args:
            round_: from 1; a round that is computed again after a crash comes again.
            parameters: the model that will be released.
        """
        for hooks in self._inner:
            hooks.before_release(round_, parameters)

    def before_end(self, first: Arrays) -> None:
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


BeforeRuns = Callable[[Sequence[tuple[Plan, int]]], None]
"""Type of an extension's offer for the seam ``before_runs``: it may refuse several runs with an InputError.

Its argument is a list of plans, each with the number of times that it will be played.
"""


def check_several(runs: Sequence[tuple[Plan, int]]) -> None:
    """Ask the extensions about several runs before the first of them, as a sweep does.

    Args:
        runs: each plan with the number of times that it will be played.

    Raises:
        InputError: an extension refuses them, for instance because people's budgets do not pay for all.
    """
    for _, check in all_offered("before_runs"):
        check(runs)
