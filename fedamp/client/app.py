"""The Flower client app: decodes messages for :class:`fedamp.client.worker.TrainingNode`.

The same app serves in simulation, where a node trains whatever clients it is asked to, and in a deployment, where a
node's configuration says what is here:

    data     folder with this node's records, instead of the scenario's
    hosts    ids of the clients that live here, for example "0-9,12"; left out: those whose records are here
    device   cpu, cuda or cuda:N
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from pydantic import TypeAdapter

from fedamp import data, flower, scenario
from fedamp.client.task import DATA_PLACES, ClientTask
from fedamp.client.worker import TrainingNode, TrainInstruction
from fedamp.errors import DeploymentError

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of the clients that the message names: the sum of their clipped updates."""
    config = dict(message.content["config"])
    node = _node(str(config.pop("task")), _text(context, "data"), _text(context, "device") or "cpu")
    instruction = TrainInstruction(**config)  # type: ignore[arg-type]
    hosted = _hosts(_text(context, "hosts"))
    if hosted is not None and not hosted.issuperset(instruction.clients):
        raise DeploymentError(f"clients {sorted(set(instruction.clients) - hosted)} are not among this node's hosts")
    arrays = flower.from_record(message.content["arrays"])  # type: ignore[arg-type]
    sums, report = node.train(arrays, instruction)
    error, told = report.error, {name: value for name, value in vars(report).items() if name != "error"}
    content = RecordDict({"arrays": flower.to_record(sums), "metrics": MetricRecord(told)})
    if error:
        content["errors"] = ConfigRecord({"first": error})
    return Message(content, reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which clients live here."""
    hosted = _hosts(_text(context, "hosts"))
    folder = _text(context, "data")
    if hosted is None and folder:
        task = message.content["config"].get("task")
        ids = _node(str(task), folder, _text(context, "device") or "cpu").dataset.hosted if task else None
        if ids is None:
            raise DeploymentError(
                f"{folder} has no federation.json, and the node configuration no hosts: say which clients live here"
            )
        hosted = set(ids.tolist())
    answer = ConfigRecord({"all": hosted is None, "clients": sorted(hosted or ())})
    return Message(RecordDict({"hosts": answer}), reply_to=message)


@lru_cache(maxsize=2)
def _node(task_json: str, folder: str, device: str) -> TrainingNode:
    """What trains a task; kept, because data and model are the same in every round."""
    task = ClientTask.from_json(task_json)
    config = task.data.model_dump()
    if folder:
        key = next((key for key in DATA_PLACES if key in config), None)
        if key is None:
            raise DeploymentError(
                f"node configuration has a data folder, but the scenario's data are {config['name']}; "
                "accepted: data with a path or dataset, e.g. npz"
            )
        config[key] = str(Path(folder).absolute())
    elif any(config.get(key) == "" for key in DATA_PLACES):
        raise DeploymentError('this node\'s configuration names no data folder; add data="FOLDER" to --node-config')
    section: scenario.Data = _data.validate_python(config)
    dataset = data.load(section, task.data_seed, Path())
    return TrainingNode(task, dataset.by_record() if task.unit == "sample" else dataset, device)


_data: TypeAdapter[scenario.Data] = TypeAdapter(scenario.Data)


def _text(context: Context, key: str) -> str:
    return str(context.node_config.get(key, ""))


def _hosts(text: str) -> set[int] | None:
    """Ids from a list such as "0-9,12"; None where nothing is said."""
    if not text:
        return None
    try:
        hosted: set[int] = set()
        for item in text.split(","):
            first, _, last = item.partition("-")
            hosted.update(np.arange(int(first), int(last or first) + 1).tolist())
    except ValueError:
        raise DeploymentError(f"hosts must be ids and ranges such as 0-9,12, got {text!r}") from None
    return hosted
