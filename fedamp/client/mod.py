"""A Flower client app of one's own under PrivateStrategy, its training code unchanged.

    app = PrivateClientApp()  # instead of flwr.clientapp.ClientApp()

The train handler gets what FedAvg would send it, and its reply is clipped on its way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedamp.client import wire
from fedamp.client.own_loop import sum_of_units, train_config
from fedamp.client.task import ClientTask
from fedamp.engines import flower
from fedamp.errors import DeploymentError


def private_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A Flower mod, to be the first of an app's: translates between PrivateStrategy and a train handler.

    The handler is called once for each client that is asked for, and gets ``arrays`` and ``config`` (what the server
    app gave to ``start`` as ``train_config``, and ``server-round``); the node's ``partition-id`` is the client's id. It
    answers with one ArrayRecord of the same names and shapes. Of its metrics nothing leaves the node, ``num-examples``
    included: the clients' updates count alike, because a weight would tell something of the records.

    A node speaks for the clients in its ``hosts``, else for its ``partition-id``. Where it speaks for several, each
    starts with an empty ``context.state``: none may learn of another through it.

    Raises:
        DeploymentError: another message than PrivateStrategy's, submodels, or clients of other nodes. An evaluation is
            refused, too: its figures would be computed from records without noise.
    """
    kind = message.metadata.message_type
    if kind == "query":
        return _who_lives_here(message, context)
    if kind != "train":
        raise DeploymentError(f"{kind} messages are not answered: what they ask for is not covered by epsilon")
    task_json, instruction = wire.instruction_of(message)
    here = wire.clients_of_app(context)
    wire.check_hosted(instruction, here)
    arrays = flower.from_record(message.content["arrays"])  # type: ignore[arg-type]
    config = train_config(message) | {"server-round": instruction.round}

    def train_one(client: int) -> Mapping[str, Any]:
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})  # a copy of the client's own
        inner = flower.with_content(message, RecordDict({"arrays": record, "config": ConfigRecord(config)}))
        own = replace(
            context,
            node_config={**context.node_config, "partition-id": client},
            state=context.state if len(here) == 1 else RecordDict(),
        )
        return _arrays_of(call_next(inner, own))

    return wire.trained(message, *sum_of_units(arrays, instruction, ClientTask.from_json(task_json), train_one))


class PrivateClientApp(ClientApp):
    """Flower's ``ClientApp`` with :func:`private_mod` around everything that is registered with it.

    Args:
        mods: mods of one's own; they see what the handlers see.
    """

    def __init__(self, mods: Sequence[Mod] = ()) -> None:
        super().__init__(mods=[private_mod, *mods])
        self.query()(_who_lives_here)


def _who_lives_here(message: Message, context: Context) -> Message:
    return wire.hosting(message, wire.clients_of_app(context))


def _arrays_of(reply: Message) -> Mapping[str, Any]:
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"the reply must hold one ArrayRecord, got {len(records)}")
    return flower.from_record(records[0])
