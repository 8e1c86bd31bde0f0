"""What the README and the other pages show, for the tests that run it.

A block that begins with a comment such as ``# mine.yaml`` or ``# my_model.py: what it is`` is a file of that name. A
``diff`` block that begins with one is a change of the file of that name.
"""

import doctest
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import typer

from fedamp.cli.commands import app

ROOT = Path(__file__).parents[1]
click_command = cache(typer.main.get_command)  # to build it takes as long as many a command
SHELL = ("sh", "bash")
_FIRST = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
PAGES = sorted([*_FIRST, *(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))])


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: as the fence says, for example ``sh``.
        text: without the fences.
        title: the comment in its first line, if that is one.
    """

    language: str
    text: str

    @property
    def title(self) -> str:
        first = self.text.partition("\n")[0]
        return first.removeprefix("# ") if first.startswith("# ") else ""

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        name = re.match(r"[\w./-]+\.(?:yaml|py)(?=$|:)", self.title)
        return name[0] if name else None


def text(page: str) -> str:
    """A page, by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[Block]:
    """The fenced blocks of a page in some languages, in their order."""
    found = [Block(*parts) for parts in re.findall(r"^```(\w+)\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE)]
    return [block for block in found if block.language in languages]


def shell(page: str, title: str) -> str:
    """The commands under a title such as ``# node: start the SuperNode``."""
    [block] = [block for block in blocks(page, *SHELL) if block.title == title]
    return block.text


def commands(page: str) -> list[str]:
    """The shell commands of a page, each in one line, without comments."""
    joined = "\n".join(block.text for block in blocks(page, *SHELL)).replace("\\\n", " ")
    without_documents = re.sub(r"(<<(\w+)).*?^\2$", "", joined, flags=re.DOTALL | re.MULTILINE)
    lines = (re.sub(r"(^|\s)#\s.*", "", line).strip() for line in without_documents.splitlines())
    return [line for line in lines if line]


_COMMANDS = """
import json
import runpy
import sys

from fedamp.cli.commands import main
from fedamp.report import pictures

pictures.plot_run = lambda folder: []  # to draw takes as long as to run
for words in json.loads(sys.argv[1]):
    sys.argv = words
    try:
        main() if words[0] == "fedamp" else runpy.run_path(words[1], run_name="__main__")
    except SystemExit as end:
        if end.code:
            sys.exit(f"{words}: {end.code}")
"""


def run_elsewhere(lines: Iterable[str], folder: Path, package: Path = ROOT) -> str:
    """Run commands (``fedamp ...``, ``python FILE``) in one fresh process; returns what they print.

    It finds nothing but the package and what is installed.
    """
    asked = json.dumps([shlex.split(line) for line in lines])
    command = [sys.executable, "-P", "-c", _COMMANDS, asked]
    environment = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_files(page: str, folder: Path) -> list[str]:
    """Write the files that a page shows and make the changes of its diffs; returns the names of the new files."""
    for block in blocks(page, "yaml", "python", "diff"):
        if block.file and block.language == "diff":
            apply(block, folder)
        elif block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    return [block.file for block in blocks(page, "yaml", "python") if block.file]


def apply(block: Block, folder: Path) -> None:
    """Make the change that a diff shows; its lines without ``+`` stand in the file, together and once."""
    assert block.file is not None
    lines = block.text.splitlines(keepends=True)[1:]
    old = "".join(line[1:] or "\n" for line in lines if not line.startswith("+"))
    new = "".join(line[1:] or "\n" for line in lines if not line.startswith("-"))
    file = folder / block.file
    before = file.read_text(encoding="utf-8")
    assert before.count(old) == 1, f"{block.file} does not hold, once:\n{old}"
    file.write_text(before.replace(old, new), encoding="utf-8")


def find(name: str) -> object:
    """What a dotted name such as ``fedamp.accounting.Gaussian`` stands for.

    Raises:
        ImportError, AttributeError: if there is nothing of that name.
    """
    first, *rest = name.split(".")
    found: object = importlib.import_module(first)
    for depth, part in enumerate(rest, start=1):
        if not hasattr(found, part):
            importlib.import_module(".".join([first, *rest[:depth]]))
        found = getattr(found, part)
    return found


def python(page: str) -> str:
    """The Python of a page, one block after the other; sessions with prompts are for :func:`session`."""
    parts = [block.text for block in blocks(page, "python") if not block.file and not block.text.startswith(">>>")]
    return "\n".join(parts)


def session(page: str) -> doctest.DocTest:
    """The interactive sessions of a page, as one."""
    parts = [block.text for block in blocks(page, "python") if block.text.startswith(">>>")]
    return doctest.DocTestParser().get_doctest("\n".join(parts), {}, page, page, 0)


def run_session(page: str) -> int:
    """Run a page's sessions; returns how many examples printed what the page says."""
    report: list[str] = []
    examples = session(page)
    results = doctest.DocTestRunner().run(examples, out=report.append)
    assert results.failed == 0, "".join(report)
    return results.attempted


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The fedamp command that some words call, and the words after its name."""
    command: click.Command = click_command(app)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"fedamp has no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    return command, words
