"""The Ray engine: one persistent actor a node, on this machine or on a cluster."""

import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from socket import gethostname
from time import monotonic
from typing import Any, Self

import psutil
from flwr.app import ArrayRecord, Message

from fedamp.base import devices
from fedamp.engines import flower
from fedamp.engines.grid import SimulationGrid, log
from fedamp.engines.node import FIRST_NODE
from fedamp.engines.processes import environment, ray_of_its_own
from fedamp.engines.resources import Demand, WorkerResources
from fedamp.errors import FedampError, FederationError
from fedamp.federation.running import Engine

START_DEADLINE = 300.0  # seconds, until Ray and all workers are ready
GRACE = 30.0  # seconds that an answer of the driver may take beyond the deadline of what it was asked
STOP_DEADLINE = 10.0  # seconds, until Ray has ended what it started
# Ray carries small arguments and results inside the call, which takes 2 ms a round; shared memory takes 4 to 8 ms more.
# As bytes they cost its processes half of what they cost as objects. 900 kB are 100,000 parameters for two workers.
# Where the session is ours, the limit is raised to a little more (``ray_driver``); a cluster has Ray's own, 100 kB.
INLINE_BYTES, INLINE_BYTES_ON_CLUSTER = 900_000, 90_000


class RayGrid(SimulationGrid):
    """A Flower grid over Ray actors, to be used as a context manager.

    Ray is driven by a child of this process (:mod:`fedamp.engines.ray_driver`), which starts while data and model
    are loaded here; the first use of the nodes waits for it. Nothing of Ray lives in this process: Ray forks, which
    hangs where another thread is inside a linear algebra library, it writes to the terminal, and it ends its driver
    where one of its own processes dies. Whatever happens there is an exception here.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        engine: workers, device and address.
        output: file that gets what Ray and its driver have to say.
    """

    def __init__(self, client_app: str, engine: Engine, output: Path) -> None:
        super().__init__()
        self._client_app, self._engine, self._output = client_app, engine, output
        self._resources: WorkerResources | None = None
        self._sent: dict[str, Message] = {}
        self.startup_seconds = 0.0

    def __enter__(self) -> Self:
        self._start = monotonic()
        variables = environment() | {"RAY_AUTH_MODE": "token"}
        if self._engine.address is None:
            variables |= ray_of_its_own() | devices.environment_of(self._engine.device)
        # Ray's sockets stand in it, and their paths must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="fedamp-", dir=variables.get("RAY_TMPDIR", "/tmp")))
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-P", "-m", "fedamp.engines.ray_driver", str(theirs.fileno())]
        with theirs, self._output.open("ab") as output:
            # Without preexec_fn Python does not fork; in a session of its own Ctrl-C does not reach it.
            self._driver = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        with suppress(OSError):  # the first answer says what is wrong
            self._pipe.send((self._client_app, self._engine, self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()  # without it the driver ends
        with suppress(subprocess.TimeoutExpired):
            self._driver.wait(STOP_DEADLINE)
        self._driver.kill()  # and what Ray started with it
        self._driver.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def workers(self) -> int:  # type: ignore[override]
        return self._ready_resources().workers

    def wait(self) -> None:
        """Return when the actors are ready.

        Raises:
            InputError: the device or the cluster is not there, or answers those who have no token.
            FederationError: workers did not start, or could not import the client app.
        """
        self._ready_resources()

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + partition for partition in range(self.workers)]

    def prepare_kill(self, worker: int) -> Callable[[], None]:
        """What kills a worker's process as ``kill -9`` does; nothing where it is on another machine."""
        host, number = self._ask("process", worker)
        if host != gethostname():
            return lambda: None
        process = psutil.Process(number)

        def kill() -> None:
            with suppress(psutil.NoSuchProcess):
                process.kill()

        return kill

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there by now; waits for the workers to be ready."""
        return self._replies(self._ask("pull", list(message_ids)))

    def _dispatch(self, messages: list[Message]) -> None:
        self.wait()
        self._sent |= {message.metadata.message_id: message for message in messages}
        inline = INLINE_BYTES if self._engine.address is None else INLINE_BYTES_ON_CLUSTER
        shared: dict[int, ArrayRecord] = {}
        parcels = []
        for message in messages:
            rest, arrays = flower.message_without_arrays(message)
            if sum(map(flower.size, arrays.values())) < inline / len(messages):
                rest, arrays = message, {}
            shared |= {id(record): record for record in arrays.values()}
            places = {name: id(record) for name, record in arrays.items()}
            number, partition = message.metadata.message_id, message.metadata.dst_node_id - FIRST_NODE
            parcels.append((number, partition, pickle.dumps(rest, pickle.HIGHEST_PROTOCOL), places))
        with suppress(OSError):  # the next answer says what is wrong
            self._pipe.send(("push", (parcels, shared)))

    def _collect(self, message_ids: list[str], deadline: float | None) -> list[Message]:
        patience = None if deadline is None else max(0.0, deadline - monotonic())
        answers = self._ask("collect", message_ids, patience, patience=patience)
        replies = self._replies({id_: answers[id_] for id_ in message_ids if id_ in answers})
        for id_ in message_ids:
            self._sent.pop(id_, None)
        return replies

    def _replies(self, answers: dict[str, Any]) -> list[Message]:
        """What the driver found out about messages, which are forgotten."""
        replies = []
        for id_, answer in answers.items():
            message = self._sent.pop(id_)
            match answer:
                case Message():
                    replies.append(answer)
                case bytes():
                    replies.append(pickle.loads(answer))
                case code, reason:
                    replies.append(flower.error_reply(message, code, reason))
        return replies

    def _ready_resources(self) -> WorkerResources:
        if self._resources is None:
            answer = self._answer(START_DEADLINE)
            if answer is Demand:  # which is asked for where a GPU is to be shared
                self._pipe.send(self.demand)
                answer = self._answer(START_DEADLINE)
            self._resources = answer
            self.startup_seconds = monotonic() - self._start
            workers, device = self._resources.workers, self._resources.device
            log.info("ray engine, %d worker(s) on %s, ready after %.1f s", workers, device, self.startup_seconds)
        return self._resources

    def _ask(self, name: str, *arguments: Any, patience: float | None = 0.0) -> Any:
        """What a method of the driver returns, which may take so many seconds (None: as long as it likes)."""
        self.wait()
        with suppress(OSError):
            self._pipe.send((name, arguments))
        return self._answer(patience)

    def _answer(self, patience: float | None) -> Any:
        try:
            if not self._pipe.poll(None if patience is None else patience + GRACE):
                self._driver.kill()  # it cannot be asked anything else before it has answered this
                raise FederationError(f"Ray did not answer within {patience:.1f} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise FederationError(f"Ray ended (exit code {self._driver.wait()})") from None
        if isinstance(answer, FedampError):
            raise answer
        return answer
