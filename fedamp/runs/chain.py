"""The digests of a run's files: where they differ from the chain in the ledger (:mod:`fedamp.accounting.ledgers`)."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from fedamp.accounting.ledgers import Json, altered_ledger
from fedamp.base.files import read_regular
from fedamp.errors import RunFolderError
from fedamp.runs.folder import RunFolder

# These hold numbers without noise. Everybody may see the ledger, and a plain digest would let them check a guess.
_OWNERS = ("rounds.jsonl", "summary.json")
_NAMED = ("scenario.yaml", "model.safetensors", *_OWNERS)


def salted(salt: bytes, content: bytes) -> str:
    """SHA-256 of the run's salt and content of the owner's: it tells nothing without the salt."""
    return hashlib.sha256(salt + content).hexdigest()


def digests(folder: RunFolder, salt: bytes) -> dict[str, str]:
    """The digests of the files that a run left, by name."""
    files = [folder.path / name for name in _NAMED]
    return {file.name: _digest(file, salt) for file in files if file.is_file()}


def altered(folder: RunFolder, resumed_after: int | None = None) -> Iterator[str]:
    """The files, lines, rounds and keys of a run folder that differ from the chain; RunFolderError if unreadable.

    ``resumed_after``: the round from which the run goes on. Later lines are dropped then, and the summary is written
    anew: a run that was killed as it ended left none. So neither counts.
    """
    ledger = json.loads(_content(folder.ledger))  # a valid one: it was read before
    yield from altered_ledger(ledger)
    yield from _altered_files(folder, ledger, resumed_after)


def _altered_files(folder: RunFolder, ledger: Json, resumed_after: int | None) -> Iterator[str]:
    here = {name for name in _NAMED if (folder.path / name).is_file()}
    named, salt = ledger.get("files"), b""
    if here.intersection(_OWNERS) and (named is not None or ledger["releases"]):
        if not folder.salt.is_file():
            yield f"{folder.salt.name}: gone, so nothing shows whether {', '.join(_OWNERS)} were altered"
            return
        salt = _content(folder.salt)
    lines = list(_altered_lines(folder.rounds, ledger, salt, resumed_after)) if folder.rounds.name in here else []
    yield from lines  # also where the file's digest fits: that of a resumed run is as new as the file
    if named is None:  # the run is still played, or was killed
        if folder.summary.name in here:
            yield f"{folder.summary.name}: not of this ledger: the ledger says that the run has not ended"
        return
    for name in _NAMED:
        file = folder.path / name
        if name not in here:
            written_again = resumed_after is not None and name == folder.summary.name
            if name in _OWNERS and here.intersection(_OWNERS) and not written_again:  # else a copy to hand out
                yield f"{name}: gone (if the run was killed as it ended, --resume writes it again)"
        elif name not in named:
            yield f"{name}: was not there when the run ended"
        elif _digest(file, salt) != named[name] and not (lines and name == folder.rounds.name):
            yield f"{name}: not as the run left it"


def _altered_lines(file: Path, ledger: Json, salt: bytes, last: int | None) -> Iterator[str]:
    """Those of the first ``last`` lines that differ from the releases; an unfinished one (a crash) does not count."""
    releases = ledger["releases"]
    for number, line in enumerate(_content(file).split(b"\n")[:-1][:last]):
        if number >= len(releases):
            yield f"{file.name}: line {number + 1}: of no release"
        elif releases[number]["record"] != salted(salt, line):
            yield f"{file.name}: line {number + 1}: not as it was written down with the release of round {number + 1}"


def _digest(file: Path, salt: bytes) -> str:
    if file.suffix != ".safetensors":
        return salted(salt if file.name in _OWNERS else b"", _content(file))
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _content(file: Path) -> bytes:
    try:
        return read_regular(file)
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be read ({error.strerror})") from None
