"""Two machines of one Ray cluster, on this one: a network namespace each, joined by a cable that can be pulled."""

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

ADDRESSES = {"fedamp-head": "10.88.0.1", "fedamp-other": "10.88.0.2"}
PORT = 6379
START_DEADLINE = 90.0  # seconds, until a Ray node runs


class Cluster:
    """A head and another machine, of a core each, as a context manager. It takes root, and the command ``ip``.

    Attributes:
        address: of the cluster, for ``engine.address``.
    """

    address = f"{ADDRESSES['fedamp-head']}:{PORT}"

    def __enter__(self) -> "Cluster":
        self._token = secrets.token_hex(32)
        self._processes: list[subprocess.Popen[bytes]] = []
        with ExitStack() as stack:
            # Ray's sockets stand in it, and their paths must be short.
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedamp-", dir="/tmp")))
            stack.callback(self._end)
            for machine in ADDRESSES:
                _ip("netns", "add", machine)
                stack.callback(_ip, "netns", "delete", machine)
            head, other = ADDRESSES
            _ip("-n", head, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", other)
            for machine, address in ADDRESSES.items():
                _ip("-n", machine, "address", "add", f"{address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    _ip("-n", machine, "link", "set", device, "up")
            folder = ["--temp-dir", str(self._folder / "ray")]
            self._node(head, "--head", "--port", str(PORT), "--include-dashboard", "false", *folder)
            self._node(other, "--address", self.address)
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
                    ["ip", "netns", "exec", machine, *command],
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
        _ip("-n", "fedamp-other", "link", "set", "cable", "down")

    def _node(self, machine: str, *options: str) -> None:
        log = self._folder / f"{machine}.log"
        ray = Path(sysconfig.get_path("scripts")) / "ray"
        here = ["--node-ip-address", ADDRESSES[machine], "--num-cpus", "1", "--block"]
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


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
