"""A federation of real processes on this machine: SuperLink, SuperNodes and the app, with TLS and known nodes.

The commands are those of docs/deployment.md.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedamp.data import load
from fedamp.scenario import DigitsData

DOCUMENTS = Path(__file__).parents[2] / "docs" / "deployment"


class Machines:
    """The processes of one deployment, all of them ended by :meth:`stop`.

    Args:
        folder: keys, data, logs and runs.
        names: of the nodes; a SuperNode is started by :meth:`start_node`.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names, self.keys = folder, list(names), folder / "keys"
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen] = {}
        self.home = folder / "flwr"
        self.home.mkdir()
        (folder / "empty").mkdir()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "lan"\n\n[superlink.lan]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )
        command = ["sh", str(DOCUMENTS / "keys.sh"), str(self.keys), "127.0.0.1", *self.names]
        subprocess.run(command, check=True, capture_output=True)

    def start_superlink(self) -> None:
        self.start(
            "superlink",
            "flower-superlink",
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
            *("--ssl-certfile", str(self.keys / "server.crt")),
            *("--ssl-keyfile", str(self.keys / "server.key")),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        )
        wait(lambda: is_open(self.port), 60, "the SuperLink to listen")

    def register(self, name: str) -> None:
        self.flwr("supernode", "register", str(self.keys / f"{name}.pub"), "lan", "--name", name)

    def start_node(self, name: str, key: Path | None = None) -> None:
        """A SuperNode with its own data; ``key`` is another private key than its own."""
        self.start(
            name,
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{self.port}", "--root-certificates", str(self.keys / "ca.crt")),
            *("--auth-supernode-private-key", str(key or self.keys / name)),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f'data="{self.folder / name}"'),
        )

    def run(self, **config: str | bool) -> None:
        """Start a run of the app; :meth:`status` tells how it goes."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        shutil.copytree(DOCUMENTS / "app", self.folder / "app", dirs_exist_ok=True)
        self.flwr("run", str(self.folder / "app"), "lan", "--run-config", settings)

    def status(self) -> str:
        """Of the newest run."""
        answer = json.loads(self.flwr("list", "lan", "--format", "json"))
        return str(answer["runs"][0]["status"]) if answer["runs"] else "none"

    def connected(self) -> int:
        answer = json.loads(self.flwr("supernode", "list", "lan", "--format", "json"))
        return sum(node["status"] == "online" for node in answer["nodes"])

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            [tool("flwr"), *arguments], env=self.environment(), cwd=self.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, f"flwr {arguments}: {done.stdout}\n{done.stderr}\n{self.log('superlink')[-3000:]}"
        return done.stdout

    def start(self, name: str, command: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [tool(command), *arguments],
                env=self.environment(),
                cwd=self.folder / "empty",
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """``kill -9`` of a process with all its children, as a power cut does."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }


def deal_digits(folder: Path, names: Sequence[str], clients: int) -> None:
    """The digits as one folder ``all``, as the server's (``server``), and as one a node with its own clients."""
    everything = load(DigitsData(name="digits", clients=clients), seed=5, folder=Path())
    inputs, labels = everything.test()
    ids = np.arange(clients)
    for name, hosted in [("all", ids), ("server", ids[:0]), *zip(names, np.array_split(ids, len(names)), strict=True)]:
        path = folder / name
        path.mkdir()
        cohort = everything.gather(hosted)
        real = np.arange(cohort.inputs.shape[1]) < cohort.sizes[:, None]
        owners = np.repeat(hosted, cohort.sizes)
        if len(hosted):
            np.savez(path / "train.npz", x=cohort.inputs[real], y=cohort.labels[real], client=owners)
        if name in ("all", "server"):
            np.savez(path / "test.npz", x=inputs, y=labels)
        if name != "all":
            told = {"clients": clients, "hosted": hosted.tolist(), "classes": 10}
            (path / "federation.json").write_text(json.dumps(told))


def tool(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait(condition, seconds: float, what: str, every: float = 0.2) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(every)
