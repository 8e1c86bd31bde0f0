"""Keep persistent Ray actors, one a node, and exchange messages with them, in the process that drives Ray.

:mod:`fedamp.engines.ray_driver` calls the methods of :class:`Workers`. Each actor holds a
:class:`fedamp.engines.simulation.SimulatedNode`, the same as the serial engine's only one.
"""

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from threading import Timer
from time import monotonic
from typing import Any

import ray
from flwr.app import ArrayRecord, Message
from ray.exceptions import RayActorError, RayError

from fedamp.engines import flower
from fedamp.engines.simulation import FIRST_NODE, SimulatedNode, log, worker_resources
from fedamp.errors import FedampError, FederationError
from fedamp.federation.running import Engine

STARTUP_DEADLINE = 600.0  # seconds, until all workers have imported the client app
CHECK_INTERVAL = 0.5  # seconds between two checks that Ray is alive
SPARE_GPU = 0.05  # share of every GPU that stays free at first for workers whose machine was lost
RESENDS = 2  # how often a message is sent again because its worker died
# Small messages go inside the call, which takes 2 ms a round; shared memory takes 4 to 8 ms more. As bytes they cost
# Ray half of what they cost as objects. 900 kB are 100,000 parameters for two workers. A cluster has a limit of 100 kB.
INLINE_BYTES, INLINE_BYTES_ON_CLUSTER = 900_000, 90_000


class RayWorker:
    """The content of a Ray actor. It makes its node on first use: a failure then is an answer, not a death.

    Args:
        path: entries of ``sys.path`` of the server's process.
        client_app: import path of the Flower client app.
        partition, partitions: number of the node, from 0, and how many there are.
        device: see :mod:`fedamp.base.devices`.
        share: of the GPU's memory that the worker may use.
    """

    def __init__(
        self, path: list[str], client_app: str, partition: int, partitions: int, device: str, share: float
    ) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]  # a runtime_env is ten times slower
        self._arguments = (client_app, partition, partitions, device, share)
        self._node: SimulatedNode | None = None

    def ready(self) -> None:
        """Import the client app and make the node, unless that is done."""
        if self._node is None:
            self._node = SimulatedNode(*self._arguments)

    def handle(self, content: bytes, names: list[str], *arrays: ArrayRecord) -> tuple[bytes, str]:
        """Have the node answer a message.

        Args:
            content: the message without its arrays, pickled.
            names: of the array records.
            arrays: the array records, which Ray takes from shared memory.

        Returns:
            The pickled reply, and the traceback if the client app failed.
        """
        self.ready()
        assert self._node is not None
        message: Message = pickle.loads(content)
        message.content.update(zip(names, arrays, strict=True))
        reply, trouble = self._node.handle(message)
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL), trouble


@dataclass
class Sent:
    """A message under way.

    Attributes:
        message: as the server made it.
        arguments: of :meth:`RayWorker.handle`.
        actor: that has it.
        answer: Ray's future of the reply.
        times: how often it was sent.
    """

    message: Message
    arguments: tuple[Any, ...]
    actor: Any = None
    answer: Any = None
    times: int = 0

    @property
    def partition(self) -> int:
        """Number of the node, from 0."""
        return self.message.metadata.dst_node_id - FIRST_NODE

    def error(self, code: int, reason: str) -> bytes:
        """Make a pickled error reply in the node's name."""
        return pickle.dumps(flower.error_reply(self.message, code, reason))


