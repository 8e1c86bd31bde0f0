"""What all tests share.

One torch thread: the models are tiny, and test processes share the cores.
"""

import os
import sys
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is. A clean checkout (CI) must not fail by luck: there the
# examples are the same every time; elsewhere new ones are tried.
settings.register_profile("fedamp", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedamp")


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str


@pytest.fixture
def fedamp(monkeypatch, capsys):
    """Call the entry point in this process."""
    from fedamp.cli import main

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedamp", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Answer(stop.value.code or 0, captured.out, captured.err)

    return call
