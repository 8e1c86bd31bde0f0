"""What all trackers have in common: what they are told, once each, and that their failure is not the run's."""

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedamp import __version__
from fedamp.errors import InputError
from fedamp.runs.files import write_atomically
from fedamp.runs.folder import RunFolder
from fedamp.runs.records import RoundRecord, Summary
from fedamp.server.observers import Observer

if TYPE_CHECKING:
    from fedamp.server.setup import Prepared


class Tracker(Observer):
    """A run as somebody else's program shows it. For the run itself it may fail at any time: it is then left alone.

    What it was told stands in ``tracker-NAME.json`` of the run folder, so that a run that is gone on with continues in
    the same place, and each round is told once.

    Args:
        unprotected: tell also what is computed from private data without noise.

    Raises:
        InputError: its package is not installed.
    """

    name: ClassVar[str]

    def __init__(self, unprotected: bool = False) -> None:
        if find_spec(self.name) is None:
            raise InputError(
                f"trackers: {self.name} is not installed; expected: pip install 'fedamp[{self.name}]', or without it"
            )
        self._unprotected = unprotected
        self.only_tells = f"tracker {self.name}"

    # What each one does.

    @abstractmethod
    def begin(self, run: str | None, name: str, settings: Mapping[str, Any]) -> str:
        """Start a run there, or go on in one; returns what it is called there.

        Args:
            run: what it is called there; None for a new one.
            name: what a person calls it.
            settings: the scenario, by key path.
        """

    @abstractmethod
    def tell(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a round."""

    @abstractmethod
    def end(self, status: str) -> None:
        """The run is over for now: ``finished``, ``failed`` or ``interrupted``."""

    # What it hears.

    def opened(self, folder: Path) -> None:
        self.folder, self._told = folder, 0
        self._run: str | None = None
        self._file = folder / f"tracker-{self.name}.json"

    def started(self, prepared: "Prepared", finished: list[RoundRecord]) -> None:
        self._begin(prepared)
        for record in finished:
            self.round_done(record)

    def round_done(self, record: RoundRecord) -> None:
        if record.round > self._told:
            self._tell(record)

    def closed(self) -> None:
        if self._run is not None:
            self.end(self._status())

    def _begin(self, prepared: "Prepared") -> None:
        kept = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._told = int(kept.get("told", 0))
        settings = flat(prepared.plan.scenario.model_dump(mode="json", exclude={"description", "trackers"}))
        self._run = self.begin(kept.get("run"), self.folder.name, settings | {"fedamp": __version__})
        self._note()

    def _tell(self, record: RoundRecord) -> None:
        self.tell(record.round, public_numbers(record) | (unprotected_numbers(record) if self._unprotected else {}))
        self._told = record.round
        self._note()

    def _note(self) -> None:
        write_atomically(self._file, json.dumps({"run": self._run, "told": self._told}).encode(), durable=False)

    def _status(self) -> str:
        summary = RunFolder(self.folder).summary
        if not summary.exists():
            return "failed"
        ending = Summary.read(summary).stopped_because
        return {"budget": "finished", "diverged": "failed"}.get(ending, ending)


def public_numbers(record: RoundRecord) -> dict[str, float]:
    """What is released and what is public, without what is not there or infinite."""
    found = {
        "accuracy": record.accuracy,
        "loss": record.loss,
        **record.metrics,
        "validation_score": record.validation_score,
        "epsilon": record.epsilon_upper,
    }
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def unprotected_numbers(record: RoundRecord) -> dict[str, float]:
    """What is computed from private data without noise, for the server's owner alone."""
    return {f"unprotected/{name}": float(value) for name, value in record.unprotected.items()}


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Values by key path."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return found
