"""A model that is built and split, or refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedamp.errors import ModelError
from fedamp.models.model import Model
from fedamp.models.networks import build
from fedamp.models.pieces import Split


def split(
    config: Model, shape: tuple[int, ...], classes: int, count: int, shared=(), seed=0, partition_index=0, rest="shared"
) -> Split:
    return Split(build(config, shape, classes), count, shared, seed, partition_index, rest)


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Inside, a model is refused with this message, in one line."""
    with pytest.raises(ModelError, match=message) as error:
        yield
    assert "\n" not in str(error.value)
