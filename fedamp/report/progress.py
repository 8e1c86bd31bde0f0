"""The display at the terminal while a federation, a sweep or an audit runs."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedamp.base.numbers import at_most
from fedamp.base.text import harmless
from fedamp.report.words import GUARANTEES, KNOWN_SEED, metric, protected, value_of
from fedamp.server.observers import Observer

if TYPE_CHECKING:
    from fedamp.federation.plan import Plan
    from fedamp.runs.records import RoundRecord, Summary
    from fedamp.server.setup import Prepared
    from fedamp.studies.sweeps.workers import Job


class _Bar(Progress):
    """Numbers, a bar, the time left, and below one line of facts, cut at the width; nothing without a terminal."""

    facts = ""

    def __init__(self, what: str, console: Console) -> None:
        done = (TextColumn(f"[bold]{what}"), MofNCompleteColumn(), BarColumn(bar_width=None))
        left = (TimeRemainingColumn(compact=True), TextColumn("left"))
        super().__init__(*done, *left, console=console, disable=not console.is_terminal, expand=True)
        self.task = self.add_task("", total=None)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.facts:
            yield Text(self.facts, no_wrap=True, overflow="ellipsis")


class _Display:
    """Something that shows its bar, if it has one, while a block runs."""

    _bar: _Bar | None = None

    @contextmanager
    def shown(self) -> Iterator[Self]:
        try:
            yield self
        finally:
            if self._bar:
                self._bar.stop()


class Silence(_Display, Observer):
    """An observer that shows nothing."""

    only_tells = "the display"
    summary: "Summary | None" = None  # once the run has ended
    clipped: float | None = None  # share of the updates that a chosen norm shortened, for the server's owner only

    def ended(self, summary: "Summary") -> None:
        self.summary = summary


class JsonLines(Silence):
    """Prints every round as a line of JSON, without the numbers computed from private data."""

    def round_done(self, record: "RoundRecord") -> None:
        print(json.dumps({key: value for key, value in record.content().items() if key != "unprotected"}), flush=True)


class RunProgress(Silence):
    """A bar with loss, accuracy, epsilon so far, failures and clients per second; silent without a terminal."""

    _bar: _Bar

    def __init__(self, console: Console) -> None:
        self._console, self._bar = console, _Bar("round", console)
        self._reported = self._scheduled = self._failed = 0
        self._clipped: list[float] = []

    def started(self, prepared: "Prepared", finished: "Sequence[RoundRecord]") -> None:
        plan = prepared.plan
        self._norm_is_chosen = plan.clipping.is_fixed and not plan.clipping.normalises
        self._budget = plan.scenario.privacy.epsilon
        if self._console.is_terminal:
            self._console.print(f"[bold]{plan.scenario.name}[/] {harmless(plan.scenario.description)}", highlight=False)
            for line in guarantee(plan):
                self._console.print(line, highlight=False)
            for name, words in {"hint: ": prepared.hint, "engine ": prepared.engine}.items():
                if words:
                    self._console.print(f"{name}{words}", highlight=False, markup=False)
        self._bar.facts = "starting"
        rounds = min(plan.scenario.rounds, plan.affordable_rounds)
        self._bar.update(self._bar.task, total=rounds, completed=len(finished))
        self._bar.start()
        self._since = monotonic()

    def round_done(self, record: "RoundRecord") -> None:
        self._reported += record.reported
        self._scheduled += record.scheduled
        self._failed += int(record.unprotected.get("failed", 0))
        self._clipped.append(record.unprotected.get("clipped", 0.0))
        if self._norm_is_chosen:
            self.clipped = sum(self._clipped) / len(self._clipped)
        facts = []
        if record.score is not None:
            facts += [f"loss {record.loss:.3f}", f"{metric(record.score[0])} {value_of(*record.score)}"]
        of_budget = "" if self._budget is None else f" of {self._budget:g}"
        spent = record.epsilon_upper
        facts.append("no privacy" if math.isinf(spent) else f"epsilon {at_most(spent, 2)}{of_budget}")
        if self._reported < self._scheduled:
            facts.append(f"{self._reported:,} of {self._scheduled:,} reported")
        if self._failed:
            facts.append(f"{self._failed:,} failed")
        facts.append(f"{self._reported / max(monotonic() - self._since, 1e-9):,.0f} clients/s")
        self._bar.facts = "  ".join(facts)
        self._bar.update(self._bar.task, completed=record.round)

    def stopping(self) -> None:
        self._console.print("finishing this round, then stopping; Ctrl-C again to stop at once", highlight=False)


class SweepProgress(_Display):
    """A bar of all runs of a sweep, and a line for each run that failed; no bar without a terminal."""

    _bar: _Bar

    def __init__(self, console: Console) -> None:
        self._console, self._bar = console, _Bar("runs", console)
        self._shares: dict[str, float] = {}

    def begun(self, jobs: "Sequence[Job]") -> None:
        self._bar.update(self._bar.task, total=len(jobs))
        self._bar.start()

    def round_done(self, job: "Job", round_: int) -> None:
        self._shares[job.name] = round_ / job.scenario.rounds
        self._bar.update(self._bar.task, completed=sum(self._shares.values()))

    def run_done(self, job: "Job", error: str | None) -> None:
        self.round_done(job, job.scenario.rounds)
        if error and not error.startswith("interrupted"):
            self._console.print(f"{job.folder}: {error}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def audit_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar that disappears at the end, and the function that moves it: finished repetitions, and their number."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("repetitions", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def guarantee(plan: "Plan") -> list[str]:
    """The guarantee and its assumptions, in lines."""
    if not plan.is_private:
        return ["[yellow]without privacy[/]: no noise is added, epsilon is infinite"]
    privacy = plan.scenario.privacy
    charged, unamplified = (at_most(each.upper, 3) for each in (plan.planned_epsilon, plan.unamplified_epsilon))
    return [
        f"{protected(privacy.unit, privacy.group_size)} of {plan.units:,}: "
        f"epsilon <= {charged} at delta = {privacy.delta:g} (unamplified {unamplified})",
        f"noise multiplier {plan.noise_multiplier:.4g}; {plan.mechanism}",
        f"trusted server, hidden assignments; assumptions: {GUARANTEES}",
        *([f"[yellow]known seed[/]: {KNOWN_SEED}"] if plan.known_seed else []),
    ]
