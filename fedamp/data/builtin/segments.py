"""The digits of scikit-learn once more, each with the segments of a display that show it: seven labels, on or off.

For ``client.loss: binary-cross-entropy``.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp.data.builtin.digits import DigitsTable
from fedamp.data.sections import BuiltInData
from fedamp.data.source import Source, sources
from fedamp.data.stored import StoredSource

# Top, top right, bottom right, bottom, bottom left, top left, middle; for 0, 1, ..., 9.
_SEGMENTS = "1111110 0110000 1101101 1111001 0110011 1011011 1011111 1110000 1111111 1111011"
_LIT = np.array([[int(lit) for lit in digit] for digit in _SEGMENTS.split()])


@sources.register("segments")
def segments(config: BuiltInData, folder: Path) -> Source:
    return StoredSource(config, SegmentsTable(config.shape))


class SegmentsTable(DigitsTable):
    """Pixels of the digits, and seven labels each."""

    def stored_labels(self) -> NDArray[np.int64]:
        return _LIT[super().stored_labels()]
