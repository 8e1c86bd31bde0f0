"""Write the files of a run so that a crash leaves the old one or the new one, and one process writes at a time.

All files of a run folder, of the user's folders and of the cache are written here: beside their place, flushed, then
renamed. Locks of the operating system end with the process that holds them, so a killed process leaves none behind.
The module knows no format but JSON records (:class:`FileRecord`). Reading is in :mod:`fedamp.base.reading`. The files
of a run and their order are in :mod:`fedamp.runs.folder` and :mod:`fedamp.server.journal`.
"""

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
from fedamp.base.record import OtherFormatError, Record
from fedamp.errors import RunFolderError, UnwritableError

LOCK = ".lock"
_OWNED = ".fedamp"  # locked in a temporary folder for as long as the process lives that has made it


class FileRecord(Record):
    """A record that is a file of its own, such as ``ledger.json`` or ``summary.json``.

    Attributes:
        kind: its name in errors, such as ``ledger``; each class sets it.
    """

    kind: ClassVar[str]  # its name in errors

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read and check a file.

        Args:
            file: its path; it may be a symbolic link, but no pipe or device.

        Raises:
            RunFolderError: it is missing, too large, damaged, or of a format of another version. The line names the
                file, the key, and the expected value.
        """
        try:
            text = read_regular(file)
            record = cls.from_json(text)
            json.loads(text, object_pairs_hook=_each_key_once)
            return record
        except RecursionError:
            reason: object = "nested too deeply"
        except OtherFormatError as error:
            told = f"{cls.kind} of another version of fedamp: {error}"
            raise RunFolderError(f"{file}: {told}; expected: the version that wrote it (written_by)") from None
        except (OSError, ValueError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
        raise RunFolderError(f"{file}: damaged {cls.kind}: {reason}") from None

    def write(self, file: Path) -> None:
        """Replace the file by this record, durably (:func:`write_atomically`).

        Raises:
            UnwritableError: the disk is full or read only; the old content stays.
        """
        write_atomically(file, self.to_text().encode())


def _each_key_once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a JSON object with a key twice, because readers differ in which of two values they take."""
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]}: duplicate")


def home() -> Path:
    """Return this user's folder of keys and notes: ``$FEDAMP_HOME``, or ``~/.config/fedamp``. It may not exist yet."""
    chosen = os.environ.get("FEDAMP_HOME")
    return Path(chosen) if chosen else Path.home() / ".config" / "fedamp"


def cache_folder() -> Path:
    """Return this user's folder of what can be computed again: ``$FEDAMP_CACHE``, or ``~/.cache/fedamp``.

    ``FEDAMP_CACHE=off`` forbids caching, which the callers look at: the folder is then the default one.

    Raises:
        RuntimeError: the user has no home folder.
    """
    chosen = os.environ.get("FEDAMP_CACHE")
    return Path(chosen) if chosen and chosen != "off" else Path.home() / ".cache" / "fedamp"


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Turn an OSError inside the block into an UnwritableError that names the file.

    Args:
        file: the path for the message; it is not opened.
    """
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"{file}: cannot be written ({error.strerror or error})") from None


def refuse_link(path: Path) -> None:
    """Refuse a path that is a link, a pipe, a socket or a device: a run would write elsewhere, or wait.

    Raises:
        UnwritableError: the path is none of a file, a folder, or absent.
    """
    if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
        found = "a link" if path.is_symlink() else "a pipe, a socket or a device"
        raise UnwritableError(f"{path}: {found}; expected in a run folder: files and folders")


def as_its_folder(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file; a new one is as private as its folder. It is an ``opener`` of ``open``.

    The umask is one for all threads of a process, so it is not touched.

    Args:
        path: of the file; its folder must exist.
        flags: as for :func:`os.open`.
        mode: the most that a new file allows, less the umask.

    Returns:
        The file's descriptor.
    """
    return os.open(path, flags, mode & os.stat(os.path.dirname(path) or ".").st_mode)


