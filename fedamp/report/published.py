"""What is published of several runs: a table as text, HTML, LaTeX and CSV, a pandas frame, and pictures."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from matplotlib.figure import Figure
from rich.console import Group, RenderableType

from fedamp.base.text import harmless
from fedamp.errors import InputError
from fedamp.report import notebook, style
from fedamp.report.tables import Cells
from fedamp.runs.run import frame_of

if TYPE_CHECKING:
    import pandas


class Published(ABC):
    """Several runs side by side; printed or in a notebook it is the table.

    Attributes:
        cells, notes: of the answer of :meth:`to_json`: the table, and what its reader must know.
    """

    cells: "ClassVar[staticmethod[[Mapping[str, Any]], Cells]]"
    notes: "ClassVar[staticmethod[[Mapping[str, Any]], list[str]]]"

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The object of ``--json``, without the files of pictures."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """A row for each run, all with the same keys: of :meth:`frame` and :meth:`csv`."""

    @abstractmethod
    def pictures(self) -> dict[str, Figure]:
        """Pictures by name; none before the first evaluated round."""

    def frame(self) -> "pandas.DataFrame":
        """A row for each run; InputError without pandas. A column without any value is NaN, of float64."""
        frame = frame_of(self.rows())
        return frame.astype({name: "float64" for name in frame if frame[name].isna().all()})

    def csv(self) -> str:
        """A line for each run, below the names of the columns; empty where a run has no such value."""
        stream, rows = io.StringIO(), self.rows()
        writer = csv.DictWriter(stream, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()

    def latex(self) -> str:
        """The printed table as a ``tabular`` with the rules of the package booktabs."""
        return self.cells(self.to_json()).latex()

    def plot(self, name: str | None = None) -> Figure:
        """A picture by name, default: the first one. InputError if there is none of that name."""
        pictures = self.pictures()
        if (name or next(iter(pictures), "")) not in pictures:
            raise InputError(f"no picture {name or 'yet'}; expected here: {', '.join(pictures) or 'none'}")
        return pictures[name] if name else next(iter(pictures.values()))

    def save_pictures(self, folder: Path, formats: Sequence[str] = ("png",)) -> list[str]:
        """Write all pictures into a folder; returns the files. RunFolderError if that fails."""
        return [str(file) for file in style.save_all(self.pictures(), folder, formats)]

    def table(self) -> RenderableType:
        """For a terminal."""
        answer = harmless(self.to_json())
        return Group(self.cells(answer).table(), *self.notes(answer))

    def __str__(self) -> str:
        return notebook.printed(self.table()).export_text()

    def _repr_html_(self) -> str:
        return notebook.as_html(self.table()) + style.all_inline(self.pictures())
