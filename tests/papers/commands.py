"""The shell commands of a paper's page, run in this process."""

import shlex

import pytest

from benchmarks.papers import __main__
from tests.documentation import commands


def run_commands(page, fedamp):
    """Run them all; any other program is a failure."""
    for line in commands(page):
        match shlex.split(line):
            case ["fedamp", *arguments]:
                assert fedamp(*arguments).status == 0
            case ["make", "papers", argument]:  # the Makefile hands the paper on
                __main__.main([argument.removeprefix("PAPER=")])
            case ["python", "-m", "benchmarks.papers", *arguments]:
                __main__.main(arguments)
            case _:
                pytest.fail(line)
