"""Show a run as ``fedamp.open`` and ``fedamp.run`` return it, in Python and in notebooks.

Here are its tables as text and HTML, the progress of a run in a cell, and how a released model serves each client.
:mod:`fedamp.api` returns these objects; :class:`fedamp.runs.run.Run`, their base, knows no pictures.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType

from fedamp.base.devices import one_thread, usual_state
from fedamp.base.numbers import at_most
from fedamp.base.text import harmless
from fedamp.errors import InputError, fails_alone, needs_extras
from fedamp.extension import all_offered, offered
from fedamp.federation.first_releases import data_after
from fedamp.federation.losses import loss_of, records_of
from fedamp.report.progress import RunProgress
from fedamp.report.tables import as_html, printed, run_table
from fedamp.report.words import ENDINGS, quality
from fedamp.runs import run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedamp.runs.records import RoundRecord
    from fedamp.server.setup import RunInputs

AnswerTable = Callable[[Mapping[str, Any]], RenderableType]


class PrintedAnswer(dict[str, Any]):
    """The object that a command prints with ``--json``; printed or in a notebook it is the command's table.

    Args:
        answer: the object.
        table: makes the command's table of it.
    """

    def __init__(self, answer: Mapping[str, Any], table: AnswerTable) -> None:
        super().__init__(answer)
        self._table = table

    def __str__(self) -> str:
        """Return the table as text of 80 columns."""
        return printed(self._table(harmless(dict(self)))).export_text()

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return as_html(self._table(harmless(dict(self))))


class CellOutput:
    """One output of a notebook's cell, a line that changes in place.

    Args:
        display: IPython's: it shows an object, and returns a handle with ``update``.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._handle, self._line = display, None, ""

    def show(self, line: str) -> None:
        """Show a line in place of the last one."""
        self._line = line
        if self._handle is None:
            self._handle = self._display(self, display_id=True)
        else:
            self._handle.update(self)

    def _repr_html_(self) -> str:
        """Return the line."""
        return f"<pre>{escape(self._line)}</pre>"


class NotebookProgress(RunProgress):
    """Shows the progress of a run in one output of a notebook.

    Args:
        cell: the output.
    """

    def __init__(self, cell: CellOutput) -> None:
        super().__init__(Console(quiet=True, force_terminal=False, force_jupyter=False))  # no bar of rich, no lines
        self._cell = cell

    def started(self, inputs: "RunInputs", finished: "Sequence[RoundRecord]") -> None:
        """Show the cell's output."""
        super().started(inputs, finished)
        self._cell.show(self.bar.line())

    def round_done(self, record: "RoundRecord") -> None:
        """Change the cell's output."""
        super().round_done(record)
        self._cell.show(self.bar.line())


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's ``display`` where this process is the kernel of a notebook; else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    display: Callable[..., Any] | None = import_module("IPython.display").display if hasattr(shell, "kernel") else None
    return display


def notebook_cell() -> list[NotebookProgress]:
    """Return an observer that shows a run in a cell, where this process is the kernel of a notebook; else none."""
    display = notebook_display()
    return [NotebookProgress(CellOutput(display))] if display else []


@dataclass(frozen=True)
class ByClient:
    """Quality of a model for each client that has records to test on.

    UNPROTECTED: each number follows from a client's records without noise.

    Attributes:
        clients: ids, int64 [n].
        records: number of each client's records to test on, int64 [n].
        loss: mean over the records of each, float64 [n].
        score: the first metric of each, as accuracy, float64 [n].
    """

    clients: NDArray[np.int64]
    records: NDArray[np.int64]
    loss: NDArray[np.float64]
    score: NDArray[np.float64]