class Workers:
    """The actors of a simulation, ready to be used.

    The large arrays of a round are put into shared memory once. A worker that dies is replaced and its message sent
    again; one that misses a deadline is replaced, so as not to delay the next round. Replies are pickled messages, by
    the id of the message that they answer.

    Args:
        client_app: import path of the Flower client app.
        engine: the section of the scenario.
        check: raises where it makes no sense to wait any longer.

    Attributes:
        resources: workers, device, and the share of cores and GPUs of each.

    Raises:
        InputError: the device is not there.
        FederationError: workers did not start, or could not import the client app.
    """

    def __init__(self, client_app: str, engine: Engine, check: Callable[[], None]) -> None:
        flower.identify()
        self._client_app, self._check = client_app, check
        self._inline_bytes = INLINE_BYTES if engine.address is None else INLINE_BYTES_ON_CLUSTER
        self._sent: dict[str, Sent] = {}
        self._next_check = 0.0
        found = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.resources = worker_resources(engine, found.get("CPU", 1), found.get("GPU", 0))
        reserved = self.resources.gpus * (1 - SPARE_GPU)
        self._actors = [self._new_actor(i, self.resources.cpus, reserved) for i in range(self.resources.workers)]
        answers, deadline = [actor.ready.remote() for actor in self._actors], monotonic() + STARTUP_DEADLINE
        while len(self._ready(answers, deadline)) < len(answers):
            if monotonic() >= deadline:
                late = f"{len(answers)} Ray workers were not ready within {STARTUP_DEADLINE:.0f} s"
                raise FederationError(f"{late}; Ray has {dict(found)}")
        try:
            ray.get(answers)
        except RayError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, FedampError):
                raise cause from None
            raise FederationError(f"a Ray worker could not load {client_app}: {cause}") from error

    def kill_soon(self, partition: int, seconds: float) -> None:
        """Kill the process of a worker after some seconds."""
        timer = Timer(seconds, ray.kill, [self._actors[partition]])
        timer.daemon = True
        timer.start()

    def push(self, messages: list[Message]) -> None:
        """Send messages, of which several may hold the same arrays."""
        places: dict[int, Any] = {}
        for message in messages:
            rest, arrays = flower.message_without_arrays(message)
            if sum(map(flower.size, arrays.values())) < self._inline_bytes / len(messages):
                rest, arrays = message, {}
            for record in arrays.values():
                if id(record) not in places:
                    places[id(record)] = ray.put(record)
            content = pickle.dumps(rest, pickle.HIGHEST_PROTOCOL)
            sent = Sent(message, (content, list(arrays), *(places[id(record)] for record in arrays.values())))
            self._sent[message.metadata.message_id] = sent
            self._send(sent)

    def pull(self, message_ids: list[str], deadline: float = 0.0) -> dict[str, bytes]:
        """Return replies by the id of their message, and forget these messages.

        It waits until all are there, until the deadline (on the monotonic clock), or half a second.
        """
        waiting = {self._sent[id_].answer: id_ for id_ in message_ids if id_ in self._sent}
        replies = {waiting[answer]: self._reply(waiting[answer]) for answer in self._ready(list(waiting), deadline)}
        return {id_: reply for id_, reply in replies.items() if reply is not None}

    def collect(self, message_ids: list[str], patience: float | None) -> dict[str, bytes]:
        """Return the replies that come within some seconds; all the messages are forgotten.

        A worker that died and did not answer again in time gives an error reply; one that is late gives none. Both are
        replaced.

        Args:
            message_ids: of pushed messages.
            patience: seconds; None: no limit.
        """
        deadline = inf if patience is None else monotonic() + patience
        replies: dict[str, bytes] = {}
        while left := [id_ for id_ in message_ids if id_ in self._sent]:
            ready = self.pull(left, deadline)
            replies |= ready
            if not ready and monotonic() >= deadline:
                break
        for id_ in left:
            sent = self._sent.pop(id_)
            self._replace(sent)
            if sent.times > 1:  # a crash must not look like a slow node
                reason = "the worker died, and the one in its place was late; its clients count as zero"
                replies[id_] = sent.error(flower.APP_CRASHED, reason)
        return replies

    def _ready(self, answers: list[Any], deadline: float) -> list[Any]:
        """Return the future answers that are there when all are, at the deadline, or after half a second."""
        if monotonic() >= self._next_check:
            self._check()
            self._next_check = monotonic() + CHECK_INTERVAL
        left = min(CHECK_INTERVAL, max(0.0, deadline - monotonic()))
        return ray.wait(answers, num_returns=len(answers), timeout=left)[0] if answers else []

    def _reply(self, id_: str) -> bytes | None:
        """Return the reply to a message whose answer is there; None if the message was sent again."""
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
            trouble = f"the worker died {sent.times} times; its clients count as zero"
            reply = sent.error(flower.APP_CRASHED, trouble)
        except RayError as error:
            trouble = f"{type(error).__name__}: {error}"
            reply = sent.error(flower.NODE_LOST, trouble)
        if trouble:
            log.warning("node %d: no result\n%s", node, trouble)
        del self._sent[id_]
        return bytes(reply)

    def _send(self, sent: Sent) -> None:
        """Call the actor of a message's node now, and count the try."""
        sent.actor = self._actors[sent.partition]
        sent.answer = sent.actor.handle.remote(*sent.arguments)
        sent.times += 1

    def _replace(self, sent: Sent) -> None:
        """Replace the actor of a message that died or is stuck, unless it is replaced already."""
        if self._actors[sent.partition] is sent.actor:
            ray.kill(sent.actor)
            gpus = min(self.resources.gpus, SPARE_GPU / 10)  # after a loss the rest may be reserved
            self._actors[sent.partition] = self._new_actor(sent.partition, cpus=0, gpus=gpus)

    def _new_actor(self, partition: int, cpus: float, gpus: float) -> Any:
        """Start an actor for a node, on whatever machine of the cluster has room."""
        actor = ray.remote(RayWorker).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")
        resources = self.resources
        return actor.remote(
            sys.path, self._client_app, partition, resources.workers, resources.device, resources.gpus or 1.0
        )
