"""What a person sees at the terminal while a federation runs, or an audit."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Self, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedamp.base.numbers import at_most
from fedamp.base.text import harmless
from fedamp.report.words import GUARANTEES, KNOWN_SEED, metric, protected, value_of
from fedamp.server.observers import Observer

if TYPE_CHECKING:
    from fedamp.federation.plan import Plan
    from fedamp.runs.records import RoundRecord
    from fedamp.server.setup import Prepared
    from fedamp.studies.sweeps.workers import Job

_SomeProgress = TypeVar("_SomeProgress", bound=Progress)


class Silence(Observer):
    """An observer that says nothing."""

    only_tells = "the display"

    @property
    def clipped(self) -> float | None:
        """Share of the updates that were longer than the norm, for the server's owner only; None: not looked at."""
        return None

    @contextmanager
    def shown(self) -> "Iterator[Self]":
        """The display for as long as the block runs."""
        yield self


class JsonLines(Silence):
    """Prints every round as a line of JSON, without the numbers that are computed from private data."""

    def round_done(self, record: "RoundRecord") -> None:
        print(json.dumps({key: value for key, value in record.content().items() if key != "unprotected"}), flush=True)


class RunProgress(Silence):
    """A bar with round, loss, accuracy, epsilon so far, who failed, clients per second and time left; silent without a
    terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = _bar(_BarAndFacts, "round", console)
        self._reported = self._scheduled = self._failed = 0
        self._clipped: list[float] = []

    def started(self, prepared: "Prepared", finished: "Sequence[RoundRecord]") -> None:
        plan = prepared.plan
        if self._console.is_terminal:
            self._console.print(f"[bold]{plan.scenario.name}[/] {harmless(plan.scenario.description)}", highlight=False)
            for line in guarantee(plan):
                self._console.print(line, highlight=False)
            if prepared.hint:
                self._console.print(f"hint: {prepared.hint}", highlight=False, markup=False)
            if prepared.engine:
                self._console.print(f"engine {prepared.engine}", highlight=False, markup=False)
        self._chosen_norm = plan.clipping.is_fixed and not plan.clipping.normalises
        self._budget = plan.scenario.privacy.epsilon
        rounds = min(plan.scenario.rounds, plan.affordable_rounds)
        self._task = self._bar.add_task("", total=rounds, completed=len(finished))
        self._bar.start()
        self._since = monotonic()

    def round_done(self, record: "RoundRecord") -> None:
        self._reported += record.reported
        self._scheduled += record.scheduled
        self._failed += int(record.unprotected.get("failed", 0))
        self._clipped.append(record.unprotected.get("clipped", 0.0))
        rate = self._reported / max(monotonic() - self._since, 1e-9)
        facts = (
            []
            if record.score is None
            else [f"loss {record.loss:.3f}", f"{metric(record.score[0])} {value_of(*record.score)}"]
        )
        facts += [self._spent(record.epsilon_upper)]
        if self._reported < self._scheduled:
            facts += [f"{self._reported:,} of {self._scheduled:,} reported"]
        if self._failed:
            facts += [f"{self._failed:,} failed"]
        self._bar.facts = "  ".join([*facts, f"{rate:,.0f} clients/s"])
        self._bar.update(self._task, completed=record.round)

    @property
    def clipped(self) -> float | None:
        """Share of the updates that were longer than the norm, round by round and on average; None where nobody chose
        one, or nothing was seen. For the server's owner only.
        """
        return sum(self._clipped) / len(self._clipped) if self._clipped and self._chosen_norm else None

    def stopping(self) -> None:
        self._console.print("finishing this round, then stopping; Ctrl-C again to stop at once", highlight=False)

    @contextmanager
    def shown(self) -> "Iterator[Self]":
        try:
            yield self
        finally:
            self._bar.stop()

    def _spent(self, epsilon: float) -> str:
        if math.isinf(epsilon):
            return "no privacy"
        return f"epsilon {at_most(epsilon, 2)}" + ("" if self._budget is None else f" of {self._budget:g}")


class _BarAndFacts(Progress):
    """The bar, and one line of facts under it that is cut rather than wrapped where the terminal is narrow."""

    facts = "starting"

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(self.facts, no_wrap=True, overflow="ellipsis")


def _bar(kind: type[_SomeProgress], what: str, console: Console) -> _SomeProgress:
    """How many of them are done, as numbers and a bar, and the time left; nothing without a terminal."""
    return kind(
        TextColumn(f"[bold]{what}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        expand=True,
    )


class SweepProgress:
    """A bar of all runs of a sweep, and a line for each run that ended before its end; no bar without a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = _bar(Progress, "runs", console)
        self._task = self._bar.add_task("", total=None)
        self._rounds: dict[str, int] = {}

    def begun(self, jobs: "Sequence[Job]") -> None:
        self._of = {job.name: job.scenario.rounds for job in jobs}
        self._bar.update(self._task, total=len(jobs))
        self._bar.start()

    def round_done(self, job: "Job", round_: int) -> None:
        self._rounds[job.name] = round_
        done = sum(round_ / self._of[name] for name, round_ in self._rounds.items())
        self._bar.update(self._task, completed=done)

    def run_done(self, job: "Job", error: str | None) -> None:
        self._rounds[job.name] = self._of[job.name]
        if error and not error.startswith("interrupted"):
            self._console.print(f"{job.folder}: {error}", highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def shown(self) -> "Iterator[SweepProgress]":
        """The display for as long as the block runs."""
        try:
            yield self
        finally:
            self._bar.stop()


@contextmanager
def audit_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar that goes away at the end, and what moves it: finished repetitions, and how many there are."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("repetitions", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def guarantee(plan: "Plan") -> list[str]:
    """The guarantee in words, with what it assumes."""
    privacy = plan.scenario.privacy
    if not plan.is_private:
        return ["[yellow]without privacy[/]: no noise is added, epsilon is infinite"]
    return [
        f"{protected(privacy.unit, privacy.group_size)} of {plan.units:,}: epsilon <= "
        f"{at_most(plan.planned_epsilon.upper, 3)} at delta = {privacy.delta:g} "
        f"(unamplified {at_most(plan.unamplified_epsilon.upper, 3)})",
        f"noise multiplier {plan.noise_multiplier:.4g}; {plan.mechanism}",
        f"trusted server, hidden assignments; assumptions: {GUARANTEES}",
        *([f"[yellow]known seed[/]: {KNOWN_SEED}"] if plan.known_seed else []),
    ]
