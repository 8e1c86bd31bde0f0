"""What is computed in a child while a command starts."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, threading, time
from fedamp.base.start import beside

here = os.getpid()
assert beside(os.getpid)() != here  # another process computed it


def only_here(wrong):
    return here if os.getpid() == here else wrong()


def fail():
    raise ValueError("as it would here")


for wrong in (fail, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: lambda: "cannot be pickled"):
    assert beside(lambda: only_here(wrong))() == here
try:
    beside(fail)()
except ValueError as error:
    assert str(error) == "as it would here"
else:
    raise AssertionError("the error is lost")

def interrupted(*_):
    raise KeyboardInterrupt


signal.signal(signal.SIGALRM, interrupted)
begun, result = time.monotonic(), beside(lambda: time.sleep(10_000))
signal.alarm(1)
try:
    result()
except KeyboardInterrupt:
    assert time.monotonic() - begun < 1000  # nobody waits for the child then
else:
    raise AssertionError("the interrupt is lost")

stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
assert beside(os.getpid)() == here  # a lock that the thread holds would never be let go in a child
stop.set()
thread.join()
sys.modules["torch"] = sys
assert beside(os.getpid)() == here
"""


@pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="nothing is computed in a child here")
def test_a_child_answers_and_where_it_cannot_this_process_does() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
