"""Start and end sooner: import or compile things when they are first used, and collect garbage seldom meanwhile.

A command such as ``fedamp --help`` must not wait for torch, and a run's first round should not wait for numba. No
result depends on this module.
"""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

# What Flower and Ray read when they are imported: of fedamp's own processes, never of a program that imports it.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_LOG_LEVEL": "ERROR",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

_WHILE_STARTING, _AFTERWARDS = 300_000, (700, 10, 10)  # objects that are made between two collections


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage seldom inside the block; importing makes many objects, and hardly any of them is garbage."""
    before = gc.get_threshold()
    gc.set_threshold(_WHILE_STARTING)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collect_again() -> None:
    """Collect garbage as usual again, but not the objects of the start, which stay until the process ends.

    Outside :func:`seldom_collected` nothing changes. :func:`fedamp.server.launch.launch` calls it after the first
    round.
    """
    if gc.get_threshold()[0] == _WHILE_STARTING:
        gc.freeze()
        gc.set_threshold(*_AFTERWARDS)


def leave_process(end: SystemExit) -> None:
    """End this process with the status of ``end``, and leave its memory to the operating system.

    Python itself would take every module apart first, and look for garbage several times: a third of the time of
    importing torch. Threads, functions of ``atexit`` and buffers end as at any exit. Nothing happens where a profiler
    or debugger watches, which has to write what it has seen, or where the status is a text.

    Args:
        end: what ``sys.exit`` has raised.
    """
    if sys.getprofile() or sys.gettrace() or not isinstance(end.code, int | None):
        return
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends a process
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # full, closed, or none
            stream.flush()
    os._exit(end.code or 0)


class Later:
    """A module that is imported when one of its attributes is first asked for.

    Args:
        name: the module's full name.

    Attributes:
        __name__: the same.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, key: str) -> Any:
        return getattr(import_module(self.__name__), key)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[[], Callable[..., Any]]]:
    """Turn a function into a getter of its compiled form, which numba makes at the first call.

    Args:
        options: those of ``numba.njit``; compiled code is cached on disk where there is a place for it.

    Returns:
        A decorator. The decorated name is called without arguments, and returns the compiled function.
    """

    def later(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
        @cache
        def kernel() -> Callable[..., Any]:
            from numba import njit

            try:
                return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
            except RuntimeError:  # there is no place for a cache
                return njit(**options)(function)  # type: ignore[no-any-return]

        return kernel

    return later
