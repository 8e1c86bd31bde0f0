"""Run Flower's SuperLink, which answers directly, and beside it a parent that has imported what a run of fedamp needs.

The state, the database and all checks are Flower's (:mod:`fedamp.engines.direct`), so a killed SuperLink goes on as
Flower's does, and either reads the database of the other. For each run Flower starts a process, which imports Flower,
torch and fedamp for seconds, while the nodes wait. Here the parent forks for it, as on a node
(:mod:`fedamp.client.node`).

    python -m fedamp.server.superlink start ARGUMENT...  both: what ``fedamp superlink`` becomes
    python -m fedamp.server.superlink parent SOCKET      the parent
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from fedamp.client import node
from fedamp.client.node import ANSWERED_BY_FLOWER, Forks, act_as_new_process, parent
from fedamp.engines.direct import answer_directly, superlink_handlers

SUPERLINK, SERVER_APP = "flower-superlink", "flwr-serverapp"


program_of = partial(node.program_of, module="fedamp.server.superlink")


def superlink(arguments: Sequence[str]) -> None:
    """Become Flower's SuperLink in this process.

    Args:
        arguments: of ``flower-superlink``.

    Raises:
        DeploymentError: there is no place for its programs.
    """
    _call_this_process(SUPERLINK)
    answer_directly("flwr.superlink.main", superlink_handlers)
    from flwr.superlink.cli import flower_superlink

    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        with node.private_folder("fedamp-superlink-") as folder:
            forks = Forks(Path(folder), SERVER_APP)
            if not forks.why_not and not ANSWERED_BY_FLOWER.intersection(arguments):
                forks.start_parent(program_of("parent"))
            forks.close()
            os.environ["PATH"] = forks.path
            sys.argv = [SUPERLINK, *arguments]
            flower_superlink()
    except _Terminated:  # Flower ends by the signal itself, when all is closed; so does this, without the folder
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)


class _Terminated(BaseException):
    """SIGTERM has come; no handler of errors takes it."""


def _raise_terminated(*_: object) -> NoReturn:
    """Unwind this process in place of its end."""
    raise _Terminated


def everything() -> Callable[[], None]:
    """Import what a run needs, without starting a thread; return Flower's server app program, for a fork."""
    from flwr.superlink.cli import flwr_serverapp

    import_module("fedamp.server.app")

    def run() -> None:
        _call_this_process(SERVER_APP)
        act_as_new_process()
        flwr_serverapp()

    return run


def _call_this_process(name: str) -> None:
    """Give this process a name for ``ps`` and ``top``."""
    with suppress(OSError):  # only Linux has this file
        Path("/proc/self/comm").write_text(name)


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "parent":
        parent(socket.socket(fileno=int(rest[0])), everything)
    node.exit_with(partial(superlink, rest))