def make_folder(folder: Path) -> None:
    """Make a folder that is as private as the one around it, where it is missing.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    folder.mkdir(mode=0o777 & folder.parent.stat().st_mode, exist_ok=True)


def write_atomically(file: Path, content: bytes, durable: bool = True, mode: int = 0o666) -> None:
    """Replace a file's content: write beside it, flush to the disk, rename, flush the folder.

    Args:
        file: its path; its folder must exist.
        content: all of its bytes.
        durable: whether the content must survive a power cut. Without it nothing is flushed: the file is then safe from
            a crash of the process only, and writing takes a fraction of the time.
        mode: the most that the new file allows (:func:`as_its_folder`).

    Raises:
        UnwritableError: the old content is as it was.
    """
    beside = file.with_name(f".{file.name}.writing")
    with writing(file):
        beside.unlink(missing_ok=True)  # of a crash; a foreign link would lead elsewhere
        try:
            with open(as_its_folder(str(beside), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
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

    A disk that writes elsewhere (flash, snapshots) may still keep the old content.

    Args:
        file: a seed, a key or a salt.
        text: its new content.

    Raises:
        UnwritableError: the disk is full or read only.
    """
    with ExitStack() as held, writing(file):
        old = held.enter_context(file.open("r+b")) if file.is_file() and not file.is_symlink() else None
        write_atomically(file, text.encode(), mode=0o600)
        if old is not None:
            old.write(bytes(os.fstat(old.fileno()).st_size))
            old.flush()
            os.fsync(old.fileno())


def flush(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, survive a power cut (fsync).

    Raises:
        UnwritableError: the disk refuses.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def lock(file: Path, wait: bool = True) -> Iterator[None]:
    """Hold a file, made for its owner alone, until the block or this process ends.

    Args:
        file: the file to lock (flock); it is made where it is missing, and stays empty.
        wait: whether to wait while another process or thread holds it.

    Raises:
        BlockingIOError: another one holds it, and ``wait`` is not set.
        OSError: it cannot be opened, for instance because it is a link.
    """
    with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder until the block or this process ends, so that one process alone writes in it.

    Raises:
        RunFolderError: another process holds it, or its lock file cannot be opened.
    """
    with ExitStack() as held:
        try:
            held.enter_context(lock(folder / LOCK, wait=False))
        except BlockingIOError:
            raise RunFolderError(f"{folder}: another process is running in it") from None
        except OSError as error:  # a link, for example
            raise RunFolderError(f"{folder / LOCK}: cannot be locked ({error.strerror})") from None
        yield


def temporary_folder(prefix: str, place: str | None = None) -> "TemporaryDirectory[str]":
    """Make a folder for its owner alone, which is removed with this process.

    Folders of the same prefix that killed processes have left are removed first; a lock tells them from those in use.

    Args:
        prefix: how its name begins, such as ``fedamp-given-``.
        place: the folder to make it in; default: the system's.

    Returns:
        The folder; it lives as long as this object.
    """
    for left in Path(place or gettempdir()).glob(f"{prefix}*/{_OWNED}"):
        with suppress(OSError), open_regular(left, links=False, owned=True) as owned:
            fcntl.flock(owned, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process lives
            if left.parent.lstat().st_uid == os.geteuid():
                shutil.rmtree(left.parent)  # which refuses links
    made = TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
    with suppress(OSError):  # some file systems have no locks
        # What clears /tmp of old files (systemd-tmpfiles) leaves a locked folder alone. Otherwise another user could
        # make a folder of this name after some idle days, with programs that this process then runs.
        descriptor = os.open(made.name, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(made, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        beside = Path(made.name, f"{_OWNED}.new")
        descriptor = os.open(beside, os.O_RDONLY | os.O_CREAT, 0o600)
        weakref.finalize(made, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        beside.rename(Path(made.name, _OWNED))  # nobody finds it before it is locked
    return made
