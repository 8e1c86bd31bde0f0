"""What all tests share.

One torch thread: the models are tiny, and test processes share the cores.
"""

import io
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Images often forbid bytecode; each of the many processes that tests start would then compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import settings

sys.dont_write_bytecode = False  # here too

# How long an example takes says how busy the machine is. A clean checkout (CI) must not fail by luck: there the
# examples are the same every time; elsewhere new ones are tried.
settings.register_profile("fedamp", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedamp")


# Rooms whose tests wait for processes: they start first, so that the others fill the waits and nothing long is last.
LONGEST_FIRST = ("deployment", "engines", "server", "papers", "merging")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the rooms."""
    rooms = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rooms.get(item.path.parent.name, len(rooms)))


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def fedamp():
    """Call the entry point in this process, without a terminal."""
    from fedamp.cli import main

    def call(*arguments: object) -> Answer:
        with (
            patch.object(sys, "argv", ["fedamp", *map(str, arguments)]),
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
            pytest.raises(SystemExit) as stop,
        ):
            main()
        waited = re.compile(r"computing the privacy cost; .*\n")  # it says how busy the machine is
        return Answer(stop.value.code or 0, out.getvalue(), waited.sub("", err.getvalue()))

    return call
