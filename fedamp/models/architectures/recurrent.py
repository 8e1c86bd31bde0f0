"""A character model: the next token at every place of a sequence."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedamp.errors import ModelError
from fedamp.models.architecture import Architecture

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Recurrent(Architecture):
    """embedding -> LSTMs recurrent.0, recurrent.1, ... -> output, an answer [batch, length, outputs] at every place."""

    vocabulary: int
    embedding: int
    widths: tuple[int, ...]
    takes_tokens: ClassVar[bool] = True

    def layers(self) -> tuple[str, ...]:
        return ("embedding", *(f"recurrent.{index}" for index in range(len(self.widths))), "output")

    def modules(self, input_shape: tuple[int, ...], num_classes: int) -> dict[str, nn.Module]:
        from torch import nn

        from fedamp.models.layers import LSTM

        if len(input_shape) != 1:
            raise ModelError(f"model lstm needs sequences of tokens, [length], got input shape {list(input_shape)}")
        sizes = [self.embedding, *self.widths]
        return {
            "embedding": nn.Embedding(self.vocabulary, self.embedding),
            "recurrent": nn.ModuleList(LSTM(into, out) for into, out in itertools.pairwise(sizes)),
            "output": nn.Linear(sizes[-1], num_classes),
        }

    def forward(self, network: Any, inputs: Tensor) -> Tensor:
        values = network.embedding(inputs)
        for layer in network.recurrent:
            values = layer(values)
        logits: Tensor = network.output(values)
        return logits
