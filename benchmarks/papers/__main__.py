"""Make the figures and tables of the papers again.

    python -m benchmarks.papers [PAPER ...] [--figure NAME ...]      (or: make papers PAPER=modelmix)

Pictures go to ``docs/images/papers/``, numbers to ``benchmarks/results/papers/``; the tables in the papers' own pages,
``docs/papers/*.md``, are written anew from those.
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.papers import record

PAPERS = ("partitioning", "allocation", "modelmix", "groups", "merging")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all, or what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description="The papers' figures, made again.")
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=f"which: {', '.join(PAPERS)} (default: all)")
    parser.add_argument("--figure", nargs="*", default=[], metavar="NAME", help="which of its figures: figure_1, ...")
    parser.add_argument("--out", type=Path, help="put everything here and leave the pages of docs/ alone")
    options = parser.parse_args(arguments)
    for paper in options.papers:
        if paper not in PAPERS:
            parser.error(f"unknown paper {paper}: choose among {', '.join(PAPERS)}")
    for paper in options.papers or PAPERS:
        figures = figures_of(paper)
        unknown = sorted(set(options.figure) - {figure.__name__ for figure in figures})
        if unknown:
            parser.error(f"no {unknown[0]} in {paper}: {', '.join(figure.__name__ for figure in figures)}")
        chosen = [figure for figure in figures if not options.figure or figure.__name__ in options.figure]
        record.make(paper, chosen, options.out or record.IMAGES, options.out or record.RESULTS)
        if options.out is None:
            record.write_tables(paper)


def figures_of(paper: str) -> Sequence[record.Figure]:
    """The figures of a paper, in its order."""
    figures: Sequence[record.Figure] = import_module(f"benchmarks.papers.{paper}").FIGURES
    return figures


if __name__ == "__main__":
    main()
