"""Which classes of other packages have met their contract: notes in a folder of the cache.

A note names the code of the class and of its bases outside of fedamp, the version of its package, and the version of
fedamp. So other code, or another version, has not met the contract yet. :mod:`fedamp.testing` has the contracts.
"""

import hashlib
import inspect
import json
import os
import sys
from importlib import metadata
from pathlib import Path

from fedamp.base.files import cache_folder, write_atomically
from fedamp.base.version import version


def is_foreign(kind: type) -> bool:
    """Return whether a class is of another package than fedamp."""
    return kind.__module__.partition(".")[0] != "fedamp"


def package_of(kind: type) -> str:
    """Return the distribution of a class with its version, as ``mylab 0.2``; empty: no installed one has its module."""
    first = kind.__module__.partition(".")[0]
    found = metadata.packages_distributions().get(first, [])
    return f"{found[0]} {metadata.version(found[0])}" if found else ""


def has_passed(kind: type) -> bool:
    """Return whether a class met its contract on this machine, with this code and these versions."""
    file = _note(kind)
    return file is not None and file.is_file()


def note_pass(kind: type) -> None:
    """Note that a class has met its contract. Nothing is noted where nothing is cached, or code has no file."""
    if (file := _note(kind)) is not None:
        write_atomically(file, json.dumps(_identity(kind)).encode())


def _note(kind: type) -> Path | None:
    identity = _identity(kind)
    if identity is None or os.environ.get("FEDAMP_CACHE") == "off":
        return None
    folder = cache_folder() / "contracts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()}.json"


def _identity(kind: type) -> dict[str, object] | None:
    """What a note names; None: the source of a base cannot be found."""
    foreign = [base for base in kind.__mro__ if is_foreign(base) and base.__module__ not in ("builtins", "abc")]
    code = {}
    for base in foreign:
        if base.__module__.partition(".")[0] in ("pydantic", "typing", *sys.stdlib_module_names):
            continue
        try:
            text = Path(inspect.getfile(base)).read_bytes()
        except (OSError, TypeError):
            return None
        code[f"{base.__module__}:{base.__qualname__}"] = hashlib.sha256(text).hexdigest()
    return {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "code": code,
        "package": package_of(kind),
        "fedamp": version(),
    }
