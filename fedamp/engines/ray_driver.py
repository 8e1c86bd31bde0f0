"""Drive Ray in a process of its own for :class:`fedamp.engines.ray.RayGrid`, and answer its requests over a pipe.

It ends, with all processes that it started, when the pipe is closed. Its output goes into the log. It is run as
``python -m fedamp.engines.ray_driver DESCRIPTOR``, and nobody imports it. :mod:`fedamp.engines.ray_workers` has what it
serves.
"""

import logging
import os
import shutil
import socket
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from multiprocessing.connection import Connection
from time import sleep
from typing import Any

import psutil
import ray
from ray._common.utils import get_ray_address_file
from ray._private import services
from ray._raylet import persist_port  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError

from fedamp.base import devices
from fedamp.base.reading import TYPED, read_regular
from fedamp.errors import FedampError, FederationError, InputError, one_line
from fedamp.federation.running import Engine

AGENTS = "metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port"
START_SECONDS = 900  # of a process of Ray, on a busy machine
INLINE_LIMIT = 1_000_000  # bytes that Ray carries inside a call, a little more than ``ray_workers`` uses
ADDRESS_DEADLINE = 5.0  # seconds, until a cluster answers
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}

log = logging.getLogger("fedamp.engines")


def main() -> None:
    """Serve until the pipe is closed; its file descriptor is the only argument.

    An error of fedamp is sent over the pipe as it is, any other one as a FederationError, and then the process ends.
    """
    warnings.simplefilter("ignore")
    pipe = Connection(int(sys.argv[1]))
    client_app, engine, folder = pipe.recv()
    status = 1
    try:
        _serve_calls(pipe, client_app, engine, folder)
    except (EOFError, BrokenPipeError):  # the other process is gone
        ray.shutdown()
        status = 0
    except FedampError as error:
        log.error("%s", error)
        pipe.send(error)
    except Exception as error:
        log.exception("the driver of Ray failed")
        pipe.send(FederationError(f"Ray: {one_line(error)[:300]}"))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)  # where Ray is broken, Python's own exit may hang


def _serve_calls(pipe: Connection, client_app: str, engine: Engine, folder: str) -> None:
    """Start Ray, or join a cluster; make the workers; then call their methods as the pipe asks."""
    _start_ray(engine, folder) if engine.address is None else _connect_cluster(engine.address)
    here = psutil.Process().children()
    daemons = {process.name(): process for process in here if process.name() in ("gcs_server", "raylet")}
    _refuse_without_token()
    # Flower takes a second to import, in which Ray starts its processes.
    from fedamp.engines.flower import LOG_FORMAT
    from fedamp.engines.ray_workers import Workers

    logging.basicConfig(format=LOG_FORMAT)
    logging.getLogger("fedamp").setLevel(logging.INFO)

    def check() -> None:
        if pipe.poll():
            raise EOFError  # the pipe is closed: nobody sends a request before the last one is answered
        for name, process in daemons.items():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                raise FederationError(f"Ray's {name} ended")

    workers = Workers(client_app, engine, check)
    pipe.send(workers.resources)
    while True:
        name, arguments = pipe.recv()
        answer = getattr(workers, name)(*arguments)
        if answer is not None:  # push and kill_soon have no answer
            pipe.send(answer)


def _start_ray(engine: Engine, folder: str) -> None:
    """Start a Ray of this machine alone, in a private folder."""
    services.start_raylet = partial(_start_raylet, services.start_raylet)
    services.get_node = partial(_ask_patiently, services.get_node)
    ray.init(
        "local",
        include_dashboard=False,
        num_cpus=None if engine.workers == "auto" else engine.workers,  # Ray starts a process a core at once
        # Where a first process takes longer to start than this, by default a minute, Ray waits for it for ever.
        _system_config={"max_direct_call_object_size": INLINE_LIMIT, "worker_register_timeout_seconds": START_SECONDS},
        _temp_dir=os.path.join(folder, "ray"),  # Ray opens the folder that it is given to everybody
        **QUIET,
    )


def _start_raylet(start: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Start the raylet with ports of -1 for its agents, which says that they are not in use.

    Else it ends where its agents take 15 seconds to name their ports, as on a busy machine.
    """
    told = signature(start).bind(*arguments, **options).arguments
    for name in AGENTS:
        persist_port(told["session_dir"], told["node_id"], name, -1)
    return start(*arguments, **options)


def _ask_patiently(ask: Callable[..., Any], *question: Any) -> Any:
    """Ask Ray for its node with pauses, as long as the raylet runs.

    Ray itself asks without a pause, on a core that the node needs, and for 30 seconds at most.
    """
    while any(one.name() == "raylet" and one.status() != psutil.STATUS_ZOMBIE for one in psutil.Process().children()):
        with suppress(RuntimeError):
            return ask(*question)
        sleep(0.1)
    raise FederationError(f"Ray's raylet did not come up{devices.busy_words()}")


def _connect_cluster(address: str) -> None:
    """Join the cluster at an address; ``auto`` is the one that this user or root has started here.

    Ray itself would also tell its token to a program of another user that looks like a cluster.

    Raises:
        InputError: no cluster is at the address, or its token is another.
    """
    try:
        if address == "auto":
            told = os.environ.get("RAY_ADDRESS") or read_regular(get_ray_address_file(None), TYPED, owned=True).decode()
            address = told.strip()
        host, colon, port = address.rpartition(":")
        if colon:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=ADDRESS_DEADLINE).close()
        ray.init(address, **QUIET)
    except (AuthenticationError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise InputError(
            f"engine.address: no Ray cluster at {address!r} ({reason}); expected: auto, or host:port, of one "
            "whose token is in ~/.ray/auth_token or RAY_AUTH_TOKEN (docs/cluster.md)"
        ) from error


def _refuse_without_token() -> None:
    """Refuse a cluster that answers a question without a token: anyone who reaches it can have it run programs.

    Raises:
        InputError: it answered.
    """
    import grpc

    address = ray.get_runtime_context().gcs_address
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")(b"", timeout=ADDRESS_DEADLINE)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return
            raise
    raise InputError(
        f"engine.address: anyone who reaches the Ray cluster at {address} can run programs there; expected: one "
        "that was started with RAY_AUTH_MODE=token (docs/cluster.md)"
    )


if __name__ == "__main__":
    main()
