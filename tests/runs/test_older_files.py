"""Run folders of before the records were typed: read and verified, but not gone on with.

``fixtures/tiny`` was left by fedamp 0.1.0 at commit 3ebada0 (four rounds, checkpoints of rounds 2 and 4).
"""

import json
import shutil
from pathlib import Path

import pytest

from fedamp.errors import RunFolderError
from fedamp.launch import launch
from fedamp.plan import ADJACENCY
from fedamp.runs.records import KNOWN_SEED
from fedamp.runs.run import read_run
from fedamp.runs.verify import verify_ledger
from fedamp.scenario import scenario_file
from tests.federations import Silent
from tests.server.plays import ledger_of, rounds_of


@pytest.fixture
def run(tmp_path) -> Path:
    return shutil.copytree(Path(__file__).with_name("fixtures") / "tiny", tmp_path / "run")


def test_it_is_read(run):
    read = read_run(run)
    summary = json.loads((run / "summary.json").read_text())
    summary["final"] |= {"validation_score": None}
    later = ("clients_scheduled", "clients_failed", "error", "released_rounds_epsilon", "has_known_seed")
    summary["final"]["metrics"] = {}
    assert read.summary.content() == summary | dict.fromkeys(later) | {"format": "fedamp summary 1"}
    assert summary["epsilon"]["upper"] == read.epsilon
    later_lines = {"version": 1, "metrics": {}, "nodes_given_up": [], "nodes_back": [], "validation_score": None}
    lines = [line | later_lines for line in rounds_of(run)]
    assert [record.content() for record in read.rounds] == lines
    older = ledger_of(run)
    older["mechanism"]["mechanism"]["relation"] = "zero-out"  # the only one that there was
    older |= {"guaranteed_epsilon": None, "stopped_because": None, "frozen_sha256": None}
    assert read.ledger.content() == older | {"noise_seed": KNOWN_SEED, "adjacency": ADJACENCY}
    assert read.ledger.has_known_seed


def test_an_older_run_that_was_stopped_early_has_the_cost_of_all_its_rounds(run):
    file = run / "summary.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"stopped_because": "interrupted", "rounds_completed": 2})
    )
    (run / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in rounds_of(run)[:2]))
    read = read_run(run)
    ledger = ledger_of(run)
    assert read.released_rounds_epsilon == ledger["releases"][1]["epsilon_upper"]
    assert read.released_rounds_epsilon < read.epsilon <= ledger["whole_run_epsilon"]["upper"]  # it was looser


def test_it_is_verified(run):
    assert {check.name: check.verdict for check in verify_ledger(run) if not check.fine} == {"noise": "caution"}


def test_it_is_not_gone_on_with_because_its_noise_was_another(run):
    (run / "checkpoint" / "round-00000004.safetensors").unlink()
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(RunFolderError, match="which drew other random numbers"):
        launch(scenario_file.load(run / "scenario.yaml", ["known_seed=true"]), Silent(), run, resume=True)
    left = {file: file.read_bytes() for file in before if file.name != "log.txt"}
    assert left.items() <= before.items()
