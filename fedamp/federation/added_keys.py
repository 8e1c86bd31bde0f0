"""Add keys of extensions to the sections of a scenario.

It stands apart from :mod:`fedamp.federation.choices`, which imports modules whose sections are extended, too.
"""

from typing import Annotated, TypeVar

from pydantic import Field

from fedamp.base.section import Section, with_keys
from fedamp.errors import ScenarioError
from fedamp.extension import keys, offered

S = TypeVar("S", bound=Section)

EXTENDED: set[str] = set()
"""Paths of the sections that :func:`extend` has extended; empty: the scenario itself."""


def extend(section: type[S], path: str = "") -> type[S]:
    """Add the keys that extensions offer to a section.

    An extension offers a class of sections, which may be left out, or an annotated type with its field and its place
    (:class:`fedamp.base.section.Before`).

    Args:
        section: the class; it is changed in place. Also a decorator.
        path: of the section in a scenario; empty: the scenario itself.

    Returns:
        The same class.

    Raises:
        ScenarioError: an extension adds a key that is there already, so that one of both would be ignored.
    """
    added = {}
    EXTENDED.add(path)
    for key in keys("sections"):
        above, _, name = key.rpartition(".")
        if above == path:
            kind, *others = offered("sections", key)
            if others or name in section.model_fields:
                raise ScenarioError(f"sections of extensions: {key} is there already; expected: another name for it")
            added[name] = kind
            if isinstance(kind, type):
                added[name] = Annotated[kind | None, Field(None, exclude_if=lambda found: found is None)]
    return with_keys(section, added)
