"""Run folders of before the records were typed: read and verified, but not gone on with.

``fixtures/tiny`` was left by fedamp 0.1.0 at commit 3ebada0 (four rounds, checkpoints of rounds 2 and 4).
"""

import json
import shutil
from pathlib import Path

import pytest

from fedamp.errors import RunFolderError
from fedamp.federation import reader
from fedamp.federation.plan import ADJACENCY
from fedamp.runs.records import KNOWN_SEED
from fedamp.runs.run import read_run
from fedamp.runs.verify import verify_ledger
from fedamp.server.launch import launch
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
    older |= {"guaranteed_epsilon": None, "stopped_because": None, "frozen_sha256": None, "files": None, "head": None}
    older["releases"] = [release | {"record": None, "link": None} for release in older["releases"]]
    assert read.ledger.content() == older | {"noise_seed": KNOWN_SEED, "adjacency": ADJACENCY}
    assert read.ledger.has_known_seed


def test_an_older_run_that_was_stopped_early_has_the_cost_of_all_its_rounds(run):
    file, ledger = run / "summary.json", json.loads((run / "ledger.json").read_text())
    ledger["releases"] = ledger["releases"][:2]
    (run / "ledger.json").write_text(json.dumps(ledger))
    ended = {"stopped_because": "interrupted", "rounds_completed": 2}
    spent = {"epsilon": {"lower": 0.0, "upper": ledger["releases"][1]["epsilon_upper"]}}
    file.write_text(json.dumps(json.loads(file.read_text()) | ended | spent))
    (run / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in rounds_of(run)[:2]))
    read = read_run(run)
    assert read.released_rounds_epsilon == ledger["releases"][1]["epsilon_upper"]
    assert read.released_rounds_epsilon < read.epsilon <= ledger["whole_run_epsilon"]["upper"]  # it was looser


def test_it_is_verified(run):
    checks = {check.name: check for check in verify_ledger(run) if not check.fine}
    assert {name: check.verdict for name, check in checks.items()} == {"chain": "caution", "noise": "caution"}
    assert checks["chain"].found.startswith("none: fedamp 0.1.0 made none")
    (chain,) = [check for check in verify_ledger(run, "0" * 64) if check.name == "chain"]
    assert chain.verdict == "wrong"  # there is none that could be the one that was written down


@pytest.mark.parametrize(("key", "value"), [("noise_multiplier", 9.0), ("delta", 1e-9)])
def test_its_summary_must_say_what_its_ledger_says(run, key, value):
    file = run / "summary.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {key: value}))
    with pytest.raises(RunFolderError, match=rf"summary\.json: {key}: {value}, but ledger\.json says {content[key]}"):
        read_run(run)
    assert [check.name for check in verify_ledger(run) if check.verdict == "wrong"] == ["claim"]


def test_it_is_not_gone_on_with_because_its_noise_was_another(run):
    (run / "checkpoint" / "round-00000004.safetensors").unlink()
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(RunFolderError, match="which drew other random numbers"):
        launch(reader.load(run / "scenario.yaml", ["known_seed=true"]), Silent(), run, resume=True)
    left = {file: file.read_bytes() for file in before if file.name != "log.txt"}
    assert left.items() <= before.items()
