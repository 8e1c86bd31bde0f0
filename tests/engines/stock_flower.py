"""Flower's own simulation in a process of its own: what ``flwr run`` starts, without a SuperLink."""

import json
import os
import subprocess
import sys
from pathlib import Path

SERVER_APP = "fedamp.server.app:app"


def play(server: str, client: str, nodes: int, config: dict, log: Path) -> int:
    """Run a server app from start to end on so many nodes; the exit status, and all that was printed in ``log``.

    Args:
        server, client: import paths of the apps, ``package.module:name``.
        config: the run configuration.
    """
    command = [sys.executable, "-m", __name__, json.dumps([server, client, nodes, config])]
    variables = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("ab") as output:
        return subprocess.run(
            command, env=variables, stdout=output, stderr=output, timeout=3600, check=False
        ).returncode


def main() -> None:
    """In that process."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from fedamp.engines.simulation import load_app

    server, client, nodes, config = json.loads(sys.argv[1])
    app = ServerApp()

    @app.main()
    def configured(grid, context) -> None:
        context.run_config.update(config)
        load_app(server)(grid, context)

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": nodes}}
    run_simulation(app, load_app(client), nodes, backend_config=backend)


if __name__ == "__main__":
    main()
