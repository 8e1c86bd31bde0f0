"""Describe what a task expects of records: the kind of their labels, and whether their inputs are numbers or tokens.

The loss decides the labels, the model whether inputs are tokens (``model.vocabulary``):
:func:`fedamp.federation.losses.form_of` puts the two together. Data sections read and check records by it. A wrong
record is marked, never an error, because one person must not stop a run for others.
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
    """Say which floats are whole numbers, elementwise.

    Beyond 2^53 (float32: 2^24, float16: 2^11) neighbours are one float, so none of these counts as whole.

    >>> is_whole(np.array([3.0, 3.5, 2.0**53, np.nan])).tolist()
    [True, False, False, False]
    """
    with np.errstate(invalid="ignore"):
        near = np.abs(floats) < 2.0 ** (np.finfo(floats.dtype).nmant + 1)
        return np.asarray(near & (np.floor(floats) == floats))


class Labels(ABC):
    """A kind of labels: how stored ones are read, which are wrong, and how many outputs a model needs.

    Attributes:
        are_classes: whether a label is one class; then records can be partitioned by label.
        expected: a description of the labels, for errors.
        dimensions: numbers of axes of stored labels, including the axis of records.
    """

    are_classes: ClassVar[bool] = False
    expected: ClassVar[str]
    dimensions: ClassVar[tuple[int, ...]]

    @abstractmethod
    def read(self, stored: AnyArray) -> AnyArray:
        """Convert stored labels for training; a single wrong label is marked, not refused.

        Raises:
            ValueError: another type: no record changes that.
        """

    @abstractmethod
    def wrong(self, labels: AnyArray, outputs: float = math.inf) -> NDArray[np.bool_]:
        """Say which of the labels cannot be trained on.

        Args:
            labels: as :meth:`read` gives them, [records, ...].
            outputs: of the model.

        Returns:
            bool [records].
        """

    @abstractmethod
    def outputs(self, labels: AnyArray) -> int:
        """Count the outputs that a model needs for these labels (at every place of a sequence, for tokens)."""

    @abstractmethod
    def fit(self, labels: AnyArray, outputs: int) -> bool:
        """Say whether clients' labels, of shape [clients, records, ...], fit a model with these outputs."""

    def none(self, length: int) -> AnyArray | None:
        """Return labels of no records, of inputs of a length; None where only records say their shape."""
        return None

    def converted(self, stored: AnyArray, records: int, source: str) -> AnyArray:
        """Convert stored labels for training.

        Args:
            stored: the labels as a file has them.
            records: how many there must be.
            source: of the labels, for errors.

        Raises:
            DataError: another type, or another shape.
        """
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
        """Convert whole numbers of any type to int64; others become -1, which is no class."""
        if stored.dtype.kind not in "fiu":
            raise ValueError(f"labels are of type {stored.dtype}")
        if stored.dtype.kind != "f":
            return stored.astype(np.int64)
        return np.where(is_whole(stored), stored, _NO_CLASS).astype(np.int64)

    def wrong(self, labels: AnyArray, outputs: float = math.inf) -> NDArray[np.bool_]:
        """Say which records have a label outside 0 ... outputs - 1; for tokens, -100 is never wrong."""
        counted = labels != NOT_COUNTED if self.dimensions[0] > 1 else np.ones_like(labels, bool)
        outside = counted & ((labels < 0) | (labels >= outputs))
        return np.asarray(outside.any(axis=tuple(range(1, labels.ndim))))

    def outputs(self, labels: AnyArray) -> int:
        """Return the largest class and one more."""
        return int(labels.max(initial=0)) + 1

    def fit(self, labels: AnyArray, outputs: int) -> bool:
        """Say whether all classes that count are below ``outputs``, and the labels have the right number of axes."""
        counted = self._counted(labels)
        fits = not counted.size or 0 <= counted.min() <= counted.max() < outputs
        return bool(fits) and labels.ndim == 1 + self.dimensions[0]

    def none(self, length: int) -> AnyArray | None:
        """Return an empty array of labels; a record's label has ``length`` places for tokens."""
        return np.zeros((0, *[length] * (self.dimensions[0] - 1)), np.int64)

    def _counted(self, labels: AnyArray) -> AnyArray:
        """Return the labels that count: here, all."""
        return labels


