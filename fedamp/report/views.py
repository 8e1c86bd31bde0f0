"""Runs and sweeps as ``fedamp.open`` and ``fedamp.sweep`` return them: they show themselves."""

from pathlib import Path

from matplotlib.figure import Figure

from fedamp.errors import InputError
from fedamp.report import notebook, style
from fedamp.report.page import write_report
from fedamp.report.pictures import run_pictures
from fedamp.report.studies import sweep_table
from fedamp.report.study_pictures import sweep_picture
from fedamp.report.tables import run_table
from fedamp.runs import run
from fedamp.runs.files import modes_of
from fedamp.studies.sweeps import results


class Run(run.Run):
    """A run with its pictures, its page, and a view for notebooks."""

    def plot(self, name: str = "rounds") -> Figure:
        """A picture, ``rounds`` or ``accuracy-epsilon``. Raises InputError if there is none of that name."""
        pictures = run_pictures(self)
        if name not in pictures:
            raise InputError(f"{self.folder}: no picture {name}; expected here: {', '.join(pictures) or 'none'}")
        return pictures[name]

    def report(self, out: str | Path | None = None) -> Path:
        """Write a page to share; default: ``report.html`` in the run's folder."""
        with modes_of(self.folder):
            return write_report([self.folder], Path(out) if out else self.folder / "report.html")

    def _repr_html_(self) -> str:
        pictures = map(style.inline, run_pictures(self).values())
        return notebook.as_html(run_table(self.summary)) + "".join(f'<img src="{address}">' for address in pictures)


class Sweep(results.Sweep):
    """A sweep with its table, its picture, and a view for notebooks."""

    def plot(self) -> Figure:
        """Mean score, with its deviation, over the first key that varies; a line for each of the others' values."""
        return sweep_picture(self)

    def __str__(self) -> str:
        return str(notebook.Answer(self.to_json(), sweep_table))

    def _repr_html_(self) -> str:
        picture = f'<img src="{style.inline(self.plot())}">' if self.outcomes else ""
        return notebook.Answer(self.to_json(), sweep_table)._repr_html_() + picture
