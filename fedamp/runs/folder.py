"""Manage the run folder: its files, the process that may write into it, and its secret seed.

A folder holds one run. Its files and their keys are in :mod:`fedamp.runs.records`; docs/results.md shows them to users.
The engines and the Flower app open it with :func:`opened`. The last functions find the extension that reads a folder
which is no run's, such as a sweep's or a merged model's.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from fedamp import rng
from fedamp.accounting.verify import ENDED
from fedamp.base.arrays import Arrays
from fedamp.base.files import LOCK, as_its_folder, flush, locked, refuse_link, write_atomically, writing
from fedamp.base.reading import read_regular
from fedamp.engines.flower import chatter_to
from fedamp.errors import InputError, RunFolderError
from fedamp.extension import keys, offered
from fedamp.federation.scenario import Scenario
from fedamp.runs.records import LedgerRecord, RoundRecord, Summary

RUNS = Path("runs")


class RunFolder:
    """The files of one run, in an existing folder (:func:`new_folder`, :func:`existing_folder`).

    Attributes:
        path: of the folder.
        ledger, model: files that others may see; the ledger is the account of what was released.
        scenario: the scenario with every default; its paths are the owner's.
        rounds, summary, log: for the owner, because they hold numbers without noise, and names of nodes.
        checkpoints, seed, salt: secrets of the run.
        plots: folder of pictures.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger, self.rounds = path / "ledger.json", path / "rounds.jsonl"
        self.scenario, self.summary = path / "scenario.yaml", path / "summary.json"
        self.model, self.plots = path / "model.safetensors", path / "plots"
        self.log, self.checkpoints = path / "log.txt", path / "checkpoint"
        self.seed, self.salt = path / "seed.secret", path / "salt.secret"

    def append_round(self, record: RoundRecord) -> None:
        """Append a line to ``rounds.jsonl``; UnwritableError: the disk is full, or the file is a link."""
        refuse_link(self.rounds)
        with writing(self.rounds), open(self.rounds, "ab", opener=as_its_folder) as stream:
            stream.write(record.to_json().encode() + b"\n")

    def flush(self) -> None:
        """Make the ledger and ``rounds.jsonl`` survive a power cut: the next checkpoint relies on them."""
        for path in (self.rounds, self.ledger, self.path):
            if path.exists():
                flush(path)

    def read_rounds(self) -> list[RoundRecord]:
        """Read the lines of ``rounds.jsonl``, without an unfinished last one.

        Raises:
            RunFolderError: another line is damaged, or the file cannot be read.
        """
        try:
            lines = read_regular(self.rounds).splitlines() if self.rounds.exists() else []
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
        """Drop the lines of rounds after a checkpoint, which are computed again, and return the others."""
        kept = [record for record in self.read_rounds() if record.round <= round_]
        lines = read_regular(self.rounds).splitlines()[: len(kept)] if kept else []
        write_atomically(self.rounds, b"".join(line + b"\n" for line in lines))
        return kept

    def write_scenario(self, scenario: Scenario) -> None:
        """Write the scenario with every default; a resumed run is read from it."""
        write_atomically(self.scenario, scenario.to_yaml().encode())

    def write_model(self, parameters: Arrays) -> None:
        """Write the model of the last released round."""
        write_atomically(self.model, save(parameters))

    def delete_secrets(self) -> None:
        """Delete what only a resumption needs: the seed that decides the check-ins, and the checkpoints."""
        for file in (self.seed, *sorted(self.checkpoints.glob("*"))):  # the newest last: it alone can end the run
            with writing(file):
                file.unlink(missing_ok=True)
        with suppress(OSError):
            self.checkpoints.rmdir()

    def write_summary(self, summary: Summary) -> None:
        """Write the summary: the run has ended."""
        summary.write(self.summary)


def salted(salt: bytes, content: bytes) -> str:
    """Compute SHA-256 of the run's salt and content of the owner's; it tells nothing without the salt."""
    return hashlib.sha256(salt + content).hexdigest()


