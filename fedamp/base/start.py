"""What makes a command begin sooner: most of its start is imports, which keep one core busy and live as long as it."""

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

_WHILE_STARTING, _AFTERWARDS = 300_000, (700, 10, 10)  # objects that are made between two collections
_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


@contextmanager
def seldom_collected() -> Iterator[None]:
    """For a start: looking for garbage among all that is imported, again and again, takes a sixth of it."""
    before = gc.get_threshold()
    gc.set_threshold(_WHILE_STARTING)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collect_again() -> None:
    """As ever, but never again among what is there; nothing outside :func:`seldom_collected`."""
    if gc.get_threshold()[0] == _WHILE_STARTING:
        gc.freeze()
        gc.set_threshold(*_AFTERWARDS)


def beside(compute: Callable[[], T]) -> Callable[[], T]:
    """Begin to compute in a child while this process goes on, most likely to import torch.

    A child is forked, so that it has all that is loaded. Where that is not safe, or does not help (other threads,
    torch is there already, a single core, not Linux), nothing is begun.

    Args:
        compute: its result can be pickled.

    Returns:
        What waits for the result. Where the child had none to give, it is computed here, with whatever that raises.
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
    except OSError:  # no process, or no memory, to be had
        return compute
    sender.close()

    def result() -> T:
        try:
            found: T = receiver.recv()
        except (EOFError, OSError):
            return compute()
        finally:
            receiver.close()
            child.kill()  # it has no more to give; nobody who interrupts this is to wait for it
            child.join()
        return found

    return result


def _send(compute: Callable[[], T], sender: "Connection") -> None:
    """In the child. What goes wrong there goes wrong again, and is told, where the result is asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the child ends with its parent:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(Exception):
        sender.send(compute())
