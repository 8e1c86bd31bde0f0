"""Persistent Ray actors, and the life of the Ray session that they need."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from time import monotonic
from typing import Any

import psutil
import ray
from flwr.app import ArrayRecord, Message
from ray.exceptions import RayError

from fedamp import flower, scenario
from fedamp.errors import FedampError, FederationError, InputError
from fedamp.simulation.grid import log
from fedamp.simulation.node import Node, available_device
from fedamp.simulation.resources import WorkerResources, worker_resources

STARTUP_DEADLINE = 180.0  # seconds, until all workers have imported the client app
# Ray carries small arguments and results inside the call, which takes 2 ms a round; shared memory takes 4 to 8 ms more.
# Its own limit is 100 kB; where the session is ours we raise it, to 100,000 parameters for two workers.
INLINE_LIMIT = 1_000_000
SPARE_GPU = 0.05  # share of every GPU that is not reserved at first: room for workers whose machine was lost
ADDRESS_DEADLINE = 5.0  # seconds, until a cluster answers


class RayWorker:
    """What lives in a Ray actor. The node is made on first use: what goes wrong then is an answer, not a death."""

    def __init__(self, path: list[str], client_app: str, partition: int, partitions: int, device: str) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]  # a runtime_env is ten times slower
        self._arguments = (client_app, partition, partitions, device)
        self._node: Node | None = None

    def ready(self) -> int:
        """Import the client app, and return the process id."""
        self._ready_node()
        return os.getpid()

    def handle(self, rest: Message, names: list[str], *arrays: ArrayRecord) -> tuple[Message, str]:
        """Reply, and the traceback if the client app failed."""
        rest.content.update(zip(names, arrays, strict=True))
        return self._ready_node().handle(rest)

    def _ready_node(self) -> Node:
        if self._node is None:
            available_device(self._arguments[-1])
            self._node = Node(*self._arguments)
        return self._node


class Pool:
    """The actors of a simulation. They start in the background, so that the caller can prepare meanwhile.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        engine: workers, device and address. A Ray session that this process has already is used and left running.
    """

    startup_seconds: float = 0.0
    inline_bytes: int = 90_000  # what a round may carry inside its calls
    _granted: WorkerResources

    def __init__(self, client_app: str, engine: scenario.Engine) -> None:
        self._client_app, self._engine = client_app, engine
        self._started: Future[list[Any]] = Future()
        self._stop, self._hurry = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._borrowed = ray.is_initialized()

    def start(self, patience: float = 0.0) -> None:
        """Begin to start Ray and the actors in so many seconds, or when somebody waits for them; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, args=(patience,), name="ray", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Return when the actors are ready.

        Raises:
            InputError: the device or the cluster is not there.
            FederationError: workers did not start, or could not import the client app.
        """
        self._hurry.set()
        self.start()
        self._started.result()

    def stop(self) -> None:
        """End the actors, and Ray if it was started here."""
        self._stop.set()
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()

    @cached_property
    def resources(self) -> WorkerResources:
        """How many workers, on what; waits for Ray where nobody else knows."""
        if self.can_stand_in:
            return worker_resources(self._engine, ray._private.utils.get_num_cpus(), 0)
        self.wait()
        return self._granted

    @cached_property
    def can_stand_in(self) -> bool:
        """Whether this process could do the workers' work: they get cores of this machine, in a Ray session of ours."""
        engine = self._engine
        if self._borrowed or engine.address is not None:
            return False
        return engine.device == "cpu" or (engine.device == "auto" and available_device("auto") == "cpu")

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to wait for: the actors are ready, or will never be."""
        return self._started.done()

    @property
    def actors(self) -> list[Any]:
        """The actors; waits for them as :meth:`wait` does."""
        self.wait()
        return self._started.result()

    def replace(self, partition: int, actor: Any) -> None:
        """Put a new actor in the place of one that died or is stuck, unless that has happened already.

        It reserves nothing to speak of: where a machine was lost, all that is left may be reserved.
        """
        if self.actors[partition] is actor:
            ray.kill(actor)
            self.actors[partition] = self._start_actor(partition, cpus=0, gpus=min(self._granted.gpus, SPARE_GPU / 10))

    def prepare_kill(self, partition: int) -> Callable[[], None]:
        """What ends an actor without warning."""
        actor = self.actors[partition]
        if self._engine.address is not None:  # its process may be on another machine
            return lambda: ray.kill(actor)
        process = psutil.Process(ray.get(actor.ready.remote()))

        def kill() -> None:
            with suppress(psutil.NoSuchProcess):
                process.kill()

        return kill

    def _live(self, patience: float) -> None:
        """Start Ray, wait, stop it; in one thread, because what Ray starts ends with the thread that started it."""
        self._hurry.wait(patience)
        if self._stop.is_set():
            return
        printer = ray._private.worker.print_to_stdstream
        ray._private.worker.print_to_stdstream = _to_log
        try:
            start = monotonic()
            if not self._borrowed:
                _start_ray(self._engine)
                if self._engine.address is None:
                    self.inline_bytes = INLINE_LIMIT - 100_000
            actors = self._start_actors()
            self.startup_seconds = monotonic() - start
            if actors:
                device, seconds = self._granted.device, self.startup_seconds
                log.info("ray engine, %d worker(s) on %s, ready after %.1f s", len(actors), device, seconds)
                self._started.set_result(actors)
            self._stop.wait()
            for actor in actors:
                ray.kill(actor)
        except BaseException as error:
            self._started.set_exception(error)
        finally:
            if not self._borrowed:
                ray.shutdown()
            ray._private.worker.print_to_stdstream = printer

    def _start_actors(self) -> list[Any]:
        """Actors that are ready; none where they are no longer wanted before they are."""
        found = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._granted = part = worker_resources(self._engine, found.get("CPU", 1), found.get("GPU", 0))
        gpus = part.gpus * (1 - SPARE_GPU)
        actors = [self._start_actor(partition, part.cpus, gpus) for partition in range(part.workers)]
        answers = [actor.ready.remote() for actor in actors]
        deadline = monotonic() + STARTUP_DEADLINE
        while len(ray.wait(answers, num_returns=len(answers), timeout=0.1)[0]) < len(answers):
            if self._stop.is_set():
                return []
            if monotonic() > deadline:
                raise FederationError(
                    f"{len(actors)} Ray workers were not ready within {STARTUP_DEADLINE:.0f} s; Ray has {dict(found)}"
                )
        try:
            ray.get(answers)
        except RayError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, FedampError):
                raise cause from None
            raise FederationError(f"a Ray worker could not load {self._client_app}: {cause}") from error
        return actors

    def _start_actor(self, partition: int, cpus: float, gpus: float) -> Any:
        part = self._granted
        actor = ray.remote(RayWorker).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")
        return actor.remote(sys.path, self._client_app, partition, part.workers, part.device)


def _start_ray(engine: scenario.Engine) -> None:
    quiet: Mapping[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "logging_format": flower.LOG_FORMAT}
    if engine.address is None:
        workers = None if engine.workers == "auto" else engine.workers  # Ray starts a process a core at once
        limits = {"max_direct_call_object_size": INLINE_LIMIT}
        ray.init("local", include_dashboard=False, num_cpus=workers, _system_config=limits, **quiet)
        return
    try:
        host, colon, port = engine.address.rpartition(":")
        if colon:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=ADDRESS_DEADLINE).close()
        ray.init(engine.address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"engine.address: no Ray cluster at {engine.address!r} ({reason}); accepted: auto, or host:port"
        ) from error


def _to_log(data: Any, ignore_prefix: bool) -> None:
    """Ray prints the deaths of workers on standard output, whatever its settings; they belong into the log."""
    log.warning("ray: %s", " ".join(data["lines"]))
