"""The Ray engine: one persistent actor a node, on this machine or on a cluster."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import Any, Self

import ray
from flwr.app import Message
from ray.exceptions import RayActorError, RayError

from fedamp import flower, scenario
from fedamp.simulation.grid import SimulationGrid, log
from fedamp.simulation.node import FIRST_NODE, Node
from fedamp.simulation.ray_workers import Pool
from fedamp.simulation.serial import answer_here

PATIENCE = 2.0  # seconds of training after which Ray is started: runs that are over before do better without
RESENDS = 2  # how often a message is sent again because its worker died


@dataclass
class Sent:
    """A message under way: with what, to which actor, the future answer (None: not sent yet), and how often."""

    message: Message
    arguments: tuple[Any, ...] = ()
    actor: Any = None
    answer: Any = None
    times: int = 0


class RayGrid(SimulationGrid):
    """A Flower grid over Ray actors, to be used as a context manager.

    Ray takes seconds to start. On the cores of this machine it is started in the background once a run has taken a
    while, and until the workers are there this process answers one message after the other: results depend on what is
    in a message, not on who trains it. Elsewhere it starts at once, and the first use of the nodes waits for it.

    The arrays of a round are put once into shared memory (messages of a round hold the same record), and everything
    else is small. A worker that dies is replaced and its message sent again; one that misses a deadline is replaced,
    so as not to delay the next round.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        engine: workers, device and address. A Ray session that this process has already is used and left running.
    """

    def __init__(self, client_app: str, engine: scenario.Engine) -> None:
        super().__init__()
        self._pool = Pool(client_app, engine)
        self._client_app = client_app
        self._sent: dict[str, Sent] = {}

    def __enter__(self) -> Self:
        if not self._pool.can_stand_in:
            self._pool.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()

    @property
    def workers(self) -> int:  # type: ignore[override]
        return self._pool.resources.workers

    @property
    def devices(self) -> list[str]:  # type: ignore[override]
        return self.workers * [self._pool.resources.device]

    @property
    def startup_seconds(self) -> float:  # type: ignore[override]
        return 0.0 if self._pool.can_stand_in else self._pool.startup_seconds

    @cached_property
    def _stand_in(self) -> Node | None:
        """What answers in this process as long as there are no workers; None where it could not do their work."""
        if not self._pool.can_stand_in:
            return None
        try:
            return Node(self._client_app, partition=0, partitions=self.workers, device="cpu")
        except Exception:  # the workers say better what is wrong with the app
            return None

    def describe(self) -> str:
        ready = f"ready after {self._pool.startup_seconds:.1f} s" if self._pool.is_ready else "which are starting"
        return f"ray engine, {self.workers} worker(s) on {self.devices[0]}, {ready}"

    def wait(self) -> None:
        self._pool.wait()

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + partition for partition in range(self.workers)]

    def prepare_kill(self, worker: int) -> Callable[[], None]:
        return self._pool.prepare_kill(worker)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there by now; waits for the workers to be ready."""
        ids = [id_ for id_ in message_ids if id_ in self._sent]
        self._send_new(ids)
        answers = {id_: self._sent[id_].answer for id_ in ids}
        ready = ray.wait(list(answers.values()), num_returns=len(ids), timeout=0)[0] if ids else []
        replies = [self._reply(id_) for id_, answer in answers.items() if answer in ready]
        return [reply for reply in replies if reply is not None]

    def _dispatch(self, messages: list[Message]) -> None:
        self._sent |= {message.metadata.message_id: Sent(message) for message in messages}
        if self._stand_in is None or self._pool.is_ready:
            self._send_new([message.metadata.message_id for message in messages])
        else:
            self._pool.start(PATIENCE)

    def _send_new(self, message_ids: list[str]) -> None:
        """Hand the messages that were not sent yet to the workers, as soon as these are ready."""
        new = [self._sent[id_] for id_ in message_ids if self._sent[id_].answer is None]
        if new:
            self._pool.wait()
        shared: dict[int, Any] = {}
        for sent in new:
            rest, arrays = flower.message_without_arrays(sent.message)
            for record in arrays.values():
                if id(record) not in shared:
                    inline = flower.size(record) < self._pool.inline_bytes / len(new)
                    shared[id(record)] = record if inline else ray.put(record)
            sent.arguments = (rest, list(arrays), *(shared[id(record)] for record in arrays.values()))
            self._send(sent)

    def _send(self, sent: Sent) -> None:
        sent.actor = self._pool.actors[_partition(sent.message)]
        sent.answer = sent.actor.handle.remote(*sent.arguments)
        sent.times += 1

    def _answer_here(self, message_ids: list[str], deadline: float | None) -> dict[str, Message]:
        """Replies to messages, one after the other, for as long as there are no workers."""
        replies: dict[str, Message] = {}
        for id_ in message_ids:
            if self._stand_in is None or self._pool.is_ready:
                break
            message = self._sent.pop(id_).message
            reply = None
            if deadline is None or monotonic() < deadline:
                reply = answer_here(self._stand_in, message, deadline)
            if reply is not None:
                replies[id_] = reply
        return replies

    def _collect(self, message_ids: list[str], deadline: float | None) -> list[Message]:
        replies = self._answer_here([id_ for id_ in message_ids if id_ in self._sent], deadline)
        left = [id_ for id_ in message_ids if id_ in self._sent]
        self._send_new(left)
        waiting = {self._sent[id_].answer: id_ for id_ in left}
        while waiting:
            patience = None if deadline is None else max(0.0, deadline - monotonic())
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=patience)
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
        reply: Message
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
