"""Noise schemes: independent in every round, or banded, so that the noise of a round cancels in later ones.

A section of a scenario is the scheme itself: it chooses its coefficients for the run, and makes the mechanism that
draws the noise. docs/correlated-noise.md has the theorem.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedamp.base.section import Count, Section
from fedamp.errors import ScenarioError
from fedamp.federation.check_in import CheckIn, MinSeparation
from fedamp.federation.optimizers import ServerOptimizer
from fedamp.noise.banded import BITS, MULTIPLIERS, BandedGaussian, best_coefficients
from fedamp.noise.independent import IndependentGaussian, Noise

Coefficients = tuple[float, ...]

BANDS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)  # numbers of bands that ``auto`` compares


class IndependentNoise(Section):
    """Independent Gaussian noise in every round."""

    scheme: Literal["independent"] = "independent"

    def bands_for(self, check_in: CheckIn, rounds: int, noise_per_clip: Callable[[int], float]) -> int:
        """1."""
        return 1

    def coefficients_for(self, bands: int, optimizer: ServerOptimizer, rounds: int) -> "Coefficients":
        """None."""
        return ()


class BandedNoise(Section):
    """Noise that is correlated over ``bands`` rounds (banded matrix factorisation)."""

    scheme: Literal["banded"]
    bands: Literal["auto"] | Count = Field(
        "auto", description="rounds over which noise is correlated; auto: the number with the least noise in the model"
    )
    coefficients: Literal["auto"] | tuple[Annotated[float, Field(ge=0, le=2)], ...] = Field(
        "auto", description=f"c_1, .., c_(bands - 1), rounded to multiples of 2**-{BITS}; auto: those with little noise"
    )

    @model_validator(mode="after")
    def _as_many_as_bands(self) -> "BandedNoise":
        if self.coefficients != "auto" and self.bands != len(self.coefficients) + 1:
            raise ValueError(f"bands must be {len(self.coefficients) + 1} with these coefficients, got {self.bands}")
        return self

    def bands_for(self, check_in: CheckIn, rounds: int, noise_per_clip: Callable[[int], float]) -> int:
        """The number of bands; ``noise_per_clip``: noise in the server's model over the norm, at the budget."""
        if self.bands != "auto":
            return self.bands
        assert isinstance(check_in, MinSeparation), "validated with the scenario"
        if check_in.separation != "auto":
            return check_in.separation
        best, least = 1, noise_per_clip(1)
        for bands in [each for each in BANDS[1:] if each * check_in.k <= rounds]:
            try:
                noise = noise_per_clip(bands)
            except ScenarioError:  # too much noise for bands
                break
            if noise < least:
                best, least = bands, noise
            elif noise > 1.05 * least:  # it falls, then rises
                break
        return best

    def coefficients_for(self, bands: int, optimizer: ServerOptimizer, rounds: int) -> Coefficients:
        """c_1, .., c_(bands - 1), for the path of the server's model."""
        if self.coefficients == "auto":
            return _best(bands, optimizer, rounds)
        return tuple(round(each * 2**BITS) / 2**BITS for each in self.coefficients)


AnyNoise = Annotated[IndependentNoise | BandedNoise, Field(discriminator="scheme")]


def drawn_by(coefficients: Coefficients, multipliers: Iterable[float]) -> Noise:
    """What draws the noise; ScenarioError for multipliers of the parts with which banded noise is not exact."""
    if not any(coefficients):
        return IndependentGaussian()
    for each in multipliers:
        if not MULTIPLIERS[0] <= each <= MULTIPLIERS[1]:
            raise ScenarioError(
                f"privacy.noise: banded noise is exact for noise multipliers in {list(MULTIPLIERS)}, got {each:.4g}; "
                "expected: scheme independent"
            )
    return BandedGaussian(coefficients)


@lru_cache(maxsize=64)
def _best(bands: int, optimizer: ServerOptimizer, rounds: int) -> Coefficients:
    return best_coefficients(bands, optimizer.response(rounds))
