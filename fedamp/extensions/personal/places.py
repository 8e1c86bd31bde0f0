"""Tell where a run keeps its clients' own parameters."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedamp.server.observers import RunHooks, RunStart

FILE = "personal.bin"  # of a run folder


class PersonalPlaces(RunHooks):
    """Tells the workers of a simulation where clients find their own parameters.

    Args:
        file: of the parameters.
        every: rounds from one checkpoint to the next.
        key: of the task, for the file.
    """

    def __init__(self, file: Path, every: int, key: str = "personal") -> None:
        super().__init__()
        self._keys = {key: str(file.resolve()), "checkpoint_every": every}

    def task_keys(self) -> dict[str, Any]:
        """Return the file, and the rounds between checkpoints."""
        return self._keys


@contextmanager
def kept(start: RunStart) -> Iterator[PersonalPlaces | None]:
    """Yield the hooks of a run with ``model.local``; None: a run without it."""
    asked = start.plan.scenario
    yield PersonalPlaces(start.folder.path / FILE, asked.federation.checkpoint_every) if asked.model.local else None
