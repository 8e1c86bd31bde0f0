"""Lists of ids as text: ``0-9,12``."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Ranges = tuple[tuple[int, int], ...]  # first and last ids, both included
PATTERN = r"\d{1,18}(-\d{1,18})?(, ?\d{1,18}(-\d{1,18})?)*"


def ranges(text: str) -> Ranges:
    """The ranges of a list such as ``0-9,12``. ValueError: it is none, or a range ends before it begins."""
    if not re.fullmatch(PATTERN, text, re.ASCII):
        raise ValueError(f"must be ids and ranges such as 0-9,12, got {text!r:.60}")
    pairs = [item.partition("-") for item in text.replace(" ", "").split(",")]
    found = tuple((int(first), int(last or first)) for first, _, last in pairs)
    for first, last in found:
        if last < first:
            raise ValueError(f"must be ids and ranges such as 0-9,12, got the range {first}-{last}")
    return found


def members(ids: NDArray[np.int64], among: Ranges) -> NDArray[np.bool_]:
    """Which ids lie in one of the ranges; shape as ``ids``."""
    inside = np.zeros(ids.shape, dtype=bool)
    for first, last in among:
        inside |= (first <= ids) & (ids <= last)
    return inside


def how_many(among: Ranges, below: int) -> int:
    """The number of ids below a limit that lie in one of the ranges."""
    count = end = 0
    for first, last in sorted(among):
        first, last = max(first, end), min(last, below - 1)
        if first <= last:
            count, end = count + last - first + 1, last + 1
    return count


def check_known(key: str, groups: Mapping[str, str], units: int) -> None:
    """Refuse ids of clients that are not there.

    Args:
        key: the path of the key that names them.
        groups: lists of ids by name; ``all``: each of them.
        units: the number of clients.

    Raises:
        ValueError: one line with the key and the name.
    """
    for name, text in groups.items():
        if text != "all" and (last := max(last for _, last in ranges(text))) >= units:
            raise ValueError(f"{key}.{name}: there is no client {last}; expected: 0-{units - 1}")


def in_words(ids: Sequence[int], most: int = 5) -> str:
    """The first few of some ids, and how many more there are."""
    more = f" and {len(ids) - most:,} more" if len(ids) > most else ""
    return ", ".join(map(str, ids[:most])) + more
