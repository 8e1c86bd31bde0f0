"""The Flower client app: decodes messages for :class:`fedamp.client.worker.TrainingNode`.

The same app serves in simulation, where a node trains whatever clients it is asked to, and in a deployment, where a
node's configuration says what is here (:mod:`fedamp.client.wire`).
"""

from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedamp.client import wire
from fedamp.client.worker import TrainingNode
from fedamp.engines import flower

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of the clients that the message names: the sum of their clipped updates."""
    task, instruction = wire.instruction_of(message)
    hosted = wire.hosts(context)
    node = node_of(task, wire.text(context, "data"), wire.device(context), None if hosted is None else len(hosted))
    wire.check_hosted(instruction, hosted)
    arrays = flower.from_record(message.content["arrays"])  # type: ignore[arg-type]
    return wire.trained(message, *node.train(arrays, instruction))


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which clients live here."""
    return wire.hosting(message, wire.hosted_clients(message, context))


@lru_cache(maxsize=2)
def node_of(task_json: str, folder: str, device: str, hosts: int | None) -> TrainingNode:
    """What trains a task; kept, because data and model are the same in every round."""
    task, dataset = wire.dataset(task_json, folder)
    most = hosts if dataset.hosted is None else min(len(dataset.hosted), hosts or len(dataset.hosted))
    return TrainingNode(task, dataset, device, most)
