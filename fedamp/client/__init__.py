"""A node's part of a round: train its clients stacked together, clip each update, add them up.

A custom training loop, or a whole Flower app, becomes private by one class:

    app = PrivateClientApp(train=my_loop)  # my_loop(model, records, context) -> model
    app = PrivateClientApp()               # instead of flwr.clientapp.ClientApp, the rest of the app unchanged

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
