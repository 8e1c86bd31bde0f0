"""Persistent Ray actors and the messages that they are sent, in the process that drives Ray."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import ray
from flwr.app import ArrayRecord, Message
from ray.exceptions import RayActorError, RayError

from fedamp import flower, scenario
from fedamp.errors import FedampError, FederationError
from fedamp.simulation.grid import log
from fedamp.simulation.node import FIRST_NODE, Node
from fedamp.simulation.resources import Demand, WorkerResources, worker_resources

if TYPE_CHECKING:
    from fedamp.simulation.ray_driver import Session

STARTUP_DEADLINE = 180.0  # seconds, until all workers have imported the client app
CHECK_INTERVAL = 0.5  # seconds of waiting between two looks at whether Ray is alive
SPARE_GPU = 0.05  # share of every GPU that is not reserved at first: room for workers whose machine was lost
RESENDS = 2  # how often a message is sent again because its worker died


class RayWorker:
    """What lives in a Ray actor. The node is made on first use: what goes wrong then is an answer, not a death."""

    def __init__(self, path: list[str], client_app: str, partition: int, partitions: int, device: str) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]  # a runtime_env is ten times slower
        self._arguments = (client_app, partition, partitions, device)
        self._node: Node | None = None

    def ready(self) -> tuple[str, int]:
        """Import the client app, and return the name of the machine and the process id."""
        self._ready_node()
        return socket.gethostname(), os.getpid()

    def handle(self, rest: Message, names: list[str], *arrays: ArrayRecord) -> tuple[Message, str]:
        """Reply, and the traceback if the client app failed."""
        rest.content.update(zip(names, arrays, strict=True))
        return self._ready_node().handle(rest)

    def _ready_node(self) -> Node:
        if self._node is None:
            self._node = Node(*self._arguments)
        return self._node


@dataclass
class Sent:
    """A message under way: with what, to which actor, the future answer, and how often it was sent."""

    message: Message
    arguments: tuple[Any, ...]
    actor: Any = None
    answer: Any = None
    times: int = 0


class Workers:
    """The actors of a simulation, ready to be used.

    The arrays of a round are put once into shared memory (messages of a round hold the same record), and everything
    else is small. A worker that dies is replaced and its message sent again; one that misses a deadline is replaced,
    so as not to delay the next round.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        engine: workers, device and address.
        session: the connection with Ray.
        demand: asked where a GPU is to be shared.

    Raises:
        InputError: the device is not there.
        FederationError: workers did not start, or could not import the client app.
    """

    def __init__(
        self, client_app: str, engine: scenario.Engine, session: "Session", demand: Callable[[], Demand | None]
    ) -> None:
        self._client_app, self._session = client_app, session
        self._sent: dict[str, Sent] = {}
        found = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cores, gpus = found.get("CPU", 1), found.get("GPU", 0)
        shared = gpus and engine.workers == "auto" and engine.device != "cpu"
        self.resources = worker_resources(engine, cores, gpus, demand() if shared else None)
        self._actors = start_actors(client_app, self.resources)
        answers = [actor.ready.remote() for actor in self._actors]
        if not self._wait(answers, len(answers), monotonic() + STARTUP_DEADLINE):
            raise FederationError(
                f"{len(answers)} Ray workers were not ready within {STARTUP_DEADLINE:.0f} s; Ray has {dict(found)}"
            )
        try:
            ray.get(answers)
        except RayError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, FedampError):
                raise cause from None
            raise FederationError(f"a Ray worker could not load {client_app}: {cause}") from error

    def process(self, partition: int) -> tuple[str, int]:
        """The machine and the process id of a worker."""
        where: tuple[str, int] = ray.get(self._actors[partition].ready.remote())
        return where

    def push(self, messages: list[Message]) -> None:
        """Send messages, which have ids."""
        shared: dict[int, Any] = {}
        for message in messages:
            rest, arrays = flower.message_without_arrays(message)
            for record in arrays.values():
                if id(record) not in shared:
                    inline = flower.size(record) < self._session.inline_bytes / len(messages)
                    shared[id(record)] = record if inline else ray.put(record)
            arguments = (rest, list(arrays), *(shared[id(record)] for record in arrays.values()))
            self._sent[message.metadata.message_id] = sent = Sent(rest, arguments)
            self._send(sent)

    def pull(self, message_ids: list[str]) -> list[Message]:
        """The replies that are there by now."""
        waiting = {self._sent[id_].answer: id_ for id_ in message_ids if id_ in self._sent}
        replies = [self._reply(waiting[answer]) for answer in self._wait(list(waiting), len(waiting), monotonic())]
        return [reply for reply in replies if reply is not None]

    def collect(self, message_ids: list[str], patience: float | None) -> list[Message]:
        """The replies that come within so many seconds, in the order of the messages, which are forgotten."""
        deadline = None if patience is None else monotonic() + patience
        waiting = {self._sent[id_].answer: id_ for id_ in message_ids if id_ in self._sent}
        replies: dict[str, Message] = {}
        while waiting and (ready := self._wait(list(waiting), 1, deadline)):
            id_ = waiting.pop(ready[0])
            reply = self._reply(id_)
            if reply is None:
                waiting[self._sent[id_].answer] = id_
            else:
                replies[id_] = reply
        for id_ in waiting.values():
            sent = self._sent.pop(id_)
            self._replace(sent)
            if sent.times > 1:  # a crash must not look like a slow node
                reason = "the worker died, and the one in its place was late; its clients count as zero"
                replies[id_] = flower.error_reply(sent.message, flower.APP_CRASHED, reason)
        return [replies[id_] for id_ in message_ids if id_ in replies]

    def _wait(self, answers: list[Any], number: int, deadline: float | None) -> list[Any]:
        """So many of the answers as soon as they are there, or fewer at the deadline."""
        while True:
            self._session.check()
            left = CHECK_INTERVAL if deadline is None else max(0.0, deadline - monotonic())
            ready: list[Any] = (
                ray.wait(answers, num_returns=number, timeout=min(left, CHECK_INTERVAL))[0] if answers else []
            )
            if len(ready) >= number or (deadline is not None and monotonic() >= deadline):
                return ready

    def _reply(self, id_: str) -> Message | None:
        """The reply to a message whose answer is there; None if the message had to be sent again."""
        reply: Message
        sent = self._sent[id_]
        node = sent.message.metadata.dst_node_id
        try:
            reply, trouble = ray.get(sent.answer)
        except RayActorError as error:
            self._replace(sent)
            if sent.times <= RESENDS:
                log.warning("node %d: its worker died: %s", node, error)
                self._send(sent)
                return None
            reason = f"the worker died {sent.times} times; its clients count as zero"
            reply, trouble = flower.error_reply(sent.message, flower.APP_CRASHED, reason), reason
        except RayError as error:
            reason = f"{type(error).__name__}: {error}"
            reply, trouble = flower.error_reply(sent.message, flower.NODE_LOST, reason), reason
        if trouble:
            log.warning("node %d: no result\n%s", node, trouble)
        del self._sent[id_]
        return reply

    def _send(self, sent: Sent) -> None:
        sent.actor = self._actors[_partition(sent)]
        sent.answer = sent.actor.handle.remote(*sent.arguments)
        sent.times += 1

    def _replace(self, sent: Sent) -> None:
        """Put a new actor in the place of the one that died or is stuck, unless that has happened already.

        It reserves nothing to speak of: where a machine was lost, all that is left may be reserved.
        """
        partition = _partition(sent)
        if self._actors[partition] is sent.actor:
            ray.kill(sent.actor)
            gpus = min(self.resources.gpus, SPARE_GPU / 10)
            self._actors[partition] = _start_actor(self._client_app, self.resources, partition, cpus=0, gpus=gpus)


def start_actors(client_app: str, part: WorkerResources) -> list[Any]:
    """An actor for each worker; those that share a GPU leave some of it free for others that must move there."""
    gpus = part.gpus * (1 - SPARE_GPU)
    return [_start_actor(client_app, part, partition, part.cpus, gpus) for partition in range(part.workers)]


def _start_actor(client_app: str, part: WorkerResources, partition: int, cpus: float, gpus: float) -> Any:
    actor = ray.remote(RayWorker).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")
    return actor.remote(sys.path, client_app, partition, part.workers, part.device)


def _partition(sent: Sent) -> int:
    return sent.message.metadata.dst_node_id - FIRST_NODE
