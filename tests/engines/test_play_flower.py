"""Any Flower app is played in one process: its nodes, its state, its errors."""

import shutil
import subprocess
import sys

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedamp.accounting.verify import worst_verdict
from fedamp.errors import InputError, ScenarioError
from fedamp.federation.choices import refuse_hooks
from fedamp.runs.verification import verify_ledger
from fedamp.testing import play_flower
from tests.documentation import ROOT
from tests.federations import small

APP = ROOT / "docs" / "flower-app"


def counting() -> tuple[ServerApp, ClientApp]:
    """An app whose clients add their numbers to the model, and count in their state how often they were asked."""
    server, client = ServerApp(), ClientApp()

    @client.train()
    def train(message, context):
        node = context.node_config
        asked = context.state.metric_records.get("asked", MetricRecord({"times": 0}))["times"] + 1
        context.state["asked"] = MetricRecord({"times": asked})
        model = message.content["arrays"].to_torch_state_dict()
        arrays = ArrayRecord({"w": model["w"] + context.run_config["step"] * node["partition-id"]})
        metrics = MetricRecord({"num-examples": 1, "asked": asked})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid, context):
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=2)
        first = ArrayRecord({"w": torch.zeros(1)})
        result = strategy.start(grid, first, context.run_config["rounds"], train_config=ConfigRecord({}))
        asked = result.train_metrics_clientapp[context.run_config["rounds"]]["asked"]
        context.state["found"] = MetricRecord({"w": float(result.arrays.to_torch_state_dict()["w"]), "asked": asked})

    return server, client


def test_nodes_have_partitions_and_keep_their_state():
    left = play_flower(counting(), nodes=4, run_config={"rounds": 3, "step": 2.0})
    assert left.state["found"] == MetricRecord({"w": 3 * 2.0 * (0 + 1 + 2 + 3) / 4, "asked": 3})


def test_what_a_client_raises_ends_the_play_with_its_own_error():
    _, client = counting()

    @client.query()
    def fail(message, context):
        raise ArithmeticError("records 3 and 4 do not add up")

    asking = ServerApp()

    @asking.main()
    def main(grid, context):
        grid.send_and_receive([Message(RecordDict(), grid.get_node_ids()[0], "query")])

    with pytest.raises(ArithmeticError, match="records 3 and 4"):
        play_flower((asking, client))


def test_a_folder_without_an_app_or_with_another_key_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no Flower app .*expected: a folder whose pyproject.toml names one"):
        play_flower(tmp_path)
    with pytest.raises(InputError, match=r"run_config: rounds: no key of .*expected: num-server-rounds, "):
        play_flower(APP / "quickstart", run_config={"rounds": 1})
    with pytest.raises(InputError, match="nodes: got 0"):
        play_flower(counting(), nodes=0)


@pytest.mark.slow
def test_the_quickstart_is_played_as_it_is_and_private(tmp_path, capsys):
    """Four lines of Python and a scenario make it private; both are played from their folders."""
    shutil.copytree(APP / "quickstart", tmp_path / "mine")
    play_flower(tmp_path / "mine", nodes=10, run_config={"num-server-rounds": 2, "out": str(tmp_path / "open")})
    assert (tmp_path / "open" / "final_model.pt").is_file()
    assert "round 2: accuracy" in capsys.readouterr().out
    subprocess.run(["patch", "-p1", "-d", tmp_path / "mine", "-i", APP / "private.patch"], check=True)
    play_flower(tmp_path / "mine", nodes=10, run_config={"out": str(tmp_path / "closed")})
    assert worst_verdict(verify_ledger(tmp_path / "closed" / "private")) != "fail"
    assert not any(name.startswith("quickstart") for name in sys.modules)


def test_a_custom_app_is_refused_what_needs_hooks_and_nothing_else():
    """Also where the key of an extension is at the top of a scenario."""
    asked = small()
    refuse_hooks(asked)
    paid = asked.privacy.model_copy(update={"population": "people.db"})
    with pytest.raises(ScenarioError, match=r"^privacy\.population: a custom app charges no people"):
        refuse_hooks(asked.model_copy(update={"privacy": paid}))
    with pytest.raises(ScenarioError, match=r"^questions: a custom app answers no questions"):
        refuse_hooks(asked.model_copy(update={"questions": "some"}))
