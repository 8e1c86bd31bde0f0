"""Nodes of a federation: the units that each may claim, those that stay silent, and their replies as text."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Self

from flwr.app import Message
from flwr.serverapp import Grid
from pydantic import ValidationError

from fedamp.base.ids import Ranges, ranges
from fedamp.base.text import printable
from fedamp.engines import flower
from fedamp.errors import DeploymentError
from fedamp.federation.running import Federation

log = logging.getLogger("fedamp.server")

PATIENCE = 2  # messages in a row that a node may leave unanswered
LONGEST, NAMES_SHOWN = 300, 8  # letters of a node's text, and names in a list of them

Permit = Ranges | Literal["all"]
"""The units that a node may claim. With ``all`` it may also say that it can train any unit."""


@dataclass(frozen=True)
class Hosts:
    """The units that each node may claim: given by the operator in a deployment, all in a simulation.

    Attributes:
        by_name: by the name under which the operator registered a node. The node cannot choose it: Flower's SuperLink
            checks every request against the public key that was registered with the name.
        others: of all other nodes.
    """

    by_name: dict[str, Permit]
    others: Permit = ()

    @classmethod
    def of(cls, federation: Federation, grid: Grid, units: int) -> Self:
        """What a scenario permits the nodes of a grid.

        Raises:
            DeploymentError: the nodes are real and ``federation.hosts`` is missing, or names units that do not exist.
        """
        if flower.is_simulated(grid):
            return cls({}, others="all")
        asked = federation.hosts
        if asked is None:
            raise DeploymentError(
                "federation.hosts is missing: a deployment must say which node may speak for which units; expected: "
                f"their ids by the names of the registered nodes, such as {{site0: 0-{units - 1}}}, or trusted, to "
                "believe whatever a registered node says"
            )
        if asked == "trusted":
            return cls({}, others=((0, units - 1),))
        by_name: dict[str, Permit] = {name: "all" if text == "all" else ranges(text) for name, text in asked.items()}
        for name, permit in by_name.items():
            for _, last in () if permit == "all" else permit:
                if last >= units:
                    raise DeploymentError(f"federation.hosts.{name}: there is no unit {last}; expected: 0-{units - 1}")
        return cls(by_name)

    def permit(self, name: str) -> Permit:
        """The units that the node of this name may claim; empty: none."""
        return self.by_name.get(name, self.others)


@dataclass
class Silence:
    """The nodes that are no longer waited for.

    A node that left two messages in a row unanswered until their deadline is silent: it gets only pings, queries that
    no round waits for. When it answers one, it counts as a new node. Flower disconnects a node after a minute of
    silence; a silent one is pinged when it is connected again. The content of replies decides nothing here.

    Attributes:
        pings: the silent nodes, each with its pending ping, if any.
        given_up: nodes that fell silent, or lost their connection, since :meth:`begin_round`.
        back: nodes that answered a ping, or are connected again.
    """

    pings: dict[int, Message | None] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)
    _missed: Counter[int] = field(default_factory=Counter)
    _connected: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)

    def begin_round(self, connected: set[int]) -> None:
        """Start new lists, and forget the pings to nodes that are gone."""
        self.given_up, self.back, self._connected = [], sorted(self._lost & connected), connected
        self._lost -= connected
        self.pings = {node: ping if node in connected else None for node, ping in self.pings.items()}

    def lose(self, gone: Iterable[int]) -> None:
        """Note nodes that are no longer connected."""
        self.given_up += sorted(gone)
        self._lost |= set(gone)

    def note(self, asked: Iterable[int], answered: set[int], name: Callable[[int], str] = str) -> list[int]:
        """Count missing answers; returns the nodes that are silent now. The log uses ``name``."""
        for node in asked:
            self._missed[node] = 0 if node in answered else self._missed[node] + 1
            if node not in answered:
                log.warning("node %s did not answer in time", name(node))
            if self._missed[node] >= PATIENCE:
                log.warning("node %s missed %d messages in a row, is no longer waited for", name(node), PATIENCE)
                self.given_up.append(node)
                self.pings[node] = None
                del self._missed[node]
        return [node for node in asked if node in self.pings]

    def answers(self, grid: Grid, query: Callable[[int], Message], name: Callable[[int], str] = str) -> list[Message]:
        """The answers to pings so far, of nodes that are no longer silent; then ping the others."""
        under_way = {ping.metadata.message_id: node for node, ping in self.pings.items() if ping is not None}
        came = []
        for reply in grid.pull_messages(list(under_way)) if under_way else ():
            node = under_way[reply.metadata.reply_to_message_id]
            if reply.metadata.src_node_id == node:
                log.warning("node %s answers again", name(node))
                self.back.append(node)
                del self.pings[node]
                came.append(reply)
            else:  # Flower says that the ping was lost, or is too old
                self.pings[node] = None
        for node in [node for node, ping in self.pings.items() if ping is None and node in self._connected]:
            self.pings[node] = ping = query(node)
            grid.push_messages([ping])
        return came


def in_one_line(said: object) -> str:
    """An error, or a node's text, as one printable line.

    Of a traceback the last error; Flower's ``<class 'ValueError'>:<'words'>`` becomes ``ValueError: words``.
    """
    if isinstance(said, ValidationError):
        first = said.errors()[0]
        said = f"{first['loc'][0]}: {first['msg']}, got {first['input']!r:.80}"
    text = str(said)
    errors = list(re.finditer(r"^(?:\w+\.)*\w*(?:Error|Exception): ", text, re.MULTILINE))
    if errors:  # Flower's own message is on the next line
        text = text[errors[-1].start() :].rstrip().removesuffix("'>")
    text = " ".join(text.split())
    text = re.sub(r"<class '(?:[^']*\.)?(\w+)'>:<'(.*)'>", r"\1: \2", text)
    return printable(text)[:LONGEST] or type(said).__name__


def unexpected(what: str, found: Iterable[str], expected: Iterable[str]) -> str:
    """The error for a reply with other names than expected, most likely from another client app."""
    answered, wanted = map(_listed, (found, expected))
    return f"it answered with {what} {answered}; expected {wanted}, as fedamp.client.app answers"


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more if found else "(none)"
