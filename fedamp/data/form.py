"""What a task expects of records: the kind of their labels, and whether their inputs are numbers or tokens.

The loss decides the labels, the model whether inputs are tokens (``model.vocabulary``).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedamp.errors import DataError

NOT_COUNTED = -100  # the label of a token that is ignored, as in torch
Array = NDArray[Any]


class Labels(ABC):
    """A kind of labels."""

    are_classes: ClassVar[bool] = False  # whether a label is one class; then records can be partitioned by label
    expected: ClassVar[str]  # a description of the labels
    dimensions: ClassVar[tuple[int, ...]]  # numbers of axes of stored labels, including the axis of records

    @abstractmethod
    def read(self, stored: Array) -> Array:
        """Stored labels, converted for training. Raises ValueError for other values."""

    @abstractmethod
    def outputs(self, labels: Array) -> int:
        """Number of outputs that a model needs for these labels (at every place of a sequence, for tokens)."""

    @abstractmethod
    def fit(self, labels: Array, outputs: int) -> bool:
        """Whether clients' labels, of shape [clients, records, ...], fit a model with these outputs."""

    def none(self, length: int) -> Array | None:
        """Labels of no records, of inputs of a length; None where only records say their shape."""
        return None

    def unfit(self, labels: Array, outputs: int) -> str:
        """What is wrong with labels [records, ...] that do not fit."""
        return f"a label has shape {list(labels.shape[1:])}, others have {[outputs]}; they must agree"

    def checked(self, stored: Array, records: int, source: str) -> Array:
        """Stored labels, converted for training. Raises DataError if they do not fit so many records."""
        if stored.ndim not in self.dimensions or len(stored) != records:
            found = f"labels have shape {list(stored.shape)}, inputs {records} records"
            raise DataError(f"{source}: {found}; give {self.expected}")
        try:
            return self.read(stored)
        except ValueError as error:
            raise DataError(f"{source}: {error}; labels must be {self.expected}") from None


class Classes(Labels):
    """One class a record: int64 [records], from 0."""

    are_classes = True
    expected = "integers 0, 1, 2, ..., one for each record"
    dimensions = (1,)

    def read(self, stored: Array) -> Array:
        if stored.dtype.kind not in "iu":
            raise ValueError(f"labels are of type {stored.dtype}")
        counted = self._counted(stored)
        if not counted.size and stored.size:
            raise ValueError("no label counts")
        if counted.min(initial=0) < 0:
            raise ValueError(f"label {counted.min()} at record {np.argwhere(stored == counted.min())[0][0]}")
        return stored.astype(np.int64)

    def outputs(self, labels: Array) -> int:
        return int(labels.max(initial=0)) + 1

    def fit(self, labels: Array, outputs: int) -> bool:
        counted = self._counted(labels)
        fits = not counted.size or 0 <= counted.min() <= counted.max() < outputs
        return bool(fits) and labels.ndim == 1 + self.dimensions[0]

    def none(self, length: int) -> Array | None:
        return np.zeros((0, *[length] * (self.dimensions[0] - 1)), np.int64)

    def unfit(self, labels: Array, outputs: int) -> str:
        return f"label {self._counted(labels).max()}; there are {outputs} classes (data.classes), from 0"

    def _counted(self, labels: Array) -> Array:
        return labels


class Tokens(Classes):
    """A class for every place of a sequence: int64 [records, length]; -100 where none is counted."""

    are_classes = False
    expected = "lists of integers 0, 1, 2, ... (-100: not counted), equally long for each record"
    dimensions = (2,)

    def _counted(self, labels: Array) -> Array:
        return np.asarray(labels[labels != NOT_COUNTED])


class Numbers(Labels):
    """One or several numbers a record: float32 [records, numbers]."""

    expected = "finite numbers, one for each record or a list of as many for each"
    dimensions = (1, 2)

    def read(self, stored: Array) -> Array:
        if stored.dtype.kind not in "fiub":
            raise ValueError(f"labels are of type {stored.dtype}")
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(stored.reshape(len(stored), -1), dtype=np.float32)
        if not numbers.shape[1]:
            raise ValueError("labels are empty lists")
        finite = np.isfinite(numbers).all(axis=1)
        if not finite.all():
            raise ValueError(f"the label of record {np.argmin(finite)} is NaN, infinite or too large")
        return numbers

    def outputs(self, labels: Array) -> int:
        return math.prod(labels.shape[1:])

    def fit(self, labels: Array, outputs: int) -> bool:
        return bool(labels.shape[2:] == (outputs,))


class Binary(Numbers):
    """Several labels a record, each 0 or 1: float32 [records, labels]."""

    expected = "zeros and ones, one for each record or a list of as many for each"

    def read(self, stored: Array) -> Array:
        numbers = super().read(stored)
        binary = np.isin(numbers, (0, 1)).all(axis=1)
        if not binary.all():
            first = np.argmin(binary)
            raise ValueError(f"the label of record {first} is {numbers[first].tolist()}")
        return numbers


CLASSES, NUMBERS, BINARY, TOKENS = Classes(), Numbers(), Binary(), Tokens()


@dataclass(frozen=True)
class Form:
    """What a task expects of records."""

    labels: Labels = CLASSES
    vocabulary: int | None = None  # inputs are tokens 0, 1, ..., vocabulary - 1 as int64; None: numbers as float32

    def tokens(self, inputs: NDArray[np.float32], source: str) -> NDArray[np.int64]:
        """Inputs as tokens. Raises DataError for inputs outside the vocabulary."""
        vocabulary = self.vocabulary or 0
        wrong = inputs[~((inputs >= 0) & (inputs < vocabulary) & (inputs == np.floor(inputs)))]
        if wrong.size:
            raise DataError(
                f"{source}: an input holds {wrong[0]:g}, but with model.vocabulary {vocabulary} inputs are tokens; "
                f"expected: integers 0 to {vocabulary - 1} (and data.scale 1)"
            )
        return inputs.astype(np.int64)


CLASSIFICATION = Form()
