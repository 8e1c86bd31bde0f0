"""Make text of others, such as a foreign ledger's or a node's, safe to show, and find words that are the same.

A terminal obeys control letters and a page may obey markup; a name from a foreign file must do neither. The reports,
the command line and the log use this module.
"""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

LONGEST = 10_000


def printable(text: object) -> str:
    r"""Write anything as one line in which nothing can move the cursor, colour, hide or reverse text.

    >>> printable("two\nlines\x1b[31m")
    'two lines?[31m'

    Args:
        text: any object; its ``str`` is cut after 10,000 letters.
    """
    words = " ".join(str(text).split())
    shown = words if len(words) <= LONGEST else f"{words[:LONGEST]}..."
    return visible(shown)


def visible(line: str) -> str:
    """Replace each letter of a line that is not printable by a question mark."""
    return line if line.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in line)


def canonical(word: str) -> str:
    """Return a word in one form of Unicode (NFC).

    Some systems write an accent in a folder's name as a letter of its own.
    """
    return unicodedata.normalize("NFC", word)


def harmless(answer: Any) -> Any:
    """Copy lists and mappings with every text printable, and with rich's markup escaped.

    Args:
        answer: what JSON can hold; keys of mappings are copied as they are.
    """
    from rich.markup import escape  # the accountant prints without rich

    return with_texts(answer, lambda text: escape(printable(text)))


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Copy lists and mappings with every text changed; keys of mappings are copied as they are.

    >>> with_texts({"names": ["Ada", 3]}, str.upper)
    {'names': ['ADA', 3]}
    """
    if isinstance(value, Mapping):
        return {key: with_texts(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [with_texts(each, change) for each in value]
    return change(value) if isinstance(value, str) else value
