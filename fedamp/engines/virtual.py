"""Many nodes on few workers: each with its own units and its own memory, as the nodes of a deployment have."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, cast

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedamp.engines import flower
from fedamp.engines.grid import SimulationGrid
from fedamp.engines.node import FIRST_NODE
from fedamp.errors import ScenarioError
from fedamp.federation.aggregation import SecureAggregation
from fedamp.federation.plan import Plan


class VirtualNodes:
    """A simulation's grid with one node for each of ``hosts``, a text such as ``0-9``: the units that live there.

    Each worker plays the same nodes throughout the run. A worker that dies takes the memory of its nodes with it.
    """

    simulated = True

    def __init__(self, grid: SimulationGrid, hosts: Sequence[str]) -> None:
        self._grid, self._hosts = grid, hosts
        self._node_of: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + number for number in range(len(self._hosts))]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, name=str(node - FIRST_NODE)) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and return their ids at once."""
        sent = list(messages)
        ids = self._grid.push_messages(list(map(self._for_worker, sent)))
        for message, id_ in zip(sent, ids, strict=True):
            flower.set_message_id(message, id_)
            self._node_of[id_] = message.metadata.dst_node_id
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return self._named(list(self._grid.pull_messages(list(message_ids))))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies; ``timeout`` is in seconds."""
        return self._named(self._grid.collect(self.push_messages(messages), timeout))

    def _for_worker(self, message: Message) -> Message:
        data, workers = message.metadata, list(self._grid.get_node_ids())
        number = data.dst_node_id - FIRST_NODE
        content = RecordDict(
            {**message.content, "node": ConfigRecord({"number": number, "hosts": self._hosts[number]})}
        )
        return Message(content, workers[number % len(workers)], data.message_type, ttl=data.ttl, group_id=data.group_id)

    def _named(self, replies: list[Message]) -> list[Message]:
        for reply in replies:
            flower.set_sender(reply, self._node_of.pop(reply.metadata.reply_to_message_id))
        return replies


def with_all_nodes(grid: SimulationGrid, plan: Plan) -> SimulationGrid:
    """The grid of a plan whose simulation plays secure aggregation's messages, with all its nodes; others as they are.

    ScenarioError: there are more nodes than units.
    """
    asked = plan.scenario.aggregation
    if plan.terms is None or not (isinstance(asked, SecureAggregation) and asked.simulate == "protocol"):
        return grid
    nodes = plan.terms.nodes
    if nodes > plan.units:
        raise ScenarioError(f"aggregation.nodes is {nodes}; expected: at most one for each of {plan.units} units")
    ends = [plan.units * number // nodes for number in range(nodes + 1)]
    return cast(SimulationGrid, VirtualNodes(grid, [f"{first}-{end - 1}" for first, end in pairwise(ends)]))
