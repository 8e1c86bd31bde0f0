"""A model that is no longer finite is never released."""

import json

import numpy as np
import pytest

from fedamp.errors import DivergedError, NobodyTrainedError
from fedamp.runs.folder import read_summary
from fedamp.server import preflight
from tests.deployed import Deployment
from tests.federations import hosting, small, write_small
from tests.server.plays import play_in


@pytest.mark.parametrize(
    ("server", "what"),
    [
        ("{learning_rate: 1.0e+41}", "a parameter"),
        ("{optimizer: adam, learning_rate: 1.0e+38}", "a parameter"),
        ("{learning_rate: 1.0e+39}", "its loss"),  # parameters of some 1e37, and sums of 64 of them
    ],
)
def test_a_diverged_model_stops_the_run_before_its_round_is_released(tmp_path, fedamp, server, what):
    run = tmp_path / "run"
    answer = fedamp("run", write_small(tmp_path, f"server={server}"), "--out", run, "--anyway")
    assert answer.status == 1
    *_, line = answer.err.splitlines()  # after the cautions
    assert f"the model diverged, {what} is no longer finite" in line
    assert "server.learning_rate" in line
    assert line.endswith(f"log: {run}/log.txt")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["stopped_because"] == "diverged"
    assert summary["rounds_completed"] < 8
    releases = json.loads((run / "ledger.json").read_text())["releases"] if summary["rounds_completed"] else []
    assert len(releases) == summary["rounds_completed"]
    assert summary["error"] in line


HOPELESS = ("model={name: mlp, hidden: [8]}", "client={steps: 3, learning_rate: 1.0e+30}")


def test_training_that_diverges_for_everybody_is_found_on_public_records(tmp_path, fedamp):
    """Otherwise every round up to the budget would release noise only."""
    run = tmp_path / "run"
    answer = fedamp("run", write_small(tmp_path, *HOPELESS), "--out", run, "--anyway")
    assert answer.status == 1
    *_, line = answer.err.splitlines()  # after the cautions
    assert "round 1: the model diverged, an update of public test records is no longer finite" in line
    assert json.loads((run / "ledger.json").read_text())["releases"] == []
    assert not (run / "model.safetensors").exists()
    # And every other command says so.
    checks = {check["name"]: check for check in json.loads(fedamp("verify", run, "--json").out)["checks"]}
    assert checks["rounds"]["verdict"] == "caution"
    assert checks["rounds"]["found"] == "0 released of 8 planned; the run diverged"
    assert checks["guarantee"]["found"].endswith("diverged after round 0, perhaps because of its releases")
    for command in ("report", "compare"):
        assert f"{run}: no round was released (round 1: the model diverged" in fedamp(command, run).err


@pytest.mark.parametrize("clients", [1, 3])
def test_updates_that_are_not_finite_do_not_stop_a_run(tmp_path, monkeypatch, clients):
    """Otherwise the end of the run would tell about clients' data."""
    monkeypatch.setattr(preflight, "check_training", lambda prepared: None)
    with pytest.raises(NobodyTrainedError, match="could train in any of 2 rounds"):  # after the last one
        play_in(tmp_path, small(*HOPELESS, "rounds=2", f"data.clients={clients}", "check_in={scheme: all}"))
    summary = read_summary(tmp_path)
    assert (summary.rounds_completed, summary.stopped_because) == (2, "finished")
    assert (summary.clients_trained, summary.clients_failed) == (2 * clients, 2 * clients)


def test_a_run_without_noise_that_failed_does_not_look_fine(tmp_path, fedamp):
    run = tmp_path / "run"
    with pytest.raises(DivergedError):
        play_in(run, small("privacy.noise_multiplier=0", "server={learning_rate: 1.0e+41}"))
    checks = json.loads(fedamp("verify", run, "--json").out)["checks"]
    assert {check["name"]: check["verdict"] for check in checks if check["verdict"] != "pass"} == {
        "rounds": "caution",
        "noise": "caution",
    }


def test_a_round_that_diverged_is_charged_and_not_played_twice(tmp_path, fedamp):
    """That it diverged follows from a noisy sum. A second attempt, with other noise, would be a second use of it."""
    run, file = tmp_path / "run", write_small(tmp_path, "known_seed=false", "server={learning_rate: 1.0e+41}")
    assert fedamp("run", file, "--out", run, "--anyway").status == 1
    left = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "log.txt"}
    answer = fedamp("run", file, "--out", run, "--resume", "--anyway")
    assert answer.status == 2
    assert "the run diverged, and its round cannot be played twice" in answer.err
    assert all(path.read_bytes() == content for path, content in left.items())
    summary, ledger = (json.loads((run / f"{name}.json").read_text()) for name in ("summary", "ledger"))
    assert ledger["releases"] == []
    assert summary["epsilon"]["upper"] == ledger["guaranteed_epsilon"] > 0
    assert {check["name"]: check["verdict"] for check in json.loads(fedamp("verify", run, "--json").out)["checks"]}[
        "guarantee"
    ] == "caution"


@pytest.mark.parametrize("fine", [0, 1])
def test_a_deployments_run_ends_alike_whether_anybody_could_train(tmp_path, monkeypatch, fine):
    """Others see whether it has failed: one person's records must not decide that."""
    monkeypatch.setattr(preflight, "check_training", lambda prepared: None)
    generator, owners = np.random.default_rng(0), np.repeat(np.arange(4), 3)
    inputs = generator.normal(size=(12, 5)).astype(np.float32)
    inputs[3 * fine :] = np.nan
    np.savez(tmp_path / "train.npz", x=inputs, y=owners % 2, client=owners)
    data = f"data={{name: npz, path: {tmp_path}, classes: 2, partition: {{scheme: natural}}}}"
    scenario = small(data, "rounds=2", "check_in={scheme: all}", hosting({"a": "0-1", "b": "2-3"}))
    grid = Deployment({"a": {"hosts": "0-1"}, "b": {"hosts": "2-3"}})
    assert play_in(tmp_path / "run", scenario, grid=grid).clients_failed == 2 * (4 - fine)
