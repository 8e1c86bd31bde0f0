"""Stand for Flower's program of an app on the PATH: a parent process, which has imported everything, forks for it.

    python -IS program.py NAME SOCKET ARGUMENT...

NAME is ``flwr-clientapp`` of a lasting node, where it handles a message, or ``flwr-serverapp`` of a SuperLink. This
file uses only Python's own modules, because a process of it starts for each message. The fork gets the arguments,
the environment, the working directory, and the standard streams. Signals go to the fork, and its end is this program's.
Where the parent does not answer, Flower's own program runs. :mod:`fedamp.client.node` has the other end of the socket.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

PATIENCE = 60.0  # seconds for the parent, which may be starting
OWNERS = {"flwr-clientapp": "fedamp node", "flwr-serverapp": "fedamp superlink"}


def main(name: str, place: str, arguments: list[str]) -> int:
    """Return the exit status of the fork; where there is none, this process becomes Flower's own program.

    Args:
        name: of Flower's program.
        place: path of the parent's socket.
        arguments: of the program.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(PATIENCE)
        link.connect(place)
        told, [fork], *_ = socket.recv_fds(link, 1000, 1)
    except (OSError, ValueError) as error:  # the parent says why it has no fork, or nothing
        reason = told.decode() if isinstance(error, ValueError) and told else str(error)
        link.close()
        _become_flowers(name, place, arguments, reason or "it ended")
    link.settimeout(None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signal.pidfd_send_signal(fork, number))
    header = json.dumps([[name, *arguments], dict(os.environ), os.getcwd()]).encode()
    status = b""
    with suppress(OSError):
        socket.send_fds(link, [len(header).to_bytes(4, "big")], [0, 1, 2])
        link.sendall(header)
        status = link.recv(4)
    if not status:  # the parent is gone; its fork may still be at work
        select.select([fork], [], [])
        return 1
    code = int.from_bytes(status, "big", signed=True)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def say_line(line: str, owner: str = "fedamp node") -> None:
    """Print a line for a machine's owner on standard error, in the form of :mod:`fedamp.base.log_lines`."""
    told = f"{owner}: {line}"
    if os.environ.get("FEDAMP_LOG") == "json":
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        told = json.dumps({"time": now, "level": "warning", "logger": owner.replace(" ", "."), "message": line})
    print(told, file=sys.stderr, flush=True)


def _become_flowers(name: str, place: str, arguments: list[str], reason: str) -> None:
    """Replace this process by the program of this name that is next on the PATH, and say why on standard error."""
    say_line(f"a process of its own for this app, as Flower starts it ({reason})", OWNERS[name])
    own = os.path.dirname(place)
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != own]
    os.environ["PATH"] = os.pathsep.join(path)
    os.execvp(name, [name, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
