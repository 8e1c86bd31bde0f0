"""The display at the terminal while a sweep runs."""

from collections.abc import Sequence

from rich.console import Console

from fedamp.extensions.tune.sweep import SweepJob
from fedamp.report.progress import ProgressBar, ShownProgress


class SweepProgress(ShownProgress):
    """A bar of all runs of a sweep, and a line for each run that failed; no bar without a terminal."""

    bar: ProgressBar

    def __init__(self, console: Console) -> None:
        self._console, self.bar = console, ProgressBar("runs", console)
        self._shares: dict[str, float] = {}

    def begun(self, jobs: Sequence[SweepJob]) -> None:
        self.bar.update(self.bar.task, total=len(jobs))
        self.bar.start()

    def round_done(self, job: SweepJob, round_: int) -> None:
        self._shares[job.name] = round_ / job.scenario.rounds
        self.bar.update(self.bar.task, completed=sum(self._shares.values()))

    def run_done(self, job: SweepJob, error: str | None) -> None:
        self.round_done(job, job.scenario.rounds)
        if error and not error.startswith("interrupted"):
            self._console.print(f"{job.folder}: {error}", highlight=False, markup=False, soft_wrap=True)
