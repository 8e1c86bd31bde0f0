"""Train a node's clients in a round: many stacked together, each update clipped, and the clipped updates added up.

A reader begins with :mod:`fedamp.client.app`, which answers the server's messages, and :mod:`fedamp.client.worker`,
which plays a round without Flower. ``PrivateClientApp(train=my_loop)`` makes a custom training loop private;
``PrivateClientApp()`` does it for a whole Flower app.

Importing this package imports neither torch nor Flower; the modules that need them do. Nothing here knows the plan, the
noise or an epsilon: a node is told the public task (:class:`fedamp.client.task.ClientTask`), the model, the clips and
its units' seeds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedamp.client.app import PrivateClientApp

__all__ = ["PrivateClientApp"]


def __getattr__(name: str) -> Any:
    """Import :class:`PrivateClientApp` on first use, because Flower and torch take seconds to import."""
    if name != "PrivateClientApp":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from fedamp.client.app import PrivateClientApp

    return PrivateClientApp
