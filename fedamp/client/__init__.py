"""What a Flower node does in a round: train its clients stacked together, clip each update, add them up.

A training loop of one's own, or a Flower app of one's own, becomes private by one of these:

    app = private_client(train)     # train(model, records, context) -> model
    app = PrivateClientApp()        # instead of flwr.clientapp.ClientApp, the rest of the app unchanged

Importing this package imports neither torch nor Flower; the modules that need them do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedamp.client.mod import PrivateClientApp, private_mod
    from fedamp.client.own_loop import private_client

__all__ = ["PrivateClientApp", "private_client", "private_mod"]

_HOME = {"PrivateClientApp": "mod", "private_client": "own_loop", "private_mod": "mod"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
