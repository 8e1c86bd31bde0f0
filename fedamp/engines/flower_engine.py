"""Flower's own simulation, as ``flwr run`` gives it: the same server app and client app, on a SuperLink of their own.

It is slow to start and slow a message; it is here to show that nothing in the apps depends on our own engines.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import psutil

from fedamp.engines.engines import CLIENT_APP, require_ray
from fedamp.engines.processes import environment, ray_of_its_own
from fedamp.engines.resources import worker_resources
from fedamp.errors import FederationError, InputError
from fedamp.federation.running import Engine

SERVER_APP = "fedamp.server.app:app"
STARTUP_DEADLINE = 60.0  # seconds, until the SuperLink listens
STOP_DEADLINE = 10.0  # seconds, until it has stopped its children


def run(
    config: Mapping[str, str | int | float | bool],
    log: Path,
    engine: Engine,
    server_app: str = SERVER_APP,
    client_app: str = CLIENT_APP,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run a server app with stock Flower, from start to end; nothing is left running after it.

    Args:
        config: the run configuration that the server app reads, such as ``scenario`` and ``out``. Paths must be
            absolute: the apps run in an empty folder.
        log: file that gets all that Flower, Ray and the apps print.
        engine: number of workers, each of them a simulated SuperNode.
        server_app, client_app: import paths, ``package.module:name``.
        watch: called about twice a second while the run goes on.

    Raises:
        InputError: Ray is not installed, or something other than this machine's CPU is asked for.
        FederationError: Flower did not start, or the run failed.
    """
    require_ray("flower")
    if engine.device not in ("auto", "cpu") or engine.address is not None:
        raise InputError("engine.kind: flower trains on this machine's cpu; use ray for another device or address")
    workers = worker_resources(engine.model_copy(update={"device": "cpu"}), os.cpu_count() or 1, 0).workers
    with tempfile.TemporaryDirectory(prefix="fedamp-flower-") as name, open(log, "a") as output:
        folder = Path(name)
        _write_app(folder / "app", config, server_app, client_app)
        with _superlink(folder, output) as superlink:
            nodes = f"num-supernodes={workers} client-resources-num-cpus=1"
            command = [_tool("flwr"), "run", "app", "run", "--stream", "--federation-config", nodes]
            stream = subprocess.Popen(
                command, cwd=folder, env=_environment(folder), stdout=output, stderr=subprocess.STDOUT
            )
            try:
                status, details = _wait(stream, superlink, folder, watch)
            finally:
                stream.kill()
                stream.wait()
    if status != "finished:completed":
        raise FederationError(f"Flower's simulation ended as {status!r} ({' '.join(details.split())})")


def _write_app(app: Path, config: Mapping[str, str | int | float | bool], server_app: str, client_app: str) -> None:
    """A Flower app without dependencies (Flower would install them for every run) that only points at the real one."""
    package = app / "fedamp_run"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name, path in (("server", server_app), ("client", client_app)):
        module, _, attribute = path.partition(":")
        # Flower looks for an assignment in the source text; an import is not enough.
        (package / f"{name}.py").write_text(f"from {module} import {attribute} as real\n\napp = real\n")
    # Strings, numbers and truth values are written alike in JSON and TOML.
    settings = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in config.items())
    (app / "pyproject.toml").write_text(f"""\
[project]
name = "fedamp-run"
version = "0.1.0"
description = "One run of fedamp"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedamp"

[tool.flwr.app.components]
serverapp = "fedamp_run.server:app"
clientapp = "fedamp_run.client:app"

[tool.flwr.app.config]
{settings}""")


@contextmanager
def _superlink(folder: Path, output: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A SuperLink on a free port of this machine, with a Flower home of its own; ended with all its children.

    ``flwr run`` would leave one behind, shared with whatever else the person does with Flower.
    """
    port = _free_port()
    home, empty = folder / "home", folder / "cwd"  # Flower's workers import from cwd before anything else
    home.mkdir()
    empty.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "run"\n\n[superlink.run]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    command = [_tool("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    command.append("--disable-runtime-dependency-installation")
    variables = _environment(folder) | ray_of_its_own()
    process = subprocess.Popen(command, cwd=empty, env=variables, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_for_port(port, process)
        yield process
    finally:
        _stop(process)


def _wait(
    stream: subprocess.Popen[bytes], superlink: subprocess.Popen[bytes], folder: Path, watch: Callable[[], None]
) -> tuple[str, str]:
    """Status and details of the run once it is over. The log stream ends with it, but its exit code says nothing."""
    while superlink.poll() is None:
        watch()
        try:
            stream.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            continue
        runs = _runs(folder)
        if not runs:
            return "not started", "flwr run gave up"
        if runs[0]["status"].startswith("finished"):
            return runs[0]["status"], runs[0]["status-details"]
    return "superlink died", f"exit code {superlink.returncode}"


def _runs(folder: Path) -> list[dict[str, Any]]:
    command = [_tool("flwr"), "list", "run", "--format", "json"]
    answer = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)
    return json.loads(answer.stdout)["runs"] if answer.returncode == 0 else []


def _environment(folder: Path) -> dict[str, str]:
    return environment() | {"FLWR_HOME": str(folder / "home"), "FLWR_LOG_LEVEL": "INFO"}


def _tool(name: str) -> str:
    found = shutil.which(name, path=_environment(Path())["PATH"])
    if found is None:
        raise InputError(f"engine.kind: flower needs the command {name}, which comes with flwr and is not installed")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = monotonic() + STARTUP_DEADLINE
    while monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            sleep(0.1)
    raise FederationError(
        f"Flower's SuperLink did not start on port {port} within {STARTUP_DEADLINE:.0f} s; see the log"
    )


def _stop(leader: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: politely, so that each can do the same, and then firmly.

    Flower starts its children in sessions of their own, and does not stop a run with its SuperLink.
    """
    try:
        children = psutil.Process(leader.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    leader.terminate()
    with suppress(subprocess.TimeoutExpired):
        leader.wait(timeout=STOP_DEADLINE)
    leader.kill()
    leader.wait()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    for child in psutil.wait_procs(children, timeout=STOP_DEADLINE)[1]:
        with suppress(psutil.NoSuchProcess):
            child.kill()
