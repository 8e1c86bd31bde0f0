"""Writing files so that a crash leaves the old one or the new one, never half of either."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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


def write_json(file: Path, value: Any) -> None:
    """Replace a file by JSON (sorted as given, indented, ending in a new line)."""
    write_atomically(file, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def flush(path: Path) -> None:
    """Make what was written to a file, or renamed in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Hold a lock on a file for as long as the block runs, or yield False where another process holds it."""
    import fcntl

    with file.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
