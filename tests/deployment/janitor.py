"""Processes that end with the one that started them, also where that one is killed (a test session, by its CI)."""

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path

MARK = "FEDAMP_TEST_STARTED_BY"  # in the environment of all that a process starts here, and of what that starts
# A process of its own that reads a pipe, to whose other end the starting process alone holds on. At the end of the pipe
# it kills the groups of the processes that it was told, if they are still the same ones (nginx overwrites its
# environment), and whatever has the mark.
JANITOR = """
import os, pathlib, signal, sys

def began(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None

told = [(int(line), began(int(line))) for line in iter(sys.stdin.readline, "")]
for process, when in told:
    if when is not None and began(process) == when:
        os.killpg(process, signal.SIGKILL)
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if sys.argv[1].encode() in (folder / "environ").read_bytes().split(bytes(1)):
            os.kill(int(folder.name), signal.SIGKILL)
    except OSError:
        pass
"""


@cache
def _janitor(starter: int) -> tuple[subprocess.Popen, str]:
    """Of a process, with the mark of what it starts."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    command = [sys.executable, "-SEc", JANITOR, mark]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={}, start_new_session=True, text=True), mark


def start(
    command: Sequence[str], log: Path, folder: Path | None = None, environment: dict[str, str] | None = None
) -> subprocess.Popen:
    """A command in a session of its own, which ends with this process at the latest."""
    janitor, mark = _janitor(os.getpid())
    environment = (os.environ if environment is None else environment) | dict([mark.split("=")])
    with log.open("a") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env=environment, start_new_session=True
        )
    assert janitor.stdin is not None
    print(process.pid, file=janitor.stdin, flush=True)
    return process
