"""A sooner start of commands: fewer garbage collections during imports, and costs computed in a child meanwhile.

On ``fedamp run digits --set rounds=10`` they save 1.0 s of 3.7 s of CPU, and 0.4 s of 3.0 s where two cores are free.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")

# What Flower and Ray read when they are imported: of fedamp's own processes, never of a program that imports it.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_LOG_LEVEL": "ERROR",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

_WHILE_STARTING, _AFTERWARDS = 300_000, (700, 10, 10)  # objects that are made between two collections
_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage seldom in this context."""
    before = gc.get_threshold()
    gc.set_threshold(_WHILE_STARTING)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collect_again() -> None:
    """Collect as usual again, but not the objects of the start; outside :func:`seldom_collected` nothing changes."""
    if gc.get_threshold()[0] == _WHILE_STARTING:
        gc.freeze()
        gc.set_threshold(*_AFTERWARDS)


def beside(compute: Callable[[], T]) -> Callable[[], T]:
    """Begin to compute in a forked child while this process goes on, most likely to import torch.

    Nothing begins where a fork is not safe or does not help: other threads, torch imported, a single core, not Linux.
    Returns a function that waits for the result, to be pickled. Without one from the child, it computes here and raises
    as ``compute``.
    """
    helps = sys.platform == "linux" and (os.cpu_count() or 1) > 1 and "torch" not in sys.modules
    if not helps or threading.active_count() > 1:
        return compute
    from multiprocessing import get_context

    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(compute, sender), daemon=True)
    try:
        child.start()
    except OSError:  # no process or no memory left
        return compute
    sender.close()

    def result() -> T:
        try:
            found: T = receiver.recv()
            return found
        except (EOFError, OSError):
            return compute()
        finally:
            receiver.close()
            child.kill()  # an interrupt must not wait for it
            child.join()

    return result


def _send(compute: Callable[[], T], sender: "Connection") -> None:
    """In the child. An error there happens again, and is raised, in the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the child ends with its parent:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(Exception):
        sender.send(compute())
