"""The figures of papers: a picture and a table each, their files, and how a page gets its tables."""

import json
import re
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.charges import Charged
from benchmarks.record import ROOT, Row, commit, store, table

IMAGES = ROOT / "docs" / "images" / "papers"
RESULTS = Path(__file__).parent

Figure = Callable[[Path], Sequence[Row]]
"""Draws a picture at a path (PNG), or none, and gives a table. Its name is the figure's, its docstring the title."""


def picture_of(paper: str, figure: Figure, images: Path = IMAGES) -> Path:
    """The file of a figure's picture, such as ``modelmix-figure-2.png``."""
    return images / f"{paper}-{figure.__name__.replace('_', '-')}.png"


def make(paper: str, figures: Sequence[Figure], images: Path, results: Path) -> None:
    """Draw ``figures`` of ``paper`` and store their tables. The tables of its other figures stay as they were."""
    images.mkdir(parents=True, exist_ok=True)
    results.mkdir(parents=True, exist_ok=True)
    file = results / f"{paper}.json"
    for figure in figures:
        before = processor_seconds()
        rows = [
            {column: _stored(cell) for column, cell in row.items()} for row in figure(picture_of(paper, figure, images))
        ]
        seconds = processor_seconds() - before
        title = (figure.__doc__ or "").strip().splitlines()[0]
        known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        minutes = round(seconds / 60, 1)
        known[figure.__name__] = {"title": title, "commit": commit(), "processor_minutes": minutes, "rows": rows}
        store(file, dict(sorted(known.items())))
        print(f"{paper} {figure.__name__}  ({seconds:.0f} s of one core)", flush=True)


def processor_seconds() -> float:
    """Of this process and of the processes that it started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


Stored = dict[str, Any]
"""A figure in a file: its title, processor minutes and rows."""


def with_tables(text: str, records: dict[str, Stored]) -> str:
    """``text`` with the stored tables between ``<!-- numbers: figure_1 -->`` and ``<!-- end -->``."""
    place = re.compile(r"(<!-- numbers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda found: found[1] + table(records[found[2]]["rows"]) + found[3], text)


def _stored(cell: str | float | None) -> Any:
    if isinstance(cell, Charged):
        return {"value": float(cell), "asked": cell.asked.to_json()}
    return cell if cell is None or isinstance(cell, str) else float(cell)
