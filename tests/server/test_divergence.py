"""A model that is no longer finite is never released."""

import json

import pytest

from fedamp.errors import DivergedError, NobodyTrainedError
from fedamp.runs.folder import read_summary
from fedamp.server import preflight
from tests.federations import small, write_small
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
    assert checks["guarantee"]["found"].startswith("epsilon 0.000: nothing was released")
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
