"""A federation of real processes on this machine: SuperLink, SuperNodes and the app, with TLS and known nodes.

What is run are the commands of docs/deployment.md, as they stand there.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

from fedamp.data.sections import DigitsData
from fedamp.extensions.deployment import membership
from tests.deployment.hosts import Hosts
from tests.deployment.janitor import start
from tests.documentation import shell
from tests.tools import wait

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "docs" / "deployment"
PAGE = "docs/deployment.md"
NODES = ["site0", "site1", "site2"]  # as on the page


class Machines:
    """The processes of one deployment, all of them ended by :meth:`stop`.

    Args:
        folder: a subfolder for the server, and one for every node.
        names: of the nodes.
        hosts: where each machine has a user, a disk and an address of its own; left out: all share those of this one.
        code: where the fedamp is that all run; it may change between two starts.
    """

    def __init__(self, folder: Path, names: Sequence[str], hosts: Hosts | None = None, code: Path = ROOT) -> None:
        self.folder, self.names, self.hosts, self.code = folder, list(names), hosts, code
        self.port, self.inner_port = free_port(), free_port()  # of the proxy; of the SuperLink
        self.processes: dict[str, subprocess.Popen] = {}
        if hosts is None:
            for name in ("server", *names):
                (folder / name).mkdir()
        self.server = self.place("server")
        self.give(DOCUMENTS / "app", "server")
        (folder / "nginx.conf").write_text(self.ported((DOCUMENTS / "nginx.conf").read_text()))
        self.give(folder / "nginx.conf", "server")
        self.shell("server: make the keys")

    def place(self, name: str) -> Path:
        """The folder of a machine, as we reach it."""
        return self.folder / name if self.hosts is None else self.hosts.outside(name)

    def give(self, file: Path, name: str, to: str = "") -> None:
        """Carry a file or folder to the folder of a machine."""
        if self.hosts is not None:
            self.hosts.give(file, name, to)
        else:
            (shutil.copytree if file.is_dir() else shutil.copy)(file, self.folder / name / (to or file.name))

    @property
    def records(self) -> Path:
        """Where :meth:`deal_records` puts the records of all, in ``all``."""
        return self.folder if self.hosts is None else self.folder / "records"

    def deal_records(self, clients: int) -> None:
        """Give the server and the nodes their records."""
        partition_digits(self.records, self.names, clients)
        if self.hosts is not None:
            for name in ("server", *self.names):
                self.give(self.records / name / "data", name)

    @property
    def authority(self) -> bytes:
        """The certificate by which nodes know the server."""
        return (self.server / "keys" / "ca.crt").read_bytes()

    def ported(self, text: str) -> str:
        """The page's text with ports that are free here, and, where machines share an address, that address alone."""
        text = text.replace("9090", str(self.inner_port))
        return text.replace("listen 8000", f"listen {'' if self.hosts else '127.0.0.1:'}{self.port}")

    def start_server(self) -> None:
        """The SuperLink and the proxy before it."""
        self.start("superlink", "server: start the SuperLink", self.folder / "server")
        self.start("proxy", "server: start the proxy", self.folder / "server")
        self.wait_for_superlink()

    def admit_nodes(self) -> None:
        """Each node makes its key, and the server registers it by name."""
        self.shell("server: name the SuperLink")
        for name in self.names:
            self.enroll(name)
        admit, requests = shell(PAGE, "server: admit the nodes"), [f"{name}.request" for name in self.names]
        self.run(admit.replace(" ".join(f"{name}.request" for name in NODES), " ".join(requests)))
        self.hand_out(*self.names)

    def enroll(self, name: str, renew: bool = False) -> None:
        """A node makes a key, and its request comes to the server."""
        if self.hosts is not None:
            self.shell(f"node: make {'another' if renew else 'the'} key", name, NODE=name)
        else:  # a process for each would take seconds
            with chdir(self.folder / name):
                membership.enroll(name, None, renew)
        self.give(self.place(name) / f"{name}.request", "server")

    def hand_out(self, *names: str) -> None:
        """The nodes follow their admissions."""
        for name in names:
            if self.hosts is not None:
                self.give(self.server / f"{name}.admission", name)
                self.shell("node: follow the admission", name, NODE=name)
            else:
                with chdir(self.folder / name):
                    membership.enroll(name, self.server / f"{name}.admission", False)

    def wait_for_superlink(self) -> None:
        if self.hosts is None:
            wait(lambda: listens(self.inner_port), 60, "the SuperLink to listen")
            return
        probe = f"import socket; socket.create_connection(('127.0.0.1', {self.inner_port}))"
        command = [*self._inside("server"), sys.executable, "-c", probe]
        wait(lambda: subprocess.run(command, capture_output=True).returncode == 0, 60, "the SuperLink to listen")

    def start_node(self, name: str, command: str = "fedamp node", config: str = "") -> None:
        """``command``: the page's, or ``flower-supernode``; ``config`` goes after the page's configuration."""
        settings = {"NODE": name, "RUNTIME_PORT": str(free_port())}
        folder = self.folder / name
        self.start(name, "node: start the SuperNode", folder, command=command, config=config, **settings)

    def start_stranger(self, name: str) -> None:
        """A node whose key nobody has registered."""
        folder = self.folder / name
        (folder / "data").mkdir(parents=True)
        shutil.copy(self.server / "keys" / "ca.crt", folder)
        subprocess.run(["ssh-keygen", "-qt", "ecdsa", "-b", "384", "-N", "", "-f", str(folder / name)], check=True)
        self.start_node(name)

    def start_run(self, **config: str | bool) -> None:
        """Start a run of the app; :meth:`status` tells how it goes."""
        commands = shell(PAGE, "server: start the run").strip()
        added = "".join(f" {key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        self.run(commands.removesuffix("'") + added + "'")

    def status(self) -> str:
        """Of the newest run."""
        runs = json.loads(self.run("flwr list lan --format json"))["runs"]
        return str(runs[0]["status"]) if runs else "none"

    def connected(self) -> int:
        """How many nodes are online; -1: the SuperLink does not answer.

        The port of one that was killed takes connections until its process is gone, and :meth:`wait_for_superlink` may
        see that.
        """
        told = json.loads(self.run("flwr supernode list lan --format json"))
        return sum(node["status"] == "online" for node in told["nodes"]) if "nodes" in told else -1

    def shell(self, title: str, where: str = "server", **settings: str) -> str:
        """Run commands of the page to their end."""
        return self.run(shell(PAGE, title), self.folder / where, **settings)

    def run(self, commands: str, folder: Path | None = None, **settings: str) -> str:
        """Run commands on the server, or in another folder; AssertionError with what they say where they fail."""
        folder = folder or self.folder / "server"
        done = subprocess.run(
            [*self._inside(folder.name), "sh", "-euc", self.ported(commands)],
            env=self.environment(folder.name) | settings,
            cwd=folder if self.hosts is None else None,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{commands}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def start(
        self,
        name: str,
        title: str,
        folder: Path,
        page: str = PAGE,
        command: str = "fedamp node",
        config: str = "",
        **settings: str,
    ) -> None:
        text = shell(page, title).replace("fedamp node", f"exec {command}").replace('/data\\""', f'/data\\"{config}"')
        words = [*self._inside(folder.name), "sh", "-euc", self.ported(text)]
        environment = self.environment(folder.name) | {"FLWR_LOG_LEVEL": "INFO"} | settings
        where = folder if self.hosts is None else None
        self.processes[name] = start(words, self.folder / f"{name}.log", where, environment)

    def _inside(self, machine: str) -> list[str]:
        return [] if self.hosts is None else self.hosts.inside(machine)

    def kill(self, name: str) -> None:
        """As a power cut does."""
        kill(self.processes.pop(name))

    def signal(self, name: str, number: int) -> None:
        """To a process and its children; after SIGSTOP it stays connected and does nothing, until SIGCONT."""
        process = psutil.Process(self.processes[name].pid)
        for each in (process, *process.children(recursive=True)):
            each.send_signal(number)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def family(self, name: str = "") -> list[psutil.Process]:
        """What is running of this deployment under a name, also in sessions that Flower made for it."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                ours = process.environ().get("FLWR_HOME", "").startswith(f"{self.folder}/")
                if ours and process.name().startswith(name) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def stop(self) -> None:
        """Kill all processes, and wait for their end: until then, one that was killed may still hold its port."""
        family = self.family()
        for name in list(self.processes):
            self.kill(name)
        for process in (*family, *self.family()):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)

    def environment(self, machine: str = "server") -> dict[str, str]:
        inherited = dict(os.environ) if self.hosts is None else self.hosts.environment(machine)
        return inherited | {
            "HOST": "127.0.0.1" if self.hosts is None else self.hosts.address("server"),
            "PORT": str(self.port),
            "FLWR_HOME": str(self.folder / ("flwr" if self.hosts is None else f"{machine}/.flwr")),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join(
                [f"{self.code}/bin", sysconfig.get_path("scripts"), os.environ["PATH"], "/usr/sbin"]
            ),
            "PYTHONPATH": str(self.code),
        }


@contextmanager
def deployed(folder: Path, started: bool = True) -> Iterator[Machines]:
    """A deployment that ends with the context: SuperLink and proxy, with registered nodes that are not running yet.

    Args:
        started: whether anything of it is running yet.
    """
    machines = Machines(folder, NODES)
    try:
        if started:
            machines.start_server()
            machines.admit_nodes()
        yield machines
    finally:
        machines.stop()


def partition_digits(folder: Path, names: Sequence[str], clients: int) -> None:
    """The digits as one folder ``all``, as the server's (``server``), and as one a node with its own clients."""
    everything = DigitsData(name="digits", clients=clients).load(seed=5, folder=Path())
    inputs, labels = everything.test()
    ids = np.arange(clients)
    for name, hosted in [("all", ids), ("server", ids[:0]), *zip(names, np.array_split(ids, len(names)), strict=True)]:
        path = folder / name / "data"
        path.mkdir(parents=True, exist_ok=True)
        if len(hosted):
            cohort = everything.gather(hosted)
            real = np.arange(cohort.inputs.shape[1]) < cohort.sizes[:, None]
            owners = np.repeat(hosted, cohort.sizes)
            np.savez(path / "train.npz", x=cohort.inputs[real], y=cohort.labels[real], client=owners)
        if name in ("all", "server"):
            np.savez(path / "test.npz", x=inputs, y=labels)
        if name != "all":
            told = {"clients": clients, "hosted": hosted.tolist(), "classes": 10}
            (path / "federation.json").write_text(json.dumps(told))


@contextmanager
def running(commands: str, log: Path, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:
    """Commands in a shell, ended with all that they started, also in sessions of their own."""
    process = start(["sh", "-euc", commands], log, environment=environment)
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.terminate()
            for each in psutil.wait_procs(family, timeout=60)[1]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        kill(process)


def kill(process: subprocess.Popen) -> None:
    """``kill -9`` of a process with all its children, as a power cut does."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether a process of this machine accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
