"""Run Flower's SuperLink, which answers the requests of nodes and of the server's app directly.

The state, the database and all checks are Flower's (:mod:`fedamp.engines.direct`), so a killed SuperLink goes on as
Flower's does, and either reads the database of the other.

    python -m fedamp.server.superlink ARGUMENT...       what ``fedamp superlink`` becomes
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedamp.engines.direct import answer_directly, superlink_handlers

NAME = "flower-superlink"


def superlink(arguments: Sequence[str]) -> None:
    """Become Flower's SuperLink in this process.

    Args:
        arguments: of ``flower-superlink``.
    """
    with suppress(OSError):  # for ``ps`` and ``top``; only Linux has this file
        Path("/proc/self/comm").write_text(NAME)
    answer_directly("flwr.superlink.main", superlink_handlers)
    from flwr.superlink.cli import flower_superlink

    sys.argv = [NAME, *arguments]
    flower_superlink()


if __name__ == "__main__":
    superlink(sys.argv[1:])
