"""Show a run at the terminal while it goes on.

These are observers (:mod:`fedamp.server.observers`): they are told of rounds and change nothing. ``fedamp run`` chooses
one of them; :mod:`fedamp.report.views` has the one for notebooks.
"""

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread, Timer
from time import monotonic
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedamp.base.numbers import at_most
from fedamp.base.text import harmless
from fedamp.errors import Interrupted
from fedamp.report.words import GUARANTEES, for_nodes, for_server, known_seed, metric, protected, value_of
from fedamp.server.launch import how_to_resume
from fedamp.server.observers import Observer

if TYPE_CHECKING:
    from fedamp.federation.plan import Plan
    from fedamp.runs.records import RoundRecord, Summary
    from fedamp.server.setup import RunInputs


HEARTBEAT, PATIENCE = 10.0, 2.0  # seconds between lines without a terminal; of silence before accounting is mentioned
COMPUTING = "computing the privacy cost; a larger privacy.precision, such as 0.05, makes it quicker and less tight"


@contextmanager
def patience(console: Console) -> Iterator[None]:
    """Tell a person who waits for more than two seconds that the accountant works: a spinner, or a line in a pipe."""
    spinner = console.status(COMPUTING)
    timer = Timer(PATIENCE, spinner.start if console.is_terminal else partial(console.print, COMPUTING, soft_wrap=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        spinner.stop()


class ProgressBar(Progress):
    """Shows numbers, a bar, the time left, and below them one line of facts, cut at the width.

    Without a terminal it prints a line of the same every :data:`HEARTBEAT` seconds, from a thread, because a round may
    take long.

    Args:
        what: is counted, such as round.
        console: to write to.

    Attributes:
        facts: the line below the bar.
        heading: a line before the first one, where there is no terminal.
        task: number of the bar's task in rich.
    """

    facts = ""
    heading = ""

    def __init__(self, what: str, console: Console) -> None:
        done = (TextColumn(f"[bold]{what}"), MofNCompleteColumn(), BarColumn(bar_width=None))
        left = (TimeRemainingColumn(compact=True), TextColumn("left"))
        super().__init__(*done, *left, console=console, disable=not console.is_terminal, expand=True)
        self.task, self._what, self._ended = self.add_task("", total=None), what, Event()
        self._began, self._before = monotonic(), 0.0

    def start(self) -> None:
        """Show the bar; or start the thread that prints lines."""
        super().start()
        self._began, self._before = monotonic(), self.tasks[0].completed
        if self.disable and not self.console.quiet:
            Thread(target=self._beat, daemon=True).start()

    def stop(self) -> None:
        """Take the bar away, or end the thread."""
        self._ended.set()
        super().stop()

    def _beat(self) -> None:
        """Print a line now and then, until the bar stops."""
        while not self._ended.wait(HEARTBEAT):
            if self.heading:
                self.console.print(self.heading, highlight=False, markup=False, soft_wrap=True)
                self.heading = ""
            self.console.print(self.line(), highlight=False, markup=False, soft_wrap=True)

    def line(self) -> str:
        """Write numbers, the time left, and the facts as one line; whole units alone count."""
        task, spent = self.tasks[0], monotonic() - self._began
        done, total = task.completed - self._before, (task.total or 0) - self._before
        left = f", about {time_left(spent * (total - done) / done)} left" if 0 < done < total else ""
        return f"{self._what} {int(task.completed)}/{task.total or 0:g} after {spent:.0f} s{left}  {self.facts}"

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar and the facts below it."""
        yield self.make_tasks_table(self.tasks)
        if self.facts:
            yield Text(self.facts, no_wrap=True, overflow="ellipsis")


def time_left(seconds: float) -> str:
    """Write a guess in seconds, minutes or hours.

    >>> time_left(95), time_left(760), time_left(12_000)
    ('95 s', '13 min', '3.3 h')
    """
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


class ShownProgress:
    """Something that shows its bar, if it has one, while a block runs.

    Attributes:
        bar: shown by an observer; None: there is none.
    """

    bar: ProgressBar | None = None

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Stop the bar when the block ends, however it ends."""
        try:
            yield self
        finally:
            if self.bar:
                self.bar.stop()


class Silence(ShownProgress, Observer):
    """An observer that shows nothing, and keeps the summary for the command.

    Attributes:
        summary: of the run, once it has ended.
        clipped: share of the updates that a chosen norm shortened, for the server's owner only; None: not known.
    """

    only_tells = "the display"
    summary: "Summary | None" = None
    clipped: float | None = None

    def opened(self, folder: Path) -> None:
        """Keep the folder, for the line that says how to resume."""
        self._folder = folder

    def ended(self, summary: "Summary") -> None:
        """Keep the summary."""
        self.summary = summary

    def halted(self) -> None:
        """End the process, which no crash harms (:mod:`fedamp.server.loop`), after a line that says how to resume."""
        if self.bar:
            self.bar.stop()
        print(f"{Interrupted.kind}: {how_to_resume(self._folder)}", file=sys.stderr, flush=True)
        os._exit(Interrupted.exit_code)


class JsonLines(Silence):
    """Prints every round as a line of JSON, without the numbers computed from private data."""

    def round_done(self, record: "RoundRecord") -> None:
        """Print the record of a round, without its key ``unprotected``."""
        print(json.dumps({key: value for key, value in record.content().items() if key != "unprotected"}), flush=True)


class RunProgress(Silence):
    """Shows a bar with loss, accuracy, epsilon so far, failures and clients per second; silent without a terminal.

    Numbers of failures and clipped updates come from private data. They are shown to the server's owner only.

    Args:
        console: to write to.
    """

    bar: ProgressBar

    def __init__(self, console: Console) -> None:
        self._console, self.bar, self._waiting = console, ProgressBar("round", console), ExitStack()
        self._reported = self._scheduled = self._failed = 0
        self._clipped: list[float] = []

    def computing(self, busy: bool) -> None:
        """Tell a person who waits that the accountant works."""
        self._waiting.enter_context(patience(self._console)) if busy else self._waiting.close()

    def started(self, inputs: "RunInputs", finished: "Sequence[RoundRecord]") -> None:
        """Print the guarantee, and show the bar, which begins after the rounds that a resumed run has finished."""
        plan = inputs.plan
        self._norm_is_chosen = plan.clipping.is_fixed and not plan.clipping.normalises
        self._budget = plan.scenario.privacy.epsilon
        if self._console.is_terminal:
            self._console.print(f"[bold]{plan.scenario.name}[/] {harmless(plan.scenario.description)}", highlight=False)
            for line in guarantee(plan):
                self._console.print(line, highlight=False)
            if inputs.engine:
                self._console.print(f"engine {inputs.engine}", highlight=False, markup=False)
        self.bar.heading = f"engine {inputs.engine}" if inputs.engine else ""
        self.bar.facts = "starting"
        rounds = min(plan.scenario.rounds, plan.charge.affordable_rounds)
        self.bar.update(self.bar.task, total=rounds, completed=len(finished))
        self.bar.start()
        self._since = monotonic()

    def round_done(self, record: "RoundRecord") -> None:
        """Show the numbers of the round."""
        self._reported += record.reported
        self._scheduled += record.scheduled
        self._failed += int(record.unprotected.get("failed", 0))
        self._clipped.append(record.unprotected.get("clipped", 0.0))
        if self._norm_is_chosen:
            self.clipped = sum(self._clipped) / len(self._clipped)
        facts = []
        if record.score is not None:
            facts += [f"loss {record.loss:.3f}", f"{metric(record.score[0])} {value_of(*record.score)}"]
        if found := record.side_release:
            facts.append(found.in_short)
        of_budget = "" if self._budget is None else f" of {self._budget:g}"
        spent = record.epsilon_upper
        facts.append("no privacy" if math.isinf(spent) else f"epsilon {at_most(spent, 2)}{of_budget}")
        if self._reported < self._scheduled:
            facts.append(f"{self._reported:,} of {self._scheduled:,} reported")
        if self._failed:
            facts.append(f"{self._failed:,} failed")
        facts.append(f"{self._reported / max(monotonic() - self._since, 1e-9):,.0f} clients/s")
        self.bar.facts = "  ".join(facts)
        self.bar.update(self.bar.task, completed=record.round)

    def closed(self) -> None:
        """End what :meth:`computing` shows."""
        self._waiting.close()


def guarantee(plan: "Plan") -> list[str]:
    """Write the guarantee and its assumptions, in lines of rich's markup.

    Args:
        plan: with its charge; every epsilon shown is an upper end.
    """
    if not plan.is_private:
        return ["[yellow]without privacy[/]: no noise is added, epsilon is infinite"]
    privacy, cost = plan.scenario.privacy, plan.charge
    charged, unamplified = (at_most(each.upper, 3) for each in (cost.planned_epsilon, cost.unamplified_epsilon))
    nodes = []
    if cost.nodes_epsilon and plan.protection:
        seen = for_nodes(cost.nodes_epsilon.upper, cost.unamplified_epsilon.upper, plan.protection)
        nodes = [f"towards registered nodes: {seen}"]
    return [
        f"{protected(privacy.unit, privacy.group_size)} of {plan.units:,}: "
        f"epsilon <= {charged} at delta = {privacy.delta:g} (unamplified {unamplified})",
        f"noise multiplier {plan.noise_multiplier:.4g}; {cost.mechanism}",
        f"towards the server: {for_server(None if cost.server_epsilon is None else cost.server_epsilon.upper)}; "
        f"assumptions: {GUARANTEES}",
        *nodes,
        *([f"[yellow]known seed[/]: {known_seed(plan.rehearsal)}"] if plan.known_seed else []),
        *([f"[yellow]{plan.unchecked_schemes}[/]"] if plan.unchecked_schemes else []),
    ]
