"""Two machines of one Ray cluster, on this one: in a network of their own, whose cables can be pulled."""

import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep

from tests.deployment.machines import Network

PORT = 6379
START_DEADLINE = 90.0  # seconds, until a Ray node runs


class Cluster:
    """A head and another machine, of a core each, as a context manager. It takes root, and the command ``ip``.

    Attributes:
        address: of the cluster, for ``engine.address``.
    """

    network = Network(["head", "other"], tag="fdr")
    address = f"{network.address('head')}:{PORT}"

    def __enter__(self) -> "Cluster":
        self._token = secrets.token_hex(32)
        self._processes: list[subprocess.Popen[bytes]] = []
        with ExitStack() as stack:
            # Ray's sockets stand in it, and their paths must be short.
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedamp-", dir="/tmp")))
            stack.enter_context(self.network)
            stack.callback(self._end)
            folder = ["--temp-dir", str(self._folder / "ray")]
            self._node("head", "--head", "--port", str(PORT), "--include-dashboard", "false", *folder)
            self._node("other", "--address", self.address)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, machine: str, command: list[str], log: Path) -> "subprocess.Popen[bytes]":
        """Run a command on a machine."""
        environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with log.open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    [*self.network.inside(machine), *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        return self._processes[-1]

    def pull_the_cable(self) -> None:
        """From now on the machines do not hear of each other; nobody tells them so."""
        self.network.pull_the_cable("other")

    def _node(self, machine: str, *options: str) -> None:
        log = self._folder / f"{machine}.log"
        ray = Path(sysconfig.get_path("scripts")) / "ray"
        here = ["--node-ip-address", self.network.address(machine), "--num-cpus", "1", "--block"]
        process = self.start(machine, [sys.executable, str(ray), "start", *here, *options], log)
        deadline = monotonic() + START_DEADLINE
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None or monotonic() > deadline:
                raise RuntimeError(f"{machine}: no Ray node: {log.read_text()[-2000:]}")
            sleep(0.1)

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self._processes):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=20)
