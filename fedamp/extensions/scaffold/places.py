"""Tell where a run keeps its clients' control variates."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedamp.extensions.personal.places import PersonalPlaces
from fedamp.server.observers import RunStart

FILE = "variates.bin"  # of a run folder


class VariatePlaces(PersonalPlaces):
    """Tells the workers of a simulation the file of the variates, and deletes it at the end of the run.

    Args:
        file: of the variates.
        every: rounds from one checkpoint to the next.
        lasts: whether it stays after the run.
    """

    def __init__(self, file: Path, every: int, lasts: bool) -> None:
        super().__init__(file, every, "variates")
        self._file, self._lasts = file, lasts

    def has_ended(self) -> None:
        """Delete the file: no round reads it any more."""
        if not self._lasts:
            self._file.unlink(missing_ok=True)


@contextmanager
def kept(start: RunStart) -> Iterator[VariatePlaces | None]:
    """Yield the hooks of a run with ``client.scaffold``; None: a run without it."""
    asked, file = start.plan.scenario, start.folder.path / FILE
    federation = asked.federation
    is_asked = getattr(asked.client, "scaffold", None) is not None
    yield VariatePlaces(file, federation.checkpoint_every, federation.keep_secrets) if is_asked else None
