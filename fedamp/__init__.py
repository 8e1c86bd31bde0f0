"""fedamp: federated learning with differential privacy, amplified by randomness that training has anyway.

Training keeps two random choices secret: the rounds in which a client takes part, and the submodel that it trains.
fedamp runs such a training, and computes certified bounds on the epsilon that its releases cost.

This package exports the functions of :mod:`fedamp.api` and of extensions, and imports them when they are first used. So
``import fedamp`` is quick, and :mod:`fedamp.accounting` works without the packages that train. A reader goes on with
docs/python.md, :mod:`fedamp.accounting` for the cost of a mechanism, or :mod:`fedamp.testing` for contracts of schemes
of one's own.

Example:
    >>> import fedamp
    >>> fedamp.load("digits").check_in.k
    10
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedamp.api import StopTraining, compare, load, open, play, privacy, run
    from fedamp.extensions.tune.functions import study, sweep, tune

    __version__: str

__all__ = ["StopTraining", "compare", "load", "open", "play", "privacy", "run", "study", "sweep", "tune"]


def __getattr__(name: str) -> Any:
    """Import what :mod:`fedamp.api` and extensions offer when it is first used; also the version.

    Raises:
        AttributeError: fedamp has no such name, or the extension that offers it is not installed.
        ImportError: a package of an extra is missing; the message says which extra to install.
    """
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
    """List all names, also those that are not imported yet."""
    return sorted([*globals(), *__all__])
