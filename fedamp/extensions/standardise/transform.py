"""Define the step ``standardise`` of ``data.transform`` with private means, and a unit's vector for them."""

import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedamp.base.section import Before, NoiseMultiplier, NotInDigest, Positive
from fedamp.data.transforms import Finite, SingleFloats, Standardise

_PLACES = 2.0**30  # of inputs in half of a range: float64 adds four million of them without rounding


class PrivateStandardise(Standardise):
    """(input - mean) / deviation, with public constants or with released ones.

    ``mean: private``: both are released with noise before the first round, from all units and a public range. Before
    that the middle of the range and half of its width stand in their place. Each unit gives one vector of norm at most
    1, so the release is one use of a Gaussian mechanism (:meth:`vectors`).
    """

    mean: Finite | tuple[Finite, ...] | Literal["private"]  # type: ignore[assignment]
    deviation: Positive | tuple[Positive, ...] | None = Field(  # type: ignore[assignment]
        None, description="left out with mean: private"
    )
    range: tuple[Finite, Finite] | tuple[tuple[Finite, Finite], ...] | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="with mean: private: [lowest, highest] of the inputs, or one pair for each column or channel; "
        "public, not read off the records; inputs beyond count as its ends",
    )
    noise_multiplier: NoiseMultiplier | None = Field(
        None,
        exclude_if=lambda noise: noise is None,
        description="with mean: private: noise standard deviation over the norm of a unit's vector; 20 adds about .02 "
        "to epsilon 1",
    )

    @model_validator(mode="after")
    def _given_or_private(self) -> "PrivateStandardise":
        """Refuse a mixture of public and private constants, and an empty range."""
        private = (self.range is not None, self.noise_multiplier is not None, self.deviation is None)
        if self.mean == "private" and private != (True, True, True):
            raise ValueError("mean: private needs range and noise_multiplier, and no deviation")
        if self.mean != "private" and private != (False, False, False):
            raise ValueError("needs mean and deviation; or mean: private, range and noise_multiplier")
        if any(low >= high for low, high in np.reshape(self.range or (0, 1), (-1, 2)).tolist()):
            raise ValueError("range must be [lowest, highest], the first below the second")
        return self

    @property
    def is_private(self) -> bool:
        """True where the constants are to be released with noise."""
        return self.mean == "private"

    @property
    def constants(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and deviation, float64 [columns] or [1] each.

        Of a private step they are the middle and half the width of the range.
        """
        if self.is_private:
            low, high = np.reshape(self.range or (), (-1, 2)).T
            return (low + high) / 2, (high - low) / 2
        return super().constants

    @property
    def given_constants(self) -> dict[str, object]:
        """Constants as they are given, by their keys; of a private step its range."""
        if self.is_private:
            return {"range": None if np.ndim(self.range or ()) < 2 else self.range}
        return super().given_constants

    def vectors(self, inputs: SingleFloats, sizes: NDArray[np.int64]) -> SingleFloats:
        """Compute each unit's contribution to the statistics, float32 [units, 2, columns], of Euclidean norm at most 1.

        With t in [-1, 1] the place of an input in its range (of NaN: 0), it is the unit's means of t and of 2 t^2 - 1.
        With t = cos(a), these are means of cos(a) and cos(2a), each at most 1 in size. So all of them over sqrt(2
        columns) have norm at most 1. A unit without records gives zeros.

        Args:
            inputs: before this step, [units, longest, columns, ...], padded.
            sizes: int64 [units], records of each unit.
        """
        middle, half = (constant.reshape(-1, *[1] * (inputs.ndim - 3)) for constant in self.constants)
        place = np.nan_to_num((inputs - middle) / half, nan=0.0).clip(-1.0, 1.0)
        real = np.arange(inputs.shape[1]) < sizes[:, None]
        place = place.reshape(*inputs.shape[:3], math.prod(inputs.shape[3:]))
        # Sums of whole numbers are exact, also in the order that another unit's number of records decides.
        each = (np.rint(numbers * _PLACES) for numbers in (place, 2 * place**2 - 1))
        sums = np.stack([np.einsum("ulcp,ul->uc", whole, real) for whole in each], axis=1)
        many = _PLACES * place.shape[3] * np.maximum(sizes, 1)[:, None, None]
        return np.asarray(sums / many / math.sqrt(2 * inputs.shape[2]), np.float32)

    def released(self, mean: SingleFloats, units: int) -> "PrivateStandardise":
        """Return this step with the constants that a noisy mean tells.

        Whatever the noise, the mean is in the range, and the deviation is between that of the noise and half the range.

        Args:
            mean: float32 [2, columns], noisy mean of :meth:`vectors` over the units.
            units: by whose number the noisy sum was divided.
        """
        first, second = np.asarray(mean, np.float64) * math.sqrt(2 * mean.shape[1])
        first = first.clip(-1, 1)
        noise = (self.noise_multiplier or 0.0) * math.sqrt(2 * mean.shape[1]) / units
        variance = ((second + 1) / 2 - first**2).clip(max(noise / 2, 1e-6), 1.0)
        middle, half = self.constants
        numbers = middle + half * first, half * np.sqrt(variance)
        given = {key: tuple(map(float, each)) for key, each in zip(("mean", "deviation"), numbers, strict=True)}
        return PrivateStandardise.model_validate({"name": self.name} | given)


TOLD_KEY = Annotated[
    PrivateStandardise | None,
    Field(None, exclude_if=lambda step: step is None),
    Before("data_seed"),
    NotInDigest(),
]
"""The key ``statistics`` of what clients are told: the private step while its numbers are asked for; then the numbers,
as a step that has them."""


def private_steps(data: Any) -> list[PrivateStandardise]:
    """List the steps of a section of data whose numbers are to be released; a scenario has at most one."""
    return [step for step in getattr(data, "transform", ()) if isinstance(step, PrivateStandardise) and step.is_private]


def with_numbers(data: Any, released: PrivateStandardise | None) -> Any:
    """Copy a section of data with the released numbers in place of its private step.

    Args:
        data: a section with such a step.
        released: None: the copy has neither this step nor those after it.
    """
    place = data.transform.index(*private_steps(data))
    after = data.transform[place + 1 :] if released else ()
    return data.model_copy(update={"transform": (*data.transform[:place], *filter(None, [released]), *after)})
