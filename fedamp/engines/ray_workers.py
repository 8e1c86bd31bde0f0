"""Persistent Ray actors and the messages that they are sent, in the process that drives Ray."""

import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import ray
from flwr.app import ArrayRecord, Message
from ray.exceptions import RayActorError, RayError

from fedamp.engines import flower
from fedamp.engines.grid import log
from fedamp.engines.node import FIRST_NODE, Node
from fedamp.engines.ray import INLINE_BYTES
from fedamp.engines.resources import Demand, WorkerResources, worker_resources
from fedamp.errors import FedampError, FederationError
from fedamp.federation.running import Engine

if TYPE_CHECKING:
    from fedamp.engines.ray_driver import Session

STARTUP_DEADLINE = 180.0  # seconds, until all workers have imported the client app
CHECK_INTERVAL = 0.5  # seconds between two looks at whether Ray is alive
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

    def handle(self, content: bytes, names: list[str], *arrays: ArrayRecord) -> tuple[bytes | Message, str]:
        """Reply, as bytes where it is small, and the traceback if the client app failed."""
        message: Message = pickle.loads(content)
        message.content.update(zip(names, arrays, strict=True))
        reply, trouble = self._ready_node().handle(message)
        _, found = flower.message_without_arrays(reply) if reply.has_content() else (reply, {})
        small = sum(map(flower.size, found.values())) < INLINE_BYTES
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL) if small else reply, trouble

    def _ready_node(self) -> Node:
        if self._node is None:
            self._node = Node(*self._arguments)
        return self._node


Answer = bytes | Message | tuple[int, str]
"""A reply, pickled where it is small; or the code and the reason of an error."""


@dataclass
class Sent:
    """A message under way: to which worker, with what, to which actor, the future answer, and how often it was sent."""

    partition: int
    arguments: tuple[Any, ...]
    actor: Any = None
    answer: Any = None
    times: int = 0


class Workers:
    """The actors of a simulation, ready to be used.

    Large arrays of a round are put once into shared memory (messages of a round hold the same record), and everything
    else is small. Messages and small replies pass through as bytes. A worker that dies is replaced and its message sent
    again; one that misses a deadline is replaced, so as not to delay the next round.

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
        self, client_app: str, engine: Engine, session: "Session", demand: Callable[[], Demand | None]
    ) -> None:
        self._client_app, self._session = client_app, session
        self._sent: dict[str, Sent] = {}
        self._next_check = 0.0
        found = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cores, gpus = found.get("CPU", 1), found.get("GPU", 0)
        shared = gpus and engine.workers == "auto" and engine.device != "cpu"
        self.resources = worker_resources(engine, cores, gpus, demand() if shared else None)
        self._actors = start_actors(client_app, self.resources)
        answers, deadline = [actor.ready.remote() for actor in self._actors], monotonic() + STARTUP_DEADLINE
        while len(self._ready(answers, deadline)) < len(answers):
            if monotonic() >= deadline:
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

    def push(
        self, parcels: Iterable[tuple[str, int, bytes, dict[str, int]]], shared: Mapping[int, ArrayRecord]
    ) -> None:
        """Send messages: the id of each, its worker, what is in it, and which of the shared arrays have which name."""
        places = {number: ray.put(record) for number, record in shared.items()}
        for id_, partition, content, arrays in parcels:
            arguments = (content, list(arrays), *(places[number] for number in arrays.values()))
            self._sent[id_] = sent = Sent(partition, arguments)
            self._send(sent)

    def pull(self, message_ids: list[str]) -> dict[str, Answer]:
        """The answers that are there by now, by message."""
        waiting = {self._sent[id_].answer: id_ for id_ in message_ids if id_ in self._sent}
        answers = {waiting[answer]: self._answer(waiting[answer]) for answer in self._ready(waiting, monotonic())}
        return {id_: answer for id_, answer in answers.items() if answer is not None}

    def collect(self, message_ids: list[str], patience: float | None) -> dict[str, Answer]:
        """The answers that come within so many seconds, by message; all the messages are forgotten."""
        deadline = None if patience is None else monotonic() + patience
        waiting = {self._sent[id_].answer: id_ for id_ in message_ids if id_ in self._sent}
        answers: dict[str, Answer] = {}
        while waiting:
            ready = self._ready(waiting, deadline)
            if not ready and deadline is not None and monotonic() >= deadline:
                break
            for id_ in [waiting.pop(answer) for answer in ready]:
                answer = self._answer(id_)
                if answer is None:
                    waiting[self._sent[id_].answer] = id_
                else:
                    answers[id_] = answer
        for id_ in waiting.values():
            sent = self._sent.pop(id_)
            self._replace(sent)
            if sent.times > 1:  # a crash must not look like a slow node
                reason = "the worker died, and the one in its place was late; its clients count as zero"
                answers[id_] = flower.APP_CRASHED, reason
        return answers

    def _ready(self, answers: Iterable[Any], deadline: float | None) -> list[Any]:
        """Those that are there when all are, at the deadline, or after a while."""
        if monotonic() >= self._next_check:
            self._session.check()
            self._next_check = monotonic() + CHECK_INTERVAL
        futures = list(answers)
        left = CHECK_INTERVAL if deadline is None else min(CHECK_INTERVAL, max(0.0, deadline - monotonic()))
        return ray.wait(futures, num_returns=len(futures), timeout=left)[0] if futures else []

    def _answer(self, id_: str) -> Answer | None:
        """The answer to a message, which is there; None if the message had to be sent again."""
        answer: Answer
        sent = self._sent[id_]
        node = FIRST_NODE + sent.partition
        try:
            answer, trouble = ray.get(sent.answer)
        except RayActorError as error:
            self._replace(sent)
            if sent.times <= RESENDS:
                log.warning("node %d: its worker died: %s", node, error)
                self._send(sent)
                return None
            trouble = f"the worker died {sent.times} times; its clients count as zero"
            answer = flower.APP_CRASHED, trouble
        except RayError as error:
            trouble = f"{type(error).__name__}: {error}"
            answer = flower.NODE_LOST, trouble
        if trouble:
            log.warning("node %d: no result\n%s", node, trouble)
        del self._sent[id_]
        return answer

    def _send(self, sent: Sent) -> None:
        sent.actor = self._actors[sent.partition]
        sent.answer = sent.actor.handle.remote(*sent.arguments)
        sent.times += 1

    def _replace(self, sent: Sent) -> None:
        """Put a new actor in the place of the one that died or is stuck, unless that has happened already.

        It reserves nothing to speak of: where a machine was lost, all that is left may be reserved.
        """
        partition = sent.partition
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
