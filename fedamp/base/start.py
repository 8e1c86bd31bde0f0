"""A sooner start of commands: fewer garbage collections during imports."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

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
