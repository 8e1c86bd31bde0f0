"""Which arrays a model has, and to which part (clipping, noise, denominator) each belongs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedamp.base.arrays import Arrays, Sums


@dataclass(frozen=True)
class ModelParts:
    """Shapes and parts of the arrays of a model that are trained.

    Attributes:
        shapes: shape of each, by name, in the model's order.
        part_of: index into the plan's parts, by name.
    """

    shapes: Mapping[str, tuple[int, ...]]
    part_of: Mapping[str, int]

    @classmethod
    def of(cls, arrays: Arrays, shared: frozenset[str] | None = None) -> "ModelParts":
        """The parts of a model; ``shared`` names the arrays of the shared part, None where it is one part."""
        part_of = {name: 0 if shared is None or name in shared else 1 for name in arrays}
        return cls({name: array.shape for name, array in arrays.items()}, part_of)

    def zeros(self) -> Sums:
        """A sum of no updates."""
        return {name: np.zeros(shape) for name, shape in self.shapes.items()}

    def norms(self, sums: Sums) -> list[float]:
        """Euclidean norm of every part."""
        squares = [0.0] * (max(self.part_of.values()) + 1)
        for name, array in sums.items():
            flat = array.ravel()
            with np.errstate(over="ignore"):  # a norm that overflows is infinite, and its sum is clipped to nothing
                squares[self.part_of[name]] += float(flat @ flat)
        return [float(np.sqrt(square)) for square in squares]
