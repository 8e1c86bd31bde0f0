"""Put several runs, and models merged from runs, side by side: as text, HTML, LaTeX, CSV, a frame, and pictures.

``fedamp compare`` and ``fedamp.compare`` call :func:`compare`. A series of runs, as a sweep, is a :class:`Published` of
its extension, and looks alike.
"""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from matplotlib.figure import Figure
from rich.console import Group, RenderableType

from fedamp.base.text import harmless
from fedamp.errors import InputError, RunFolderError
from fedamp.report import style
from fedamp.report.pictures import comparison_pictures
from fedamp.report.tables import RowCells, as_html, comparison_cells, printed
from fedamp.report.words import KNOWN_SEED
from fedamp.runs.folder import finished_runs, series_of
from fedamp.runs.run import ReleasedModel, Run, frame_of, read_models

if TYPE_CHECKING:
    import pandas


class Published(ABC):
    """Several runs side by side; printed or in a notebook it is the table.

    Attributes:
        cells: makes the cells of the table from the answer of :meth:`to_json`.
        notes: makes the lines that a reader of the table must know from that answer.
    """

    cells: "ClassVar[staticmethod[[Mapping[str, Any]], RowCells]]"
    notes: "ClassVar[staticmethod[[Mapping[str, Any]], list[str]]]"

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the object of ``--json``, without the files of pictures."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run, all with the same keys: of :meth:`frame` and :meth:`csv`."""

    @abstractmethod
    def pictures(self) -> dict[str, Figure]:
        """Draw pictures by name; none before the first evaluated round."""

    def frame(self) -> "pandas.DataFrame":
        """Return a row for each run as a frame of pandas. A column without any value is NaN, of float64.

        Raises:
            InputError: pandas is not installed.
        """
        frame = frame_of(self.rows())
        return frame.astype({name: "float64" for name in frame if frame[name].isna().all()})

    def csv(self) -> str:
        """Return a line for each run, below the names of the columns; empty where a run has no such value."""
        return lines_of_csv(self.rows())

    def latex(self) -> str:
        """Return the printed table with its notes, as a ``tabular`` with the rules of the package booktabs."""
        answer = self.to_json()
        return self.cells(answer).latex(self.notes(answer), answer.get("caption", ""), answer.get("label", ""))

    def markdown(self) -> str:
        """Return the printed table with its notes, as Markdown."""
        answer = self.to_json()
        return self.cells(answer).markdown(self.notes(answer))

    def plot(self, name: str | None = None) -> Figure:
        """Draw a picture.

        Args:
            name: of the picture; default: the first one.

        Raises:
            InputError: there is none of that name.
        """
        pictures = self.pictures()
        if (name or next(iter(pictures), "")) not in pictures:
            raise InputError(f"no picture {name or 'yet'}; expected here: {', '.join(pictures) or 'none'}")
        return pictures[name] if name else next(iter(pictures.values()))

    def save_pictures(self, folder: Path, formats: Sequence[str] = ("png",), paper: bool = False) -> list[str]:
        """Write all pictures into a folder, and return their files.

        Args:
            folder: is made if it is missing.
            formats: endings of file names: png, pdf or svg.
            paper: draw for a column of a paper, without titles.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        drawn = self.pictures()
        drawn = {name: style.for_paper(each) for name, each in drawn.items()} if paper else drawn
        return [str(file) for file in style.save_all(drawn, folder, formats)]

    def table(self) -> RenderableType:
        """Return the table with its notes, for a terminal; no text of a run can control it."""
        answer = harmless(self.to_json())
        return Group(self.cells(answer).table(), *self.notes(answer))

    def __str__(self) -> str:
        """Return the table as text of 80 columns."""
        return printed(self.table()).export_text()

    def _repr_html_(self) -> str:
        """Return the table and all pictures, for a notebook."""
        return as_html(self.table()) + style.all_inline(self.pictures())


def lines_of_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows with the same keys as CSV, below the names of the columns; None is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def compare(folders: Sequence[Path]) -> Published:
    """Put runs and other models side by side; a series of runs, as a sweep, stands for its finished runs.

    One series alone is shown in its own way.

    Raises:
        RunFolderError: a folder is missing, damaged or given twice; or there is none.
    """
    if not folders:
        raise RunFolderError("no runs to compare; expected: at least one")
    if len(folders) == 1 and (series := series_of(folders[0])):
        shown: Published = series.read(folders[0])
        return shown
    return Comparison(read_models(finished_runs(folders)))


class Comparison(Published):
    """Runs and merged models, in the order in which they were given.

    Args:
        models: as :func:`fedamp.runs.run.read_models` reads them.
    """

    cells = staticmethod(comparison_cells)
    notes = staticmethod(lambda answer: [f"caution: {caution}" for caution in answer["cautions"]])

    def __init__(self, models: Sequence[ReleasedModel]) -> None:
        self.models = models

    def to_json(self) -> dict[str, Any]:
        """Return ``runs``, a row for each, and ``cautions``."""
        return {"runs": list(map(facts, self.models)), "cautions": cautions(self.models)}

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat row for each model, with a column for each metric that any of them has."""
        each = list(map(facts, self.models))
        others = dict.fromkeys(name for row in each for name in row["metrics"])
        return [
            {
                **{key: value for key, value in row.items() if key not in ("metrics", "score", "epsilon")},
                **{name: row["metrics"].get(name) for name in others},
                "epsilon_upper": row["epsilon"]["upper"],
            }
            for row in each
        ]

    def pictures(self) -> dict[str, Figure]:
        """Draw quality and epsilon by round, and quality over epsilon."""
        return comparison_pictures(self.models)


