"""Prepares docstrings for the pages of the reference, whose parser knows less than our docstrings use."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(`[^`]+`)")
"""Docstrings name things as ``:func:`load```; the pages show them as code."""
EXAMPLE = re.compile(r"^( *)Example:$", re.M)
"""The parser shows a prompt as code in a section ``Examples`` alone."""
SEVERAL = re.compile(r"^( {4,})(\*{0,2}\w+(?:, \*{0,2}\w+)+)(: .*(?:\n\1 +\S.*)*)", re.M)
"""An argument is documented with its twin, as ``lower, upper: ends of the interval``; the parser takes one name."""


def parsed_docstring(text: str) -> str:
    """Rewrite a docstring as the parser needs it: no roles, one name an item, ``Examples``."""
    text = EXAMPLE.sub(r"\1Examples:", ROLE.sub(r"\1", text))
    return SEVERAL.sub(lambda item: "\n".join(f"{item[1]}{name}{item[3]}" for name in item[2].split(", ")), text)


class Roles(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = parsed_docstring(obj.docstring.value)
