"""Run folders of before the records were typed: read, verified, and gone on from.

``fixtures/tiny`` was left by fedamp 0.1.0 at commit 3ebada0 (four rounds, checkpoints of rounds 2 and 4).
"""

import json
import shutil
from pathlib import Path

import pytest

from fedamp.launch import launch
from fedamp.plan import ADJACENCY
from fedamp.runs.records import KNOWN_SEED, LedgerRecord
from fedamp.runs.run import read_run
from fedamp.runs.verify import verify_ledger
from fedamp.scenario import scenario_file
from tests.federations import Silent
from tests.server.plays import ledger_of, model_of, rounds_of


@pytest.fixture
def run(tmp_path) -> Path:
    return shutil.copytree(Path(__file__).with_name("fixtures") / "tiny", tmp_path / "run")


def test_it_is_read(run):
    read = read_run(run)
    summary = json.loads((run / "summary.json").read_text())
    assert read.summary.content() == summary | {"format": "fedamp summary 1"}
    assert [record.content() for record in read.rounds] == [line | {"version": 1} for line in rounds_of(run)]
    older = ledger_of(run)
    older["mechanism"]["mechanism"]["relation"] = "zero-out"  # the only one that there was
    assert read.ledger.content() == older | {"noise_seed": KNOWN_SEED, "adjacency": ADJACENCY}
    assert read.ledger.has_known_seed


def test_it_is_verified(run):
    assert {check.name: check.verdict for check in verify_ledger(run) if not check.fine} == {"noise": "caution"}


@pytest.mark.parametrize("lost", [(), ("round-00000004.safetensors",)], ids=["finished", "stopped after round 2"])
def test_it_is_gone_on_from_to_the_same_model(run, lost):
    for name in lost:
        (run / "checkpoint" / name).unlink()
    model, ledger = model_of(run), LedgerRecord.read(run / "ledger.json")
    launch(scenario_file.load(run / "scenario.yaml"), Silent(), run, resume=True)
    assert model_of(run) == model
    assert LedgerRecord.read(run / "ledger.json").releases == ledger.releases
    assert [line["round"] for line in rounds_of(run)] == [1, 2, 3, 4]
