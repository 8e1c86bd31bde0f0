"""Docstrings name things as ``:func:`load```; the pages of the reference show them as code."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(`[^`]+`)")


class Roles(griffe.Extension):
    """Takes the roles out of each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"\1", obj.docstring.value)
