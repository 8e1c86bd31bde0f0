"""A process of a sweep: it runs one scenario after another, so that torch is imported once.

It ends when the pipe, whose file descriptor is the only argument, is closed; what it was at can be gone on with.
"""

import os
import sys
import warnings
from multiprocessing.connection import Connection

from fedamp.errors import FedampError
from fedamp.runs.records import RoundRecord
from fedamp.server.launch import launch
from fedamp.server.observers import Observer


class _Telling(Observer):
    """Tells who asked of every round."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def round_done(self, record: RoundRecord) -> None:
        try:
            self._pipe.send(record.round)
        except OSError:  # nobody asks any more
            os._exit(1)


def main() -> None:
    """Serve until the pipe is closed."""
    warnings.simplefilter("ignore")
    pipe = Connection(int(sys.argv[1]))
    try:
        while True:
            scenario, folder, resume = pipe.recv()
            try:
                launch(scenario, _Telling(pipe), folder, resume)
                answer = None
            except FedampError as error:
                answer = f"{error.kind}: {error}"
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        pass


if __name__ == "__main__":
    main()
