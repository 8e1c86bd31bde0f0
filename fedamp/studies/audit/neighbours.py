"""Neighbouring data: a data set in which some units have other records, and ways to change records."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.data import Cohort, Dataset
from fedamp.data.form import Form, Numbers
from fedamp.data.stored import Records, StoredDataset
from fedamp.data.table import Table

Arrays = tuple[NDArray[Any], NDArray[Any]]
"""Inputs [records, ...] and labels [records, ...]."""

ITS_OWN = "its own"
# Ways to change inputs (numbers, or tokens) and labels. The last way makes records that nobody can train on.
_SCALED = {"times -1": -1.0, "times 100": 1e2, "times 1e10": 1e10, "times 1e38": 1e38}
_NUMBERS = (ITS_OWN, "another unit's", "zeros", *_SCALED, "NaN", "infinity")
_TOKENS = (ITS_OWN, "another unit's", "zeros", "drawn anew", "outside the vocabulary")
_LABELS = (ITS_OWN, "drawn anew", "all zero", "none of the model's")
_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class Change:
    """A change of one unit's records: their number, and the ways to change their inputs and labels."""

    records: int
    inputs: str = ITS_OWN
    labels: str = ITS_OWN
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.records} records, inputs {self.inputs}, labels {self.labels}"

    @classmethod
    def drawn(cls, draw: np.random.Generator, form: Form, counts: Sequence[int]) -> "Change":
        """A random change to one of these numbers of records."""
        count, inputs = draw.choice(counts), draw.choice(_NUMBERS if form.vocabulary is None else _TOKENS)
        return cls(int(count), str(inputs), str(draw.choice(_LABELS)), int(draw.integers(1 << 32)))

    @classmethod
    def untrainable(cls, form: Form, records: int) -> "list[Change]":
        """Changes to records that nobody can train on: the unit must count as zero, and as present."""
        inputs = _NUMBERS if form.vocabulary is None else _TOKENS
        return [cls(records, inputs=inputs[-1]), cls(records, labels=_LABELS[-1])]

    def mutated(self, other: "Change", draw: np.random.Generator) -> "Change":
        """This change with one field of the other."""
        key = str(draw.choice([each.name for each in fields(self)]))
        return replace(self, **{key: getattr(other, key)})

    def of(self, own: Arrays, other: Arrays, dataset: Dataset) -> Arrays:
        """The changed records of a unit; ``own`` and ``other``: its records and another unit's, at least one each."""
        draw = rng.public_stream(self.seed, "changed records")
        source = other if self.inputs == "another unit's" else own
        inputs, labels = (values[np.arange(self.records) % len(values)] for values in source)
        outputs, vocabulary = dataset.num_classes, dataset.form.vocabulary
        are_numbers = isinstance(dataset.form.labels, Numbers)
        if self.inputs in _SCALED:
            with np.errstate(over="ignore"):
                inputs = np.clip(inputs * np.float32(_SCALED[self.inputs]), -_LARGEST, _LARGEST)
        elif self.inputs == "zeros":
            inputs[...] = 0
        elif self.inputs == "drawn anew":
            inputs[...] = draw.integers(vocabulary or 2, size=inputs.shape)
        elif self.inputs not in (ITS_OWN, "another unit's"):
            inputs[-1] = {"outside the vocabulary": vocabulary, "NaN": np.nan, "infinity": np.inf}[self.inputs]
        if self.labels == "drawn anew":
            labels[...] = draw.integers(2 if are_numbers else outputs, size=labels.shape)
        elif self.labels == "all zero":
            labels[...] = 0
        elif self.labels == "none of the model's":
            labels[...] = 1e38 if are_numbers else outputs
        return inputs, labels


def records_of(dataset: Dataset, unit: int) -> Arrays:
    """One unit's inputs and labels; a record of zeros where it has none."""
    cohort = dataset.gather(np.array([unit]))
    if cohort.sizes[0]:
        return cohort.inputs[0], cohort.labels[0]
    inputs, labels = (np.zeros((1, *each.shape[2:]), each.dtype) for each in (cohort.inputs, cohort.labels))
    return inputs, labels


class Neighbour:
    """A data set in which some units have the same other records, which are read and checked like stored ones."""

    def __init__(self, dataset: Dataset, units: NDArray[np.int64], records: Arrays) -> None:
        self._dataset, self._units = dataset, units
        table = Table(f"records of unit {', '.join(map(str, units))}", *records)
        own = Records(table, np.arange(len(table)), records[1])
        self._own = StoredDataset(
            num_clients=1,
            input_shape=dataset.input_shape,
            num_classes=dataset.num_classes,
            form=dataset.form,
            training=own,
            offsets=np.array([0, len(table)]),
            testing=own,
        )

    def __getattr__(self, name: str) -> Any:
        """Everything else comes from the real data."""
        return getattr(self._dataset, name)

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """As for any data set."""
        return np.where(np.isin(clients, self._units), self._own.offsets[1], self._dataset.sizes(clients))

    def gather(self, clients: NDArray[np.int64]) -> Cohort:
        """As for any data set."""
        changed, sizes = np.isin(clients, self._units), self.sizes(clients)
        real, own = self._dataset.gather(clients[~changed]), self._own.gather(np.zeros(changed.sum(), dtype=np.int64))
        longest = int(sizes.max(initial=0))

        def together(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
            both = np.zeros((len(clients), longest, *one.shape[2:]), one.dtype)
            for some, values in ((~changed, one[:, :longest]), (changed, other)):
                both[some, : values.shape[1]] = values
            return both

        return Cohort(together(real.inputs, own.inputs), together(real.labels, own.labels), sizes)
