"""The Ray engine: one persistent actor a node, on this machine or on a cluster."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

import ray
from flwr.app import Message
from ray.exceptions import RayActorError, RayError

from fedamp import flower, scenario
from fedamp.simulation.grid import SimulationGrid, log
from fedamp.simulation.node import FIRST_NODE
from fedamp.simulation.ray_workers import Pool

RESENDS = 2  # how often a message is sent again because its worker died


@dataclass
class Sent:
    """A message under way: to which actor, with what, the future answer, and how often it was sent."""

    message: Message
    arguments: tuple[Any, ...]
    actor: Any = None
    answer: Any = None
    times: int = 0


class RayGrid(SimulationGrid):
    """A Flower grid over Ray actors, to be used as a context manager.

    Ray starts in the background; the first use of the nodes waits for it. The arrays of a round are put once into
    shared memory (messages of a round hold the same record), and everything else is small. A worker that dies is
    replaced and its message sent again; one that misses a deadline is replaced, so as not to delay the next round.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        engine: workers, device and address. A Ray session that this process has already is used and left running.
    """

    def __init__(self, client_app: str, engine: scenario.Engine) -> None:
        super().__init__()
        self._pool = Pool(client_app, engine)
        self._sent: dict[str, Sent] = {}

    def __enter__(self) -> Self:
        self._pool.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()

    @property
    def workers(self) -> int:  # type: ignore[override]
        return len(self._pool.actors)

    @property
    def devices(self) -> list[str]:  # type: ignore[override]
        return self.workers * [self._pool.layout.device]

    @property
    def startup_seconds(self) -> float:  # type: ignore[override]
        return self._pool.startup_seconds

    def describe(self) -> str:
        return f"ray engine, {self.workers} worker(s) on {self.devices[0]}, ready after {self.startup_seconds:.1f} s"

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + partition for partition in range(self.workers)]

    def killer(self, worker: int) -> Callable[[], None]:
        return self._pool.killer(worker)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there by now."""
        answers = {id_: self._sent[id_].answer for id_ in message_ids if id_ in self._sent}
        if not answers:
            return []
        ready, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=0)
        replies = [self._reply(id_) for id_, answer in answers.items() if answer in ready]
        return [reply for reply in replies if reply is not None]

    def _dispatch(self, messages: list[Message]) -> None:
        shared: dict[int, Any] = {}
        inline = self._pool.inline_bytes / max(1, len(messages))
        for message in messages:
            rest, arrays = flower.message_without_arrays(message)
            for record in arrays.values():
                if id(record) not in shared:
                    shared[id(record)] = record if flower.size(record) < inline else ray.put(record)
            arguments = (rest, list(arrays), *(shared[id(record)] for record in arrays.values()))
            self._sent[message.metadata.message_id] = Sent(message, arguments)
            self._send(self._sent[message.metadata.message_id])

    def _send(self, sent: Sent) -> None:
        sent.actor = self._pool.actors[_partition(sent.message)]
        sent.answer = sent.actor.handle.remote(*sent.arguments)
        sent.times += 1

    def _collect(self, message_ids: list[str], deadline: float | None) -> list[Message]:
        waiting = {self._sent[id_].answer: id_ for id_ in message_ids if id_ in self._sent}
        replies: dict[str, Message] = {}
        while waiting:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
            if not ready:
                break
            id_ = waiting.pop(ready[0])
            reply = self._reply(id_)
            if reply is None:
                waiting[self._sent[id_].answer] = id_
            else:
                replies[id_] = reply
        for id_ in waiting.values():
            late = self._sent.pop(id_)
            self._pool.replace(_partition(late.message), late.actor)
        return [replies[id_] for id_ in message_ids if id_ in replies]

    def _reply(self, id_: str) -> Message | None:
        """The reply to a message whose answer is there; None if the message had to be sent again."""
        sent = self._sent[id_]
        node = sent.message.metadata.dst_node_id
        try:
            reply, trouble = ray.get(sent.answer)
        except RayActorError as error:
            log.warning("node %d: its worker died: %s", node, error)
            self._pool.replace(_partition(sent.message), sent.actor)
            if sent.times <= RESENDS:
                self._send(sent)
                return None
            reason = f"the worker died {sent.times} times"
            reply, trouble = flower.error_reply(sent.message, flower.APP_CRASHED, reason), ""
        except RayError as error:
            reason = f"{type(error).__name__}: {error}"
            reply, trouble = flower.error_reply(sent.message, flower.NODE_LOST, reason), reason
        if trouble:
            log.warning("node %d: no result\n%s", node, trouble)
        del self._sent[id_]
        return reply


def _partition(message: Message) -> int:
    return message.metadata.dst_node_id - FIRST_NODE
