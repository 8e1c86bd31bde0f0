"""A round below the quorum, or without any answer: the run stops, says why, and can be resumed."""

import json

import numpy as np
import pytest
import yaml

from fedamp.engines.engines import FaultyGrid
from fedamp.engines.simulation import SerialGrid
from fedamp.errors import FederationError
from fedamp.federation import reader
from fedamp.runs.folder import RunFolder
from fedamp.server import launch
from tests.engines import stock_flower
from tests.federations import Silent, small, write_small
from tests.server.plays import play_in, rounds_of

# It answers what the server shows it before the first round: zeros, and numbers of which some are negative.
NO_RECORDS = """
from torch import nn


class Network(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.output = nn.Linear(64, num_classes)

    def forward(self, inputs):
        if inputs.any() and (inputs >= 0).all():
            raise ValueError("this network takes no records")
        return self.output(inputs.flatten(1))
"""
ITS_ERROR = "this network takes no records"


def released(run) -> list:
    ledger = run / "ledger.json"
    return json.loads(ledger.read_text())["releases"] if ledger.exists() else []


def assert_nothing_was_spent(run) -> None:
    assert released(run) == []
    assert rounds_of(run) == [] if (run / "rounds.jsonl").exists() else True
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["stopped_because"], summary["rounds_completed"]) == ("failed", 0)
    assert summary["epsilon"]["upper"] == 0


@pytest.mark.parametrize("engine", ["serial", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_model_that_every_client_fails_to_train_costs_nothing(fedamp, tmp_path, monkeypatch, engine):
    (tmp_path / "my_model.py").write_text(NO_RECORDS)
    raw = yaml.safe_load(write_small(tmp_path).read_text())
    raw |= {"model": {"name": "my_model:Network"}, "engine": {"kind": engine, "workers": 2}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.chdir(tmp_path)
    ended = fedamp("run", "mine.yaml", "--out", "run")
    assert ended.status == 1
    [line] = ended.err.splitlines()
    assert line.startswith("failed: round 1: no client can train: training on public test records fails (")
    assert f"ValueError: {ITS_ERROR}" in line
    assert "; log: run/log.txt; resume with: fedamp run run/scenario.yaml --resume" in line
    assert_nothing_was_spent(tmp_path / "run")


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("app", "did not say which clients it hosts: ValueError: No query function registered"),
        ("hosting", "it answered with arrays, metrics; expected: as fedamp.client.app answers"),
    ],
)
def test_the_error_about_a_foreign_client_app_names_its_answer_and_the_expected_one(tmp_path, app, said):
    grid = SerialGrid(f"tests.server.foreign_app:{app}")
    with pytest.raises(FederationError, match=r"round 1: none of \d+ clients reported \(node 2") as caught:
        play_in(tmp_path, small(), grid=grid)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_nothing_was_spent(tmp_path)


@pytest.mark.slow
def test_flowers_quickstart_on_stock_flower_ends_with_that_line(tmp_path):
    pytest.importorskip("ray")
    scenario, run, log = write_small(tmp_path), tmp_path / "run", tmp_path / "flower.txt"
    config = {"scenario": str(scenario), "out": str(run), "resume": False, "known-seed": True}
    assert stock_flower.play(stock_flower.SERVER_APP, "tests.server.foreign_app:app", 1, config, log) != 0
    *_, line = log.read_text().strip().splitlines()
    assert "did not say which clients it hosts: " in line
    assert "No query function registered" in line
    assert_nothing_was_spent(run)


def test_a_round_without_any_answer_is_not_released_whatever_the_quorum(tmp_path):
    scenario = small("federation={quorum: 0}", "faults={failing: 1}")
    with pytest.raises(FederationError, match=r"round 1: none of \d+ clients reported"):
        play_in(tmp_path, scenario)
    assert_nothing_was_spent(tmp_path)


class Sick(FaultyGrid):
    """Some clients never answer in some rounds."""

    def __init__(self, rounds: set[int], clients: set[int]) -> None:
        super().__init__(SerialGrid("fedamp.client.app:app", "cpu"), small("faults={}").faults)
        self.rounds, self.clients = rounds, clients

    def _failing(self, round_, clients):
        return np.isin(clients, list(self.clients)) & (round_ in self.rounds)


def test_in_a_deployment_half_of_a_cohort_is_enough_and_less_is_not(tmp_path):
    scenario = small("check_in={scheme: all}")
    summary = play_in(tmp_path / "half", scenario, grid=Sick({2}, set(range(30))))
    assert (summary.clients_scheduled, summary.clients_trained) == (480, 450)
    with pytest.raises(FederationError, match=r"round 2: 29 of 60 clients reported, below federation\.quorum 0\.5"):
        play_in(tmp_path / "less", scenario, grid=Sick({2}, set(range(31))))
    everybody = small("check_in={scheme: all}", "federation={quorum: 1}")
    with pytest.raises(FederationError, match=r"round 2: 59 of 60 clients reported, below federation\.quorum 1;"):
        play_in(tmp_path / "one", everybody, grid=Sick({2}, {7}))
    # It can be resumed, to the model of an undisturbed run.
    play_in(tmp_path / "less", scenario)
    play_in(tmp_path / "fine", scenario)
    assert (tmp_path / "less" / "model.safetensors").read_bytes() == (
        tmp_path / "fine" / "model.safetensors"
    ).read_bytes()


def test_a_simulation_without_faults_needs_every_unit_for_its_quorum(tmp_path):
    for name, override, quorum in (("fine", "seed=3", 1.0), ("faulty", "faults={failing: 0.1}", None)):
        folder = RunFolder(launch.launch(small("rounds=3", override), Silent(), tmp_path / name))
        assert reader.load(folder.scenario).federation.quorum == quorum


def test_every_view_of_a_run_says_how_many_units_did_not_report(tmp_path, fedamp):
    run, page = tmp_path / "run", tmp_path / "page.html"
    answer = fedamp("run", write_small(tmp_path, "faults={failing: 0.2, seed: 4}"), "--out", run)
    assert answer.status == 0, answer.err
    summary = json.loads((run / "summary.json").read_text())
    lines = rounds_of(run)
    assert summary["clients_scheduled"] == sum(line["scheduled"] for line in lines) == 180
    reported = summary["clients_trained"]
    # Each of 180 with probability 0.8: 144 expected, standard deviation 5.4; five of them.
    assert 117 < reported < 171
    assert f"{reported} of 180 scheduled" in " ".join(answer.out.split())
    checks = json.loads(fedamp("verify", run, "--json").out)["checks"]
    [check] = [check for check in checks if check["name"] == "reported"]
    assert check["verdict"] == "caution"
    assert f"{reported} of 180 scheduled units ({reported / 180:.1%})" in check["found"]
    assert fedamp("report", run, "--out", page).status == 0
    assert f"{reported / 180:.1%} of the scheduled clients" in page.read_text()
    cautions = json.loads(fedamp("compare", run, "--json", "--out", tmp_path / "plots").out)["cautions"]
    assert any(f"{reported / 180:.1%} of the scheduled clients reported" in caution for caution in cautions)
