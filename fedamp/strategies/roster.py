"""Which node hosts which units, and which node trains which batch of a round."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from fedamp import rng
from fedamp.base.ids import in_words, members
from fedamp.base.text import printable
from fedamp.engines import flower
from fedamp.federation.running import Federation
from fedamp.strategies.assignment import Batch
from fedamp.strategies.hosts import Hosts
from fedamp.strategies.replies import in_one_line, unexpected
from fedamp.strategies.silence import Silence

log = logging.getLogger("fedamp.server")


class _Answer(BaseModel):
    """Whom a node says it hosts; nothing of it is believed yet."""

    model_config = ConfigDict(strict=True)

    all: bool
    clients: list[NonNegativeInt]


@dataclass
class Roster:
    """The nodes of a federation.

    Attributes:
        federation: says which node may speak for which units.
        units: how many there are.
        everywhere: nodes that can train any unit (workers of a simulation).
        host_of: the node of every unit that lives on one node only (a deployment).
        silence: the nodes that are not waited for.
        errors: why nodes that are connected are asked nothing, by node.
    """

    federation: Federation
    units: int
    everywhere: list[int] = field(default_factory=list)
    host_of: dict[int, int] = field(default_factory=dict)
    silence: Silence = field(default_factory=Silence)
    errors: dict[int, str] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)
    _names: dict[int, str] = field(default_factory=dict)

    def refresh(self, grid: Grid, timeout: float, task: str = "") -> None:
        """Forget the nodes that are gone, ask those that are new which units they host, and ping the silent ones.

        Args:
            timeout: seconds to wait for the answers, and for which a ping is worth delivering. A node that is late is
                asked again before the next round; one that cannot say, when it has been away. A node that may speak
                for nobody is asked nothing.
            task: what they will train, as JSON; a node opens its data to say whose they are.

        Raises:
            DeploymentError: these are real nodes, and the scenario does not say which may speak for which units.
        """
        hosts = Hosts.of(self.federation, grid, self.units)
        names = {node.node_id: node.name for node in grid.get_nodes()}
        connected = set(names)
        self.silence.begin_round(connected)
        gone, new = self._asked - connected, sorted(connected - self._asked - set(self.silence.pings))
        if gone:
            left = ", ".join(map(self.name, sorted(gone)))
            log.warning("nodes %s are gone; their clients count as zero until they are back", left)
            self._forget(gone)
            self.silence.lose(gone)
        self._names |= names
        for node in self.silence.back:
            log.warning("node %s is connected again", self.name(node))

        def query(node: int) -> Message:
            # With a number that nobody can guess in it, so that another node cannot answer in this one's name.
            config = ConfigRecord({"task": task, "nonce": f"{rng.seed_from_system():x}"})
            return Message(RecordDict({"config": config}), node, "query", ttl=timeout)

        queries = [query(node) for node in new if self._is_known(node, hosts)]
        replies = self.silence.answers(grid, query, self.name)
        replies += flower.answers(queries, grid.send_and_receive(queries, timeout=timeout) if queries else ())
        answered = {reply.metadata.src_node_id for reply in replies}
        asked = {message.metadata.dst_node_id for message in queries}
        late = (asked | set(self.silence.pings)) - answered
        self.errors = {node: error for node, error in self.errors.items() if node in self._asked}
        self.errors |= {node: f"node {self.name(node)} did not answer in time" for node in sorted(late)}
        self._asked |= answered
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                self._register(node, reply, hosts)
            except Exception as error:  # whatever a faulty node answers, the others can train
                self.errors[node] = f"node {self.name(node)} did not say which clients it hosts: {in_one_line(error)}"
                log.warning(self.errors[node])
        self.note(sorted(asked), answered)

    def name(self, node: int) -> str:
        """A node as the log calls it: the name under which it is registered, and its id."""
        name = self._names.get(node, "")
        return f"{printable(name)} ({node})" if name else str(node)

    def note(self, asked: Iterable[int], answered: set[int]) -> None:
        """Take in which of the nodes that were asked something answered in time, whatever they answered."""
        self._forget(set(self.silence.note(asked, answered, self.name)))

    def _is_known(self, node: int, hosts: Hosts) -> bool:
        if hosts.permit(self._names[node]):
            return True
        self._asked.add(node)
        log.warning("node %s is not in federation.hosts; it is asked nothing", self.name(node))
        return False

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

    def _register(self, node: int, reply: Message, hosts: Hosts) -> None:
        if reply.has_error():
            raise ValueError(reply.error.reason)
        if "hosts" not in reply.content:
            raise ValueError(unexpected("records", reply.content, ("hosts",)))
        claims, permit = dict(reply.content["hosts"]), hosts.permit(self._names[node])
        clients = claims.get("clients")
        if isinstance(clients, list) and len(clients) > self.units:  # before millions are looked at
            raise ValueError(f"it claims {len(clients)} clients of {self.units}")
        answer = _Answer.model_validate(claims)
        if answer.all and permit != "all":
            raise ValueError("it says all of them, which it may not; expected with federation.hosts: {its name: all}")
        if answer.all:
            self.everywhere.append(node)
            return
        claimed = np.array(answer.clients, dtype=np.int64)
        allowed = members(claimed, ((0, self.units - 1),) if permit == "all" else permit)
        if not allowed.all():
            log.warning(
                "node %s claims units that it may not speak for, refused: %s",
                self.name(node),
                in_words(claimed[~allowed].tolist()),
            )
        disputed: dict[int, list[int]] = {}
        for unit in claimed[allowed].tolist():
            other = self.host_of.setdefault(unit, node)
            if other != node:
                disputed.setdefault(other, []).append(unit)
        for other, units in disputed.items():
            log.warning(
                "nodes %s and %s both claim units %s; the first one is asked",
                self.name(other),
                self.name(node),
                in_words(units),
            )


_ANYWHERE = -1