@usual_state()
def by_client(run: run.Run) -> ByClient:
    """Evaluate the released model for each client, with the parameters of its own, on its own test records.

    Args:
        run: finished, with its scenario's data on this machine.

    Raises:
        InputError: the test records belong to nobody; expected: a natural partition whose test file has the column,
            too.
    """
    from fedamp.models.pieces import local_names  # these import torch
    from fedamp.server.evaluate import evaluate

    scenario = run.scenario
    dataset = records_of(scenario, data_after(scenario.data, run.ledger))
    owners = dataset.test_clients
    if owners is None:
        raise InputError(
            f"data.name {scenario.data.name}: the test records belong to no clients; expected: a natural partition, "
            "with its column in the test file, and data.test_is_public: true"
        )
    module = run.model()
    shared = {name: value.detach().numpy() for name, value in module.named_parameters()}
    shapes = {name: shared[name].shape for name in local_names(module, scenario.model.local)}
    every, after, readers = scenario.federation.checkpoint_every, len(run.rounds) + 1, list[Any]()
    if shapes:
        readers = [kind.kept_in(run.folder, shapes, every) for _, kind in all_offered("local_parameters")]
    (inputs, labels), loss = dataset.test(), loss_of(scenario.client, scenario.model)
    order = np.argsort(owners, kind="stable")
    clients, starts = np.unique(owners[order], return_index=True)
    rows = np.split(order, starts[1:])
    with one_thread():
        found = [
            evaluate(
                module,
                {**shared, **next((own for read in readers if (own := read(int(client), after))), {})},
                inputs[each],
                labels[each],
                loss=loss,
            )
            for client, each in zip(clients, rows, strict=True)
        ]
    sizes = np.array([len(each) for each in rows])
    return ByClient(clients, sizes, np.array([each.loss for each in found]), np.array([each.score for each in found]))


class OpenedRun(run.Run):
    """A run with its pictures, its page, and a view for notebooks."""

    def plot(self) -> "Figure":
        """Draw quality and epsilon by round.

        Raises:
            InputError: there is neither, or matplotlib is not installed.
        """
        with needs_extras():
            from fedamp.report.pictures import run_pictures

        pictures = run_pictures(self)
        if not pictures:
            raise InputError(f"{self.folder}: no model was evaluated, and there is no epsilon: no picture")
        return pictures["rounds"]

    def by_client(self) -> ByClient:
        """Evaluate the model for each client on its own test records, UNPROTECTED; see :func:`by_client`."""
        return by_client(self)

    @usual_state()
    def report(self, out: str | Path | None = None) -> Path:
        """Write a page to share, and return its file.

        Args:
            out: the file; default: ``report.html`` in the run's folder.

        Raises:
            InputError: no extension that is installed makes pages.
        """
        with needs_extras():
            write_report = next(offered("pages", "report"), None)
        if write_report is None:
            raise InputError("report: no extension that is installed makes pages")
        return Path(write_report([self.folder], Path(out) if out else self.folder / "report.html"))

    def __repr__(self) -> str:
        """Return the card, also where Python shows a value: the fields have thousands of letters."""
        return str(self)

    def __str__(self) -> str:
        """Return five lines: how the run ended, its quality, what it spent, its work, and its folder."""
        delta = f"at delta = {self.ledger.delta:g}"
        known = f", {self.ledger.rehearsal or 'known seed'}" * self.has_known_seed
        known += f", {self.ledger.unchecked}" * bool(self.ledger.unchecked)
        spent = f"epsilon <= {at_most(self.epsilon)} {delta}{known}"
        spent = spent if self.is_private else "no privacy: no noise was added"
        said = self.summary
        ending = f"{self.scenario.name}: {said.rounds_completed} rounds, {ENDINGS[said.stopped_because]}"
        work = f"{said.clients_trained:,} {self.ledger.unit}s trained in {said.wall_seconds:.1f} s"
        return "\n".join([ending, quality(self.score, self.ledger.side_release), spent, work, str(self.folder)])

    def _repr_html_(self) -> str:
        """Return the table and the pictures, for a notebook; a picture that cannot be drawn is left out."""
        drawn = ""
        with fails_alone("drawing"):
            from fedamp.report import pictures, style

            drawn = style.all_inline(pictures.run_pictures(self))
        return as_html(run_table(self.summary)) + drawn
