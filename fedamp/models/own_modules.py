"""Modules beside a scenario, each folder's apart: two folders may both have a ``model.py``.

A folder is a package of a private name, and its modules are in that package. What they import is looked for in their
folder too, so a ``helper`` is the one beside them. Installed packages come first: a folder must not hide them.
"""

import builtins
import hashlib
import importlib
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

_PREFIX = "_fedamp_own_"


def name_of(path: str, folder: str | None) -> str:
    """The name by which to import a module ``package.module``, which may lie in a folder."""
    first = path.partition(".")[0]
    if folder is None or not _is_in(folder, first):
        return path
    return f"{_package(folder)}.{path}"


def _is_in(folder: str, first: str) -> bool:
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    is_installed = first in sys.stdlib_module_names or PathFinder.find_spec(first, installed) is not None
    return not is_installed and PathFinder.find_spec(first, [folder]) is not None


def _package(folder: str) -> str:
    """The private package of a folder, made when it is first used."""
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
        if not name.startswith(_PREFIX):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
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
