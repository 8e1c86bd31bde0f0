"""Compute Gaussian classes of any size: a record follows from its number when it is read, and few are in memory.

So a federation of millions of clients needs no files. :mod:`fedamp.data.sections` lists the section.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedamp import rng
from fedamp.base.section import MOST_NUMBERS, Count, Outputs, Positive, UnitCount
from fedamp.data.dataset import DataSection, Dataset, PaddedRecords
from fedamp.data.form import CLASSIFICATION, Form
from fedamp.data.partition import hold_out_size
from fedamp.errors import DataError

_NUMBERS_AT_ONCE = 1 << 16  # normals drawn at once: their temporaries stay in the processor's cache
_KEPT = 1 << 21  # numbers of all records, up to which they are computed once


class SyntheticData(DataSection):
    """Gaussian classes, for any number of clients: their records are computed when they are read.

    Class centres are ``separation`` apart: exactly with at least as many features as classes, else on average.
    """

    name: Literal["synthetic"]
    clients: UnitCount = Field(description="number of clients")
    records_per_client: Count = Field(10, description="number of records of each client")
    features: Count = Field(20, description="numbers of an input, without a shape")
    classes: Annotated[Outputs, Field(ge=2)] = Field(10, description="number of classes")
    separation: Positive = Field(3.0, description="distance of class centres, in standard deviations")
    heterogeneity: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="standard deviation of a client's own shift of all features"
    )
    shape: tuple[Count, ...] | None = Field(None, description="shape of one input, e.g. [1, 28, 28]; features follow")
    test_records: Count = Field(2000, description="number of public test records")

    @model_validator(mode="after")
    def _fits_in_memory(self) -> "SyntheticData":
        """Refuse sizes whose centres, test records or records of a client would not fit into memory."""
        features = math.prod(self.shape) if self.shape else self.features
        for key in ("classes", "test_records", "records_per_client"):
            if (numbers := features * getattr(self, key)) > MOST_NUMBERS:
                raise ValueError(f"features times {key} are {numbers:,} numbers; expected: at most {MOST_NUMBERS:,}")
        return self

    def count_clients(self, folder: Path) -> int:
        """Return the number that the section gives."""
        return self.clients

    def count_records(self, folder: Path) -> int:
        """Return clients times records of each."""
        return self.clients * self.records_per_client

    def load(self, seed: int, folder: Path, form: Form = CLASSIFICATION) -> "SyntheticDataset":
        """Draw the class centres; records are computed later.

        Raises:
            DataError: the task takes tokens, or labels that are no classes.

        >>> data = SyntheticData(name="synthetic", clients=10**6).load(seed=0, folder=Path())
        >>> data.gather(np.array([0, 999_999])).inputs.shape
        (2, 10, 20)
        """
        if (form.labels, form.vocabulary) != (CLASSIFICATION.labels, None):
            raise DataError("data: synthetic has records of numbers and classes, and this task needs others")
        features = math.prod(self.shape) if self.shape else self.features
        directions = rng.public_stream(seed, "synthetic-centres").standard_normal((features, self.classes))
        directions = np.linalg.qr(directions)[0] if self.classes <= features else directions / math.sqrt(features)
        return SyntheticDataset(
            num_clients=self.clients,
            input_shape=self.shape or (self.features,),
            num_classes=self.classes,
            form=form,
            config=self,
            seed=seed,
            centres=(directions.T * (self.separation / math.sqrt(2))).astype(np.float32),
            records_per_unit=self.records_per_client,
        )


@dataclass(frozen=True, kw_only=True)
class SyntheticDataset(Dataset):
    """A data set in which record r belongs to client r // records_per_client.

    The record's label, noise and shift are functions of (seed, r): input = centre of its label + standard normal noise
    + heterogeneity * standard normal shift of the client.

    Attributes:
        config: the section.
        seed: public, of all records.
        centres: float32 [classes, features].
        records_per_unit: ``config.records_per_client``, or 1 where each record is a client.
        first, last: places among a client's records that are in this part of them; the last one is excluded, None: to
            the end.
    """

    config: SyntheticData
    seed: int
    centres: NDArray[np.float32]
    records_per_unit: int
    first: int = 0
    last: int | None = None

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same number of records for each client."""
        self.check_ids(clients)
        return np.full(len(clients), len(self._places), dtype=np.int64)

    @property
    def _places(self) -> NDArray[np.int64]:
        """Places of the records that train among a client's, int64."""
        places = np.arange(self.records_per_unit)[self.first : self.last]
        return places[: self.form.most]

    def gather(self, clients: NDArray[np.int64]) -> PaddedRecords:
        """Compute the records of the clients, or take them from memory where all are small."""
        sizes = self.sizes(clients)
        records = clients[:, None] * self.records_per_unit + self._places
        if self._kept:
            return PaddedRecords(self._kept[0][records], self._kept[1][records], sizes)
        return PaddedRecords(*self._records("training", records, self.config.records_per_client), sizes)

    @cached_property
    def _kept(self) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Compute all records once, if they have at most 2**21 numbers; else None."""
        count = self.num_clients * self.records_per_unit
        if count * self.centres.shape[1] > _KEPT:
            return None
        return self._records("training", np.arange(count), self.config.records_per_client)

    def test(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Compute records of clients that take no part, each with its own shift."""
        return self._records("test", np.arange(self.config.test_records), records_per_client=1)

    def labels_of(self, client: int) -> NDArray[np.int64]:
        """Compute the labels of one client's records."""
        return self._labels("training", client * self.records_per_unit + self._places)

    def held_out(self, share: float, seed: int) -> "tuple[SyntheticDataset, SyntheticDataset]":
        """Hold out the last records of each client: all of them are drawn alike."""
        records = self.records_per_unit
        kept = records - (hold_out_size(records, share) if records > 1 else 0)
        return replace(self, last=kept), replace(self, first=kept)

    def by_record(self) -> "SyntheticDataset":
        """Make each record a client; it keeps the shift of its first client."""
        return replace(self, num_clients=self.num_clients * self.records_per_unit, records_per_unit=1)

    def _labels(self, part: str, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Compute labels from the numbers of records, in their shape."""
        uniforms = rng.public_uniforms(self._seeds(part, records.ravel()), "synthetic-label", 1)
        return (uniforms * self.num_classes).astype(np.int64).reshape(records.shape)

    def _records(
        self, part: str, records: NDArray[np.int64], records_per_client: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Compute inputs [*records.shape, *input_shape] and labels of the shape of ``records``."""
        labels, features = self._labels(part, records), self.centres.shape[1]
        inputs = _standard_normals(self._seeds(part, records.ravel()), "synthetic-noise", features)
        inputs += self.centres[labels.ravel()]
        if self.config.heterogeneity > 0:
            owners, position = np.unique(records.ravel() // records_per_client, return_inverse=True)
            shifts = _standard_normals(self._seeds(part, owners), "synthetic-shift", features)
            inputs += np.float32(self.config.heterogeneity) * shifts[position]
        return inputs.reshape(*records.shape, *self.input_shape), labels

    def _seeds(self, part: str, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Derive a public seed of each record or client, uint64, for the training or the test part."""
        base = rng.public_stream(self.seed, f"synthetic-{part}").integers(2**63, dtype=np.uint64)
        return base + numbers.astype(np.uint64)


def _standard_normals(seeds: NDArray[np.uint64], purpose: str, count: int) -> NDArray[np.float32]:
    """Draw standard normals of shape [seeds, count], float32, by the transform of Box and Muller (1958)."""
    half = (count + 1) // 2
    normals = np.empty((len(seeds), 2 * half), dtype=np.float32)
    step = max(1, _NUMBERS_AT_ONCE // (2 * half))
    for start in range(0, len(seeds), step):
        block = slice(start, start + step)
        uniforms = rng.public_uniforms(seeds[block], purpose, 2 * half)
        radius = np.sqrt(-2 * np.log((1 - uniforms[:, :half]).astype(np.float32)))
        angle = (2 * math.pi * uniforms[:, half:]).astype(np.float32)
        normals[block, :half] = radius * np.cos(angle)
        normals[block, half:] = radius * np.sin(angle)
    return normals[:, :count]