def new_folder(out: Path | None, name: str, private: bool = False) -> tuple[RunFolder, bool]:
    """Make the folder of a new run: ``out``, or ``runs/NAME``, or ``runs/NAME-2`` and so on.

    An existing ``out`` must hold no run (:func:`holds_no_run`): check that again under its lock.

    Args:
        out: the folder; default: the first free one under ``runs``.
        name: of the scenario.
        private: whether a new folder is for its owner alone.

    Returns:
        The folder, and whether this process made it.

    Raises:
        RunFolderError: ``out`` is not empty or cannot be written to.
    """
    numbered = (RUNS / name if number == 1 else RUNS / f"{name}-{number}" for number in itertools.count(1))
    for path in numbered if out is None else (out,):
        try:
            path.mkdir(mode=0o700 if private else 0o777, parents=True)
            return RunFolder(path), True
        except FileExistsError:
            continue
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be made ({error.strerror})") from None
    assert out is not None, "there are numbers enough"
    _refuse_links(out)
    if not holds_no_run(out):
        raise RunFolderError(f"{out}: not an empty folder; expected: a new one with --out, or --resume")
    if not os.access(out, os.W_OK):
        raise RunFolderError(f"{out}: cannot be written to")
    return RunFolder(out), False


def holds_no_run(folder: Path) -> bool:
    """Say whether a folder is empty, except for files of a run that was killed before it wrote its scenario."""
    return folder.is_dir() and all(
        path.name in ("log.txt", LOCK) or path.suffix == ".writing" for path in folder.iterdir()
    )


def existing_folder(out: Path | None, name: str) -> RunFolder:
    """Find the folder of a run to resume: ``out``, or the newest ``runs/NAME*``.

    Raises:
        RunFolderError: there is none, or a link is in it.
    """
    if out is None:
        found = [file for file in RUNS.glob(f"{name}*/scenario.yaml") if _is_of(name, file)]
        if not found:
            raise RunFolderError(f"{RUNS}: no run of {name} to resume; name its folder with --out")
        out = max((file.parent for file in found), key=lambda path: path.stat().st_mtime)
    if not (out / "scenario.yaml").is_file():
        raise RunFolderError(f"{out}: not a run folder (no scenario.yaml)")
    _refuse_links(out)
    return RunFolder(out)


def _is_of(name: str, file: Path) -> bool:
    """Say whether a run's scenario has this name: ``runs/a-2`` is the second run of ``a``, or the first of ``a-2``."""
    with suppress(OSError, ValueError):
        return read_regular(file).decode().partition("\n")[0] in (f"name: {name}", f"name: '{name}'")
    return False


def _refuse_links(folder: Path) -> None:
    """Refuse links in a folder: the run would write elsewhere."""
    for path in folder.iterdir() if folder.is_dir() else ():
        refuse_link(path)


@contextmanager
def opened(scenario: Scenario, out: Path | None, resume: bool) -> Iterator[tuple[RunFolder, int | None]]:
    """Open a run folder while a run is played: locked, with the scenario in it, and with all log messages in its log.

    With a secret seed, folder and files are for the owner alone. An InputError before the ledger is written removes the
    files of a new run again.

    Args:
        scenario: of the run.
        out: the folder; default: a new one under ``runs``, or the newest one to resume.
        resume: whether the run in the folder goes on.

    Yields:
        The folder and the secret seed (None: the scenario's seed, known).

    Raises:
        RunFolderError: folder or seed is missing, or another process is running in the folder.
    """
    private = not scenario.known_seed
    folder, made = (existing_folder(out, scenario.name), False) if resume else new_folder(out, scenario.name, private)
    with locked(folder.path):
        if not resume and not holds_no_run(folder.path):  # any more
            raise RunFolderError(f"{folder.path}: another process began a run in it")
        seed = _secret_seed(folder, private)
        for path in (folder.path, *folder.path.rglob("*")) if private else ():  # a copy may be open to others
            if not path.is_symlink():
                with writing(path):
                    path.chmod(0o700 if path.is_dir() else 0o600)
        try:
            if not resume:
                folder.write_scenario(scenario)
            with writing(folder.log):
                open(folder.log, "ab", opener=as_its_folder).close()
            with chatter_to(folder.log, "ray", "fedamp"):
                yield folder, seed
        except InputError:
            if not resume and not folder.ledger.exists():  # bad input leaves no files behind
                for file in (folder.scenario, folder.rounds, folder.log, folder.path / LOCK):
                    with suppress(OSError):  # the folder is read-only
                        file.unlink(missing_ok=True)
                if made:
                    with suppress(OSError):  # another process has put a file there
                        folder.path.rmdir()
            raise


