"""What a node answered, in one line for a person: it may be anything, and may come from anybody."""

import re
from collections.abc import Iterable

from pydantic import ValidationError

from fedamp.base.text import printable

LONGEST, NAMES_SHOWN = 300, 8  # letters of what a node says, and names in a list of them


def in_one_line(said: object) -> str:
    """An error, or a text of a node's.

    Of a traceback it is the last error; what Flower writes as ``<class 'ValueError'>:<'words'>`` reads
    ``ValueError: words``.
    """
    if isinstance(said, ValidationError):
        first = said.errors()[0]
        said = f"{first['loc'][0]}: {first['msg']}, got {first['input']!r:.80}"
    text = str(said)
    errors = list(re.finditer(r"^(?:\w+\.)*\w*(?:Error|Exception): ", text, re.MULTILINE))
    if errors:  # Flower's own have their words on the next line
        text = text[errors[-1].start() :].rstrip().removesuffix("'>")
    text = " ".join(text.split())
    text = re.sub(r"<class '(?:[^']*\.)?(\w+)'>:<'(.*)'>", r"\1: \2", text)
    return printable(text)[:LONGEST] or type(said).__name__


def unexpected(what: str, found: Iterable[str], expected: Iterable[str]) -> str:
    """That a node answered with other names than those that are expected; it runs another client app, most likely."""
    answered, wanted = map(_listed, (found, expected))
    return f"it answered with {what} {answered}; expected {wanted}, as fedamp.client.app answers"


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more if found else "(none)"
