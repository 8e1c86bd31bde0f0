"""Make the figures and tables of docs/research/papers, docs/research/k-of-t.md and docs/research/published.md again.

    python -m benchmarks.papers [PAGE ...] [--figure NAME ...]      (or: make papers PAPER=modelmix)

Pictures go to ``docs/images/papers/``, tables to ``benchmarks/papers/`` and into the pages. Trainings that are
stored in ``benchmarks/papers`` are not run again. Without names, all is made, and an interrupted call can be repeated:
what was made with the same code is not made again.
"""

import argparse
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.papers import record
from benchmarks.record import ROOT, Finished

PAPERS = ("partitioning", "allocation", "modelmix", "groups", "merging")
PAGES = {paper: ROOT / "docs" / "research" / "papers" / f"{paper}.md" for paper in PAPERS} | {
    "k_of_t": ROOT / "docs" / "research" / "k-of-t.md",
    "published": ROOT / "docs" / "research" / "published.md",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all figures and tables, or the named ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description="The papers' figures and tables.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"one of {', '.join(PAGES)} (default: all)")
    parser.add_argument("--figure", nargs="*", default=[], metavar="NAME", help="some of its figures: figure_1, ...")
    parser.add_argument("--out", type=Path, help="put everything here and leave docs/ and benchmarks/papers alone")
    options = parser.parse_args(arguments)
    for page in options.pages:
        if page not in PAGES:
            parser.error(f"unknown page {page}; expected: {', '.join(PAGES)}")
    everything = not (options.pages or options.figure or options.out)
    finished = Finished("papers", ("fedamp/**/*.py", "benchmarks/*.py", "benchmarks/papers/**/*.py"))
    left = [page for page in options.pages or PAGES if not (everything and page in finished)]
    if everything:
        minutes = {page: sum(each["processor_minutes"] for each in tables_of(page).values()) for page in left}
        each = ", ".join(f"{page} {taken:.0f}" for page, taken in minutes.items())
        print(f"{sum(minutes.values()):.0f} minutes on one core: {each}", flush=True)
    for page in left:
        figures = figures_of(page)
        unknown = sorted(set(options.figure) - {figure.__name__ for figure in figures})
        if unknown:
            parser.error(f"no {unknown[0]} in {page}; expected: {', '.join(figure.__name__ for figure in figures)}")
        chosen = [figure for figure in figures if not options.figure or figure.__name__ in options.figure]
        record.make(page, chosen, options.out or record.IMAGES, options.out or record.RESULTS)
        if options.out is None:
            write_tables(page)
        if everything:
            finished.add(page)


def figures_of(page: str) -> Sequence[record.Figure]:
    """The figures of a page, in its order."""
    figures: Sequence[record.Figure] = import_module(f"benchmarks.papers.{page}").FIGURES
    return figures


def tables_of(page: str) -> dict[str, record.Stored]:
    """The stored tables of a page."""
    tables: dict[str, record.Stored] = json.loads((record.RESULTS / f"{page}.json").read_text())
    return tables


def write_tables(page: str) -> None:
    """Write the stored tables into the page."""
    file = PAGES[page]
    file.write_text(record.with_tables(file.read_text(), tables_of(page)))


if __name__ == "__main__":
    main()