def _secret_seed(folder: RunFolder, secret: bool) -> int | None:
    """Return the secret seed of a run, a new one if nothing was released yet; None for a known seed.

    It decides who takes part when. Without the ledger nobody knows the releases under that seed.
    """
    ledger = LedgerRecord.read(folder.ledger) if folder.ledger.exists() else None
    if ledger is not None and ledger.has_known_seed == secret:
        found, expected = ("known", "with") if secret else ("secret", "without")
        raise RunFolderError(f"{folder.path}: the run in it has a {found} seed; expected: {expected} --known-seed")
    if ledger is None and folder.seed.exists():
        raise RunFolderError(f"{folder.seed}: a secret seed without its ledger; expected: a new run in another folder")
    if not secret:
        return None
    begun = folder.seed.exists() or folder.checkpoints.exists() or (ledger is not None and ledger.releases)
    try:
        ended = ledger is not None and ledger.stopped_because in ENDED and not folder.seed.exists()
        return int(read_regular(folder.seed)) if begun and not ended else rng.seed_from_system()
    except OSError as error:
        raise RunFolderError(f"{folder.seed}: the run's secret seed cannot be read ({error.strerror})") from None
    except ValueError:  # its message would tell the content
        raise RunFolderError(f"{folder.seed}: damaged: the run's secret seed is not a number") from None


@dataclass(frozen=True)
class FolderReader:
    """The reader of a folder of a released model that is not a run's; an extension offers it by a file's name.

    Attributes:
        read: reads a folder, from its path and the name to show (None: its own name); returns a
            :class:`fedamp.runs.run.ReleasedModel`, or raises RunFolderError.
        called: words for such a folder, as ``a merged model``.
        verified_by: words for what ``fedamp verify`` reads in its place.
    """

    read: Callable[[Path, str | None], Any]
    called: str
    verified_by: str


def reader_of(folder: Path) -> FolderReader | None:
    """Find the extension's reader of a folder that is not a run's; None: no extension knows a file in it."""
    found = (offered("readers", file) for file in keys("readers") if (folder / file).is_file())
    return next(itertools.chain.from_iterable(found), None)


@dataclass(frozen=True)
class SeriesReader:
    """The reader of a folder of several runs, as that of a sweep; an extension offers it by a file's name.

    Attributes:
        read: shows the series alone, from its folder: a :class:`fedamp.report.comparison.Published`.
        finished: lists the folders of its finished runs.
        begun: lists the folders of its runs that have begun.
    """

    read: Callable[[Path], Any]
    finished: Callable[[Path], list[Path]]
    begun: Callable[[Path], list[Path]]


def series_of(folder: Path) -> SeriesReader | None:
    """Find the extension's reader of a folder of several runs; None: no extension knows a file in it."""
    found = (offered("series", file) for file in keys("series") if (folder / file).is_file())
    return next(itertools.chain.from_iterable(found), None)


def finished_runs(folders: Iterable[Path]) -> list[Path]:
    """List the folders of models, where a series of runs stands for its finished ones."""
    each = [series.finished(folder) if (series := series_of(folder)) else [folder] for folder in folders]
    return [run for below in each for run in below]


def begun_runs(paths: Sequence[Path]) -> list[Path]:
    """List the runs of paths such as those of ``runs/*``, where a series of runs stands for those that have begun.

    What fedamp itself puts beside runs (pages, plots, the file of asked questions) is left out. Any other path is kept,
    and is refused later if it holds no run: a total must not lack a run unnoticed.
    """
    found = list[Path]()
    for path in paths:
        is_beside = path.suffix == ".html" or path.name in ("plots", "asked.json")
        if not is_beside or (path / "ledger.json").exists():
            found += series.begun(path) if (series := series_of(path)) else [path]
    return found or list(paths)


def read_summary(folder: Path) -> Summary:
    """Read the summary of a finished run.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    file = RunFolder(folder).summary
    if not file.exists():
        raise RunFolderError(f"{folder}: not a finished run (no {file.name})")
    return Summary.read(file)
