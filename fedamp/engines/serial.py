"""The serial engine: all clients train in this process, one batch after the other. It needs no Ray."""

from time import monotonic

from flwr.app import Message

from fedamp.engines import flower
from fedamp.engines.grid import SimulationGrid, log
from fedamp.engines.node import FIRST_NODE, Node


class SerialGrid(SimulationGrid):
    """A Flower grid with one node: this process.

    A message that runs at the deadline is finished, and its reply is dropped.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        device: see :mod:`fedamp.base.devices`.

    Raises:
        InputError: the device is not there.
    """

    workers = 1

    def __init__(self, client_app: str, device: str = "auto") -> None:
        super().__init__()
        self._node = Node(client_app, partition=0, partitions=1, device=device)
        self._waiting: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE]

    def pull_messages(self, message_ids: list[str]) -> list[Message]:  # type: ignore[override]
        return self._collect(list(message_ids), None)

    def _dispatch(self, messages: list[Message]) -> None:
        self._waiting.update((message.metadata.message_id, message) for message in messages)

    def _collect(self, message_ids: list[str], deadline: float | None) -> list[Message]:
        messages = [self._waiting.pop(id_) for id_ in message_ids if id_ in self._waiting]
        replies = []
        for message in messages:
            if deadline is not None and monotonic() >= deadline:
                break
            reply, trouble = self._node.handle(flower.copy_message(message))
            if trouble:
                log.warning("node %d: the client app failed\n%s", message.metadata.dst_node_id, trouble)
            if deadline is None or monotonic() < deadline:
                replies.append(reply)
        return replies
