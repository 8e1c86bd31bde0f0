"""Nodes that do not answer: who is no longer waited for, and how such a node comes back."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

log = logging.getLogger("fedamp.server")

PATIENCE = 2  # messages in a row that a node may leave unanswered


@dataclass
class Silence:
    """A round waits for a node until its deadline. So one that left two messages in a row unanswered is asked nothing
    more but a ping, a query for which nobody waits; when it answers that, it is as a new node. Flower takes a node from
    which it hears nothing for a minute for gone: such a silent one is pinged when it is connected again.

    Who is silent follows from who answers in time, and from nothing that is in an answer.

    Attributes:
        pings: the silent nodes, each with the ping that is under way, if there is one.
        given_up: nodes that fell silent, or are no longer connected, since :meth:`begin_round`.
        back: nodes that answered a ping, or are connected again.
    """

    pings: dict[int, Message | None] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)
    _missed: Counter[int] = field(default_factory=Counter)
    _connected: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)

    def begin_round(self, connected: set[int]) -> None:
        """Forget what was, and the pings to nodes that are gone."""
        self.given_up, self.back, self._connected = [], sorted(self._lost & connected), connected
        self._lost -= connected
        self.pings = {node: ping if node in connected else None for node, ping in self.pings.items()}

    def lose(self, gone: Iterable[int]) -> None:
        """Take in that nodes are no longer connected."""
        self.given_up += sorted(gone)
        self._lost |= set(gone)

    def note(self, asked: Iterable[int], answered: set[int], name: Callable[[int], str] = str) -> list[int]:
        """Count who did not answer, and return the nodes that are given up now; the log calls them by ``name``."""
        for node in asked:
            self._missed[node] = 0 if node in answered else self._missed[node] + 1
            if node not in answered:
                log.warning("node %s did not answer in time", name(node))
            if self._missed[node] >= PATIENCE:
                log.warning("node %s missed %d messages in a row, is not waited for any more", name(node), PATIENCE)
                self.given_up.append(node)
                self.pings[node] = None
                del self._missed[node]
        return [node for node in asked if node in self.pings]

    def answers(self, grid: Grid, query: Callable[[int], Message], name: Callable[[int], str] = str) -> list[Message]:
        """What silent nodes have answered to their pings by now, who are silent no more; the others are sent one."""
        under_way = {ping.metadata.message_id: node for node, ping in self.pings.items() if ping is not None}
        came = []
        for reply in grid.pull_messages(list(under_way)) if under_way else ():
            node = under_way[reply.metadata.reply_to_message_id]
            if reply.metadata.src_node_id == node:
                log.warning("node %s answers again", name(node))
                self.back.append(node)
                del self.pings[node]
                came.append(reply)
            else:  # Flower's word that the ping was lost, or is too old to be delivered
                self.pings[node] = None
        for node in [node for node, ping in self.pings.items() if ping is None and node in self._connected]:
            self.pings[node] = ping = query(node)
            grid.push_messages([ping])
        return came
