"""The run folder: where everything that a run leaves is, who may write into it, and the seed that it keeps."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from safetensors.numpy import save

from fedamp import rng
from fedamp.arrays import Arrays
from fedamp.errors import InputError, RunFolderError
from fedamp.flower import chatter_to
from fedamp.runs.files import LOCK, flush, locked, read_regular, write_atomically
from fedamp.runs.records import LARGEST, RoundRecord, Summary
from fedamp.scenario import Scenario, scenario_file

RUNS = Path("runs")


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
        self.seed, self.certificate = path / "seed.secret", path / "certificate.json"
        self.salt = path / "salt.secret"

    def append_round(self, record: RoundRecord) -> None:
        """Add a line to ``rounds.jsonl``."""
        with self.rounds.open("a", encoding="utf-8") as stream:
            stream.write(record.to_json() + "\n")

    def flush(self) -> None:
        """Make the ledger and ``rounds.jsonl`` survive a power cut: a checkpoint that follows relies on them."""
        for path in (self.rounds, self.ledger, self.path):
            if path.exists():
                flush(path)

    def read_rounds(self) -> list[RoundRecord]:
        """The lines of ``rounds.jsonl``; an unfinished last line (a crash) is left out.

        Raises:
            RunFolderError: another line is damaged.
        """
        try:
            lines = read_regular(self.rounds, LARGEST).splitlines() if self.rounds.exists() else []
        except OSError as error:
            raise RunFolderError(f"{self.rounds}: cannot be read ({error.strerror})") from None
        records: list[RoundRecord] = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(RoundRecord.from_json(line))
            except ValueError as error:
                if number < len(lines):
                    raise RunFolderError(f"{self.rounds}: damaged rounds: line {number}: {error}") from None
        return records

    def forget_rounds_after(self, round_: int) -> list[RoundRecord]:
        """Keep the rounds up to a checkpoint; the later ones are computed again. Returns what is kept."""
        kept = [record for record in self.read_rounds() if record.round <= round_]
        write_atomically(self.rounds, "".join(f"{record.to_json()}\n" for record in kept).encode())
        return kept

    def write_scenario(self, scenario: Scenario) -> None:
        """Write the resolved scenario."""
        write_atomically(self.scenario, scenario_file.dump(scenario).encode())

    def write_model(self, parameters: Arrays) -> None:
        """Write the model of the last released round."""
        write_atomically(self.model, save(parameters))

    def write_summary(self, summary: Summary) -> None:
        """Write the summary; its presence says that the run ended by itself or was told to."""
        summary.write(self.summary)

    def write_seed(self, seed: int) -> None:
        """Keep a run's secret seed for its owner alone, who needs it to resume."""
        write_secret(self.seed, str(seed))

    def read_seed(self) -> int:
        """The secret seed of a run to go on with.

        Raises:
            RunFolderError: it is damaged, or not there, as in the folder of a run with a known seed.
        """
        try:
            return int(self.seed.read_text())
        except OSError as error:
            raise RunFolderError(f"{self.seed}: the run's secret seed cannot be read ({error.strerror})") from None
        except ValueError:  # whose message would tell what it found
            raise RunFolderError(f"{self.seed}: damaged: the run's secret seed is not a number") from None


def write_secret(file: Path, text: str) -> None:
    """Write a file that its owner alone can read, and that survives a power cut; one that is there is replaced."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
    with open(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)
    flush(file.parent)


def new_folder(out: Path | None, name: str) -> RunFolder:
    """Make the folder of a new run: ``out``, or ``runs/NAME`` with a number behind it where that is taken.

    Raises:
        RunFolderError: if ``out`` holds something already, or cannot be written to.
    """
    if out is None:
        taken = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 100_000))]
        out = next(path for path in taken if not path.exists())
    elif out.exists() and not (out.is_dir() and _holds_no_run(out)):
        raise RunFolderError(f"{out}: not an empty folder; accepted: a new one with --out, or --resume to go on in it")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{out}: cannot be made ({error.strerror})") from None
    if not os.access(out, os.W_OK):
        raise RunFolderError(f"{out}: cannot be written to")
    return RunFolder(out)


def _holds_no_run(folder: Path) -> bool:
    """Whether a folder is empty, but for what a run leaves that was killed before it had written its scenario."""
    left = ("log.txt", "seed.secret", LOCK)
    return all(path.name in left or path.suffix == ".writing" for path in folder.iterdir())


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
    for path in out.iterdir():
        if path.is_symlink():  # what is written there would be written elsewhere
            raise RunFolderError(f"{path}: a link; accepted in a folder to go on in: files and folders")
    return RunFolder(out)


@contextmanager
def opened(
    scenario: Scenario, out: Path | None, resume: bool, secret_seed: bool | None, lock: bool = True
) -> Iterator[tuple[RunFolder, int | None]]:
    """A run folder while a run is played in it: locked, with scenario and seed in it, and all chatter in its log.

    Args:
        scenario: validated, its paths absolute.
        out: the folder; left out: a new one under ``runs``, or the newest one to resume.
        resume: go on in a folder.
        secret_seed: whether the seed comes from the operating system; None, to resume: as the run began.
        lock: False where another process plays, and locks.

    Yields:
        The folder, and the secret seed (None: the scenario's seed is used, which is known).

    Raises:
        RunFolderError: the folder, or its seed, is not there; or another process is running in it.
    """
    folder = existing_folder(out, scenario.name) if resume else new_folder(out, scenario.name)
    with locked(folder.path) if lock else nullcontext():
        if not resume and folder.scenario.exists():  # since it was found empty
            raise RunFolderError(f"{folder.path}: another process began a run in it")
        try:
            seed = _seed(folder, resume, secret_seed)
            if not resume:
                folder.write_scenario(scenario)
            folder.log.touch()
            with chatter_to(folder.log, "ray", "fedamp"):
                yield folder, seed
        except InputError:
            if not resume and not folder.ledger.exists():  # bad input leaves no half a run behind
                shutil.rmtree(folder.path)
            raise


def _seed(folder: RunFolder, resume: bool, secret: bool | None) -> int | None:
    """Written before the scenario: a run that is resumed without its seed would go on with a known one."""
    if resume:
        return folder.read_seed() if secret or (secret is None and folder.seed.exists()) else None
    folder.seed.unlink(missing_ok=True)
    if not secret:
        return None
    folder.path.chmod(0o700)
    folder.write_seed(rng.seed_from_system())
    return folder.read_seed()


def read_summary(folder: Path) -> Summary:
    """The summary of a finished run.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    file = RunFolder(folder).summary
    if not file.exists():
        raise RunFolderError(f"{folder}: not a finished run (no {file.name})")
    return Summary.read(file)
