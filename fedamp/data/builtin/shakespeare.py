"""The first acts of Romeo and Juliet (William Shakespeare, public domain), character by character."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedamp.data.builtin import BuiltInData

LENGTH = 32
_LINES = Path(__file__).with_name("shakespeare.json")  # JSON: Flower takes no other files of text into an app


class ShakespeareData(BuiltInData):
    """32 characters of Romeo and Juliet, and the character after each. Records do not overlap.

    For token-cross-entropy and ``model.vocabulary: 61``: a character is its place in the text's sorted alphabet.
    """

    name: Literal["shakespeare"]
    known = 61

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        text = "\n".join(json.loads(_LINES.read_text(encoding="utf-8")))
        _, tokens = np.unique(list(text), return_inverse=True)
        windows = sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
        return windows[:, :-1], windows[:, 1:]
