"""docs/pitfalls.md: what it says that fedamp says, fedamp says."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.documentation import blocks, write_files

PAGE = "docs/pitfalls.md"
SLOW = (
    "fedamp-accounting",
    "rounds=2",
    "delta=",
    "noise_multiplier=",
    "fedamp check",
    "cp ",
    "fedamp total",
    "fedamp verify",
)


def quotes():
    """Each command of the page with the lines that it shows below, in their order."""
    for block in blocks(PAGE, "console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *lines = part.strip().splitlines()
            yield command, lines


def plain(printed):
    """Text without the lines of tables, and with single spaces."""
    return " ".join(re.sub(r"[│┃]", " ", printed).split())


def check(fedamp, kept):
    for command, lines in quotes():
        program, *words = shlex.split(command)
        if not kept(command):
            continue
        if program == "cp":
            shutil.copytree(words[1], words[2])
            continue
        if program == "fedamp":
            answer = fedamp(*words)
            printed = plain(answer.out + " " + answer.err)
        else:
            done = [sys.executable, "-m", "fedamp.accounting", *words]
            printed = plain(subprocess.run(done, capture_output=True, text=True, check=False).stdout)
        for line in lines:
            assert plain(line) in printed, command


def test_what_is_refused_or_cautioned_is_said_as_the_page_says(fedamp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    check(fedamp, lambda command: not any(each in command for each in SLOW))


@pytest.mark.slow
def test_every_message_of_the_page_is_said(fedamp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    check(fedamp, lambda command: True)
