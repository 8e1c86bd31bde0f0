"""Pictures, tables and their files: what a figure of a page is made of, and how a page gets its tables."""

import json
import re
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.charges import Charged

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images" / "papers"
RESULTS = Path(__file__).parent

Row = dict[str, str | float | None]
"""A line of a table: cells by the column's heading. Every row of a table names its columns in one order."""

Figure = Callable[[Path], Sequence[Row]]
"""Draws a picture at a path (PNG), or none, and gives a table. Its name is the figure's, its docstring the title."""


class Kept:
    """Results of trainings, one line of JSON each. A training that the file has is not run again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def find(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """The stored result of these settings, if there is one."""
        settings = _as_stored(settings)
        return next((dict(line["result"]) for line in self._lines if line["settings"] == settings), None)

    def get(self, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of ``make`` for these settings."""
        known = self.find(settings)
        if known is not None:
            return known
        line = {"settings": _as_stored(settings), "result": make()}
        self._lines.append(line)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line)[:200], flush=True)
        return dict(line["result"])


def _as_stored(settings: dict[str, Any]) -> Any:
    return json.loads(json.dumps(settings))  # tuples become lists


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
        known[figure.__name__] = {"title": title, "processor_minutes": round(seconds / 60, 1), "rows": rows}
        file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
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


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Stored rows as Markdown: four significant digits, and text as it is."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([shown(row[column]) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(cell: Any) -> str:
    """A stored cell as text."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return f"{cell['value'] if isinstance(cell, dict) else cell:.4g}"


def _stored(cell: str | float | None) -> Any:
    if isinstance(cell, Charged):
        return {"value": float(cell), "asked": cell.asked.to_json()}
    return cell if cell is None or isinstance(cell, str) else float(cell)
