"""The first acts of Romeo and Juliet (William Shakespeare, public domain), character by character.

A record is 32 characters of the play, its labels the characters that follow each of them; the records do not overlap.
For ``client.loss: token-cross-entropy`` and ``model.vocabulary: 61``.
"""

import json
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedamp.data.sections import BuiltInData
from fedamp.data.source import Source, sources
from fedamp.data.stored import StoredSource
from fedamp.data.table import Table

LENGTH = 32
_LINES = Path(__file__).with_name("shakespeare.json")  # JSON: Flower takes no other files of text into an app


@sources.register("shakespeare")
def shakespeare(config: BuiltInData, folder: Path) -> Source:
    return StoredSource(config, ShakespeareTable(config.shape))


class ShakespeareTable(Table):
    """Characters by their places in the sorted alphabet of the text."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        super().__init__("shakespeare", (LENGTH,), np.dtype(np.int64), shape)

    def __len__(self) -> int:
        return len(self._windows)

    def stored_labels(self) -> NDArray[np.int64]:
        return self._windows[:, 1:]

    def stored_inputs(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._windows[records, :-1]

    @cached_property
    def _windows(self) -> NDArray[np.int64]:
        """[records, LENGTH + 1]; the last character of one is the first of the next."""
        text = "\n".join(json.loads(_LINES.read_text(encoding="utf-8")))
        _, tokens = np.unique(list(text), return_inverse=True)
        return sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
