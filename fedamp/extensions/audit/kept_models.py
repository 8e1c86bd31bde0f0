"""What a run with canaries keeps for ``fedamp audit RUN``: all released models, and in the end the coins."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.numpy import save

from fedamp.base.arrays import Arrays
from fedamp.base.files import write_atomically, writing
from fedamp.extensions.audit.section import canaries_of
from fedamp.runs.around import RunHooks, RunStart
from fedamp.runs.folder import RunFolder


def kept_in(folder: RunFolder) -> Path:
    """The folder of what a run keeps."""
    return folder.path / "canaries"


class KeptModels(RunHooks):
    """Writes the models of a run into its folder ``canaries``."""

    def __init__(self, start: RunStart) -> None:
        super().__init__()
        self._plan, self._folder = start.plan, kept_in(start.folder)

    def before_release(self, round_: int, parameters: Arrays) -> None:
        """Keep the model of a round."""
        self._write(f"{round_}.safetensors", save(parameters))

    def before_end(self, first: Arrays) -> None:
        """Keep the first model, and which canaries were in."""
        self._write("0.safetensors", save(first))
        self._write("coins.json", json.dumps(self._plan.coins.astype(int).tolist()).encode())

    def _write(self, name: str, content: bytes) -> None:
        with writing(self._folder):
            self._folder.mkdir(exist_ok=True)
        write_atomically(self._folder / name, content, durable=False)


@contextmanager
def kept(start: RunStart) -> Iterator[KeptModels | None]:
    """The hooks of a run with ``privacy.canaries``; None: a run without them."""
    yield KeptModels(start) if canaries_of(start.plan.scenario) else None
