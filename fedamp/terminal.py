"""What a person sees at the terminal: a progress display, tables, and one line for every error."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedamp.server.run_folder import RoundRecord
from fedamp.server.setup import Prepared

GUARANTEES = "docs/threat-model.md"


class ProgressDisplay:
    """A bar with round, loss, accuracy, epsilon so far, clients per second and time left; silent without a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._reported = 0
        self._since: float | None = None

    def started(self, prepared: Prepared, finished: list[RoundRecord]) -> None:
        plan = prepared.plan
        if self._console.is_terminal:
            self._console.print(f"[bold]{plan.scenario.name}[/] {plan.scenario.description}", highlight=False)
            for line in promise(prepared):
                self._console.print(line, highlight=False)
        self._task = self._bar.add_task("round", total=plan.scenario.rounds, completed=len(finished), facts="starting")
        self._bar.start()
        self._since = monotonic()

    def round_done(self, record: RoundRecord) -> None:
        assert self._since is not None
        self._reported += record.reported
        rate = self._reported / max(monotonic() - self._since, 1e-9)
        spent = "none" if record.epsilon_upper is None else f"{record.epsilon_upper:.2f}"
        quality = "" if record.accuracy is None else f"loss {record.loss:.3f}  accuracy {record.accuracy:.1%}  "
        facts = f"{quality}epsilon {spent}  {rate:,.0f} clients/s"
        self._bar.update(self._task, completed=record.round, facts=facts)

    def stopping(self) -> None:
        self._console.print("finishing this round, then stopping; Ctrl-C again to stop at once", highlight=False)

    @contextmanager
    def shown(self) -> Iterator["ProgressDisplay"]:
        """The display for as long as the block runs."""
        try:
            yield self
        finally:
            self._bar.stop()


def promise(prepared: Prepared) -> list[str]:
    """The guarantee in words, with what it assumes."""
    plan, privacy = prepared.plan, prepared.plan.scenario.privacy
    if not plan.is_private:
        return ["[yellow]without privacy[/]: no noise is added, epsilon is infinite"]
    return [
        f"one {privacy.unit} of {plan.units:,} is protected with epsilon <= {plan.epsilon.upper:.3f} at delta = "
        f"{privacy.delta:g}; without amplification {plan.unamplified_epsilon.upper:.3f}",
        f"noise multiplier {plan.noise_multiplier:.4g}; {plan.mechanism}",
        f"trusted server, hidden assignments; assumptions: {GUARANTEES}",
    ]
