"""The Ray engine: one persistent actor a node, on this machine or on a cluster."""

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any, Self

import ray
from flwr.app import ArrayRecord, Message
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from fedamp import flower, scenario
from fedamp.errors import FedampError, FederationError, InputError
from fedamp.simulation.grid import SimulationGrid, log
from fedamp.simulation.layout import layout
from fedamp.simulation.node import FIRST_NODE, Node, available_device

STARTUP_DEADLINE = 180.0  # seconds, until all workers have imported the client app
RESENDS = 2  # how often a message is sent again because its worker died

# Ray carries arguments below 100 kB inside the call, which takes 1 ms; fetching one from shared memory takes 4 ms more.
INLINE_BYTES = 90_000


class Worker:
    """What lives in a Ray actor. The node is made on first use: what goes wrong then is an answer, not a death."""

    def __init__(self, path: list[str], client_app: str, partition: int, partitions: int, device: str) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]  # a runtime_env is ten times slower
        self._arguments = (client_app, partition, partitions, device)
        self._node: Node | None = None

    def ready(self) -> int:
        """Import the client app, and return the process id."""
        if self._node is None:
            available_device(self._arguments[-1])
            self._node = Node(*self._arguments)
        return os.getpid()

    def handle(self, rest: Message, names: list[str], *arrays: ArrayRecord) -> tuple[Message, str, int]:
        """Reply, traceback if the client app failed, and process id."""
        pid = self.ready()
        assert self._node is not None
        rest.content.update(zip(names, arrays, strict=True))
        reply, trouble = self._node.handle(rest)
        return reply, trouble, pid