def facts(model: ReleasedModel) -> dict[str, Any]:
    """Make a model's row of the comparison; keys that only a run has are None for a merged model."""
    run = model if isinstance(model, Run) else None
    return {
        "name": model.name,
        "folder": str(model.folder),
        "scenario": model.title,
        "merged_by": model.merged_by,
        **model.summary.final.content(),
        "score": list(model.score) if model.score else None,
        "epsilon": {"lower": model.summary.epsilon.content()["lower"], "upper": model.epsilon},
        "released_rounds_epsilon_upper": run and run.released_rounds_epsilon,
        "has_known_seed": model.has_known_seed,
        "unamplified_epsilon_upper": run and run.unamplified_epsilon,
        **{key: model.promise[key] for key in ("delta", "unit", "adjacency")},
        "amplification_charged": run and run.ledger.amplification_charged,
        "noise_multiplier": run and run.ledger.noise_multiplier,
        "mechanism": model.stated.mechanism_in_words,
        "rounds_completed": run and run.summary.rounds_completed,
        "stopped_because": model.summary.stopped_because,
        "bytes_per_check_in": run and run.bytes_per_check_in,
        "seconds_per_check_in": run and run.seconds_per_check_in,
    }


def cautions(models: Sequence[ReleasedModel]) -> list[str]:
    """Say why the numbers of these models cannot be compared, or do not hold together; a line each."""
    runs = [model for model in models if isinstance(model, Run)]
    private = [model.promise for model in models if model.is_private]
    found = []
    names = {"delta": "deltas", "unit": "units of privacy", "group_size": "group sizes", "adjacency": "adjacencies"}
    for key, what in names.items():
        values = {f"{promise[key]:g}" if key == "delta" else str(promise[key]) for promise in private}
        if len(values) > 1:
            found.append(f"the runs have different {what} ({', '.join(sorted(values))})")
    if len({run.scenario.data.model_dump_json() for run in runs}) > 1:
        found.append("the runs have different data")
    for run in runs:
        if run.reported_share < 1:
            found.append(f"{run.name}: {run.reported_share:.1%} of the scheduled {run.ledger.unit}s reported")
    if unfinished := [run.name for run in runs if run.was_stopped_early]:
        found.append(f"not finished: {', '.join(unfinished)}; epsilon is the cost of all their rounds")
    if known := [model.name for model in models if model.is_private and model.has_known_seed]:
        found.append(f"the seed of {', '.join(known)} is known: {KNOWN_SEED}")
    for run in runs:
        found += [f"{run.name}: {said}" for said in (run.ledger.rehearsal, run.ledger.unchecked) if said]
    return found + [caution for model in models for caution in model.cautions(runs)]
