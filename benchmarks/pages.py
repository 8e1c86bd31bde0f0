"""Places of pages that commands fill: ``<!-- mark -->``, a line or a table, ``<!-- end -->``."""

import re
from pathlib import Path


def put_in(page: Path, mark: str, found: str) -> None:
    """Print ``found``, and put it at its place of a page.

    Raises:
        ValueError: if the page does not have the place once.
    """
    print(f"\n{mark}\n\n{found}")
    place = re.compile(f"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    text, places = place.subn(lambda marks: f"{marks[1]}{found.rstrip()}\n{marks[2]}", page.read_text())
    if places != 1:
        raise ValueError(f"{page} has {places} places <!-- {mark} -->; expected: one")
    page.write_text(text)
