"""Flower's own simulation in a child process, to show that the apps do not depend on our engines.

``flwr run .`` is the way to run the apps with Flower's commands.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from time import sleep

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedamp.engines.engines import CLIENT_APP, require_ray
from fedamp.engines.node import load_app
from fedamp.engines.ray import environment, private_ray, ray_folder
from fedamp.engines.resources import worker_resources
from fedamp.errors import FederationError, InputError, one_line
from fedamp.federation.running import Engine

SERVER_APP = "fedamp.server.app:app"


def run(
    config: Mapping[str, str | int | float | bool],
    log: Path,
    engine: Engine,
    watch: Callable[[], None] = lambda: None,
    apps: tuple[str, str] = (SERVER_APP, CLIENT_APP),
) -> None:
    """Run a server app from start to end. No process is left running.

    Args:
        config: the run configuration that the server app reads, such as ``scenario`` and ``out``.
        log: file for the output of Flower, Ray and the apps.
        engine: number of workers, each a simulated SuperNode.
        watch: called about twice a second.
        apps: import paths of server app and client app, ``package.module:name``.

    Raises:
        InputError: Ray is not installed, or the engine asks for more than this machine's CPU.
        FederationError: the run failed.
    """
    require_ray("flower")
    if engine.device not in ("auto", "cpu") or engine.address is not None:
        raise InputError("engine.kind: flower trains on this machine's cpu; use ray for another device or address")
    workers = worker_resources(engine.model_copy(update={"device": "cpu"}), os.cpu_count() or 1, 0).workers
    command = [sys.executable, "-P", "-m", __name__, json.dumps([*apps, workers, dict(config)])]
    with ray_folder() as folder, log.open("ab") as output:
        variables = environment() | private_ray() | {"RAY_TMPDIR": folder}
        child = subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True)
        try:
            while child.poll() is None:
                watch()
                sleep(0.5)
        finally:
            child.kill()  # Ray ends with it
            child.wait()
    if child.returncode:
        reason = log.read_text(errors="replace").strip().rpartition("\n")[2][:300]
        raise FederationError(f"Flower's simulation failed ({reason})")


def main() -> None:
    """In the child: run a server app that first gets its run configuration."""
    from flwr.simulation import run_simulation

    server_path, client_path, workers, config = json.loads(sys.argv[1])
    server_app = ServerApp()

    @server_app.main()
    def configured(grid: Grid, context: Context) -> None:
        context.run_config.update(config)
        load_app(server_path)(grid, context)

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": workers}}
    try:
        run_simulation(server_app, load_app(client_path), workers, backend_config=backend)
    except Exception as error:
        traceback.print_exc()
        sys.exit(one_line(error))  # the last line of the log


if __name__ == "__main__":
    main()
