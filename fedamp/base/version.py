"""Tell the version of the installed distribution; ledgers and the notes of contracts name it."""

from functools import cache


@cache
def version() -> str:
    """Return the installed version; ``unknown`` where the files are used without an installation."""
    from importlib import metadata  # only here: it takes a quarter of the time of ``fedamp --help``

    try:
        return metadata.version("fedamp")
    except metadata.PackageNotFoundError:
        return "unknown"
