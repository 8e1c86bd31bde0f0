"""What the grids of all simulation engines have in common."""

import itertools
import logging
from abc import abstractmethod
from collections.abc import Iterable
from time import monotonic
from typing import Self

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedamp.engines import flower
from fedamp.engines.resources import Demand

LOGGER = "fedamp.engines"
log = logging.getLogger(LOGGER)


class SimulationGrid(Grid):
    """A Flower grid of simulated nodes, as a context manager. Replies come in the order of the messages."""

    simulated = True  # no node is another machine with its own data
    workers: int  # number of nodes; each hosts all clients that it is asked to train
    demand: Demand | None = None  # of the run on a GPU; may be set until the first call of ``get_node_ids``

    def __init__(self) -> None:
        flower.identify()
        self._run = flower.empty_run()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing running."""

    @abstractmethod
    def _dispatch(self, messages: list[Message]) -> None:
        """Send messages that have ids."""

    @abstractmethod
    def _collect(self, message_ids: list[str], deadline: float | None) -> list[Message]:
        """Wait for replies until the deadline (monotonic clock), and forget the messages. Unknown ids are ignored."""

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and return their ids at once."""
        sent = list(messages)
        known = set(self.get_node_ids())
        for message in sent:
            if message.metadata.dst_node_id not in known:
                raise ValueError(f"dst_node_id must be one of {sorted(known)}, got {message.metadata.dst_node_id}")
            flower.set_message_id(message, str(next(self._numbers)))
        self._dispatch(sent)
        return [message.metadata.message_id for message in sent]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies. Nodes later than ``timeout`` seconds are named in the log."""
        sent = list(messages)
        replies = self.collect(self.push_messages(sent), timeout)
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        for data in (message.metadata for message in sent if message.metadata.message_id not in answered):
            words = "node %d did not answer the %s message of group %r within %.1f s"
            log.warning(words, data.dst_node_id, data.message_type, data.group_id, timeout)
        return replies

    def collect(self, message_ids: list[str], timeout: float | None) -> list[Message]:
        """Wait for the replies to messages that were sent, and forget the messages."""
        return self._collect(message_ids, None if timeout is None else monotonic() + timeout)
