"""What a built-in model says of itself before torch loads: plans and costs need no more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fedamp.models.units import Blocks, Units

if TYPE_CHECKING:
    from torch import Tensor, nn


class Architecture(ABC):
    """A network that has no parameters yet. Torch is imported by :meth:`modules` at the earliest."""

    takes_tokens: ClassVar[bool] = False  # inputs are tokens, not numbers

    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """Names of layers, for ``submodels.shared``; names below a layer are accepted too."""

    def units(self) -> Sequence[Units | Blocks]:
        """Nodes that can be left out, by layer; empty: the model cannot be split or masked."""
        return ()

    def smaller(self, kept: Mapping[str, tuple[int, ...]]) -> Self:
        """The architecture that has only the kept nodes of the named layers, and all nodes of the others."""
        return self

    @abstractmethod
    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        """The submodules by name, with initial values from torch's generator.

        ModelError: sizes do not fit together, or inputs do not have this shape.
        """

    @abstractmethod
    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        """Outputs [batch, outputs] (tokens: [batch, length, outputs]); ``network`` has the submodules as attributes."""
