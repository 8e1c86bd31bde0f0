"""A federation through the real server, the real client app and a grid in this process."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fedamp.accounting import from_json
from fedamp.errors import FederationError, RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.runs.folder import RunFolder
from fedamp.server import launch
from fedamp.server.setup import prepare
from tests.chains import change_ledger
from tests.federations import Silent, small
from tests.server.plays import Crash, Killed


def run(tmp_path, *overrides, name="run"):
    folder = launch.launch(small(*overrides), Silent(), tmp_path / name)
    return RunFolder(folder), json.loads((folder / "summary.json").read_text())


def model(folder: RunFolder):
    return load_file(folder.model)


def test_a_run_folder_and_its_ledger_are_as_the_contract_says(tmp_path):
    folder, summary = run(tmp_path)
    names = {path.name for path in folder.path.iterdir()}
    assert {"scenario.yaml", "rounds.jsonl", "ledger.json", "summary.json", "model.safetensors"} <= names
    assert {"log.txt", "checkpoint"} <= names
    assert reader.load(folder.scenario) == small("federation.quorum=1")
    lines = [json.loads(line) for line in folder.rounds.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 9))
    keys = {"round", "loss", "accuracy", "epsilon_upper", "scheduled", "reported", "seconds"}
    keys |= {"nodes_given_up", "nodes_back", "validation_score", "metrics"}
    assert all(set(line) == keys | {"version", "unprotected"} for line in lines)
    assert summary["rounds_completed"] == 8
    assert summary["clients_trained"] == sum(line["scheduled"] for line in lines) == 60 * 3
    assert summary["stopped_because"] == "finished"
    assert summary["epsilon"]["lower"] <= summary["epsilon"]["upper"] <= summary["unamplified_epsilon"]["upper"]
    ledger = json.loads(folder.ledger.read_text())
    assert [entry["round"] for entry in ledger["releases"]] == list(range(1, 9))
    cost = from_json(ledger["mechanism"]).epsilon(ledger["delta"], precision=ledger["precision"]).upper
    assert cost == pytest.approx(summary["epsilon"]["upper"], rel=1e-12)
    spent = [entry["epsilon_upper"] for entry in ledger["releases"]]
    assert spent == sorted(spent)
    assert spent[-1] == summary["epsilon"]["upper"]
    assert (ledger["unit"], "zero-out" in ledger["adjacency"]) == ("client", True)
    assert ledger["assumptions"]


def test_the_same_seed_gives_the_same_model_and_another_seed_another(tmp_path):
    one, same, other = (run(tmp_path, f"seed={seed}", name=name)[0] for seed, name in [(3, "a"), (3, "b"), (4, "c")])
    assert one.model.read_bytes() == same.model.read_bytes()
    assert one.model.read_bytes() != other.model.read_bytes()


def test_the_run_stops_before_the_round_that_would_exceed_the_budget(tmp_path):
    spent = prepare(small()).plan.charge.epsilon_by_round
    rounds = int(np.flatnonzero(np.diff(spent) > 0)[-1]) + 1  # the last round after which more is spent
    budget = float(spent[rounds - 1] + spent[rounds]) / 2
    folder, summary = run(tmp_path, f"privacy.epsilon={budget}")
    assert summary["stopped_because"] == "budget"
    assert summary["rounds_completed"] == rounds < 8
    assert summary["epsilon"]["upper"] <= budget
    assert len(json.loads(folder.ledger.read_text())["releases"]) == rounds


def test_without_noise_the_run_says_that_nothing_is_protected(tmp_path):
    folder, summary = run(tmp_path, "privacy.noise_multiplier=0")
    assert summary["epsilon"]["upper"] is None
    ledger = json.loads(folder.ledger.read_text())
    assert ledger["mechanism"]["kind"] == "NotPrivate"
    assert ledger["releases"][0]["epsilon_upper"] is None


def test_charging_without_amplification_is_what_repetition_costs(tmp_path):
    _, summary = run(tmp_path, "privacy.amplification=false")
    _, amplified = run(tmp_path, name="amplified")
    assert summary["epsilon"]["upper"] == pytest.approx(amplified["unamplified_epsilon"]["upper"], rel=1e-9)
    assert summary["epsilon"]["upper"] > amplified["epsilon"]["upper"]


def test_an_empty_cohort_still_releases_noise(tmp_path):
    # Expected cohort 1 of 60: e**-1 of the rounds are empty.
    folder, _ = run(tmp_path, "check_in={scheme: poisson, rate: 0.017}", "rounds=12", "federation.checkpoint_every=12")
    lines = [json.loads(line) for line in folder.rounds.read_text().splitlines()]
    assert any(line["scheduled"] == 0 for line in lines)
    digests = [entry["digest"] for entry in json.loads(folder.ledger.read_text())["releases"]]
    assert len(set(digests)) == 12


def test_an_expected_cohort_below_one_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match=r"expected cohort is 0\.6"):
        run(tmp_path, "check_in={scheme: poisson, rate: 0.01}")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    first, _ = run(tmp_path)
    before = {path: path.read_bytes() for path in first.path.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError, match="not an empty folder"):
        run(tmp_path)
    assert {path: path.read_bytes() for path in first.path.rglob("*") if path.is_file()} == before


def test_resuming_with_another_scenario_is_refused(tmp_path):
    folder, _ = run(tmp_path)
    with pytest.raises(RunFolderError, match=r"another run|another scenario"):
        launch.launch(small("privacy.noise_multiplier=2"), Silent(), folder.path, resume=True)


def test_a_round_is_never_released_with_two_models(tmp_path):
    with pytest.raises(Killed):
        launch.launch(small(), Crash(5), tmp_path / "crashed")
    folder = RunFolder(tmp_path / "crashed")
    change_ledger(folder.path, lambda content: content["releases"][4].update(digest="0" * 64))
    with pytest.raises(FederationError, match="round 5 was released before"):
        launch.launch(small(), Silent(), folder.path, resume=True)


def test_an_altered_checkpoint_is_refused_and_the_run_resumes_from_the_one_before(tmp_path):
    folder, _ = run(tmp_path)
    before, newest = folder.model.read_bytes(), sorted(folder.checkpoints.iterdir())[-1]
    with safe_open(newest, framework="numpy") as content:  # whose header, with the digest of its arrays, stays
        header, arrays = content.metadata(), {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    save_file({name: array + np.float32(2**-20) for name, array in arrays.items()}, newest, header)
    with pytest.raises(RunFolderError, match="its arrays were altered; round-00000006"):
        launch.launch(small(), Silent(), folder.path, resume=True)
    newest.unlink()
    launch.launch(small(), Silent(), folder.path, resume=True)
    assert folder.model.read_bytes() == before
