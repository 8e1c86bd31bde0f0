"""Keep what ``fedamp audit RUN`` needs of a run with canaries: all released models, and in the end the coins.

The coins are kept when the run has ended, because they tell who was in.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.numpy import save

from fedamp.base.arrays import Arrays
from fedamp.base.files import make_folder, write_atomically, writing
from fedamp.extensions.audit.section import canaries_of
from fedamp.runs.folder import RunFolder
from fedamp.server.observers import RunHooks, RunStart


def kept_in(folder: RunFolder) -> Path:
    """Return the folder where a run keeps it, ``canaries`` in the run folder."""
    return folder.path / "canaries"


class KeptModels(RunHooks):
    """Writes the models of a run into its folder ``canaries``.

    Args:
        start: of the run.
    """

    def __init__(self, start: RunStart) -> None:
        super().__init__()
        self._plan, self._folder = start.plan, kept_in(start.folder)

    def before_release(self, round_: int, parameters: Arrays) -> None:
        """Keep the model of a round."""
        self._write(f"{round_}.safetensors", save(parameters))

    def before_end(self, first: Arrays) -> None:
        """Keep the first model, and which canaries were in."""
        self._write("0.safetensors", save(first))
        self._write("coins.json", json.dumps(self._plan.canary_coins.astype(int).tolist()).encode())

    def _write(self, name: str, content: bytes) -> None:
        """Write a file that outlives a kill of this process, but not a power cut."""
        with writing(self._folder):
            make_folder(self._folder)
        write_atomically(self._folder / name, content, durable=False)


@contextmanager
def kept(start: RunStart) -> Iterator[KeptModels | None]:
    """Yield the hooks of a run with ``privacy.canaries``; None: a run without them."""
    yield KeptModels(start) if canaries_of(start.plan.scenario) else None
