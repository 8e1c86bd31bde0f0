"""Show a sweep at the terminal while it runs."""

from collections.abc import Sequence

from rich.console import Console

from fedamp.extensions.tune.sweep import SweepJob
from fedamp.report.progress import ProgressBar, ShownProgress


class SweepProgress(ShownProgress):
    """Shows a bar of all runs of a sweep, and a line for each run that failed; no bar without a terminal.

    Args:
        console: to write to.
    """

    bar: ProgressBar

    def __init__(self, console: Console) -> None:
        self._console, self.bar = console, ProgressBar("runs", console)
        self._shares: dict[str, float] = {}

    def begun(self, jobs: Sequence[SweepJob]) -> None:
        """Show the bar, for so many runs."""
        self.bar.update(self.bar.task, total=len(jobs))
        self.bar.start()

    def round_done(self, job: SweepJob, round_: int) -> None:
        """Move the bar by the share of a run that is done."""
        self._shares[job.name] = round_ / job.scenario.rounds
        self.bar.update(self.bar.task, completed=sum(self._shares.values()))

    def run_done(self, job: SweepJob, error: str | None) -> None:
        """Count a run as done, and name one that failed."""
        self.round_done(job, job.scenario.rounds)
        if error and not error.startswith("interrupted"):
            self._console.print(f"{job.folder}: {error}", highlight=False, markup=False, soft_wrap=True)
