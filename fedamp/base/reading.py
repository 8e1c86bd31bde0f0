"""Open files that others may have written: no pipe in their place blocks, and no size of them fills the memory.

A run folder may come from anybody, so every file is opened by :func:`open_regular`. It checks the kind, the size and
perhaps the owner, before and after the opening. The module needs the standard library alone, because the accountant
uses it, too.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from fedamp.base.numbers import amount_of_bytes

LARGEST = 1 << 29  # bytes of a file that is read whole: the ledger of the longest run has three fifths of it
TYPED = 1 << 24  # bytes of a file that a person writes, or of a key
_DESCRIPTORS = "/dev/fd/"
# Another user may put a pipe or a terminal at the path after the first check.
_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_Path = str | os.PathLike[str]


def open_regular(file: _Path, most: int | None = None, links: bool = True, owned: bool = False) -> BufferedReader:
    """Open a regular file for reading its bytes.

    Args:
        file: its path.
        most: its largest size in bytes; None: any.
        links: whether the file may be a symbolic link. Folders on the way to it may always be links.
        owned: whether the file must belong to this user or to root, because what it says is trusted.

    Raises:
        OSError: it cannot be opened, is a folder, a pipe, a socket or a device, is larger, or is another user's.
    """
    _check_file(file, os.stat(file, follow_symlinks=links), most, owned)  # opening a device may change something
    flags = _NEVER_WAIT | (0 if links else getattr(os, "O_NOFOLLOW", 0))
    stream = open(file, "rb", opener=lambda path, asked: os.open(path, asked | flags))  # noqa: SIM115
    try:
        _check_file(file, os.fstat(stream.fileno()), most, owned)
    except OSError:
        stream.close()
        raise
    return stream


def read_regular(file: _Path, most: int = LARGEST, links: bool = True, owned: bool = False) -> bytes:
    """Read a regular file whole.

    Args:
        file, links, owned: as for :func:`open_regular`.
        most: its largest size in bytes; default: half a gigabyte.

    Raises:
        OSError: as :func:`open_regular`, or the file grew beyond ``most`` while it was read.
    """
    with open_regular(file, most, links, owned) as stream:
        content = stream.read(most + 1)
        _check_file(file, os.fstat(stream.fileno()), most, owned)  # it may have grown meanwhile
    return content


def read_own(file: _Path, most: int) -> bytes:
    """Read a file that a person names on a command line, which may be ``<(command)``.

    A shell gives such a command as a descriptor of this process; it is read until the command ends.

    Args:
        file: its path, or ``/dev/fd/N``.
        most: its largest size in bytes.

    Raises:
        OSError: as :func:`read_regular`.
    """
    if not os.fspath(file).startswith(_DESCRIPTORS):
        return read_regular(file, most)
    with open(file, "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {amount_of_bytes(most)}", os.fspath(file))
    return content


def read_typed(file: _Path) -> str:
    """Read the text of a file that a person writes, such as a scenario.

    Raises:
        OSError: it cannot be opened, is no regular file, or has more than ``TYPED`` bytes.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_regular(file, TYPED).decode()


def regular(file: Path) -> Path:
    """Check a path for a library that opens the file by itself, and return it.

    Raises:
        OSError: as :func:`open_regular`.
    """
    open_regular(file).close()
    return file


def regular_inside(folder: Path) -> Path:
    """Check all files below a folder for a library that opens them by itself, and return the folder.

    Raises:
        OSError: a pipe, a socket or a device is in it.
    """
    for file in folder.rglob("*"):
        if file.exists() and not file.is_dir():
            regular(file)
    return folder


def _check_file(file: _Path, status: os.stat_result, most: int | None, owned: bool) -> None:
    """Raise OSError, as a system call does, with a number, a reason and the path."""
    path = os.fspath(file)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if owned and status.st_uid not in (0, os.geteuid()):
        raise OSError(errno.EPERM, "it belongs to another user", path)
    if most is not None and status.st_size > most:
        raise OSError(errno.EFBIG, f"larger than {amount_of_bytes(most)}", path)
