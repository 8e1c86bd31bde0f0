"""fedamp: federated learning with differential privacy, amplified by the randomness that training has anyway."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedamp.api import StopTraining, compare, load, open, play, privacy, run
    from fedamp.extensions.tune.functions import sweep, tune

    __version__: str

__all__ = ["StopTraining", "compare", "load", "open", "play", "privacy", "run", "sweep", "tune"]


def __getattr__(name: str) -> Any:
    """The version, and what :mod:`fedamp.api` and extensions offer; it is imported when it is first used."""
    if name == "__version__":
        return globals().setdefault(name, import_module("fedamp.base.version").version())
    from fedamp.extension import keys, offered

    if name not in __all__ and name not in keys("functions"):
        raise AttributeError(f"module 'fedamp' has no attribute {name!r}")
    try:
        found = getattr(import_module("fedamp.api"), name, None) or next(offered("functions", name), None)
    except ModuleNotFoundError as error:
        from fedamp.errors import missing

        if (words := missing(error.name)) is None:
            raise
        raise ImportError(f"fedamp.{name}: {words}") from None
    if found is None:
        raise AttributeError(f"fedamp.{name} is of an extension, which is not installed")
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
