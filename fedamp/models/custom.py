"""Import code of other people, and limit what it may see and draw meanwhile.

Modules beside a scenario are each folder's apart: two folders may both have a ``model.py``. A folder is a package of a
private name, and its modules are in that package. What they import is looked for in their folder too, so a ``helper``
is the one beside them. Installed packages come first: a folder must not hide them.

:mod:`fedamp.models.networks` and :mod:`fedamp.federation.losses` import models and losses here, and only where they are
to run: reading, showing and pricing a scenario run no code that it names. This is no sandbox.
"""

import builtins
import hashlib
import importlib
import os
import random
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedamp.base import given
from fedamp.base.devices import usual_state

_PREFIX = "_fedamp_own_"


def is_import_path(name: str) -> bool:
    """Say whether a name is of the form ``package.module:name``, or ``given:...``: a custom model or loss.

    >>> is_import_path("mylab.nets:Small"), is_import_path("mlp")
    (True, False)
    """
    return ":" in name


def is_there(name: str, folder: str | None) -> bool:
    """Say whether the module of ``package.module:name`` is installed or in the folder; none of its code is run."""
    first, *below = name.partition(":")[0].split(".")
    try:
        spec = PathFinder.find_spec(first, [folder or ""]) or find_spec(first)
    except ValueError:  # no name, or a module that was made by hand
        return first in sys.modules
    for part in below:
        spec = spec and PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations or [])
    return spec is not None


def import_own(name: str, folder: str | None) -> Any:
    """Return the object ``package.module:name``, or one that was given in Python.

    Args:
        name: the import path, or ``given:`` and a name that :mod:`fedamp.base.given` knows.
        folder: where modules may lie beside installed packages; None: nowhere.

    Raises:
        InputError: it was not given. Importing may raise any other Exception.
    """
    if name.startswith(given.PREFIX):
        return given.find(name)
    path, _, attribute = name.partition(":")
    with undisturbed():
        return getattr(importlib.import_module(name_of(path, folder)), attribute)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run code of other people so that it sees no command line, and neither ends, moves nor changes this process.

    Raises:
        RuntimeError: the code would end the process.
    """
    arguments, place = sys.argv, Path.cwd()
    sys.argv = arguments[:1]
    try:
        with usual_state():
            yield
    except SystemExit as ending:
        raise RuntimeError(f"it ends the process: SystemExit {ending.code}") from None
    finally:
        sys.argv = arguments
        os.chdir(place)


def name_of(path: str, folder: str | None) -> str:
    """Return the name by which to import a module ``package.module``, which may lie in a folder."""
    first = path.partition(".")[0]
    if folder is None or not _is_in(folder, first):
        return path
    return f"{_private_package(folder)}.{path}"


def _is_in(folder: str, first: str) -> bool:
    """Say whether a module is looked for in a folder: no installed package or module of Python has its name."""
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    # A checkout of fedamp lies beside its own examples: a second copy would have classes of its own.
    known = {*sys.stdlib_module_names, __name__.partition(".")[0]}
    is_installed = first in known or PathFinder.find_spec(first, installed) is not None
    return not is_installed and PathFinder.find_spec(first, [folder]) is not None


def _private_package(folder: str) -> str:
    """Return the private package of a folder, made when it is first used."""
    name = _PREFIX + hashlib.sha256(folder.encode()).hexdigest()[:16]
    if name not in sys.modules:
        import cloudpickle

        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [folder]
        package = sys.modules[name] = module_from_spec(spec)
        cloudpickle.register_pickle_by_value(package)  # another process may not have the package
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
    return name


class _Finder:
    """Finds the modules of private packages, and has their imports look in their folder."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module of a private package; None for all others."""
        if not name.startswith(_PREFIX):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Runs a module of a private package with an ``import`` that knows its folder."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, in which each import looks in the folder first, except for installed packages."""
        package = module.__name__.partition(".")[0]
        (folder,) = sys.modules[package].__path__

        def import_(name: str, globals_: Any = None, locals_: Any = None, wanted: Any = (), level: int = 0) -> Any:
            if level or not _is_in(folder, name.partition(".")[0]):
                return builtins.__import__(name, globals_, locals_, wanted, level)
            found = importlib.import_module(f"{package}.{name}")
            if not wanted:
                return sys.modules[f"{package}.{name.partition('.')[0]}"]
            for each in wanted:
                if each != "*" and not hasattr(found, each) and hasattr(found, "__path__"):
                    importlib.import_module(f"{found.__name__}.{each}")
            return found

        # Python takes the import of a module's code, also of its functions, from here.
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": import_}
        super().exec_module(module)


@contextmanager
def generators_from(seed: int, gpus: bool = False) -> Iterator[None]:
    """Start Python's, NumPy's and torch's generators from a seed while the context lasts, and restore them afterwards.

    So code of other people draws from a stream that is addressed, and changes no other draw.

    Args:
        seed: of 63 bits.
        gpus: whether torch's generators on GPUs start from it, too.
    """
    import torch

    numpy_before, python_before = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if gpus else []):
        (torch.manual_seed if gpus else torch.default_generator.manual_seed)(seed)
        np.random.seed(seed >> 31)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_before)
            random.setstate(python_before)
