"""A round is flat: few frames from ``fedamp.run`` to the clip of an update, and few files that a round enters.

Read ``PATH`` first: it is the way of a round, from the call of a user to the sum of clipped updates. ``FILES`` names
the files that a round enters beside it.
"""

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import yaml

import fedamp
from tests.federations import SMALL

ROOT = Path(fedamp.__file__).parent
MOST_FRAMES, MOST_FILES = 11, 43

PATH = """
api.py                 run                            reads the scenario, and opens the folder of the finished run
server/launch.py       launch                         opens run folder and engine, and loads data and model
server/loop.py         rounds                         orders, trains, sums, releases, writes down
engines/simulation.py  SerialGrid.send_and_receive    hands each message to the node of this process
engines/simulation.py  SimulatedNode.handle           catches what the app raises
client/app.py          PrivateClientApp.__call__      opens the message, and seals the answer in a deployment
client/app.py          PrivateClientApp._answer       asks the node's policy, and which units live here
client/app.py          PrivateClientApp._train        chooses what trains
client/worker.py       TrainingNode.train             cuts the units into stacks, and adds up
client/worker.py       _PieceTrainer.train            trains a stack
client/clipping.py     clip_and_sum                   clips each unit's update, and adds them up
"""

FILES = {
    "the loop, and its events": "server/loop.py server/observers.py",
    "order: the cohort, its nodes and submodels": "strategies/private.py strategies/pipeline.py strategies/roster.py "
    "federation/check_in.py federation/plan.py federation/submodels.py rng.py",
    "messages": "engines/wire.py engines/flower.py engines/simulation.py base/devices.py",
    "train: a node's clients in stacks": "client/app.py client/configuration.py client/worker.py "
    "client/stacks.py client/training.py client/stacked_networks.py models/pieces.py federation/local_training.py "
    "base/section.py",
    "the records of clients": "data/dataset.py data/stored.py data/table.py data/form.py",
    "clip, and add up": "client/clipping.py strategies/aggregation.py",
    "release: noise, and the server's step": "noise.py federation/optimizers.py",
    "test on public records, where it is due": "server/evaluate.py models/networks.py models/architectures.py "
    "federation/losses.py base/start.py",
    "write down: checkpoint, ledger, line": "server/journal.py runs/checkpoint.py runs/ledger.py runs/records.py "
    "runs/folder.py accounting/verify.py base/record.py base/files.py",
}
"""The files that a steady round enters, by what it does there."""


class Round:
    """What one round of a run enters in fedamp, in all threads: functions by file, and the frames at the first clip."""

    def __init__(self, number: int) -> None:
        self.number, self.is_on = number, False
        self.entered, self.frames = Counter[tuple[str, str]](), list[tuple[str, str]]()
        self.calls = self.to_another_file = 0

    def round_done(self, record) -> None:
        self.is_on = record.round == self.number - 1

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Called by Python at every call of a function."""
        if event != "call" or not self.is_on or not (here := place(frame)):
            return
        above = [found for found in map(place, callers(frame)) if found]
        self.entered[here] += 1
        self.calls += 1
        self.to_another_file += bool(above) and above[0][0] != here[0]
        if here[1] == "clip_and_sum" and not self.frames:
            self.frames = [*reversed(above), here]

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.entered}


def callers(frame: FrameType | None):
    while frame is not None and (frame := frame.f_back):
        yield frame


def place(frame: FrameType) -> tuple[str, str] | None:
    """File and name of a function of fedamp; None for others."""
    path = Path(frame.f_code.co_filename)
    return (str(path.relative_to(ROOT)), frame.f_code.co_qualname) if path.is_relative_to(ROOT) else None


def steady_round(folder: Path) -> Round:
    """The third round of four: what is loaded, made or compiled once has been."""
    before, found = sys.getprofile(), Round(3)
    threading.setprofile(found)
    sys.setprofile(found)
    try:
        fedamp.run(yaml.safe_load(SMALL) | {"rounds": 4}, out=folder / "run", callbacks=[found])
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return found


def test_a_steady_round_is_flat(tmp_path):
    found = steady_round(tmp_path)
    print(f"{len(found.frames)} frames, {len(found.files)} files, {len(found.entered)} functions,", end=" ")
    print(f"{found.to_another_file} of {found.calls} calls change file")
    expected = [tuple(line.split()[:2]) for line in PATH.strip().splitlines()]
    assert found.frames == expected
    assert len(found.frames) <= MOST_FRAMES
    assert len(found.files) <= MOST_FILES, sorted(found.files)
    assert found.files <= set(" ".join(FILES.values()).split()), "FILES says what a round does in each file"
