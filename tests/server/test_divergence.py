"""A model that is no longer finite is never released."""

import json

import pytest

from fedamp.errors import DivergedError
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
    answer = fedamp("run", write_small(tmp_path, f"server={server}"), "--out", run)
    assert answer.status == 1
    [line] = answer.err.splitlines()
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


def test_a_round_in_which_no_update_is_finite_stops_the_run(tmp_path, fedamp):
    """Nothing but noise would be released, round after round, up to the budget."""
    run = tmp_path / "run"
    answer = fedamp("run", write_small(tmp_path, *HOPELESS), "--out", run)
    assert answer.status == 1
    [line] = answer.err.splitlines()
    assert "round 1: the model diverged, each of " in line
    assert " updates is no longer finite" in line
    assert json.loads((run / "ledger.json").read_text())["releases"] == []
    assert not (run / "model.safetensors").exists()
    # And every other command says so.
    checks = {check["name"]: check for check in json.loads(fedamp("verify", run, "--json").out)["checks"]}
    assert checks["rounds"]["verdict"] == "caution"
    assert checks["rounds"]["found"] == "0 released of 8 planned; the run diverged"
    assert checks["guarantee"]["found"].startswith("epsilon 0.000: nothing was released")
    for command in ("report", "compare"):
        assert f"{run}: no round was released (round 1: the model diverged" in fedamp(command, run).err


def test_one_unit_s_update_alone_does_not_stop_a_run(tmp_path):
    """Else whether the run goes on would tell what that unit's data are."""
    summary = play_in(tmp_path, small(*HOPELESS, "rounds=2", "data.clients=1", "check_in={scheme: all}"))
    assert (summary.clients_trained, summary.clients_failed) == (2, 2)


def test_a_run_without_noise_that_failed_does_not_look_fine(tmp_path, fedamp):
    run = tmp_path / "run"
    with pytest.raises(DivergedError):
        play_in(run, small("privacy.noise_multiplier=0", "server={learning_rate: 1.0e+41}"))
    checks = json.loads(fedamp("verify", run, "--json").out)["checks"]
    assert {check["name"]: check["verdict"] for check in checks if check["verdict"] != "fine"} == {
        "rounds": "caution",
        "noise": "caution",
    }
