"""What a task takes records to be: what their labels are, and whether their inputs are numbers or tokens.

The loss says what labels it takes, the model whether it takes tokens (``model.vocabulary``).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedamp.errors import DataError

NOT_COUNTED = -100  # a token's label that stands for none, as in torch


class Labels(ABC):
    """A kind of labels.

    Attributes:
        are_classes: whether a label is one class; then records can be dealt by label.
        expected: what is expected, in words.
        dimensions: axes that stored labels may have, the one of records among them.
    """

    are_classes: ClassVar[bool] = False
    expected: ClassVar[str]
    dimensions: ClassVar[tuple[int, ...]]

    @abstractmethod
    def read(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Stored labels as they are trained on.

        Raises:
            ValueError: what was found.
        """

    @abstractmethod
    def outputs(self, labels: NDArray[Any]) -> int:
        """How many numbers a model answers with for them (at every place of a sequence, for tokens)."""

    @abstractmethod
    def fit(self, labels: NDArray[Any], outputs: int) -> bool:
        """Whether some clients' labels, of shape [clients, records, ...], are those of a model with these outputs."""

    def checked(self, stored: NDArray[Any], records: int, source: str) -> NDArray[Any]:
        """Stored labels as they are trained on, one for each record.

        Raises:
            DataError: others.
        """
        if stored.ndim not in self.dimensions or len(stored) != records:
            raise DataError(
                f"{source}: labels have shape {list(stored.shape)}, inputs {records} records; give {self.expected}"
            )
        try:
            return self.read(stored)
        except ValueError as error:
            raise DataError(f"{source}: {error}; labels must be {self.expected}") from None


class Classes(Labels):
    """One class a record: int64 [records], from 0."""

    are_classes = True
    expected = "integers 0, 1, 2, ..., one for each record"
    dimensions = (1,)

    def read(self, stored: NDArray[Any]) -> NDArray[Any]:
        return _integers(stored, lowest=0)

    def outputs(self, labels: NDArray[Any]) -> int:
        return int(labels.max(initial=0)) + 1

    def fit(self, labels: NDArray[Any], outputs: int) -> bool:
        return labels.ndim == 2 and (not labels.size or 0 <= labels.min() <= labels.max() < outputs)


class Numbers(Labels):
    """Some numbers a record: float32 [records, numbers]."""

    expected = "finite numbers, one for each record or a list of as many for each"
    dimensions = (1, 2)

    def read(self, stored: NDArray[Any]) -> NDArray[Any]:
        if stored.dtype.kind not in "fiub":
            raise ValueError(f"labels are of type {stored.dtype}")
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(stored.reshape(len(stored), -1), dtype=np.float32)
        if not numbers.shape[1]:
            raise ValueError("labels are empty lists")
        if not np.isfinite(numbers).all():
            first = np.argmin(np.isfinite(numbers).all(axis=1))
            raise ValueError(f"the label of record {first} is NaN, infinite or too large")
        return numbers

    def outputs(self, labels: NDArray[Any]) -> int:
        return int(labels.shape[1])

    def fit(self, labels: NDArray[Any], outputs: int) -> bool:
        return bool(labels.shape[2:] == (outputs,))


class Binary(Numbers):
    """Some labels a record, each there or not: float32 0 or 1, [records, labels]."""

    expected = "zeros and ones, one for each record or a list of as many for each"

    def read(self, stored: NDArray[Any]) -> NDArray[Any]:
        numbers = super().read(stored)
        if not np.isin(numbers, (0, 1)).all():
            first = np.argmin(np.isin(numbers, (0, 1)).all(axis=1))
            raise ValueError(f"the label of record {first} is {numbers[first].tolist()}")
        return numbers


class Tokens(Labels):
    """A class for every place of a sequence: int64 [records, length]; -100 where there is none."""

    expected = "lists of integers 0, 1, 2, ... (-100: not counted), equally long for each record"
    dimensions = (2,)

    def read(self, stored: NDArray[Any]) -> NDArray[Any]:
        counted = _integers(stored[stored != NOT_COUNTED], lowest=0)
        if not counted.size:
            raise ValueError("no label counts")
        return stored.astype(np.int64)

    def outputs(self, labels: NDArray[Any]) -> int:
        return int(labels.max(initial=0)) + 1

    def fit(self, labels: NDArray[Any], outputs: int) -> bool:
        counted = labels[labels != NOT_COUNTED]
        return labels.ndim == 3 and (not counted.size or 0 <= counted.min() <= counted.max() < outputs)


def _integers(stored: NDArray[Any], lowest: int) -> NDArray[np.int64]:
    if stored.dtype.kind not in "iu":
        raise ValueError(f"labels are of type {stored.dtype}")
    if stored.size and stored.min() < lowest:
        raise ValueError(f"label {stored.min()} at record {np.argmin(stored)}")
    return stored.astype(np.int64)


CLASSES, NUMBERS, BINARY, TOKENS = Classes(), Numbers(), Binary(), Tokens()


@dataclass(frozen=True)
class Form:
    """What a task takes records to be.

    Attributes:
        labels: their kind.
        vocabulary: inputs are tokens 0, 1, ..., vocabulary - 1, handed out as int64; None: numbers, as float32.
    """

    labels: Labels = CLASSES
    vocabulary: int | None = None

    def tokens(self, inputs: NDArray[np.float32], source: str) -> NDArray[np.int64]:
        """Inputs as tokens.

        Raises:
            DataError: inputs that are no tokens of the vocabulary.
        """
        vocabulary = self.vocabulary or 0
        wrong = inputs[~((inputs >= 0) & (inputs < vocabulary) & (inputs == np.floor(inputs)))]
        if wrong.size:
            raise DataError(
                f"{source}: an input holds {wrong[0]:g}, but with model.vocabulary {vocabulary} inputs are tokens; "
                f"expected: integers 0 to {vocabulary - 1} (and data.scale 1)"
            )
        return inputs.astype(np.int64)


CLASSIFICATION = Form()
