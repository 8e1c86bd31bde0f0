"""Public transforms of inputs: the result for a record depends on no other record, so transforms cost no privacy."""

import math
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.base.section import Count, Positive, Section

Finite = Annotated[float, Field(allow_inf_nan=False)]
Floats = NDArray[np.float32]
Shape = tuple[int, ...]
Function = Callable[[Floats], Floats]

_SMALLEST_DEVIATION = 1e-5  # of a group of equal features, as in torch's GroupNorm


class Transform(Section):
    """Base of the transforms. A further one is a class in a file, and a name in ``AnyTransform`` (transformed.py)."""

    slow: ClassVar[bool] = False  # its results are kept on disk
    same_everywhere: ClassVar[bool] = True  # to the last bits, on every machine
    name: str

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of one result for inputs of a shape; by default the same. Raises ValueError for a wrong one."""
        return shape

    def apply(self, inputs: Floats) -> Floats:
        """Results [records, ...] of inputs [records, ...]; each depends on its own record and on public constants."""
        raise NotImplementedError

    def prepared(self, before: Function, input_shape: Shape) -> Function:
        """:meth:`apply`, or a function that is learned from public images.

        ``before`` is the preceding transforms, ``input_shape`` the shape of one input of the first of them.
        """
        return self.apply


class Standardise(Transform):
    """(input - mean) / deviation, with constants that are public: one each, or one for each column or channel."""

    name: Literal["standardise"]
    mean: Finite | tuple[Finite, ...]
    deviation: Positive | tuple[Positive, ...]

    def output_shape(self, shape: Shape) -> Shape:
        for key, given in (("mean", self.mean), ("deviation", self.deviation)):
            if isinstance(given, tuple) and len(given) != shape[0]:
                raise ValueError(f"{len(given)} numbers in {key}, for {shape[0]} columns (or channels)")
        return shape

    def apply(self, inputs: Floats) -> Floats:
        each = [-1, *[1] * (inputs.ndim - 2)]
        mean, deviation = (np.array(given, np.float32).reshape(each) for given in (self.mean, self.deviation))
        return np.asarray((inputs - mean) / deviation)


class GroupNorm(Transform):
    """Mean zero and variance one within each group of a record's own channels."""

    name: Literal["group_norm"]
    groups: Count

    def output_shape(self, shape: Shape) -> Shape:
        if shape[0] % self.groups:
            raise ValueError(f"{self.groups} groups do not divide {shape[0]} channels")
        return shape

    def apply(self, inputs: Floats) -> Floats:
        grouped = inputs.reshape(len(inputs), self.groups, math.prod(inputs.shape[1:]) // self.groups)
        centred = grouped - grouped.mean(axis=2, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=2, keepdims=True) + np.float32(_SMALLEST_DEVIATION))
        return np.asarray((centred / deviation).reshape(inputs.shape))


def image_shape(name: str, shape: Shape) -> tuple[int, int, int]:
    """[channels, height, width]; raises ValueError for other shapes."""
    if len(shape) != 3:
        raise ValueError(f"{name} takes images of shape [channels, height, width]")
    return shape[0], shape[1], shape[2]
