"""From the data section of a scenario to a data set, or just to the number of clients or records in it.

A module of this package adds a kind of data by registering what opens it, under the section's ``name``:

    @sources.register("digits")
    def digits(config: BuiltInData, folder: Path) -> Source: ...
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fedamp.base.registry import Registry
from fedamp.data.dataset import Dataset
from fedamp.data.form import CLASSIFICATION, Form
from fedamp.data.sections import Data


class Source(Protocol):
    """Data that were opened, and of which as little as possible was read."""

    def load(self, seed: int, form: Form) -> Dataset:
        """The data set; every record is a client where neither ``clients`` nor a natural partition deals them."""

    def count_clients(self) -> int:
        """Number of clients of :meth:`load`."""

    def count_records(self) -> int:
        """Number of training records of :meth:`load`."""


# The first argument is the section of the name, which differs from one to the other.
sources: Registry[Callable[[Any, Path], Source]] = Registry("fedamp.data")


def load(config: Data, seed: int, folder: Path, form: Form = CLASSIFICATION) -> Dataset:
    """The data set that a scenario describes.

    Args:
        config: the ``data`` section.
        seed: decides the test set and the partition (and the records themselves where they are synthetic).
        folder: where relative paths start.
        form: what records are taken to be (:func:`fedamp.federation.losses.form_of`).

    Raises:
        DataError: what is wrong, where, and what is accepted, in one line.
    """
    return open_source(config, folder).load(seed, form)


def count_clients(config: Data, folder: Path) -> int:
    """The number of clients that :func:`load` would give, without reading more than a natural partition needs."""
    return open_source(config, folder).count_clients()


def count_records(config: Data, folder: Path) -> int:
    """The number of training records that :func:`load` would give, without reading their inputs where that can be."""
    return open_source(config, folder).count_records()


def open_source(config: Data, folder: Path) -> Source:
    """What a data section names, opened."""
    return sources.all()[config.name](config, folder)
