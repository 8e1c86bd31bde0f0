"""Tables as text and as HTML, for notebooks."""

import io
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, RenderableType

from fedamp.base.text import harmless

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
