"""What the processes that a simulation starts get: their environment, and a folder for Ray's sockets."""

import os
import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def environment() -> dict[str, str]:
    """Of a process that can import all that this process can."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}


def private_ray() -> dict[str, str]:
    """Variables that make the Ray of a process unreachable from other machines, and for others on this one.

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
    """A folder for its owner alone, with a short path: Ray's sockets are in it."""
    return TemporaryDirectory(prefix="fedamp-", dir=os.environ.get("RAY_TMPDIR", "/tmp"), ignore_cleanup_errors=True)