class RayGrid(SimulationGrid):
    """A Flower grid over Ray actors, to be used as a context manager.

    Ray starts in the background; the first use of the nodes waits for it. The arrays of a round are put once into
    shared memory (messages of a round hold the same record), and everything else is small. A worker that dies is
    started again and gets its message again; one that misses a deadline is replaced, so as not to delay the next.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        engine: workers, device and address. A Ray session that this process has already is used and left running.
    """

    def __init__(self, client_app: str, engine: scenario.Engine) -> None:
        super().__init__()
        self._client_app = client_app
        self._engine = engine
        self._started: Future[list[Any]] = Future()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)
        self._pending: dict[str, tuple[Any, Message]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def workers(self) -> int:  # type: ignore[override]
        return len(self._actors())

    @property
    def devices(self) -> list[str]:  # type: ignore[override]
        return [self._layout.device] * self.workers

    def describe(self) -> str:
        return (
            f"ray engine, {self.workers} worker(s) on {self._layout.device}, ready after {self.startup_seconds:.1f} s"
        )

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + partition for partition in range(self.workers)]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there by now."""
        ids = [id_ for id_ in message_ids if id_ in self._pending]
        ready, _ = ray.wait([self._pending[id_][0] for id_ in ids], num_returns=max(1, len(ids)), timeout=0)
        return [self._reply(id_) for id_ in ids if self._pending[id_][0] in ready]

    # --- life ---------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """Start Ray, wait, stop it; in one thread, because what Ray starts ends with the thread that started it."""
        borrowed = ray.is_initialized()
        printer = ray._private.worker.print_to_stdstream
        ray._private.worker.print_to_stdstream = _to_log
        try:
            start = monotonic()
            if not borrowed:
                _start_ray(self._engine)
            actors = self._start_actors()
            self.startup_seconds = monotonic() - start
            self._started.set_result(actors)
            self._stop.wait()
        except BaseException as error:
            self._started.set_exception(error)
        finally:
            self._shut_down(borrowed)
            ray._private.worker.print_to_stdstream = printer

    def _start_actors(self) -> list[Any]:
        resources = ray.cluster_resources()
        self._layout = layout(self._engine, resources.get("CPU", 1), resources.get("GPU", 0))
        actors = [self._start_actor(partition) for partition in range(self._layout.workers)]
        try:
            self._pids = ray.get([actor.ready.remote() for actor in actors], timeout=STARTUP_DEADLINE)
        except GetTimeoutError as error:
            raise FederationError(
                f"{len(actors)} Ray workers were not ready within {STARTUP_DEADLINE:.0f} s; Ray has {dict(resources)}"
            ) from error
        except RayError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, FedampError):
                raise cause from None
            raise FederationError(f"a Ray worker could not load {self._client_app}: {cause}") from error
        return actors

    def _start_actor(self, partition: int) -> Any:
        options = {
            "num_cpus": self._layout.cpus,
            "num_gpus": self._layout.gpus,
            "max_restarts": -1,
            "max_task_retries": RESENDS,
            "scheduling_strategy": "SPREAD",
        }
        actor = ray.remote(Worker).options(**options)  # type: ignore[attr-defined]
        return actor.remote(sys.path, self._client_app, partition, self._layout.workers, self._layout.device)

    def _shut_down(self, borrowed: bool) -> None:
        if not borrowed:
            ray.shutdown()
        elif self._started.exception() is None:
            for actor in self._started.result():
                ray.kill(actor)

    def _actors(self) -> list[Any]:
        return self._started.result()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _dispatch(self, messages: list[Message]) -> None:
        actors = self._actors()
        shared: dict[int, Any] = {}
        for message in messages:
            rest, arrays = flower.message_without_arrays(message)
            for record in arrays.values():
                if id(record) not in shared:
                    shared[id(record)] = record if flower.size(record) < INLINE_BYTES else ray.put(record)
            actor = actors[message.metadata.dst_node_id - FIRST_NODE]
            answer = actor.handle.remote(rest, list(arrays), *(shared[id(record)] for record in arrays.values()))
            self._pending[message.metadata.message_id] = (answer, message)

    def _collect(self, message_ids: list[str], deadline: float | None) -> list[Message]:
        waiting = {self._pending[id_][0]: id_ for id_ in message_ids if id_ in self._pending}
        replies: dict[str, Message] = {}
        while waiting:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
            if not ready:
                break
            for answer in ready:
                message_id = waiting.pop(answer)
                replies[message_id] = self._reply(message_id)
        late = [self._pending.pop(message_id)[1].metadata.dst_node_id for message_id in waiting.values()]
        for node in sorted(set(late)):
            self._replace(node)
        return [replies[message_id] for message_id in message_ids if message_id in replies]

    def _reply(self, message_id: str) -> Message:
        answer, message = self._pending.pop(message_id)
        node = message.metadata.dst_node_id
        try:
            reply, trouble, pid = ray.get(answer)
        except RayActorError as error:
            log.warning("node %d: its worker died and the message was sent %d times: %s", node, RESENDS + 1, error)
            return flower.error_reply(message, flower.APP_CRASHED, "the worker died")
        except RayError as error:
            log.warning("node %d: no reply: %s", node, error)
            return flower.error_reply(message, flower.NODE_LOST, f"no reply: {type(error).__name__}")
        if pid != self._pids[node - FIRST_NODE]:
            log.warning("node %d: its worker died and was started again", node)
            self._pids[node - FIRST_NODE] = pid
        if trouble:
            log.warning("node %d: the client app failed\n%s", node, trouble)
        return reply

    def _replace(self, node: int) -> None:
        """Give a node a new worker; what the old one was doing is lost."""
        actors = self._actors()
        ray.kill(actors[node - FIRST_NODE])
        actors[node - FIRST_NODE] = self._start_actor(node - FIRST_NODE)
        log.warning("node %d: its worker was replaced", node)


def _start_ray(engine: scenario.Engine) -> None:
    quiet: Mapping[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "logging_format": flower.LOG_FORMAT}
    if engine.address is None:
        workers = None if engine.workers == "auto" else engine.workers  # Ray starts a process a core at once
        ray.init(include_dashboard=False, num_cpus=workers, **quiet)
        return
    try:
        ray.init(address=engine.address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"engine.address: no Ray cluster at {engine.address!r} ({reason}); left out: this machine"
        ) from error


def _to_log(data: Any, ignore_prefix: bool) -> None:
    """Ray prints the deaths of workers on standard output, whatever its settings; they belong into the log."""
    log.warning("ray: %s", " ".join(data["lines"]))
