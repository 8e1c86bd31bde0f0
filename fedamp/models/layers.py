"""Build image and sequence models: the blocks that :mod:`fedamp.models.architectures` puts together.

Each treats every record by itself, and runs stacked over clients (``torch.func.vmap``).
"""

import torch
from torch import Tensor, nn

from fedamp.errors import ModelError

_MOST_CHANNELS = 4  # a last dimension up to this, under a larger first one, is read as channels


class ToImage(nn.Module):
    """Turns inputs into images [batch, channels, height, width].

    Records are [height, width], [channels, height, width], or [height, width, channels] (read so where the last
    dimension is at most 4 and the first is larger).

    Args:
        input_shape: of one record.
        model: name of the model, for the error.

    Attributes:
        channels, height, width: of the images.

    Raises:
        ModelError: records of another number of axes.
    """

    def __init__(self, input_shape: tuple[int, ...], model: str) -> None:
        super().__init__()
        if len(input_shape) not in (2, 3):
            raise ModelError(
                f"model {model} needs images: [height, width], [channels, height, width] or [height, width, channels], "
                f"got input shape {list(input_shape)} (data.shape can give one)"
            )
        self.flat = len(input_shape) == 2
        self.channels_last = not self.flat and input_shape[2] <= _MOST_CHANNELS < input_shape[0]
        size = (1, *input_shape) if self.flat else input_shape
        self.channels, self.height, self.width = (size[2], size[0], size[1]) if self.channels_last else size

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a view of the inputs as images; no number is copied."""
        if self.flat:
            return inputs.unsqueeze(1)
        return inputs.permute(0, 3, 1, 2) if self.channels_last else inputs


class Residual(nn.Module):
    """``relu(x + branch(x))``, or ``relu(shortcut(x) + branch(x))`` where the shape changes.

    Inputs are not negative (a ReLU's outputs), so a block without its branch is exactly the identity.
    """

    def __init__(self, branch: nn.Sequential, shortcut: nn.Sequential | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut if shortcut is not None else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the block's outputs, which are not negative."""
        return torch.relu(self.shortcut(inputs) + self.branch(inputs))


class LSTM(nn.Module):
    """A long short-term memory (Hochreiter and Schmidhuber 1997) that starts from zeros.

    It is ``torch.nn.LSTM`` with one bias, but of operations that ``torch.func.vmap`` knows.

    Args:
        into: numbers at each place of the sequence.
        out: numbers of the state.
    """

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.inputs, self.state = nn.Linear(into, 4 * out), nn.Linear(out, 4 * out, bias=False)

    def forward(self, sequence: Tensor) -> Tensor:
        """Compute the states [batch, length, out] of a sequence [batch, length, into]."""
        entering = self.inputs(sequence)
        hidden = cell = torch.zeros_like(entering[:, 0, : self.state.in_features])
        answers = []
        for place in range(sequence.shape[1]):
            enters, forgets, new, leaves = (entering[:, place] + self.state(hidden)).chunk(4, dim=1)
            cell = forgets.sigmoid() * cell + enters.sigmoid() * new.tanh()
            hidden = leaves.sigmoid() * cell.tanh()
            answers.append(hidden)
        return torch.stack(answers, dim=1)
