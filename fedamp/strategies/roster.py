"""Know the nodes and their units: which node trains which batch of a round.

A deployment's nodes come, fall silent and come back; a simulation's workers can train any unit. The strategy asks the
roster before each round (:mod:`fedamp.strategies.private`). Nothing here looks at updates, and who is silent is decided
by time alone.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedamp.base import devices
from fedamp.base.ids import Ranges, in_words, members, ranges
from fedamp.base.text import printable
from fedamp.engines import flower
from fedamp.engines.wire import NO_SECRET, AnswerStatus, RoundAnswer, RoundOrder, Rows
from fedamp.errors import DeploymentError
from fedamp.federation.running import Federation
from fedamp.strategies.aggregation import in_one_line

log = logging.getLogger("fedamp.server")

PATIENCE = 2  # messages in a row that a node may leave unanswered
_ANYWHERE = -1  # in the place of a node's id


Permit = Ranges | Literal["all"]
"""Units that a node may claim. With ``all`` it may also say that it can train any unit."""


def permits(federation: Federation, grid: Grid, units: int) -> Callable[[str], Permit]:
    """Read which units a node may claim, by its name.

    A node cannot choose its name: Flower's SuperLink checks every request against the public key that the operator
    registered with it.

    Args:
        federation: the section of the scenario.
        grid: the nodes; in a simulation each of them may train any unit.
        units: how many there are.

    Returns:
        A function that gives the permit of a name; an empty one where the operator gives none.

    Raises:
        DeploymentError: ``federation.hosts`` is missing, or names units that do not exist.
    """
    if flower.is_simulated(grid):
        return lambda name: "all"
    asked = federation.hosts
    if asked is None:
        raise DeploymentError(
            "federation.hosts is missing: a deployment must say which node may speak for which units; expected: "
            f"their ids by the names of the registered nodes, such as {{site0: 0-{units - 1}}}, or trusted, to "
            "believe all that a registered node says"
        )
    if asked == "trusted":
        return lambda name: () if name in federation.without else ((0, units - 1),)
    by_name: dict[str, Permit] = {name: "all" if text == "all" else ranges(text) for name, text in asked.items()}
    for name, permit in by_name.items():
        for _, last in () if permit == "all" else permit:
            if last >= units:
                raise DeploymentError(f"federation.hosts.{name}: there is no unit {last}; expected: 0-{units - 1}")
    return lambda name: () if name in federation.without else by_name.get(name, ())


@dataclass
class NodeRoster:
    """The nodes of a federation.

    A node that left two messages in a row unanswered until their deadline is silent: it gets only pings, queries that
    no round waits for. When it answers one, it counts as a new node. Flower disconnects a node after a minute of
    silence; a silent one is pinged when it is connected again. The content of replies does not decide who is silent.

    Attributes:
        federation: the scenario's section; it says which node may claim which units.
        units: how many units there are; their ids are below that.
        everywhere: nodes that can train any unit (workers of a simulation).
        host_of: the node of every unit that lives on one node only (a deployment).
        secrets: by which a node knows that an order is the server's (a deployment).
        errors: why connected nodes are not asked, by node.
        pings: the silent nodes, each with its pending ping, if any.
        given_up: nodes that fell silent or lost their connection since the last :meth:`refresh`.
        back: nodes that answered a ping or are connected again.
    """

    federation: Federation
    units: int
    everywhere: list[int] = field(default_factory=list)
    host_of: dict[int, int] = field(default_factory=dict)
    secrets: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    pings: dict[int, Message | None] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)
    _asked: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)
    _missed: Counter[int] = field(default_factory=Counter)
    _names: dict[int, str] = field(default_factory=dict)
    _since: dict[int, str] = field(default_factory=dict)  # when each node has connected

    def refresh(self, grid: Grid, timeout: float, task: str = "") -> None:
        """Forget the nodes that have left, ask new ones which units they host, and ping the silent ones.

        A late node is asked again before the next round, a node with a bad answer after a reconnection. A node without
        a permit is not asked.

        Args:
            grid: the nodes.
            timeout: seconds to wait for the answers; a ping expires after it.
            task: the :class:`fedamp.client.task.ClientTask` as JSON; a node opens its data to name its clients.

        Raises:
            DeploymentError: the nodes are real, and the scenario does not permit them any units.
        """
        permit = permits(self.federation, grid, self.units)
        found = list(grid.get_nodes())
        connected = {node.node_id for node in found}
        self._names |= {node.node_id: node.name for node in found}
        self._note_connections(connected)
        since = {node.node_id: node.last_activated_at for node in found}
        if again := {node for node in self._asked & connected if since[node] != self._since[node]}:
            log.warning("nodes %s were started again", ", ".join(map(self.name, sorted(again))))
            self.forget(again)  # without this their next order would be lost: they have forgotten this server
        self._since |= since
        for each in found:
            missed = each.node_id in self._asked and self._missed[each.node_id]
            heard = flower.seconds_since_heard(each) if missed else None
            if heard is not None:
                told = self.name(each.node_id), max(0.0, heard), self.federation.round_deadline, devices.busy_words()
                log.warning("node %s was heard %.0f s ago: busy, or round_deadline (%g s) is too short for it%s", *told)

        asked = RoundOrder(task, below=self.units)

        def query(node: int) -> Message:
            return Message(asked.content(), node, "query", ttl=timeout)

        new = sorted(connected - self._asked - set(self.pings))
        for node in [node for node in new if not permit(self._names[node])]:
            self._asked.add(node)
            log.warning(
                "node %s is not in federation.hosts, or it is in federation.without; it is asked nothing",
                self.name(node),
            )
        queries = [query(node) for node in new if node not in self._asked]
        replies = self._ping(grid, query, connected)
        replies += flower.answers(
            queries, grid.send_and_receive(queries, timeout=timeout) if queries else (), self.name
        )
        answered = {reply.metadata.src_node_id for reply in replies}
        queried = {message.metadata.dst_node_id for message in queries}
        late = (queried | set(self.pings)) - answered
        self.errors = {node: error for node, error in self.errors.items() if node in self._asked}
        self.errors |= {node: f"node {self.name(node)} did not answer in time" for node in sorted(late)}
        self._asked |= answered
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                self._register(node, reply, asked, permit(self._names[node]))
            except Exception as error:  # the others can train, whatever a faulty node answers
                self.errors[node] = f"node {self.name(node)} did not say which clients it hosts: {in_one_line(error)}"
                log.warning(self.errors[node])
        self.note(sorted(queried), answered)

    def _note_connections(self, connected: set[int]) -> None:
        """Name the nodes that have lost their connection since, and those that have it again."""
        gone = self._asked - connected
        self.given_up, self.back = sorted(gone), sorted(self._lost & connected)
        self._lost = (self._lost - connected) | gone
        self.pings = {node: ping if node in connected else None for node, ping in self.pings.items()}
        if gone:
            left = ", ".join(map(self.name, sorted(gone)))
            log.warning("nodes %s are disconnected; their clients count as zero until they return", left)
            self.forget(gone)
        for node in self.back:
            log.warning("node %s is connected again", self.name(node))

    def _ping(self, grid: Grid, query: Callable[[int], Message], connected: set[int]) -> list[Message]:
        """Take the answers to pings so far, of nodes that are no longer silent; then ping the others.

        Args:
            query: makes the ping of a node.
            connected: ids of the nodes that are connected now.
        """
        pending = {ping.metadata.message_id: node for node, ping in self.pings.items() if ping is not None}
        came = []
        for reply in grid.pull_messages(list(pending)) if pending else ():
            node = pending[reply.metadata.reply_to_message_id]
            if reply.metadata.src_node_id == node:
                log.warning("node %s answers again", self.name(node))
                self.back.append(node)
                del self.pings[node]
                came.append(reply)
            else:  # Flower says that the ping was lost, or is too old
                self.pings[node] = None
        for node in [node for node, ping in self.pings.items() if ping is None and node in connected]:
            self.pings[node] = ping = query(node)
            grid.push_messages([ping])
        return came

    def note(self, asked: Iterable[int], answered: set[int]) -> None:
        """Note which of the asked nodes answered in time, whatever the answer; a node that was late twice is silent.

        Args:
            asked: ids of the nodes.
            answered: ids of those whose answer came in time.
        """
        for node in asked:
            self._missed[node] = 0 if node in answered else self._missed[node] + 1
            if node not in answered:
                log.warning("node %s did not answer in time", self.name(node))
            if self._missed[node] >= PATIENCE:
                log.warning("node %s missed %d messages in a row, is no longer waited for", self.name(node), PATIENCE)
                self.given_up.append(node)
                self.pings[node] = None
                del self._missed[node]
        self.forget({node for node in asked if node in self.pings})

    def name(self, node: int) -> str:
        """Write a node's name for the log: its registered name and its id."""
        name = self._names.get(node, "")
        return f"{printable(name)} ({node})" if name else str(node)

    def registered(self, node: int) -> str:
        """Return the name under which a node is registered; empty for a node that has none."""
        return self._names.get(node, "")

    def forget(self, nodes: set[int]) -> None:
        """Take nodes as new ones: they are queried before the next round, and host nothing until then."""
        self._asked -= nodes
        self.everywhere = [node for node in self.everywhere if node not in nodes]
        self.host_of = {unit: node for unit, node in self.host_of.items() if node not in nodes}

    def assign(self, batches: Iterable[Rows]) -> dict[int, Rows]:
        """Assign units to their nodes. Units without a host are dropped: they count as zero.

        Args:
            batches: rows of units that may train together; where any node will do, one trains all of a batch.

        Returns:
            The rows of each node, nodes in order of id.
        """
        assigned: dict[int, list[Rows]] = {}
        for batch in batches:
            if not self.host_of:
                assigned.setdefault(_ANYWHERE, []).append(batch)
                continue
            # Flower's node ids fill 64 bits without a sign; in an array with -1 they would become rounded floats.
            hosts = [self.host_of.get(unit, _ANYWHERE) for unit in batch["id"].tolist()]
            for host in sorted(set(hosts)):
                assigned.setdefault(host, []).append(batch[[other == host for other in hosts]])
        free = assigned.pop(_ANYWHERE, [])
        load = dict.fromkeys(self.everywhere, 0)
        for batch in sorted(free, key=lambda batch: -len(batch)) if load else []:
            node = min(load, key=lambda node: (load[node], node))
            load[node] += len(batch)
            assigned.setdefault(node, []).append(batch)
        return {node: np.concatenate(own) for node, own in sorted(assigned.items())}

    def _register(self, node: int, reply: Message, asked: RoundOrder, permit: Permit) -> None:
        """Register the units that a node claims, as far as it may.

        Args:
            reply: to the query ``asked``.
            permit: the units that it may claim.

        Raises:
            ValueError: it has failed, or claims all of them and may not.
        """
        if reply.has_error():
            raise ValueError(reply.error.reason)
        answer = RoundAnswer.of(reply.content, asked)
        self.secrets[node] = answer.text or NO_SECRET
        if answer.status == AnswerStatus.ANY_UNIT:
            if permit != "all":
                raise ValueError("it says all of them, and may not; expected with federation.hosts: {its name: all}")
            self.everywhere.append(node)
            return
        claimed = np.array(answer.reported, dtype=np.int64)
        allowed = members(claimed, ((0, self.units - 1),) if permit == "all" else permit)
        if not allowed.all():
            refused = in_words(claimed[~allowed].tolist())
            log.warning("node %s claims units that it may not speak for, refused: %s", self.name(node), refused)
        disputed: dict[int, list[int]] = {}
        for unit in claimed[allowed].tolist():
            other = self.host_of.setdefault(unit, node)
            if other != node:
                disputed.setdefault(other, []).append(unit)
        for other, units in disputed.items():
            names = (self.name(other), self.name(node), in_words(units))
            log.warning("nodes %s and %s both claim units %s; the first one is asked", *names)
