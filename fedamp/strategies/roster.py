"""Which node hosts which units, and which node trains which batch of a round."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedamp.plan import Batch

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

    @classmethod
    def ask(cls, grid: Grid, timeout: float) -> "Roster":
        """Ask every connected node which units it hosts."""
        node_ids = sorted(grid.get_node_ids())
        messages = [Message(RecordDict({"config": ConfigRecord()}), node, "query") for node in node_ids]
        roster = cls()
        for reply in grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                log.warning("node %s did not say which clients it hosts: %s", node, reply.error.reason)
                continue
            hosts = reply.content["hosts"]
            if hosts["all"]:
                roster.everywhere.append(node)
            else:
                roster._register(node, hosts["clients"])  # type: ignore[arg-type]
        return roster

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
        hosts = np.array([self.host_of.get(int(unit), _ANYWHERE) for unit in batch.units])
        return [(int(host), Batch(batch.units[hosts == host], batch.submodel)) for host in np.unique(hosts)]

    def _register(self, node: int, units: Iterable[int]) -> None:
        for unit in units:
            other = self.host_of.setdefault(unit, node)
            if other != node:
                log.warning("unit %s is hosted by nodes %s and %s; node %s is asked", unit, other, node, other)


_ANYWHERE = -1
