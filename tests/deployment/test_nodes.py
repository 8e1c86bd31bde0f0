"""What a node says of the clients that live on it, from a folder of its own."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from safetensors.numpy import save_file
from torch import nn

from fedamp.client.app import app
from fedamp.engines import flower
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import DataError, DeploymentError
from fedamp.federation import reader
from fedamp.server.app import app as server_app
from fedamp.server.setup import prepare
from fedamp.strategies.roster import NodeRoster
from tests.federations import SMALL
from tests.orders import answer_in, order_in

CLASSES, HOSTED = 3, {"one": [0, 3], "other": [1, 4]}


def own_model(input_shape, num_classes):
    return nn.Linear(input_shape[0], num_classes)


def write(folder, name, kind, hosted):
    """Twelve records with their owners, or six public ones."""
    folder, count = folder / name, 12 if hosted else 6
    folder.mkdir()
    columns = {"x": np.eye(count, 4, dtype=np.float32), "y": np.arange(count) % CLASSES}
    if hosted:
        columns["client"] = np.repeat(hosted, count // len(hosted))
    file = folder / f"{'train' if hosted else 'test'}.{kind}"
    if kind == "npz":
        np.savez(file, **columns)
    else:
        pq.write_table(pa.table(columns | {"x": columns["x"].tolist()}), file)
    (folder / "federation.json").write_text(json.dumps({"clients": 5, "hosted": hosted, "classes": CLASSES}))
    return folder


class Nodes:
    """A grid of nodes of which each has its own configuration."""

    def __init__(self, configurations: dict[int, dict]) -> None:
        flower.identify()
        self.configurations, self.sent, self.run = configurations, [], flower.empty_run()

    def get_node_ids(self):
        return list(self.configurations)

    def get_nodes(self):
        return [NodeInfo(node_id=node, name=f"node{node % 2**32}") for node in self.configurations]

    def send_and_receive(self, messages, *, timeout=None):
        return [self.ask(message) for message in messages]

    def ask(self, message: Message) -> Message:
        self.sent.append(message)
        node = message.metadata.dst_node_id
        context = Context(1, node, self.configurations[node], RecordDict(), {})
        flower.set_message_id(message, message.object_id)
        return app(message, context)


@pytest.fixture(params=["npz", pytest.param("parquet", marks=pytest.mark.slow)])
def nodes(request, tmp_path):
    """Two nodes with two clients each; client 2 lives nowhere."""
    folders = {name: write(tmp_path, name, request.param, hosted) for name, hosted in HOSTED.items()}
    server = write(tmp_path, "server", request.param, [])
    raw = yaml.safe_load(SMALL) | {
        "data": {"name": request.param, "path": str(server), "partition": {"scheme": "natural"}, "shape": [4]},
        "check_in": {"scheme": "all"},
        "federation": {"hosts": {"node1": "0,3", "node7": "1-2,4"}},
    }
    prepared = prepare(reader.validate_scenario(raw, "small"))
    grid = Nodes({2**63 + 1: {"data": str(folders["one"])}, 2**63 + 7: {"data": str(folders["other"])}})
    return grid, prepared, folders


def test_nodes_say_whose_records_they_hold_and_are_asked_for_those(nodes):
    grid, prepared, _ = nodes
    roster = NodeRoster(prepared.plan.scenario.federation, prepared.plan.units)
    roster.refresh(grid, 1, prepared.task.to_json())
    assert roster.host_of == {0: 2**63 + 1, 3: 2**63 + 1, 1: 2**63 + 7, 4: 2**63 + 7}
    assert roster.everywhere == []
    strategy = prepared.strategy(prepared.state)
    messages = list(strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid))
    asked = {message.metadata.dst_node_id: order_in(message).ids for message in messages}
    assert asked == {2**63 + 1: [0, 3], 2**63 + 7: [1, 4]}
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert (strategy.collected.reported, strategy.collected.refused_nodes) == (4, 0)
    order = order_in(messages[0])
    units = order.rows.copy()
    units["id"][:2] = [0, 1]  # of which client 1 is another node's
    forged = Message(replace(order, rows=units).content(), messages[0].metadata.dst_node_id, "train")
    answer = answer_in(grid.ask(forged), forged)
    assert (answer.reported, answer.failed) == ([0], 1)


def test_no_message_tells_where_the_server_keeps_what(nodes, tmp_path):
    grid, prepared, _ = nodes
    initial = tmp_path / "initial.safetensors"
    save_file({"weight": np.zeros((CLASSES, 4), np.float32), "bias": np.zeros(CLASSES, np.float32)}, initial)
    file = tmp_path / "scenario.yaml"
    own = "tests.deployment.test_nodes:own_model"
    model = {"name": own, "initial": str(initial), "folder": str(tmp_path / "models")}
    raw = prepared.plan.scenario.model_dump(mode="json") | {"model": model, "rounds": 2}
    file.write_text(yaml.safe_dump(raw))
    config = {"scenario": str(file), "out": str(tmp_path / "run"), "resume": False, "known-seed": False}
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    assert {message.metadata.message_type for message in grid.sent} == {"query", "train"}
    for message in grid.sent:
        assert b"own_model" in message.content["order"]["head"]
        assert str(tmp_path).encode() not in message.content["order"]["head"]


def test_a_node_without_a_folder_or_a_folder_without_owners_is_told_what_to_add(nodes):
    grid, prepared, folders = nodes
    (folders["one"] / "federation.json").unlink()
    message = Message(RoundOrder(prepared.task.to_json(), below=5).content(), 2**63 + 1, "query")
    with pytest.raises((DeploymentError, DataError), match=str(folders["one"])):
        grid.ask(message)
    grid.configurations[2**63 + 1] = {"hosts": "0,3"}
    task = prepared.task.without_places().to_json()
    content = RoundOrder(task, 1, (1.0,), rows([0], [bytes(32)]), prepared.state.parameters).content()
    with pytest.raises(DeploymentError, match='names no data folder; add data="FOLDER" to --node-config'):
        grid.ask(Message(content, 2**63 + 1, "train"))


def test_a_server_without_public_records_evaluates_nothing_and_says_so(nodes, tmp_path):
    """Its folder tells how many clients and classes there are; the scenario tells the shape of an input."""
    grid, prepared, _ = nodes
    for file in (tmp_path / "server").glob("test.*"):
        file.unlink()
    raw = prepared.plan.scenario.model_dump(mode="json") | {"rounds": 2}
    kind, raw["data"]["shape"] = raw["data"]["name"], None
    with pytest.raises(DataError, match=rf"no test\.{kind}; expected: test\.{kind} of public records, or data\.shape"):
        prepare(reader.validate_scenario(raw, "small"))
    raw["data"]["shape"] = [4]
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(raw))
    config = {"scenario": str(file), "out": str(tmp_path / "run"), "resume": False, "known-seed": False}
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [(line["accuracy"], line["loss"], line["reported"]) for line in lines] == [(None, None, 4)] * 2
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["assumptions"][-1] == "No evaluation: no model was tested on anybody's records."
