"""Compute the digests of a run's files, and find where the files differ from the chain in the ledger.

The chain itself, links and head, is in :mod:`fedamp.accounting.verify`, which needs no package of training. A ledger
names each line of ``rounds.jsonl`` from its release on, and the other files when the run stops. Digests of the owner's
files are salted, because they hold numbers without noise.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedamp.accounting.verify import altered_ledger
from fedamp.base.reading import open_regular, read_regular
from fedamp.errors import RunFolderError
from fedamp.runs.folder import RunFolder, salted

# These hold numbers without noise. Everybody may see the ledger, and a plain digest would let them check a guess.
_OWNERS = ("rounds.jsonl", "summary.json")
_NAMED = ("scenario.yaml", "model.safetensors", *_OWNERS)


def digests(folder: RunFolder, salt: bytes) -> dict[str, str]:
    """Compute the digests of the files that a run left, by name.

    Args:
        folder: of the run.
        salt: the secret of ``salt.secret``; it goes into the digests of ``rounds.jsonl`` and ``summary.json``.

    Returns:
        SHA-256 in hexadecimal letters, for the files that are there.
    """
    files = [folder.path / name for name in _NAMED]
    return {file.name: _digest_of_file(file, salt) for file in files if file.is_file()}


def altered(folder: RunFolder) -> Iterator[str]:
    """Find the files, lines, rounds and keys of a run folder that differ from the chain.

    Args:
        folder: with a ledger that :class:`fedamp.runs.records.LedgerRecord` could read.

    Yields:
        A complaint for each difference.

    Raises:
        RunFolderError: a file cannot be read.
    """
    ledger = json.loads(_read_content(folder.ledger))  # a valid one: it was read before
    yield from altered_ledger(ledger)
    yield from altered_files(folder, ledger.get("files"), [release["record"] for release in ledger["releases"]])


def altered_files(
    folder: RunFolder, named: Mapping[str, str] | None, records: Sequence[str | None], resumed_after: int | None = None
) -> Iterator[str]:
    """Find the files and lines beside a ledger that differ from its digests.

    Args:
        folder: of the run.
        named: digests of the files; None: the run is still played, or was killed.
        records: digests of the lines of ``rounds.jsonl``.
        resumed_after: the round from which the run goes on. Later lines are dropped then, and the summary is written
            anew: a run that was killed as it ended left none. So neither counts.

    Yields:
        A complaint for each difference, which begins with the file's name.

    Raises:
        RunFolderError: a file cannot be read.
    """
    here, salt = {name for name in _NAMED if (folder.path / name).is_file()}, b""
    if here.intersection(_OWNERS) and (named is not None or records):
        if not folder.salt.is_file():
            yield f"{folder.salt.name}: missing, so nothing shows whether {', '.join(_OWNERS)} were altered"
            return
        salt = _read_content(folder.salt)
    lines = list(_altered_lines(folder.rounds, records, salt, resumed_after)) if folder.rounds.name in here else []
    yield from lines  # also where the file's digest fits: that of a resumed run is as new as the file
    if named is None:
        if folder.summary.name in here:
            yield f"{folder.summary.name}: not of this ledger: the ledger says that the run has not ended"
        return
    for name in _NAMED:
        if name not in here:
            written_again = resumed_after is not None and name == folder.summary.name
            if name in _OWNERS and here.intersection(_OWNERS) and not written_again:  # else a copy to hand out
                yield f"{name}: missing (if the run was killed as it ended, --resume writes it again)"
        elif name not in named:
            yield f"{name}: was not there when the run ended"
        elif _digest_of_file(folder.path / name, salt) != named[name] and not (lines and name == folder.rounds.name):
            yield f"{name}: not as the run left it"


def _altered_lines(file: Path, records: Sequence[str | None], salt: bytes, last: int | None) -> Iterator[str]:
    """Find those of the first ``last`` lines that differ from the releases; an unfinished last one does not count."""
    for number, line in enumerate(_read_content(file).split(b"\n")[:-1][:last]):
        if number >= len(records):
            yield f"{file.name}: line {number + 1} belongs to no release"
        elif records[number] != salted(salt, line):
            yield f"{file.name}: line {number + 1}: not as it was written down with the release of round {number + 1}"


def _digest_of_file(file: Path, salt: bytes) -> str:
    """Compute the digest of a file: salted for the owner's files; a model is read in pieces."""
    if file.suffix != ".safetensors":
        return salted(salt if file.name in _OWNERS else b"", _read_content(file))
    with open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_content(file: Path) -> bytes:
    """Read a file of the folder, or raise RunFolderError."""
    try:
        return read_regular(file)
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be read ({error.strerror})") from None
