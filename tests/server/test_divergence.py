"""A model that is no longer finite is never released."""

import json

import pytest

from tests.federations import write_small


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
