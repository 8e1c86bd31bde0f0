"""Make the model of a statistics run: the vector of the answers, from zero on."""

import torch
from torch import Tensor, nn

from fedamp.errors import ModelError
from fedamp.extensions.statistics.section import ARRAY, MODEL, MOST_CELLS
from fedamp.models.model import Model


class AnswersModel(nn.Module):
    """A vector of numbers that no record is an input of: people's vectors are added to it as updates.

    Args:
        cells: length of the vector.
        outputs: how many numbers it answers a record with, all equal.
    """

    def __init__(self, cells: int, outputs: int) -> None:
        super().__init__()
        self.register_parameter(ARRAY, nn.Parameter(torch.zeros(cells)))
        self._outputs = outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """Answer each record with the sum of the vector; training by gradients does not happen here."""
        total: Tensor = getattr(self, ARRAY).sum()
        return total.expand(len(inputs), self._outputs)


def answers_model(config: Model, num_classes: int) -> nn.Module:
    """Build the model that ``model.name: statistics:answers`` names.

    Raises:
        ModelError: another name, or options without the number of cells.
    """
    cells = config.options.get("cells")
    if config.name != MODEL or set(config.options) != {"cells"} or not isinstance(cells, int):
        raise ModelError(f"model {config.name}: got options {config.options}; expected: {MODEL}, with cells alone")
    if not 1 <= cells <= MOST_CELLS:
        raise ModelError(f"model.options.cells: got {cells}; expected: 1 to {MOST_CELLS:,}")
    return AnswersModel(cells, num_classes)
