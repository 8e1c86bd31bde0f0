"""Show a sweep while it runs: at the terminal, in a log, and in a notebook."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from fedamp.extensions.tune.sweep import SweepJob, Watcher
from fedamp.report.progress import ProgressBar, ShownProgress
from fedamp.report.views import CellOutput, notebook_display


class SweepProgress(ShownProgress):
    """Shows a bar of all runs of a sweep, what plays now, and a line for each run that failed.

    Without a terminal the same is a line now and then.

    Args:
        console: to write to.
        cell: output of a notebook that shows the bar; None: the console does.
    """

    bar: ProgressBar

    def __init__(self, console: Console, cell: CellOutput | None = None) -> None:
        self._console, self._cell, self.bar = console, cell, ProgressBar("runs", console)
        self._shares: dict[str, float] = {}

    def begun(self, jobs: Sequence[SweepJob]) -> None:
        """Show the bar, for so many runs beside those that it has shown."""
        is_first = self.bar.tasks[0].total is None
        self.bar.update(self.bar.task, total=len(self._shares) + len(jobs))
        self.bar.facts = "starting"
        if is_first:
            self.bar.start()

    def round_done(self, job: SweepJob, round_: int) -> None:
        """Move the bar by the share of a run that is done, and name the run."""
        self._shares[job.name] = round_ / job.scenario.rounds
        self.bar.facts = f"{job.settings or job.name}: round {round_} of {job.scenario.rounds}"
        self.bar.update(self.bar.task, completed=sum(self._shares.values()))
        if self._cell:
            self._cell.show(self.bar.line())

    def run_done(self, job: SweepJob, error: str | None) -> None:
        """Count a run as done, and name one that failed. The next one shows when its first round is done."""
        self.round_done(job, job.scenario.rounds)
        self.bar.facts = f"{job.settings or job.name}: {'stopped' if error else 'done'}"
        if error and not error.startswith("interrupted"):
            self._console.print(f"{job.folder}: {error}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def in_cell(watcher: Watcher | None) -> Iterator[Watcher | None]:
    """Yield the watcher; where there is none and a notebook's cell waits, one that shows the bar in the cell."""
    display = None if watcher else notebook_display()
    if display is None:
        yield watcher
        return
    quiet = Console(quiet=True, force_terminal=False, force_jupyter=False)
    with SweepProgress(quiet, CellOutput(display)).shown() as progress:
        yield progress
