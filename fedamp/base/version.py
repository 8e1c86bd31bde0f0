"""The version of the installed distribution: the whole tool, or the accountant alone."""


def version() -> str:
    """The installed version; ``unknown`` where neither distribution is installed."""
    from importlib import metadata  # only here: it takes a quarter of the time of ``fedamp --help``

    for distribution in ("fedamp", "fedamp-accounting"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
