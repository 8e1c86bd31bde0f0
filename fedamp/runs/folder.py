"""The run folder: where everything that a run leaves is, and in which order it is written."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from fedamp.scenario import scenario_file
from fedamp.errors import RunFolderError
from fedamp.scenario import Scenario
from fedamp.runs.files import flush, write_atomically, write_json
from fedamp.runs.files import locked as locked
from fedamp.arrays import Arrays

RUNS = Path("runs")


@dataclass(frozen=True)
class RoundRecord:
    """A line of ``rounds.jsonl``.

    Attributes:
        round: number, from 1.
        loss, accuracy: of the new global model on the public test set; None in rounds that are not evaluated.
        epsilon_upper: upper end of what is spent so far; None (infinite) without noise.
        scheduled: size of the round's cohort.
        reported: units that answered.
        seconds: wall time of the round.
        unprotected: numbers computed from private data without noise. For the server's owner only.
    """

    round: int
    loss: float | None
    accuracy: float | None
    epsilon_upper: float | None
    scheduled: int
    reported: int
    seconds: float
    unprotected: dict[str, float]


@dataclass(frozen=True)
class Summary:
    """What ``summary.json`` holds; ``stopped_because`` is ``finished``, ``budget``, ``interrupted`` or ``failed``."""

    name: str
    final: dict[str, float | None]
    epsilon: dict[str, float | None]
    unamplified_epsilon: dict[str, float | None]
    delta: float
    noise_multiplier: float
    rounds_completed: int
    clients_trained: int
    wall_seconds: float
    startup_seconds: float
    stopped_because: str
    parameters: int
    cost: dict[str, float]


class RunFolder:
    """The files of one run.

    Args:
        path: the folder; it must exist (:func:`new_folder`, :func:`existing_folder`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger, self.rounds = path / "ledger.json", path / "rounds.jsonl"
        self.scenario, self.summary = path / "scenario.yaml", path / "summary.json"
        self.model, self.plots = path / "model.safetensors", path / "plots"
        self.log, self.checkpoints = path / "log.txt", path / "checkpoint"

    def append_round(self, record: RoundRecord) -> None:
        """Add a line to ``rounds.jsonl``."""
        with self.rounds.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(record)) + "\n")

    def flush(self) -> None:
        """Make the ledger and ``rounds.jsonl`` survive a power cut: a checkpoint that follows relies on them."""
        for path in (self.rounds, self.ledger, self.path):
            if path.exists():
                flush(path)

    def read_rounds(self) -> list[RoundRecord]:
        """The lines of ``rounds.jsonl``; an unfinished last line (a crash) is left out."""
        if not self.rounds.exists():
            return []
        records = []
        for line in self.rounds.read_text(encoding="utf-8").splitlines():
            try:
                records.append(RoundRecord(**json.loads(line)))
            except (ValueError, TypeError):
                break
        return records

    def forget_rounds_after(self, round_: int) -> list[RoundRecord]:
        """Keep the rounds up to a checkpoint; the later ones are computed again. Returns what is kept."""
        kept = [record for record in self.read_rounds() if record.round <= round_]
        lines = "".join(json.dumps(asdict(record)) + "\n" for record in kept)
        write_atomically(self.rounds, lines.encode())
        return kept

    def write_scenario(self, scenario: Scenario) -> None:
        """Write the resolved scenario."""
        write_atomically(self.scenario, scenario_file.dump(scenario).encode())

    def write_model(self, parameters: Arrays) -> None:
        """Write the model of the last released round."""
        write_atomically(self.model, save(parameters))

    def write_summary(self, summary: Summary) -> None:
        """Write the summary; its presence says that the run ended by itself or was told to."""
        write_json(self.summary, asdict(summary))


def new_folder(out: Path | None, name: str) -> RunFolder:
    """Make the folder of a new run: ``out``, or ``runs/NAME`` with a number behind it where that is taken.

    Raises:
        RunFolderError: if ``out`` holds something already.
    """
    if out is None:
        taken = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 100_000))]
        out = next(path for path in taken if not path.exists())
    elif out.exists() and not (out.is_dir() and _holds_no_run(out)):
        raise RunFolderError(f"{out}: not an empty folder; accepted: a new one with --out, or --resume to go on in it")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "seed.secret").unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(f"{out}: cannot be made ({error.strerror})") from None
    if not os.access(out, os.W_OK):
        raise RunFolderError(f"{out}: cannot be written to")
    return RunFolder(out)


def _holds_no_run(folder: Path) -> bool:
    """Whether a folder is empty, but for what a run leaves that was killed before it had written its scenario."""
    return all(path.name in ("log.txt", "seed.secret") or path.suffix == ".writing" for path in folder.iterdir())


def existing_folder(out: Path | None, name: str) -> RunFolder:
    """The folder of a run to go on with: ``out``, or the newest ``runs/NAME*``.

    Raises:
        RunFolderError: if there is none.
    """
    if out is None:
        found = [path for path in RUNS.glob(f"{name}*") if (path / "scenario.yaml").is_file()]
        if not found:
            raise RunFolderError(f"{RUNS}: no run of {name} to resume; name its folder with --out")
        out = max(found, key=lambda path: path.stat().st_mtime)
    if not (out / "scenario.yaml").is_file():
        raise RunFolderError(f"{out}: not a run folder (no scenario.yaml)")
    return RunFolder(out)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        RunFolderError: if it is missing or damaged.
    """
    try:
        content: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return content
    except FileNotFoundError:
        raise RunFolderError(f"{folder}: not a finished run (no summary.json)") from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder / 'summary.json'}: damaged ({error})") from None
