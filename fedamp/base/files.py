"""Files of a run folder: a crash leaves the old one or the new one, never half of either; one process writes."""

import fcntl
import json
import os
import shutil
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, ClassVar, Self

from fedamp.base.reading import open_regular, read_regular
from fedamp.base.record import Record
from fedamp.errors import RunFolderError, UnwritableError

LOCK = ".lock"
_OWNED = ".fedamp"  # locked in a temporary folder for as long as the process lives that has made it


class FileRecord(Record):
    """A record that is a file of its own."""

    kind: ClassVar[str]  # its name in errors

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the file; RunFolderError if it is missing or damaged, with the file, the key, and the expected value."""
        try:
            text = read_regular(file)
            record = cls.from_json(text)
            json.loads(text, object_pairs_hook=_each_key_once)
            return record
        except RecursionError:
            reason: object = "nested too deeply"
        except (OSError, ValueError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
        raise RunFolderError(f"{file}: damaged {cls.kind}: {reason}") from None

    def write(self, file: Path) -> None:
        """Replace the file by this record."""
        write_atomically(file, self.to_text().encode())


def _each_key_once(pairs: list[tuple[str, Any]]) -> None:
    """Readers differ in which of two values they take: a person may see one, and the verification the other."""
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]}: stands twice")


def home() -> Path:
    """This user's folder of keys and notes: ``$FEDAMP_HOME``, or ``~/.config/fedamp``."""
    chosen = os.environ.get("FEDAMP_HOME")
    return Path(chosen) if chosen else Path.home() / ".config" / "fedamp"


def cache_folder() -> Path:
    """This user's folder of what can be computed again: ``$FEDAMP_CACHE``, or ``~/.cache/fedamp`` (also for ``off``).

    RuntimeError: a user without a home.
    """
    chosen = os.environ.get("FEDAMP_CACHE")
    return Path(chosen) if chosen and chosen != "off" else Path.home() / ".cache" / "fedamp"


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Turn an OSError into UnwritableError, which names the file."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"{file}: cannot be written ({error.strerror or error})") from None


def refuse_link(path: Path) -> None:
    """UnwritableError for a link or a pipe: the run would write elsewhere, or wait."""
    if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
        found = "a link" if path.is_symlink() else "a pipe, a socket or a device"
        raise UnwritableError(f"{path}: {found}; expected in a run folder: files and folders")


def write_atomically(file: Path, content: bytes, durable: bool = True, mode: int = 0o666) -> None:
    """Replace a file's content: write beside it, flush to the disk, rename, flush the folder.

    Without ``durable`` nothing is flushed: safe from a crash of the process, not from a power cut. ``mode``, less the
    umask, says who may read and write it. UnwritableError: the old content is as it was.
    """
    beside = file.with_name(f".{file.name}.writing")
    with writing(file):
        beside.unlink(missing_ok=True)  # of a crash; a foreign link would lead elsewhere
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
                stream.write(content)
                if durable:
                    stream.flush()
                    os.fsync(stream.fileno())
            beside.replace(file)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)  # a full disk has no room for half a file
            raise
    if durable:
        flush(file.parent)


def write_secret(file: Path, text: str) -> None:
    """Replace a file that its owner alone can read, and overwrite what the old one held.

    A disk that writes elsewhere (flash, snapshots) may still keep it.
    """
    with ExitStack() as held, writing(file):
        old = held.enter_context(file.open("r+b")) if file.is_file() and not file.is_symlink() else None
        write_atomically(file, text.encode(), mode=0o600)
        if old is not None:
            old.write(bytes(os.fstat(old.fileno()).st_size))
            old.flush()
            os.fsync(old.fileno())


def flush(path: Path) -> None:
    """Make what was written to a file, or renamed in a folder, survive a power cut."""
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def lock(file: Path, wait: bool = True) -> Iterator[None]:
    """Hold a file, made for its owner alone, until the block or this process ends.

    Raises OSError: a link, say; BlockingIOError: another process or thread holds it, and ``wait`` is not set.
    """
    with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder until the block or this process ends; RunFolderError if another process holds it."""
    with ExitStack() as held:
        try:
            held.enter_context(lock(folder / LOCK, wait=False))
        except BlockingIOError:
            raise RunFolderError(f"{folder}: another process is running in it") from None
        except OSError as error:  # a link, for example
            raise RunFolderError(f"{folder / LOCK}: cannot be locked ({error.strerror})") from None
        yield


def temporary_folder(prefix: str, place: str | None = None) -> "TemporaryDirectory[str]":
    """A folder for its owner alone, removed with this process; what killed processes have left there is removed now."""
    for left in Path(place or gettempdir()).glob(f"{prefix}*/{_OWNED}"):
        with suppress(OSError), open_regular(left, links=False, owned=True) as owned:
            fcntl.flock(owned, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process lives
            if left.parent.lstat().st_uid == os.geteuid():
                shutil.rmtree(left.parent)  # which refuses links
    made = TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
    with suppress(OSError):  # some file systems have no locks
        beside = Path(made.name, f"{_OWNED}.new")
        descriptor = os.open(beside, os.O_RDONLY | os.O_CREAT, 0o600)
        weakref.finalize(made, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        beside.rename(Path(made.name, _OWNED))  # nobody finds it before it is locked
    return made


@contextmanager
def modes_of(folder: Path) -> Iterator[None]:
    """Files that this process makes are as private as the folder."""
    before = os.umask(0o077)
    os.umask(before | (0o777 & ~folder.stat().st_mode))
    try:
        yield
    finally:
        os.umask(before)
