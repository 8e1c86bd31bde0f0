"""Runs in this process, without a terminal, plots or Ray: what the tests of the server have in common."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedamp.engines.engines import CLIENT_APP, with_faults
from fedamp.engines.simulation import SerialGrid
from fedamp.federation.scenario import Scenario
from fedamp.runs.folder import RunFolder
from fedamp.runs.records import Summary
from fedamp.server.loop import play
from fedamp.server.setup import prepare
from tests.chains import without_chain
from tests.federations import Silent


def play_in(folder: Path, scenario: Scenario, observer=None, grid=None) -> Summary:
    """Play a scenario in a folder, from wherever it stands."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "scenario.yaml").exists():
        RunFolder(folder).write_scenario(scenario)
    grid = grid or SerialGrid(CLIENT_APP, "cpu")
    return play(prepare(scenario), with_faults(grid, scenario.faults), RunFolder(folder), observer or Silent())


def ledger_of(folder: Path) -> dict:
    """Without its chain, in which the same run is another one every time."""
    return without_chain(json.loads((folder / "ledger.json").read_text()))


def rounds_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def model_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


class Killed(BaseException):
    """Ends a run at once: nothing in the loop catches it, as nothing catches ``kill -9``."""


class Crash(Silent):
    """Ends a run after a round."""

    def __init__(self, round_: int, error: type[BaseException] = Killed) -> None:
        super().__init__()
        self.round, self.error = round_, error

    def round_done(self, record) -> None:
        if record.round == self.round:
            raise self.error


@contextmanager
def killed_at(monkeypatch, step: int):
    """Every step by which the loop changes the disk is numbered; the run ends before the given one, or never.

    A step is a flush, a rename, or a write to ``rounds.jsonl``. Yields the list of steps that were taken.
    """
    import os

    taken: list[str] = []

    def counted(name, function):
        def take(*arguments, **named):
            if len(taken) == step:
                raise Killed
            taken.append(name)
            return function(*arguments, **named)

        return take

    with monkeypatch.context() as patch:
        patch.setenv("FEDAMP_CACHE", "off")  # the first run would keep its answers, and have more steps
        patch.setattr(os, "fsync", counted("flush", os.fsync))
        patch.setattr(Path, "replace", counted("rename", Path.replace))
        patch.setattr(Path, "unlink", counted("forget", Path.unlink))
        patch.setattr(RunFolder, "append_round", counted("line", RunFolder.append_round))
        yield taken


def play_until_killed(scenario: Scenario, out: Path, round_: int) -> None:
    """Run a scenario in a process of its own, which ends without cleaning up once a round has been released."""
    asked = out.with_name("asked.yaml")
    asked.write_text(scenario.to_yaml())
    program = (  # no fork of this process: it has threads, and a lock that one of them holds is never let go
        f"import fedamp, os; fedamp.run({str(asked)!r}, out={str(out)!r}, "
        f"callbacks=[lambda record: record.round < {round_} or os._exit(9)])"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9


def largest_difference(one: dict, other: dict) -> float:
    """Between two models."""
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
