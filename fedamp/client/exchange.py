"""Let a node take part in exchanges of an aggregator that needs more than one answer a round.

``fedamp/extensions/secure`` offers one for the seam ``exchanges``. :mod:`fedamp.client.app` calls it where an order has
an ``exchange``; ``fedamp doctor`` examines it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context

from fedamp.engines.wire import RoundAnswer, RoundOrder

if TYPE_CHECKING:
    from fedamp.accounting.verify import Check  # a node's message brings no accountant

TrainUnits = Callable[[RoundOrder], RoundAnswer]
"""Trains the units that an order names, and returns the sum of their clipped updates."""


class NodeExchange(ABC):
    """Answers the exchanges of one protocol on a node. Extensions offer subclasses, for the seam ``exchanges``."""

    @abstractmethod
    def answer(
        self, order: RoundOrder, context: Context, hosted: set[int], whose: Iterable[bytes], train: TrainUnits
    ) -> bytes:
        """Answer one exchange of a round.

        Args:
            order: names the exchange, and what the server tells in it.
            context: of the node, as Flower gives it.
            hosted: ids of the units that live on the node.
            whose: facts about which records are which unit's; they change when an owner changes.
            train: trains the units of an order.

        Returns:
            ``order.answer_bytes`` bytes in the layout of the protocol.

        Raises:
            DeploymentError: the node refuses it, and why. Other errors may depend on records: the server is not told.
        """

    @abstractmethod
    def examine(self, *files: Path) -> "list[Check]":
        """Check that a node with these files can take part, for ``fedamp doctor``."""
