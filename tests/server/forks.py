"""Real processes that run the command line, started in milliseconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.documentation import ROOT

# Runs the first command that it reads itself, which imports and compiles everything, and then forks a process for every
# command of a further line, all at once.
FORKS = """
import json, os, sys
from fedamp.cli import commands
from fedamp.cli.terminal import exit_with
from fedamp.report import pictures

pictures.plot_run = lambda folder: []  # to draw takes as long as to run

def run(words):
    if words[0] == "-c":
        exec(words[1], {})
        words = words[2:]
    sys.argv = ["fedamp", *words]
    try:
        exit_with(commands.app)
    except SystemExit as end:
        return end.code

def fork(words):
    child = os.fork()
    if not child:
        os._exit(run(words))
    return child

def tell(number):
    os.write(3, f"{number}\\n".encode())

[first] = json.loads(sys.stdin.readline())
tell(run(first))
for line in sys.stdin:
    children = [fork(words) for words in json.loads(line)]
    for child in children:
        tell(child)
    for child in children:
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class Forks:
    """Forks of a process that has run one whole command, which is the first :meth:`answer`.

    Before a command may stand ``-c`` and a program, which its process runs first.

    Args:
        output: file of all that they say.
        arguments: of the first command.
        folder: where they run; default: here.
    """

    def __init__(self, output: Path, *arguments: object, folder: Path | None = None) -> None:
        reader, writer = os.pipe()
        self._answers = os.fdopen(reader)
        program = f"import os; os.dup2({writer}, 3)\n{FORKS}"
        with output.open("w") as stream:
            self._parent = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                text=True,
                pass_fds=[writer],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},  # threads do not survive a fork
            )
        os.close(writer)
        self._ask([arguments])

    def start(self, *arguments: object) -> int:
        """Start ``fedamp ARGUMENTS``; its process id."""
        self._ask([arguments])
        return self.answer()

    def run(self, *commands: tuple[object, ...]) -> list[int]:
        """The exit codes of several commands that run side by side."""
        self._ask(commands)
        return [self.answer() for _ in range(2 * len(commands))][len(commands) :]

    def answer(self) -> int:
        """Exit code of the process that was started last; minus the signal where one ended it."""
        return int(self._answers.readline())

    def stop(self) -> None:
        """After all that was asked for."""
        self._parent.communicate()
        self._answers.close()

    def _ask(self, commands) -> None:
        self._parent.stdin.write(json.dumps([list(map(str, words)) for words in commands]) + "\n")
        self._parent.stdin.flush()
