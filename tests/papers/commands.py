"""The shell commands of a paper's page, run in this process; what ``make papers`` draws is only counted."""

import shlex

import pytest

from benchmarks.papers import __main__, record
from tests.documentation import ROOT, commands


def run_commands(page, fedamp, monkeypatch):
    """Run them all; any other program is a failure. Figures are named, not drawn."""
    made = []
    monkeypatch.setattr(record, "make", lambda paper, figures, *_: made.append((paper, len(figures))))
    monkeypatch.setattr(__main__, "write_tables", lambda *_: None)
    for line in commands(str(page.relative_to(ROOT))):
        match shlex.split(line):
            case ["fedamp", *arguments]:
                assert fedamp(*arguments).status == 0
            case ["make", "papers", argument]:  # the Makefile hands the paper on
                __main__.main([argument.removeprefix("PAPER=")])
            case ["python", "-m", "benchmarks.papers", *arguments]:
                __main__.main(arguments)
            case ["python", "-m", "benchmarks.studies.submodels"]:  # a study of a quarter of an hour
                pass
            case _:
                pytest.fail(line)
    assert made == [(page.stem, len(__main__.figures_of(page.stem))), (page.stem, 1)]
