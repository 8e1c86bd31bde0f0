"""What making a figure again gives: a picture, and our numbers beside those that the paper prints."""

import json
import re
import resource
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images" / "papers"
RESULTS = ROOT / "benchmarks" / "results" / "papers"
PAGES = ROOT / "docs" / "papers"


@dataclass(frozen=True)
class Comparison:
    """A number beside the one that the paper prints; ``published`` is None where it only draws a curve."""

    what: str
    published: float | None
    ours: float
    remark: str = ""


Figure = Callable[[Path], Sequence[Comparison]]
"""Draws the picture at a path (PNG) and gives its numbers. Its name is the figure's, its docstring the title."""


class Kept:
    """Trainings of a figure, a line of JSON each: what the file has is not made again, so a stopped command goes on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def get(self, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``make`` gave for these settings."""
        settings = json.loads(json.dumps(settings))  # as they are read back: tuples become lists
        for line in self._lines:
            if line["settings"] == settings:
                return dict(line["result"])
        before = processor_seconds()
        line = {"settings": settings, "result": make(), "processor_seconds": round(processor_seconds() - before, 1)}
        self._lines.append(line)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        return dict(line["result"])


def picture_of(paper: str, figure: Figure, images: Path = IMAGES) -> Path:
    """Where the picture of a figure lies: ``modelmix-figure-2.png``."""
    return images / f"{paper}-{figure.__name__.replace('_', '-')}.png"


def make(paper: str, figures: Sequence[Figure], images: Path, results: Path) -> None:
    """Draw ``figures`` of ``paper`` and keep their numbers; those of its other figures stay as they were."""
    images.mkdir(parents=True, exist_ok=True)
    results.mkdir(parents=True, exist_ok=True)
    kept = results / f"{paper}.json"
    for figure in figures:
        before = processor_seconds()
        picture = picture_of(paper, figure, images)
        numbers = [asdict(number) for number in figure(picture)]
        seconds = processor_seconds() - before
        title = (figure.__doc__ or "").strip().splitlines()[0]
        record = {"title": title, "processor_minutes": round(seconds / 60, 1), "numbers": numbers}
        known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
        known[figure.__name__] = record
        kept.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        print(f"{picture}  ({seconds:.0f} s of one core)", flush=True)


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def write_tables(paper: str, results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Put the numbers into the paper's page, between ``<!-- numbers: figure_1 -->`` and ``<!-- end -->``."""
    page = pages / f"{paper}.md"
    page.write_text(with_tables(page.read_text(), json.loads((results / f"{paper}.json").read_text())))


def with_tables(text: str, records: dict[str, Any]) -> str:
    """``text`` with the present numbers in every place that asks for some."""
    place = re.compile(r"(<!-- numbers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda found: found[1] + table(records[found[2]]["numbers"]) + found[3], text)


def table(numbers: Sequence[dict[str, Any]]) -> str:
    """For people: published numbers and remarks have columns only where there are any."""
    columns = ["what", "published"] if any(number["published"] is not None for number in numbers) else ["what"]
    columns += ["ours", "remark"] if any(number["remark"] for number in numbers) else ["ours"]
    heading = {"what": "", "published": "published", "ours": "fedamp", "remark": ""}
    lines = [[heading[column] for column in columns], ["---"] * len(columns)]
    lines += [[_text(number[column]) for column in columns] for number in numbers]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(value: str | float | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.4g}"
