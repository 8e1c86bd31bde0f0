"""What the commands print for a person, as text and as HTML, for notebooks."""

import io
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, RenderableType

from fedamp.base.text import harmless

WIDTH = 80
PAGE = "<pre style='line-height: normal; font-family: monospace'>{code}</pre>"


def _console() -> Console:
    """One that shows nothing by itself, in a notebook either."""
    return Console(file=io.StringIO(), width=WIDTH, record=True, force_jupyter=False)


def as_text(shown: RenderableType) -> str:
    """Lines of at most 80 columns."""
    console = _console()
    console.print(shown)
    return console.export_text()


def as_html(shown: RenderableType) -> str:
    """The same, as one ``pre`` element that needs no style sheet."""
    console = _console()
    console.print(shown)
    return console.export_html(inline_styles=True, code_format=PAGE)


class Answer(dict[str, Any]):
    """What a command prints with ``--json``; printed or shown in a notebook it is the command's table."""

    def __init__(self, answer: Mapping[str, Any], table: Callable[[Mapping[str, Any]], RenderableType]) -> None:
        super().__init__(answer)
        self._table = table

    def __str__(self) -> str:
        return as_text(self._table(harmless(dict(self))))

    def _repr_html_(self) -> str:
        return as_html(self._table(harmless(dict(self))))
