"""Find ids that may be two spellings of one person, before two budgets are spent on that person.

Nobody is taken for another person by this: it is a report, and the operator decides (``fedamp population join``).
"""

import re
import unicodedata
from collections.abc import Iterable

_BLANK = {"\u115f", "\u1160", "\u2800", "\u3164", "\uffa0"}  # letters without a shape that are no marks
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")


def folded(name: str) -> str:
    """Return what is left of an id without case, width, accents, invisible characters, spaces and leading zeros.

    Example:
        >>> folded("Zo\\u00c9\\u200b-007") == folded("\\uff3aoe -7") == "zoe-7"
        True
    """
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    letters = (each for each in plain if unicodedata.category(each)[0] not in "MCZ" and each not in _BLANK)
    return _ZEROS.sub("", "".join(letters))


def alike_names(people: Iterable[tuple[str, object]]) -> list[list[str]]:
    """Group ids that may be one person, and that belong to several.

    Args:
        people: ids, each with whatever tells people apart.

    Returns:
        Groups of at least two ids, in the order of the first one.

    Example:
        >>> alike_names([("Anna", 0), ("bob", 1), ("anna ", 2), ("BOB", 1)])
        [['Anna', 'anna ']]
    """
    groups: dict[str, dict[object, str]] = {}
    for name, person in people:
        groups.setdefault(folded(name), {}).setdefault(person, name)
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def in_short(groups: list[list[str]]) -> str:
    """Write groups of ids in one line: at most three of them, each with at most three ids.

    Example:
        >>> in_short([["Anna", "anna"]])
        "ids that may be one person: 'Anna' and 'anna'; expected: fedamp population join, if they are"
    """
    each = ([*map(repr, group[:3]), *([f"{len(group) - 3} more"] if len(group) > 3 else [])] for group in groups[:3])
    told = "; ".join(map(" and ".join, each))
    more = f" (and {len(groups) - 3} more)" if len(groups) > 3 else ""
    return f"ids that may be one person: {told}{more}; expected: fedamp population join, if they are"
