"""Programs that tests use and that are no packages of Python, of the system or of `make install`; and a wait."""

import os
import re
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib.util import find_spec
from types import CodeType

import pytest

# To import Ray, as importorskip does, takes a second in each worker.
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="could not import 'ray'")


def tool(*names: str) -> str | None:
    """Where the first of these programs is that is there at all."""
    places = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin", sysconfig.get_path("scripts")])
    return next(filter(None, (shutil.which(name, path=places) for name in names)), None)


BROWSER = tool("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
NGINX, NFT, PROMTOOL = tool("nginx"), tool("nft"), tool("promtool")
PDFLATEX = tool("pdflatex")


def but_patience(said: str) -> str:
    """What a command said, but the lines that come after seconds: on a busy machine they come anywhere."""
    return re.sub(
        r"^(computing the privacy cost; .*|engine \w+: .*|\w+ \d+/\d+ after \d+ s.*  .*)\n", "", said, flags=re.M
    )


def wait(condition: Callable[[], object], seconds: float = 300, what: str = "it", every: float = 0.1) -> None:
    """Wait for an event. The deadline is there to say what hangs: it is far off on a busy machine, too."""
    deadline = time.monotonic() + max(seconds, 1800)
    while not condition():
        assert time.monotonic() < deadline, f"waited {max(seconds, 1800):g} s for {what}"
        time.sleep(every)


def killed_before_line(step: int, call: Callable[[], object], is_counted: Callable[[CodeType], bool]) -> bool:
    """Run a call in a child that is killed with signal 9 before a line, and say whether it was; else it has ended.

    Args:
        step: number of the line, from 1, among those of the functions that count.
        call: what it raises is not told.
        is_counted: says whether the lines of a function count.
    """
    if not (child := os.fork()):
        left = [step]

        def line(frame, event, _):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return line

        sys.settrace(lambda frame, event, _: line if is_counted(frame.f_code) else None)
        try:
            call()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
