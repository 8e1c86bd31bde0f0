"""AppStrategy: a Flower app with a model, records and training of its own, from its first message to its ledger."""

import importlib
import logging
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.common.logger import log as flower_log
from flwr.supercore.logger import FLOWER_LOGGER

from fedamp.engines.simulation import FIRST_NODE, SimulatedNode, SimulationGrid
from fedamp.errors import FederationError, ModelError, RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.runs.verification import verify_ledger
from fedamp.server.custom_app import LOG, AppStrategy
from tests.client import own_apps
from tests.documentation import ROOT
from tests.orders import order_in

SCENARIO = {
    "name": "own",
    "data": {"name": "external", "clients": 10},
    "model": {"name": "external"},
    "rounds": 2,
    "privacy": {"clip": 0.5, "noise_multiplier": 1.0, "precision": 0.05},
    "federation": {"nodes": 10},
}
ARRAYS = {"weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "scale": np.array(0.5, dtype=np.float32)}


class Nodes(SimulationGrid):
    """As Flower's simulation: a node for each partition, here in this process."""

    def __init__(self, client_app, number=10, run_config=None):
        super().__init__()
        self.nodes = {FIRST_NODE + i: SimulatedNode(client_app, i, number, "cpu") for i in range(number)}
        for node in self.nodes.values():
            node.context.run_config = run_config or {}
        self.seen = []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        sent = self._numbered(messages)
        self.seen += sent
        return [self.nodes[message.metadata.dst_node_id].handle(message)[0] for message in sent]


def scenario(**changes):
    return reader.validate_scenario({**SCENARIO, **changes}, "own")


def record(arrays=ARRAYS):
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def start(strategy, grid, arrays=ARRAYS, **keys):
    return strategy.start(grid, record(arrays), train_config=ConfigRecord({"lr": 0.1}), **keys)


@pytest.mark.parametrize("name", ["hostile_app", "hostile_flower_app"])
def test_a_round_survives_whatever_clients_do_and_is_in_the_ledger(tmp_path, name):
    strategy = AppStrategy(scenario(), record(), tmp_path / "out")
    released = []

    def evaluate(round_, arrays):
        released.append((round_, len(strategy.ledger.releases)))

    result = start(strategy, Nodes(f"tests.client.own_apps:{name}"), evaluate_fn=evaluate)
    assert released == [(0, 0), (1, 1), (2, 2)]  # entered first
    assert not [check for check in verify_ledger(tmp_path / "out") if check.verdict == "fail"]
    assert set(result.arrays) == set(ARRAYS)
    assert strategy.collected.reported == len(own_apps.GOOD + own_apps.NOT_FINITE + own_apps.RAISED)
    assert strategy.collected.failed == len(own_apps.NOT_FINITE + own_apps.RAISED)
    told = (tmp_path / "out" / LOG).read_text()
    assert all(f"client {client}: " in told for client in own_apps.NOT_FINITE + own_apps.RAISED)


def test_what_the_app_evaluates_stays_in_flowers_result_and_log(tmp_path, capfd):
    strategy = AppStrategy(scenario(), record(), tmp_path / "out")
    grid = Nodes("tests.client.own_apps:hostile_app")
    result = start(strategy, grid, evaluate_fn=lambda round_, arrays: MetricRecord({"accuracy": round_ / 8}))
    assert {round_: found["accuracy"] for round_, found in result.evaluate_metrics_serverapp.items()} == {
        0: 0.0,
        1: 0.125,
        2: 0.25,
    }
    printed = capfd.readouterr().out
    assert "round 1: evaluated, {'accuracy': 0.125}" in printed
    assert "round 2: evaluated, {'accuracy': 0.25}" in printed


@pytest.mark.parametrize("wrong", ["a second run in the folder", "batch norm"])
def test_flower_logs_a_refusal_in_one_line(tmp_path, wrong):
    """As Flower's process of a ServerApp does (flwr.superlink.runtime.run_serverapp); nothing is sent to a node."""
    with (tmp_path / "log").open("w") as stream:
        handler = logging.StreamHandler(stream)
        FLOWER_LOGGER.addHandler(handler)
        try:
            if wrong == "batch norm":
                arrays = ArrayRecord(torch.nn.BatchNorm1d(3).state_dict())
            else:
                arrays = record()
                AppStrategy(scenario(), arrays, tmp_path / "out")
            AppStrategy(scenario(), arrays, tmp_path / "out")
        except Exception as error:
            flower_log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=error)
        finally:
            FLOWER_LOGGER.removeHandler(handler)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("error: ")
    assert ("GroupNorm" if wrong == "batch norm" else "exists already") in line


