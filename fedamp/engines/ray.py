"""Run a simulation's nodes on Ray: one persistent actor a node, on this machine or on a cluster.

:class:`RayGrid` lives in the server's process and talks over a pipe to :mod:`fedamp.engines.ray_driver`, the process
that imports Ray. The actors, and what happens when one dies, are in :mod:`fedamp.engines.ray_workers`.
"""

import os
import pickle
import secrets
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Self

from flwr.app import Message

from fedamp.base import devices
from fedamp.base.files import temporary_folder
from fedamp.base.start import QUIET
from fedamp.engines.simulation import FIRST_NODE, SimulationGrid, WorkerResources, log
from fedamp.errors import FedampError, FederationError
from fedamp.federation.running import Engine

START_DEADLINE = 900.0  # seconds, until Ray and all workers are ready
GRACE = 30.0  # seconds that an answer of the driver may take beyond the deadline of the request
STOP_DEADLINE = 10.0  # seconds, until Ray has ended its processes


def environment() -> dict[str, str]:
    """Return the environment variables of a child process that can import all that this process can."""
    return QUIET | os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}


def private_ray() -> dict[str, str]:
    """Return variables that make the Ray of a process unreachable from other machines, and for others on this one.

    Ray answers only those who have the token. The system shows a process's environment to its owner alone.
    """
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ADDRESS": "local",  # else Flower's Ray joins the cluster that was last started on this machine
        # Ray's switch for systems whose firewall asks about every listener: all are on the loopback address then.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }


def ray_folder() -> "TemporaryDirectory[str]":
    """Make a folder for its owner alone, with a short path: Ray's sockets are in it."""
    return temporary_folder("fedamp-ray-", os.environ.get("RAY_TMPDIR", "/tmp"))


class RayGrid(SimulationGrid):
    """A Flower grid over Ray actors.

    A child process drives Ray (:mod:`fedamp.engines.ray_driver`). It starts while data and model are loaded here; the
    first use of the nodes waits for it. A failure there is an exception here. Nothing of Ray lives in this process: Ray
    forks, and a fork hangs where another thread is inside a linear algebra library. Ray also writes to the terminal,
    and ends its driver where one of its own processes dies.

    Args:
        client_app: import path of the Flower client app, ``package.module:name``.
        engine: the section of the scenario.
        output: file to which the output of Ray and its driver is appended.
    """

    def __init__(self, client_app: str, engine: Engine, output: Path) -> None:
        super().__init__()
        self._client_app, self._engine, self._output = client_app, engine, output
        self._resources: WorkerResources | None = None

    def __enter__(self) -> Self:
        """Start the driver, in a session of its own, and return without waiting for it."""
        self._start = monotonic()
        variables = environment() | {"RAY_AUTH_MODE": "token"}
        if self._engine.address is None:
            variables |= private_ray() | devices.environment_of(self._engine.device)
        self._folder = ray_folder()
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
        self._tell(self._client_app, self._engine, self._folder.name)
        return self

    def __exit__(self, *error: object) -> None:
        """Close the pipe, at which the driver ends with all of Ray; after ``STOP_DEADLINE`` seconds it is killed."""
        self._pipe.close()  # without it the driver ends
        if error and error[0] is KeyboardInterrupt:  # a person who has pressed Ctrl-C twice does not wait for that
            return
        with suppress(subprocess.TimeoutExpired):
            self._driver.wait(STOP_DEADLINE)
        self._driver.kill()  # and Ray's processes with it
        self._driver.wait()
        self._folder.cleanup()

    @property
    def workers(self) -> int:  # type: ignore[override]
        """Number of nodes; waits until the actors are ready.

        Raises:
            InputError: the device or the cluster is not there, or the cluster asks for no token.
            FederationError: workers did not start, or could not import the client app.
        """
        if self._resources is None:
            self._resources = resources = self._answer(START_DEADLINE)
            seconds = monotonic() - self._start
            log.info("ray engine, %d worker(s) on %s, ready after %.1f s", resources.workers, resources.device, seconds)
        return self._resources.workers

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes; the first time, this waits for the workers."""
        return [FIRST_NODE + partition for partition in range(self.workers)]

    def kill_soon(self, worker: int, seconds: float) -> None:
        """Kill the process of a worker after some seconds, as ``faults.killed_workers`` asks.

        Args:
            worker: numbered from 0.
            seconds: from now.
        """
        self._tell("kill_soon", (worker, seconds))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages to the workers, and return their ids at once."""
        sent = self._numbered(messages)
        self._tell("push", (sent,))  # pickle keeps one copy of arrays that several messages hold
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Take the replies to these messages that are there now, each once."""
        return [pickle.loads(reply) for reply in self._ask("pull", list(message_ids)).values()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies; the log names what came late.

        Args:
            messages: to nodes of this grid.
            timeout: seconds, from when the workers are ready; None: no limit.

        Returns:
            The replies that came in time, in the order of their messages.

        Raises:
            FederationError: Ray has ended, or its driver does not answer.
        """
        sent = list(messages)
        ids = self.push_messages(sent)  # the first time, this waits for the workers
        replies = self._ask("collect", ids, timeout, patience=timeout)
        came = [pickle.loads(replies[id_]) for id_ in ids if id_ in replies]
        self._warn_of_late(sent, came, timeout)
        return came

    def _tell(self, *content: Any) -> None:
        """Send something to the driver; where it has ended, the next answer says so."""
        with suppress(OSError):  # the next answer says what is wrong
            self._pipe.send(content)

    def _ask(self, name: str, *arguments: Any, patience: float | None = 0.0) -> Any:
        """Call a method of the driver.

        Args:
            name: of the method.
            arguments: of the method.
            patience: seconds that it may take; None: no limit.

        Raises:
            FederationError: Ray has ended, or the driver did not answer in time.
        """
        self.get_node_ids()  # waits until they are ready
        self._tell(name, arguments)
        return self._answer(patience)

    def _whose(self) -> str:
        """Name the cluster whose head may be lost; nothing where Ray is this run's own."""
        address = self._engine.address
        return f": the head of the cluster at {address} is lost, or the network to it" if address else ""

    def _answer(self, patience: float | None) -> Any:
        """Wait for the driver's answer, and raise an error that it sends.

        Raises:
            FederationError: it has ended, or did not answer in time.
        """
        try:
            limit = None if patience is None else patience + GRACE
            if not self._pipe.poll(limit):
                self._driver.kill()  # its next answer would be the one to this request
                raise FederationError(f"Ray did not answer within {limit:.1f} s{self._whose()}{devices.busy_words()}")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise FederationError(f"Ray ended (exit code {self._driver.wait()}){self._whose()}") from None
        if isinstance(answer, FedampError):
            raise answer
        return answer
