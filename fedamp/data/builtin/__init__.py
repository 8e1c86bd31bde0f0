"""Bring data sets that work offline, and are small enough to read at once.

The files are JSON, because Flower takes no other files of text into an app. Their test sets are public.
:mod:`fedamp.data.sections` lists them.
"""

import json
from abc import abstractmethod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedamp.data.stored import BenchmarkData, Tables
from fedamp.data.table import Table


class BuiltInData(BenchmarkData):
    """Base of data sets of arrays. A further one is a class with a name and arrays, and a line in sections.py."""

    @abstractmethod
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return inputs [records, ...] and labels [records, ...] of all records."""

    def open(self, folder: Path) -> Tables:
        """Return one table; a share of it is held out for testing."""
        return Tables(Table(self.name, *self.arrays(), shape=self.shape))


# Top, top right, bottom right, bottom, bottom left, top left, middle; for 0, 1, ..., 9.
_SEGMENTS = "1111110 0110000 1101101 1111001 0110011 1011011 1011111 1110000 1111111 1111011"
_LIT = np.array([[int(lit) for lit in digit] for digit in _SEGMENTS.split()])

# Age, sex, body mass index, blood pressure, six measurements of blood serum; and the progression.
_MEANS = np.array([48.5, 1.5, 26.4, 94.6, 189.0, 115.0, 49.8, 4.07, 4.64, 91.3])
_DEVIATIONS = np.array([13.1, 0.5, 4.4, 13.8, 34.6, 30.4, 12.9, 1.29, 0.52, 11.5])
_MEAN, _DEVIATION = 152.0, 77.0


class DigitsData(BuiltInData):
    """1,797 handwritten digits of 8 x 8 pixels in [0, 1] (Alpaydin and Kaynak 1998, UCI)."""

    name: Literal["digits"]
    known = 10

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return pixels float32 [1797, 64] in [0, 1], and the digit of each image."""
        # A text for each digit: 64 pixels, from 0 to g for 16, and which digit it is.
        letters = np.array(_read_json("digits.json"), "S65").view(np.uint8).reshape(-1, 65)
        numbers = np.where(letters >= ord("a"), letters - ord("a") + 10, letters - ord("0"))
        return numbers[:, :-1].astype(np.float32) / 16, numbers[:, -1].astype(np.int64)


class SegmentsData(BuiltInData):
    """The digits with seven labels each: the segments of a display that show it. For binary-cross-entropy."""

    name: Literal["segments"]

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the pixels of the digits, and seven labels of 0 or 1 each."""
        inputs, digits = DigitsData(name="digits").arrays()
        return inputs, _LIT[digits]


class DiabetesData(BuiltInData):
    """Progression of diabetes in a year, for 442 patients with ten measurements each (Efron et al. 2004).

    For mean-squared-error. Both are standardised with rounded constants that are public.
    """

    name: Literal["diabetes"]

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return ten standardised measurements of each patient, and the standardised progression."""
        numbers = np.array(_read_json("diabetes.json"), np.float64)
        return (numbers[:, :-1] - _MEANS) / _DEVIATIONS, (numbers[:, -1] - _MEAN) / _DEVIATION


def _read_json(name: str) -> list[Any]:
    """Read a list from a JSON file of this folder."""
    found: list[Any] = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return found


LENGTH = 32
_LINES = Path(__file__).with_name("shakespeare.json")


class ShakespeareData(BuiltInData):
    """32 characters of Romeo and Juliet (William Shakespeare, public domain), and the character after each.

    Records do not overlap. For token-cross-entropy and ``model.vocabulary: 61``: a
    character is its place in the text's sorted alphabet.
    """

    name: Literal["shakespeare"]
    known = 61

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return 32 characters a record, and the character after each."""
        text = "\n".join(json.loads(_LINES.read_text(encoding="utf-8")))
        _, tokens = np.unique(list(text), return_inverse=True)
        windows = sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
        return windows[:, :-1], windows[:, 1:]
