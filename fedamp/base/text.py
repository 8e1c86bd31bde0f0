"""Text of others, such as a foreign ledger's or a node's: what may be shown of it, and which words are the same."""

import unicodedata
from typing import Any

LONGEST = 10_000


def printable(text: object) -> str:
    """One line in which nothing can move the cursor, colour, hide or reverse; cut where it is very long."""
    words = " ".join(str(text).split())
    shown = words if len(words) <= LONGEST else f"{words[:LONGEST]}..."
    return visible(shown)


def visible(line: str) -> str:
    """The line with a question mark for each letter that is not printable."""
    return line if line.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in line)


def canonical(word: str) -> str:
    """The word in one form of Unicode: some systems write an accent in the name of a folder as a letter of its own."""
    return unicodedata.normalize("NFC", word)


def harmless(answer: Any) -> Any:
    """The same lists and mappings with every text printable, and no markup of rich's in it."""
    from rich.markup import escape  # the accountant prints without rich

    if isinstance(answer, dict):
        return {key: harmless(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [harmless(value) for value in answer]
    return escape(printable(answer)) if isinstance(answer, str) else answer
