"""Show a sweep to people: its table, its pictures; and let the core read its folder."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedamp.extensions.tune.pictures import sweep_pictures
from fedamp.extensions.tune.sweep import Sweep, begun_in, finished_in, read_sweep
from fedamp.extensions.tune.tables import sweep_cells, sweep_notes
from fedamp.report.comparison import Published
from fedamp.report.words import given
from fedamp.runs.folder import SeriesReader


class SweepResults(Sweep, Published):
    """A sweep with its table, its pictures, and a view for notebooks."""

    cells, notes = staticmethod(sweep_cells), staticmethod(sweep_notes)

    @classmethod
    def of(cls, read: Sweep) -> "SweepResults":
        """Return the same sweep as an object of this class."""
        return cls(read.folder, read.scenario, read.grid, read.runs, read.metric)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each finished run: its values of the grid's keys, its metrics, and its cost."""
        runs = [(each.settings, each.run) for each in self.runs if each.run is not None]
        names = dict.fromkeys(name for _, run in runs for name in run.qualities)
        return [
            {
                **{key: given(value) if isinstance(value, dict | list) else value for key, value in settings.items()},
                **{name: run.qualities.get(name) for name in names},
                "epsilon_upper": run.epsilon,
                "delta": run.summary.delta,
                "rounds_completed": run.summary.rounds_completed,
                "folder": str(run.folder),
            }
            for settings, run in runs
        ]

    def pictures(self) -> dict[str, Figure]:
        """Draw the scores; none where no run has a score."""
        return sweep_pictures(self) if any(each.score for each in self.outcomes) else {}


def read_results(folder: Path) -> SweepResults:
    """Read the folder of a sweep.

    Raises:
        RunFolderError: it is damaged.
    """
    return SweepResults.of(read_sweep(folder))


SWEEPS = SeriesReader(read_results, finished_in, begun_in)
