"""The process that drives Ray for :class:`fedamp.engines.ray.RayGrid`, and does what that asks over a pipe.

It ends, with all that it started, when the pipe is closed. What it prints goes into the log.
"""

import logging
import os
import shutil
import socket
import sys
import warnings
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import AuthenticationError

from fedamp.errors import FedampError, FederationError, InputError
from fedamp.federation.running import Engine

INLINE_LIMIT = 1_000_000  # of what Ray carries inside a call; its own is 100 kB
ADDRESS_DEADLINE = 5.0  # seconds, until a cluster answers

log = logging.getLogger("fedamp.engines")


def main() -> None:
    """Serve until the pipe, whose file descriptor is the only argument, is closed."""
    warnings.simplefilter("ignore")
    pipe = Connection(int(sys.argv[1]))
    client_app, engine, folder = pipe.recv()
    status = 1
    try:
        _serve(pipe, client_app, engine, folder)
    except (EOFError, BrokenPipeError):  # nobody asks any more
        ray.shutdown()
        status = 0
    except FedampError as error:
        log.error("%s", error)
        pipe.send(error)
    except Exception as error:
        log.exception("the driver of Ray failed")
        pipe.send(FederationError(f"Ray: {' '.join(f'{type(error).__name__}: {error}'.split())[:300]}"))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)  # where Ray is broken, its own way to the exit may take for ever


def _serve(pipe: Connection, client_app: str, engine: Engine, folder: Path) -> None:
    session = Session(pipe, engine, folder)
    # Flower takes a second to import, in which Ray starts its processes.
    from fedamp.engines.flower import LOG_FORMAT
    from fedamp.engines.ray_workers import Workers
    from fedamp.engines.resources import Demand

    logging.basicConfig(format=LOG_FORMAT)
    logging.getLogger("fedamp").setLevel(logging.INFO)

    def demand() -> Demand | None:
        pipe.send(Demand)
        answer: Demand | None = pipe.recv()
        return answer

    workers = Workers(client_app, engine, session, demand)
    pipe.send(workers.resources)
    while True:
        name, arguments = pipe.recv()
        answer = getattr(workers, name)(*arguments)
        if answer is not None:  # nobody waits for messages to be sent
            pipe.send(answer)


class Session:
    """A connection with Ray: with one that is started here, or with a cluster.

    Raises:
        InputError: there is no cluster at the address, or it answers those who have no token.
    """

    def __init__(self, pipe: Connection, engine: Engine, folder: Path) -> None:
        self._pipe = pipe
        quiet: Mapping[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if engine.address is None:
            workers = None if engine.workers == "auto" else engine.workers  # Ray starts a process a core at once
            limits = {"max_direct_call_object_size": INLINE_LIMIT}
            ray.init(
                "local",
                include_dashboard=False,
                num_cpus=workers,
                _system_config=limits,
                _temp_dir=str(folder / "ray"),  # one within it: Ray opens the folder that it is given to everybody
                **quiet,
            )
        else:
            _connect(engine.address, quiet)
        here = psutil.Process().children()
        self._daemons = {process.name(): process for process in here if process.name() in ("gcs_server", "raylet")}
        _refuse_without_token()

    def check(self) -> None:
        """Raise where there is no point in waiting any longer.

        Raises:
            EOFError: nobody asks any more.
            FederationError: one of Ray's own processes is gone.
        """
        if self._pipe.poll():
            raise EOFError
        for name, process in self._daemons.items():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                raise FederationError(f"Ray's {name} ended")


def _connect(address: str, options: Mapping[str, Any]) -> None:
    try:
        host, colon, port = address.rpartition(":")
        if colon:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=ADDRESS_DEADLINE).close()
        ray.init(address, **options)
    except (AuthenticationError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise InputError(
            f"engine.address: no Ray cluster at {address!r} ({reason}); expected: auto, or host:port, of one "
            "whose token is in ~/.ray/auth_token or RAY_AUTH_TOKEN (docs/cluster.md)"
        ) from error


def _refuse_without_token() -> None:
    """Raise InputError where Ray answers a question without a token: then anybody can have it run programs."""
    import grpc

    address = ray.get_runtime_context().gcs_address
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")
        try:
            ask(b"", timeout=ADDRESS_DEADLINE)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return
            raise
    raise InputError(
        f"engine.address: whoever reaches the Ray cluster at {address} can run programs there; expected: one that was "
        "started with RAY_AUTH_MODE=token (docs/cluster.md)"
    )


if __name__ == "__main__":
    main()
