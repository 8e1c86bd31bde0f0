"""Read and write lists of ids as text, such as ``0-9,12``.

Scenarios name clients in this form: hosts of nodes, groups of an evaluation, public classes of submodels. A list may
name a hundred million ids, so it is kept as ranges and never written out.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Ranges = tuple[tuple[int, int], ...]  # first and last ids, both included
PATTERN = r"\d{1,18}(-\d{1,18})?(, ?\d{1,18}(-\d{1,18})?)*"


def ranges(text: str) -> Ranges:
    """Read the ranges of a list of ids.

    >>> ranges("0-9, 12")
    ((0, 9), (12, 12))

    Args:
        text: ids and ranges with commas between them.

    Returns:
        First and last id of each range, both included, in the order of the text; they may overlap.

    Raises:
        ValueError: the text is no such list, or a range ends before it begins.
    """
    if not re.fullmatch(PATTERN, text, re.ASCII):
        raise ValueError(f"must be ids and ranges such as 0-9,12, got {text!r:.60}")
    pairs = [item.partition("-") for item in text.replace(" ", "").split(",")]
    found = tuple((int(first), int(last or first)) for first, _, last in pairs)
    for first, last in found:
        if last < first:
            raise ValueError(f"must be ids and ranges such as 0-9,12, got the range {first}-{last}")
    return found


def members(ids: NDArray[np.int64], among: Ranges) -> NDArray[np.bool_]:
    """Find which ids lie in one of the ranges.

    Args:
        ids: any shape.
        among: ranges, both ends included.

    Returns:
        A mask of the shape of ``ids``.
    """
    inside = np.zeros(ids.shape, dtype=bool)
    for first, last in among:
        inside |= (first <= ids) & (ids <= last)
    return inside


def how_many(among: Ranges, below: int) -> int:
    """Count the ids below a limit that lie in one of the ranges; overlapping ranges count once.

    >>> how_many(ranges("0-9,5-12"), below=11)
    11
    """
    count = end = 0
    for first, last in sorted(among):
        first, last = max(first, end), min(last, below - 1)
        if first <= last:
            count, end = count + last - first + 1, last + 1
    return count


def check_known(key: str, groups: Mapping[str, str], units: int) -> None:
    """Refuse ids of clients that do not exist.

    Args:
        key: the path of the key that names them.
        groups: lists of ids by name; ``all`` stands for every client.
        units: the number of clients; their ids are 0 to ``units - 1``.

    Raises:
        ValueError: one line with the key and the name.
    """
    for name, text in groups.items():
        if text != "all" and (last := max(last for _, last in ranges(text))) >= units:
            raise ValueError(f"{key}.{name}: there is no client {last}; expected: 0-{units - 1}")


def in_words(ids: Sequence[int], most: int = 5) -> str:
    """List the first few of some ids, and say how many more there are.

    >>> in_words(range(8), most=3)
    '0, 1, 2 and 5 more'
    """
    more = f" and {len(ids) - most:,} more" if len(ids) > most else ""
    return ", ".join(map(str, ids[:most])) + more
