"""Writing files so that a crash leaves the old one or the new one, never half of either; and one writer at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

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
    with beside.open("wb") as stream:
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
