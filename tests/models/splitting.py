"""A model, built and split."""

from fedamp.models.registry import build
from fedamp.models.section import Model
from fedamp.models.splits import Split


def split(
    config: Model, shape: tuple[int, ...], classes: int, count: int, shared=(), seed=0, partition_index=0, rest="shared"
) -> Split:
    return Split(build(config, shape, classes), count, shared, seed, partition_index, rest)
