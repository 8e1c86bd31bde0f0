"""Writing files so that a crash leaves the old one or the new one, never half of either; and one writer at a time."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedamp.base.numbers import amount_of_bytes
from fedamp.errors import RunFolderError

LOCK = ".lock"


def write_atomically(file: Path, content: bytes, durable: bool = True) -> None:
    """Replace a file's content: write beside it, flush to the disk, rename, flush the folder.

    Args:
        file: the file.
        content: all of it.
        durable: False leaves out the flushes: safe from a crash of the process, not from a power cut.
    """
    beside = file.with_name(f".{file.name}.writing")
    beside.unlink(missing_ok=True)  # of a crash; a link of somebody else's would lead elsewhere
    with beside.open("xb") as stream:
        stream.write(content)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    beside.replace(file)
    if durable:
        flush(file.parent)


def flush(path: Path) -> None:
    """Make what was written to a file, or renamed in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_regular(file: Path, most: int) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it cannot be read, is something else (a pipe would be waited for), or has more than ``most`` bytes.
    """
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"larger than {amount_of_bytes(most)}")
    return file.read_bytes()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for as long as the block runs. The operating system lets go of it when this process ends.

    Raises:
        RunFolderError: another process holds it.
    """
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(f"{folder}: another process is running in it") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def modes_of(folder: Path) -> Iterator[None]:
    """Let nobody do with the files that this process makes what they may not do with a folder."""
    before = os.umask(0o077)
    os.umask(before | (0o777 & ~folder.stat().st_mode))
    try:
        yield
    finally:
        os.umask(before)
