"""fedamp: federated learning with differential privacy, amplified by the randomness that training has anyway."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedamp.api import StopTraining, compare, load, open, play, privacy, run, sweep, tune

    __version__: str

__all__ = ["StopTraining", "compare", "load", "open", "play", "privacy", "run", "sweep", "tune"]


def __getattr__(name: str) -> Any:
    """The version, and what :mod:`fedamp.api` offers; it is imported when it is first used."""
    if name == "__version__":
        return globals().setdefault(name, import_module("fedamp.base.version").version())
    if name not in __all__:
        raise AttributeError(f"module 'fedamp' has no attribute {name!r}")
    try:
        return getattr(import_module("fedamp.api"), name)
    except ModuleNotFoundError as error:
        from fedamp.errors import missing

        if (words := missing(error.name)) is None:
            raise
        raise ImportError(f"fedamp.{name}: {words}") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
