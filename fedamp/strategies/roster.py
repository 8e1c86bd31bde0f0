"""Which node hosts which units, and which node trains which batch of a round."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedamp.strategies.assignment import Batch
from fedamp.strategies.replies import in_one_line, unexpected
from fedamp.strategies.silence import Silence

log = logging.getLogger("fedamp.server")


@dataclass
class Roster:
    """The nodes of a federation.

    Attributes:
        everywhere: nodes that can train any unit (workers of a simulation).
        host_of: the node of every unit that lives on one node only (a deployment).
        silence: the nodes that are not waited for.
        errors: why nodes that are connected are asked nothing, by node.
    """

    everywhere: list[int] = field(default_factory=list)
    host_of: dict[int, int] = field(default_factory=dict)
    silence: Silence = field(default_factory=Silence)
    errors: dict[int, str] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)

    def refresh(self, grid: Grid, timeout: float, task: str = "") -> None:
        """Forget the nodes that are gone, ask those that are new which units they host, and ping the silent ones.

        Args:
            timeout: seconds to wait for the answers, and for which a ping is worth delivering. A node that is late is
                asked again before the next round; one that cannot say, when it has been away.
            task: what they will train, as JSON; a node opens its data to say whose they are.
        """

        def query(node: int) -> Message:
            return Message(RecordDict({"config": ConfigRecord({"task": task})}), node, "query", ttl=timeout)

        connected = set(grid.get_node_ids())
        self.silence.begin_round(connected)
        gone, new = self._asked - connected, sorted(connected - self._asked - set(self.silence.pings))
        if gone:
            log.warning("nodes %s are gone; their clients count as zero until they are back", sorted(gone))
            self._forget(gone)
        replies = [*self.silence.answers(grid, query)]
        replies += grid.send_and_receive([query(node) for node in new], timeout=timeout) if new else ()
        answered = {reply.metadata.src_node_id for reply in replies} & connected
        late = (set(new) | set(self.silence.pings)) - answered
        self.errors = {node: error for node, error in self.errors.items() if node in self._asked}
        self.errors |= {node: f"node {node} did not answer in time" for node in sorted(late)}
        self._asked |= answered  # but not Flower, who answers in its own name for a node that it lost
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in answered:
                continue
            try:
                self._register(node, reply)
            except Exception as error:  # whatever a faulty node answers, the others can train
                self.errors[node] = f"node {node} did not say which clients it hosts: {in_one_line(error)}"
                log.warning(self.errors[node])
        self.note(new, answered)

    def note(self, asked: Iterable[int], answered: set[int]) -> None:
        """Take in which of the nodes that were asked something answered in time, whatever they answered."""
        self._forget(set(self.silence.note(asked, answered)))

    def _forget(self, nodes: set[int]) -> None:
        self._asked -= nodes
        self.everywhere = [node for node in self.everywhere if node not in nodes]
        self.host_of = {unit: node for unit, node in self.host_of.items() if node not in nodes}

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
            raise ValueError(reply.error.reason)
        if "hosts" not in reply.content:
            raise ValueError(unexpected("records", reply.content, ("hosts",)))
        hosts = reply.content["hosts"]
        if hosts["all"]:
            self.everywhere.append(node)
            return
        for unit in list(hosts["clients"]):  # type: ignore[arg-type]
            other = self.host_of.setdefault(int(unit), node)  # type: ignore[call-overload]
            if other != node:
                log.warning("unit %s is hosted by nodes %s and %s; node %s is asked", unit, other, node, other)


_ANYWHERE = -1
