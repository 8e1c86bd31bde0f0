"""Tables as text and as HTML, and the progress of a run in a cell, for notebooks."""

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from fedamp.base.text import harmless
from fedamp.report.progress import RunProgress

if TYPE_CHECKING:
    from fedamp.runs.records import RoundRecord
    from fedamp.server.setup import RunInputs

PAGE = "<pre style='line-height: normal; font-family: monospace'>{code}</pre>"
Table = Callable[[Mapping[str, Any]], RenderableType]


def printed(shown: RenderableType) -> Console:
    """A console of 80 columns that records and shows nothing itself, not even in a notebook."""
    console = Console(file=io.StringIO(), width=80, record=True, force_jupyter=False)
    console.print(shown)
    return console


def as_html(shown: RenderableType) -> str:
    """One ``pre`` element that needs no style sheet."""
    return printed(shown).export_html(inline_styles=True, code_format=PAGE)


class Answer(dict[str, Any]):
    """The object that a command prints with ``--json``; printed or in a notebook it is the command's table."""

    def __init__(self, answer: Mapping[str, Any], table: Table) -> None:
        super().__init__(answer)
        self._table = table

    def __str__(self) -> str:
        return printed(self._table(harmless(dict(self)))).export_text()

    def _repr_html_(self) -> str:
        return as_html(self._table(harmless(dict(self))))


class Cell(RunProgress):
    """The progress of a run in one output of a notebook, which changes in place.

    ``display`` is IPython's: it shows an object, and returns a handle with ``update``.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        super().__init__(Console(file=io.StringIO(), force_terminal=False, force_jupyter=False))  # no bar of rich
        self._display = display

    def started(self, prepared: "RunInputs", finished: "Sequence[RoundRecord]") -> None:
        super().started(prepared, finished)
        self._handle = self._display(self, display_id=True)

    def round_done(self, record: "RoundRecord") -> None:
        super().round_done(record)
        self._handle.update(self)

    def _repr_html_(self) -> str:
        task = self._bar.tasks[0]
        return f"<pre>{escape(f'round {task.completed:g} of {task.total:g}  {self._bar.facts}')}</pre>"


def notebook_cell() -> list[Cell]:
    """A cell where this process is the kernel of a notebook, else nothing."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return [Cell(import_module("IPython.display").display)] if hasattr(shell, "kernel") else []
