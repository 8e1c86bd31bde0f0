"""The apps on Flower's own simulation, as ``flwr run .`` plays them."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedamp.engines.engines import CLIENT_APP
from tests.engines import stock_flower
from tests.federations import small, write_small
from tests.server.plays import ledger_of, play_in
from tests.tools import needs_ray

pytestmark = needs_ray


@pytest.mark.slow
def test_stock_flower_reads_our_messages_and_tells_a_failed_run(tmp_path):
    log, out = tmp_path / "log.txt", tmp_path / "result.json"
    config = {"out": str(out), "nodes": 2, "fail": True}
    assert stock_flower.play("tests.engines.tiny_app:server", "tests.engines.tiny_app:app", 2, config, log) != 0
    result = {"total": [6, 8, 10, 12, 14], "replies": 2, "code": 2, "simulation": True}
    assert json.loads(out.read_text()) == result
    told = log.read_text()
    assert "clients 3 and 4 do not add up" in told
    assert "the server app\ngave up" in told


@pytest.mark.slow
def test_a_run_on_stock_flower_gives_the_model_and_the_charge_of_ours(tmp_path):
    scenario, run, log = write_small(tmp_path), tmp_path / "run", tmp_path / "flower.txt"
    config = {"scenario": str(scenario), "out": str(run), "resume": False, "known-seed": True}
    assert stock_flower.play(stock_flower.SERVER_APP, CLIENT_APP, 2, config, log) == 0, log.read_text()
    play_in(tmp_path / "ours", small())
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "ours"))
    for name, array in ours.items():  # other clients train together: rounding in float32, over 8 rounds
        np.testing.assert_allclose(theirs[name], array, rtol=0, atol=1e-4)
    costs = [[entry["epsilon_upper"] for entry in ledger_of(folder)["releases"]] for folder in (run, tmp_path / "ours")]
    assert costs[0] == costs[1]
