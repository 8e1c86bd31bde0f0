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
_NO_CLASS = -1
AnyArray = NDArray[Any]


def is_whole(floats: AnyArray) -> NDArray[np.bool_]:
    """Which floats are whole numbers. Beyond 2^53 (float32: 2^24, float16: 2^11) neighbours are one float: none is."""
    with np.errstate(invalid="ignore"):
        near = np.abs(floats) < 2.0 ** (np.finfo(floats.dtype).nmant + 1)
        return np.asarray(near & (np.floor(floats) == floats))


class Labels(ABC):
    """A kind of labels."""

    are_classes: ClassVar[bool] = False  # whether a label is one class; then records can be partitioned by label
    expected: ClassVar[str]  # a description of the labels
    dimensions: ClassVar[tuple[int, ...]]  # numbers of axes of stored labels, including the axis of records

    @abstractmethod
    def read(self, stored: AnyArray) -> AnyArray:
        """Stored labels, converted for training. Raises ValueError for another type: no record changes that."""

    @abstractmethod
    def wrong(self, labels: AnyArray, outputs: float = math.inf) -> NDArray[np.bool_]:
        """Which of the labels [records, ...] cannot be trained on, shape [records], with so many outputs."""

    @abstractmethod
    def outputs(self, labels: AnyArray) -> int:
        """Number of outputs that a model needs for these labels (at every place of a sequence, for tokens)."""

    @abstractmethod
    def fit(self, labels: AnyArray, outputs: int) -> bool:
        """Whether clients' labels, of shape [clients, records, ...], fit a model with these outputs."""

    def none(self, length: int) -> AnyArray | None:
        """Labels of no records, of inputs of a length; None where only records say their shape."""
        return None

    def converted(self, stored: AnyArray, records: int, source: str) -> AnyArray:
        """Stored labels, converted for training. Raises DataError for another type, or another shape."""
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

    def read(self, stored: AnyArray) -> AnyArray:
        if stored.dtype.kind not in "fiu":
            raise ValueError(f"labels are of type {stored.dtype}")
        if stored.dtype.kind != "f":
            return stored.astype(np.int64)
        return np.where(is_whole(stored), stored, _NO_CLASS).astype(np.int64)

    def wrong(self, labels: AnyArray, outputs: float = math.inf) -> NDArray[np.bool_]:
        counted = labels != NOT_COUNTED if self.dimensions[0] > 1 else np.ones_like(labels, bool)
        outside = counted & ((labels < 0) | (labels >= outputs))
        return np.asarray(outside.any(axis=tuple(range(1, labels.ndim))))

    def outputs(self, labels: AnyArray) -> int:
        return int(labels.max(initial=0)) + 1

    def fit(self, labels: AnyArray, outputs: int) -> bool:
        counted = self._counted(labels)
        fits = not counted.size or 0 <= counted.min() <= counted.max() < outputs
        return bool(fits) and labels.ndim == 1 + self.dimensions[0]

    def none(self, length: int) -> AnyArray | None:
        return np.zeros((0, *[length] * (self.dimensions[0] - 1)), np.int64)

    def _counted(self, labels: AnyArray) -> AnyArray:
        return labels


class Tokens(Classes):
    """A class for every place of a sequence: int64 [records, length]; -100 where none is counted."""

    are_classes = False
    expected = "lists of integers 0, 1, 2, ... (-100: not counted), equally long for each record"
    dimensions = (2,)

    def _counted(self, labels: AnyArray) -> AnyArray:
        return np.asarray(labels[labels != NOT_COUNTED])


class Numbers(Labels):
    """One or several numbers a record: float32 [records, numbers]."""

    expected = "finite numbers, one for each record or a list of as many for each"
    dimensions = (1, 2)

    def read(self, stored: AnyArray) -> AnyArray:
        if stored.dtype.kind not in "fiub":
            raise ValueError(f"labels are of type {stored.dtype}")
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(stored.reshape(len(stored), math.prod(stored.shape[1:])), dtype=np.float32)
        if not numbers.shape[1]:
            raise ValueError("labels are empty lists")
        return numbers

    def wrong(self, labels: AnyArray, outputs: float = math.inf) -> NDArray[np.bool_]:
        return np.asarray(~np.isfinite(labels).all(axis=1))

    def outputs(self, labels: AnyArray) -> int:
        return math.prod(labels.shape[1:])

    def fit(self, labels: AnyArray, outputs: int) -> bool:
        return bool(labels.shape[2:] == (outputs,))


class Binary(Numbers):
    """Several labels a record, each 0 or 1: float32 [records, labels]."""

    expected = "zeros and ones, one for each record or a list of as many for each"

    def wrong(self, labels: AnyArray, outputs: float = math.inf) -> NDArray[np.bool_]:
        return np.asarray(~np.isin(labels, (0, 1)).all(axis=1))


CLASSES, NUMBERS, BINARY, TOKENS = Classes(), Numbers(), Binary(), Tokens()


@dataclass(frozen=True)
class Form:
    """What a task expects of records."""

    labels: Labels = CLASSES
    vocabulary: int | None = None  # inputs are tokens 0, 1, ..., vocabulary - 1 as int64; None: numbers as float32
    most: int | None = None  # records of a client in a round: of more, the first ones train; None: any number

    def fine(self, inputs: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which numbers can be trained on, each by itself."""
        fine = np.isfinite(inputs)
        if self.vocabulary is not None:
            fine &= (inputs >= 0) & (inputs < self.vocabulary) & (inputs == np.floor(inputs))
        return np.asarray(fine)

    def wrong(self, inputs: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which inputs [records, ...] hold what cannot be trained on, shape [records]."""
        return np.asarray(~self.fine(inputs).all(axis=tuple(range(1, inputs.ndim))))

    def read(self, inputs: NDArray[np.float32]) -> NDArray[Any]:
        """Inputs that are not wrong, converted for training."""
        return inputs if self.vocabulary is None else inputs.astype(np.int64)

    @property
    def expected(self) -> str:
        """A description of the inputs."""
        if self.vocabulary is None:
            return "finite numbers"
        return f"tokens, integers 0 to {self.vocabulary - 1} (model.vocabulary; data.scale 1)"


CLASSIFICATION = Form()