class Tokens(Classes):
    """A class for every place of a sequence: int64 [records, length]; -100 where none is counted."""

    are_classes = False
    expected = "lists of integers 0, 1, 2, ... (-100: not counted), equally long for each record"
    dimensions = (2,)

    def _counted(self, labels: AnyArray) -> AnyArray:
        """Return the labels that count: all but -100."""
        return np.asarray(labels[labels != NOT_COUNTED])


class Numbers(Labels):
    """One or several numbers a record: float32 [records, numbers]."""

    expected = "finite numbers, one for each record or a list of as many for each"
    dimensions = (1, 2)

    def read(self, stored: AnyArray) -> AnyArray:
        """Convert numbers of any type to float32 [records, numbers]; one that is too large becomes infinite."""
        if stored.dtype.kind not in "fiub":
            raise ValueError(f"labels are of type {stored.dtype}")
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(stored.reshape(len(stored), math.prod(stored.shape[1:])), dtype=np.float32)
        if not numbers.shape[1]:
            raise ValueError("labels are empty lists")
        return numbers

    def wrong(self, labels: AnyArray, outputs: float = math.inf) -> NDArray[np.bool_]:
        """Say which records have a number that is not finite."""
        return np.asarray(~np.isfinite(labels).all(axis=1))

    def outputs(self, labels: AnyArray) -> int:
        """Return the numbers of a record."""
        return math.prod(labels.shape[1:])

    def fit(self, labels: AnyArray, outputs: int) -> bool:
        """Say whether a record has as many numbers as the model outputs."""
        return bool(labels.shape[2:] == (outputs,))


class Binary(Numbers):
    """Several labels a record, each 0 or 1: float32 [records, labels]."""

    expected = "zeros and ones, one for each record or a list of as many for each"

    def wrong(self, labels: AnyArray, outputs: float = math.inf) -> NDArray[np.bool_]:
        """Say which records have a number that is neither 0 nor 1."""
        return np.asarray(~np.isin(labels, (0, 1)).all(axis=1))


CLASSES, NUMBERS, BINARY, TOKENS = Classes(), Numbers(), Binary(), Tokens()


@dataclass(frozen=True)
class Form:
    """The expectations of a task about records.

    Attributes:
        labels: kind of the labels.
        vocabulary: inputs are tokens 0, 1, ..., vocabulary - 1 as int64; None: numbers as float32.
        most: records of a client in a round: of more, the first ones train; None: any number.
    """

    labels: Labels = CLASSES
    vocabulary: int | None = None
    most: int | None = None

    def fine(self, inputs: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Say which numbers of inputs can be trained on, each by itself; bool in their shape."""
        fine = np.isfinite(inputs)
        if self.vocabulary is not None:
            fine &= (inputs >= 0) & (inputs < self.vocabulary) & (inputs == np.floor(inputs))
        return np.asarray(fine)

    def wrong(self, inputs: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Say which inputs [records, ...] hold a number that cannot be trained on, bool [records]."""
        return np.asarray(~self.fine(inputs).all(axis=tuple(range(1, inputs.ndim))))

    def read(self, inputs: NDArray[np.float32]) -> NDArray[Any]:
        """Convert inputs that are not wrong for training: tokens to int64, numbers not at all."""
        return inputs if self.vocabulary is None else inputs.astype(np.int64)

    @property
    def expected(self) -> str:
        """Description of the inputs, for errors."""
        if self.vocabulary is None:
            return "finite numbers"
        return f"tokens, integers 0 to {self.vocabulary - 1} (model.vocabulary; data.scale 1)"


CLASSIFICATION = Form()
