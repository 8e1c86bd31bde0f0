"""How a scenario cuts the model: disjoint submodels, round by round, or dropout's shared and split parts."""

from collections.abc import Callable
from dataclasses import dataclass

from fedamp.models.splits import Split


@dataclass(frozen=True)
class Partition:
    """The partition of the model, which may be public; who trains which submodel is hidden.

    Attributes:
        shared: names of the arrays that every submodel touches.
        split_at: the cut of a round (``fixed``: always the same); None for dropout, whose submodels are masks.
    """

    shared: frozenset[str]
    split_at: Callable[[int], Split] | None = None

    def at(self, round_: int) -> Split | None:
        """The cut of a round, None where submodels are masks on the whole model."""
        return self.split_at(round_) if self.split_at else None
