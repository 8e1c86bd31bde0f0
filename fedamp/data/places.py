"""Find the folders of known data sets, and keep copies of records in the cache.

:mod:`fedamp.data.published` and :mod:`fedamp.data.texts` look for data sets here, :mod:`fedamp.data.tabular` and
:mod:`fedamp.data.features` keep copies, and a node keeps a digest of its owners.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from fedamp.base.files import cache_folder, lock
from fedamp.errors import DataError

# Of this environment (make data), of the system's packages, and of npm.
INSTALLED = (Path(sys.prefix) / "share" / "datasets", Path("/usr/share/datasets"), Path("node_modules"))


def places_of(name: str) -> list[Path]:
    """List the folders where a data set that is known by name may be.

    First comes the user's folder (``FEDAMP_DATA``), then those of packages.
    """
    of_user = [Path(os.environ["FEDAMP_DATA"])] if "FEDAMP_DATA" in os.environ else []
    return [place / name for place in (*of_user, *INSTALLED)]


def folder_of(name: str) -> Path | None:
    """Return the first of these places that is a folder; None: the data set is not on this machine."""
    return next((place for place in places_of(name) if place.is_dir()), None)


def kept(kind: str, name: str, write: Callable[[Path], None]) -> Path:
    """Return a copy of private records in the cache, readable by its owner alone.

    It is written if no process has done so; a process that is killed leaves no half copy under the name.

    Args:
        kind: folder of the cache.
        name: a digest of all that the copy follows from.
        write: makes the copy.

    Raises:
        DataError: it cannot be kept there.
    """
    try:
        folder = cache_folder() / kind
        file = folder / name
        if file.exists():
            return file

        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(file.with_suffix(".lock")):
            if not file.exists():
                unfinished = file.with_suffix(".unfinished")
                unfinished.touch(mode=0o600)
                write(unfinished)
                os.replace(unfinished, file)
        return file
    except (OSError, RuntimeError) as error:  # the second one: a user without a home
        place = getattr(error, "filename", None) or "the cache"
        found = f"{place}: copies of records cannot be kept there ({getattr(error, 'strerror', None) or error})"
        raise DataError(f"{found}; FEDAMP_CACHE names another folder") from None
