"""Messages between PrivateStrategy and a node, as Python values; and what a node's configuration says.

data     folder with this node's records, instead of the scenario's
hosts    ids of the clients that live here, for example "0-9,12"; left out: those whose records are here
device   cpu, if left out; auto, cuda or cuda:N
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedamp.base import devices
from fedamp.base.ids import ranges
from fedamp.client.task import DATA_PLACES, ClientTask
from fedamp.client.worker import TrainInstruction, TrainReport
from fedamp.data import Dataset
from fedamp.data.sections import Data
from fedamp.engines import flower
from fedamp.errors import DeploymentError
from fedamp.federation.losses import form_of


def instruction_of(message: Message) -> tuple[str, TrainInstruction]:
    """The task, as JSON, and what to do of it now.

    Raises:
        DeploymentError: the message is none of PrivateStrategy's.
    """
    found = message.content.get("config")
    config = dict(found) if isinstance(found, ConfigRecord) else {}
    if "task" not in config or "arrays" not in message.content:
        raise DeploymentError("the message is no training message of fedamp's PrivateStrategy, which alone is answered")
    return str(config.pop("task")), TrainInstruction(**config)  # type: ignore[arg-type]


def trained(message: Message, sums: Mapping[str, NDArray[np.float64]], report: TrainReport) -> Message:
    """The answer to a training message."""
    error, told = report.error, {name: value for name, value in vars(report).items() if name != "error"}
    content = RecordDict({"arrays": flower.to_record(sums), "metrics": MetricRecord(told)})
    if error:
        content["errors"] = ConfigRecord({"first": error})
    return Message(content, reply_to=message)


def hosting(message: Message, clients: Iterable[int] | None) -> Message:
    """The answer to a query: which clients live here; None: any can."""
    answer = ConfigRecord({"all": clients is None, "clients": sorted(clients or ())})
    return Message(RecordDict({"hosts": answer}), reply_to=message)


def text(context: Context, key: str) -> str:
    """A node's configuration; empty where it says nothing."""
    return str(context.node_config.get(key, ""))


def device(context: Context) -> str:
    """The device on which a node trains."""
    return devices.available(text(context, "device") or "cpu")


def hosts(context: Context) -> set[int] | None:
    """The clients that a node's configuration names; None where it names none."""
    listed = text(context, "hosts")
    if not listed:
        return None
    try:
        return {client for first, last in ranges(listed) for client in range(first, last + 1)}
    except ValueError as error:
        raise DeploymentError(f"hosts {error}") from None


def clients_of_app(context: Context) -> set[int]:
    """The clients for which a node speaks whose app reads the records itself: its ``hosts``, else its ``partition-id``.

    Raises:
        DeploymentError: the node's configuration has neither.
    """
    named, partition = hosts(context), context.node_config.get("partition-id")
    if named is None and not isinstance(partition, int):
        raise DeploymentError('the node configuration names no client; add partition-id=3, or hosts="0-9"')
    return {int(partition)} if named is None else named  # type: ignore[arg-type]


def check_hosted(instruction: TrainInstruction, hosted: set[int] | None) -> None:
    """Raise DeploymentError where clients are asked for that do not live here."""
    if hosted is not None and not hosted.issuperset(instruction.clients):
        raise DeploymentError(f"clients {sorted(set(instruction.clients) - hosted)} are not among this node's hosts")


@lru_cache(maxsize=2)
def dataset(task_json: str, folder: str) -> tuple[ClientTask, Dataset]:
    """A task and its records (a client each where the unit is a sample), which are the same in every round."""
    task = ClientTask.from_json(task_json)
    config = task.data.model_dump()
    if folder:
        key = next((key for key in DATA_PLACES if key in config), None)
        if key is None:
            raise DeploymentError(
                f"node configuration has a data folder, but the scenario's data are {config['name']}; "
                "expected: data with a path or dataset, e.g. npz"
            )
        config[key] = str(Path(folder).absolute())
    elif any(config.get(key) == "" for key in DATA_PLACES):
        raise DeploymentError('this node\'s configuration names no data folder; add data="FOLDER" to --node-config')
    section: Data = _data.validate_python(config)
    records = section.load(task.data_seed, Path(), form_of(task.client, task.model))
    return task, records.by_record() if task.unit == "sample" else records


def hosted_clients(message: Message, context: Context) -> set[int] | None:
    """The clients that live on a node: as it is configured, else those whose records are in its folder; None: all.

    Raises:
        DeploymentError: there is a folder, and neither it nor the configuration says whose records are in it.
    """
    named, folder = hosts(context), text(context, "data")
    if named is not None or not folder:
        return named
    task = message.content["config"].get("task")
    ids = dataset(str(task), folder)[1].hosted if task else None
    if ids is None:
        raise DeploymentError(
            f"{folder} has no federation.json, and the node configuration no hosts: say which clients live here"
        )
    return set(ids.tolist())


_data: TypeAdapter[Data] = TypeAdapter(Data)
