"""What the processes that a simulation starts are told by their environment."""

import os
import secrets
import sys
import sysconfig
from pathlib import Path


def environment() -> dict[str, str]:
    """Of a process that finds the same Python, its commands, and all that this process can import."""
    return os.environ | {
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
    }


def ray_of_its_own() -> dict[str, str]:
    """What makes the Ray that a process starts unreachable from other machines, and for others on this one.

    Only who has the token is answered. It stands in the environment, which the system shows to nobody but its owner.
    """
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ADDRESS": "local",  # else Flower's Ray joins whatever cluster was last started on this machine
        # Ray's switch for systems whose firewall asks about every listener: all are on the loopback address then.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
