"""Which node hosts which units, and which node trains which batch of a round."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedamp.errors import FederationError
from fedamp.strategies.assignment import Batch

log = logging.getLogger("fedamp.server")


@dataclass
class Roster:
    """The nodes of a federation.

    Attributes:
        everywhere: nodes that can train any unit (workers of a simulation).
        host_of: the node of every unit that lives on one node only (a deployment).
    """

    everywhere: list[int] = field(default_factory=list)
    host_of: dict[int, int] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)

    def refresh(self, grid: Grid, timeout: float, task: str = "") -> None:
        """Forget the nodes that are gone, and ask those that are new which units they host.

        Args:
            timeout: seconds to wait for the answers. A node that is late is asked again before the next round; one that
                cannot say, when it has been away.
            task: what they will train, as JSON; a node opens its data to say whose they are.
        """
        connected = set(grid.get_node_ids())
        gone, new = self._asked - connected, sorted(connected - self._asked)
        if gone:
            self._forget(gone)
        self._asked = connected - set(new)
        messages = [Message(RecordDict({"config": ConfigRecord({"task": task})}), node, "query") for node in new]
        for reply in grid.send_and_receive(messages, timeout=timeout) if messages else ():
            node = reply.metadata.src_node_id
            self._asked |= {node} & connected  # Flower answers in its own name for a node that it lost
            try:
                self._register(node, reply)
            except Exception as error:  # whatever a faulty node answers, the others can train
                log.warning("node %s did not say which clients it hosts: %s", node, error)

    def _forget(self, gone: set[int]) -> None:
        log.warning("nodes %s are gone; their clients count as zero until they are back", sorted(gone))
        self.everywhere = [node for node in self.everywhere if node not in gone]
        self.host_of = {unit: node for unit, node in self.host_of.items() if node not in gone}

    def assign(self, batches: Iterable[Batch]) -> dict[int, list[Batch]]:
        """The batches of each node, nodes in order of id. Units that nobody hosts are left out: they count as zero."""
        assigned: dict[int, list[Batch]] = {}
        for batch in batches:
            for node, piece in self._pieces(batch):
                assigned.setdefault(node, []).append(piece)
        free = assigned.pop(_ANYWHERE, [])
        load = dict.fromkeys(self.everywhere, 0)
        for batch in sorted(free, key=lambda batch: -len(batch.units)) if load else []:
            node = min(load, key=lambda node: (load[node], node))
            load[node] += len(batch.units)
            assigned.setdefault(node, []).append(batch)
        return dict(sorted(assigned.items()))

    def _pieces(self, batch: Batch) -> list[tuple[int, Batch]]:
        if not self.host_of:
            return [(_ANYWHERE, batch)]
        # Flower's node ids fill 64 bits without a sign, so an array of them beside -1 would be one of rounded floats.
        hosts = [self.host_of.get(int(unit), _ANYWHERE) for unit in batch.units]
        return [
            (host, Batch(batch.units[np.array([other == host for other in hosts])], batch.submodel))
            for host in sorted(set(hosts))
        ]

    def _register(self, node: int, reply: Message) -> None:
        if reply.has_error():
            raise FederationError(reply.error.reason)
        hosts = reply.content["hosts"]
        if hosts["all"]:
            self.everywhere.append(node)
            return
        for unit in list(hosts["clients"]):  # type: ignore[arg-type]
            other = self.host_of.setdefault(int(unit), node)  # type: ignore[call-overload]
            if other != node:
                log.warning("unit %s is hosted by nodes %s and %s; node %s is asked", unit, other, node, other)


_ANYWHERE = -1