def test_who_failed_is_told_to_the_server_alone(tmp_path, capfd):
    grid = Nodes("tests.client.own_apps:nameless_app")
    strategy = AppStrategy(scenario(), record(), tmp_path / "out")
    with pytest.raises(FederationError, match=r"the run failed; the reason is in .*server\.log$"):
        start(strategy, grid)
    assert "expected: as fedamp.client.app answers" in (tmp_path / "out" / LOG).read_text()
    assert "".join(capfd.readouterr()) == ""
    assert strategy.ledger.releases == []


def test_a_client_is_told_of_nobody_but_itself(tmp_path):
    grid = Nodes("tests.client.own_apps:remembering_app")
    strategy = AppStrategy(scenario(check_in={"scheme": "balanced", "k": 1}), record(), tmp_path / "out")
    start(strategy, grid)
    trained = [message for message in grid.seen if message.metadata.message_type == "train"]
    assert len(trained) == 10  # each one once
    for message in trained:
        order = order_in(message)
        assert order.ids == [message.metadata.dst_node_id - FIRST_NODE]
        assert f'"seed":{strategy.plan.seed}' not in order.task + str(dict(message.content["order"]))


def test_what_is_refused(tmp_path):
    strategy = AppStrategy(scenario(), record(), tmp_path / "out")
    grid = Nodes("tests.client.own_apps:hostile_app")
    with pytest.raises(ScenarioError, match="num_rounds must be at most 2, the scenario's rounds, got 3"):
        start(strategy, grid, num_rounds=3)
    with pytest.raises(ModelError, match="must be the arrays that the strategy was made with"):
        start(strategy, grid, arrays={**ARRAYS, "scale": np.array(0.25, dtype=np.float32)})
    with pytest.raises(RunFolderError, match="expected: a new folder"):
        AppStrategy(scenario(), record(), tmp_path / "out")
    with pytest.raises(ModelError, match="array steps is int64; expected: float32"):
        AppStrategy(scenario(), record({**ARRAYS, "steps": np.array(0)}), tmp_path / "other")
    with pytest.raises(ModelError, match="array scale holds NaN"):
        AppStrategy(scenario(), record({**ARRAYS, "scale": np.array(np.nan, np.float32)}), tmp_path / "other")
    with pytest.raises(ScenarioError, match="expected in a custom app: external"):
        AppStrategy("digits", record(), tmp_path / "other")
    poor = scenario(privacy={"clip": 1.0, "noise_multiplier": 0.5, "epsilon": 0.1})
    with pytest.raises(ScenarioError, match="pays for no round"):
        AppStrategy(poor, record(), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.fixture
def quickstart(tmp_path, monkeypatch):
    """The quickstart of docs/flower-app with the patch applied, importable."""
    shutil.copytree(ROOT / "docs" / "flower-app" / "quickstart", tmp_path / "app")
    patch = ROOT / "docs" / "flower-app" / "private.patch"
    subprocess.run(["patch", "-s", "-p1", "-d", str(tmp_path / "app"), "-i", str(patch)], check=True)
    monkeypatch.syspath_prepend(tmp_path / "app")
    yield tmp_path / "app" / "quickstart"
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        del sys.modules[name]


@pytest.mark.slow
def test_the_quickstart_without_noise_is_federated_averaging(quickstart, tmp_path):
    """Full batches and a clip that nothing reaches: then the model is the mean of what the clients would train."""
    (quickstart / "federation.yaml").write_text(
        scenario(rounds=1, privacy={"clip": 1000.0, "noise_multiplier": 0}).to_yaml()
    )
    config = {"num-server-rounds": 1, "local-epochs": 2, "learning-rate": 0.1, "batch-size": 1000}
    config |= {"fraction-evaluate": 0.5, "out": str(tmp_path / "out")}
    grid, server = Nodes("quickstart.client_app:app", 10, config), importlib.import_module("quickstart.server_app")
    torch.manual_seed(5)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    task = importlib.import_module("quickstart.task")
    trained = []
    for client in range(10):
        torch.manual_seed(5)
        net = task.Net()
        task.train(net, task.load_data(client, 10, 1000)[0], 2, 0.1, torch.device("cpu"))
        trained.append(net.state_dict())
    for name, array in torch.load(tmp_path / "out" / "final_model.pt").items():
        mean = torch.stack([state[name] for state in trained]).mean(0)
        # A clip of 1000 is quantised to 2**-21, and records are summed up in another order.
        torch.testing.assert_close(array, mean, atol=2e-6, rtol=0)


def test_the_quickstart_changes_in_under_ten_lines():
    patch = (ROOT / "docs" / "flower-app" / "private.patch").read_text()
    files = [section.split("\n", 1) for section in patch.split("+++ b/")[1:]]
    added = {name: sum(line.startswith("+") for line in lines.splitlines()) for name, lines in files}
    assert set(added) == {"quickstart/client_app.py", "quickstart/federation.yaml", "quickstart/server_app.py"}
    assert added["quickstart/client_app.py"] + added["quickstart/server_app.py"] < 10
