"""A node's part of a round: train its clients stacked together, clip each update, add them up.

``PrivateClientApp(train=my_loop)`` makes a custom training loop private, ``PrivateClientApp()`` a whole Flower app.
Importing this package imports neither torch nor Flower; the modules that need them do.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedamp.client.app import PrivateClientApp

__all__ = ["PrivateClientApp"]


def __getattr__(name: str) -> Any:
    if name != "PrivateClientApp":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from fedamp.client.app import PrivateClientApp

    return PrivateClientApp
