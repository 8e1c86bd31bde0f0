"""What the grids of all simulation engines have in common."""

import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
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
    """A Flower grid whose nodes are simulated here, as a context manager. Replies come in the order of the messages.

    Attributes:
        workers: number of nodes; each hosts all clients that it is asked to train.
        startup_seconds: time until the nodes were ready; 0 before that.
        demand: what the run asks of a GPU; may be said until the nodes are first waited for.
        simulated: that its nodes are no machines of others.
    """

    simulated = True
    workers: int
    startup_seconds: float
    demand: Demand | None = None

    def __init__(self) -> None:
        flower.identify()
        self._run = flower.empty_run()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing running."""

    def wait(self) -> None:
        """Return when all nodes are ready; there is no need to, but to see how fast they are."""
        return

    def prepare_kill(self, worker: int) -> Callable[[], None]:
        """What kills a worker's process as ``kill -9`` does; nothing where workers are no processes of their own.

        Args:
            worker: its number, from 0.
        """
        return lambda: None

    @abstractmethod
    def _dispatch(self, messages: list[Message]) -> None:
        """Send messages, which have ids."""

    @abstractmethod
    def _collect(self, message_ids: list[str], deadline: float | None) -> list[Message]:
        """Wait for the replies to messages until the deadline (monotonic clock) and forget the messages.

        Messages that were not sent, or collected before, are passed over.
        """

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
        """Send messages; returns at once, with their ids."""
        sent = list(messages)
        known = set(self.get_node_ids())
        for message in sent:
            if message.metadata.dst_node_id not in known:
                raise ValueError(f"dst_node_id must be one of {sorted(known)}, got {message.metadata.dst_node_id}")
            flower.set_message_id(message, str(next(self._numbers)))
        self._dispatch(sent)
        return [message.metadata.message_id for message in sent]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
    ) -> list[Message]:
        """Send messages and wait for the replies. Nodes that are late are absent, and named in the log.

        Args:
            messages: one or several for every node.
            timeout: seconds until a node is late.
        """
        deadline = None if timeout is None else monotonic() + timeout
        sent = list(messages)
        message_ids = list(self.push_messages(sent))
        replies = self._collect(message_ids, deadline)
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        for message in sent:
            if message.metadata.message_id not in answered:
                log.warning(
                    "node %d did not answer the %s message of group %r within %.1f s",
                    message.metadata.dst_node_id,
                    message.metadata.message_type,
                    message.metadata.group_id,
                    timeout,
                )
        return replies
