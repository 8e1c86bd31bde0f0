"""Text of others, such as a foreign ledger's or a node's: what a terminal and a log may be shown of it."""

LONGEST = 1000


def printable(text: object) -> str:
    """One line in which nothing can move the cursor, colour, hide or reverse; cut where it is very long."""
    words = " ".join(str(text).split())
    shown = words if len(words) <= LONGEST else f"{words[:LONGEST]}..."
    return "".join(character if character.isprintable() else "?" for character in shown)
