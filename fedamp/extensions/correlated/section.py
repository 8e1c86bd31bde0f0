"""Let a scenario name correlated noise: with bands, or over all rounds.

A section of a scenario is the scheme itself: it chooses its coefficients for the run, and makes the mechanism that
draws the noise (:mod:`fedamp.extensions.correlated.mechanisms`). docs/research/correlated-noise.md has the theorem.
:class:`fedamp.federation.noise.NoiseScheme` says what each method promises.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from fedamp.base.arrays import Floats
from fedamp.base.section import Count
from fedamp.errors import ScenarioError
from fedamp.extensions.correlated import mechanisms
from fedamp.extensions.correlated.check_in import MinSeparation
from fedamp.extensions.correlated.mechanisms import (
    BITS,
    MULTIPLIERS,
    BandedGaussian,
    BufferedGaussian,
    best_buffers,
    best_coefficients,
)
from fedamp.federation import facts
from fedamp.federation.check_in import CheckIn
from fedamp.federation.facts import AnyScenario
from fedamp.federation.noise import Coefficients, NoiseScheme
from fedamp.federation.optimizers import ServerOptimizer
from fedamp.noise import IndependentGaussian, Noise

_Given = tuple[Annotated[float, Field(ge=0, le=2)], ...]

BANDS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)  # numbers of bands that ``auto`` compares


def check_exact(scheme: str, multipliers: Iterable[float]) -> None:
    """Refuse noise multipliers with which float64 does not hold the noise of a scheme exactly.

    Raises:
        ScenarioError: one is outside of ``MULTIPLIERS``.
    """
    for each in multipliers:
        if not MULTIPLIERS[0] <= each <= MULTIPLIERS[1]:
            raise ScenarioError(
                f"privacy.noise: {scheme} noise is exact for noise multipliers in {list(MULTIPLIERS)}, got {each:.4g}; "
                "expected: scheme independent"
            )


class BandedNoise(NoiseScheme):
    """Noise that is correlated over ``bands`` rounds (banded matrix factorisation)."""

    scheme: Literal["banded"]
    bands: Literal["auto"] | Count = Field(
        "auto",
        description="rounds over which noise is correlated; auto: the number with the least error, by noise and norm",
    )
    # c_1, .., c_(bands - 1), rounded to multiples of 2**-BITS. The plan chooses them; others: of older versions.
    coefficients: Annotated[Literal["auto"] | _Given, SkipJsonSchema()] = "auto"
    needs = facts.needs_facts(facts.ROUNDS_APART, facts.CLIP_FIXED, facts.NOISE_ADDED, facts.MODEL_ALONE)
    keeps = frozenset({facts.NOISE_HAS_BANDS})

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse more bands than the rounds of a unit are apart.

        Raises:
            ValueError: it names both keys.
        """
        most = scenario.check_in.separation
        if self.bands != "auto" and most != "auto" and self.bands > most:
            key = f"check_in.{scenario.check_in.separation_key}"
            raise ValueError(f"privacy.noise.bands must be at most {key} ({most}), got {self.bands}")

    def matched_filter(self, products: Floats, coefficients: Coefficients) -> tuple[Floats, Floats]:
        """Return what an audit's adversary learns; see :func:`fedamp.extensions.correlated.mechanisms.matched`."""
        return mechanisms.matched(products, coefficients)

    def with_bands(self, bands: int, coefficients: tuple[float, ...] | Literal["auto"]) -> NoiseScheme:
        """Return the section with these bands and coefficients."""
        return self.model_copy(update={"bands": bands, "coefficients": coefficients})

    @model_validator(mode="after")
    def _as_many_as_bands(self) -> "BandedNoise":
        """Refuse coefficients that are not one less than the bands."""
        if self.coefficients != "auto" and self.bands != len(self.coefficients) + 1:
            raise ValueError(f"bands must be {len(self.coefficients) + 1} with these coefficients, got {self.bands}")
        return self

    def coefficients_for(
        self, check_in: CheckIn, rounds: int, optimizer: ServerOptimizer, error: Callable[[int], float]
    ) -> Coefficients:
        """Return c_1, .., c_(bands - 1) for a run: the given ones, or those with little noise in the model.

        Args:
            check_in: with its separation.
            rounds: of the run.
            optimizer: of the server; its momentum decides how noise of rounds adds up.
            error: of a number of bands, to be minimised.
        """
        if self.coefficients == "auto":
            return _best_coefficients(self._bands_for(check_in, rounds, error), optimizer, rounds)
        return tuple(round(each * 2**BITS) / 2**BITS for each in self.coefficients)

    def _bands_for(self, check_in: CheckIn, rounds: int, error: Callable[[int], float]) -> int:
        """Choose the bands: as given, else the separation of the check-ins, else the number with the least error."""
        if self.bands != "auto":
            return self.bands
        assert isinstance(check_in, MinSeparation), "validated with the scenario"
        if check_in.separation != "auto":
            return check_in.separation
        best, least = 1, error(1)
        for bands in [each for each in BANDS[1:] if each * check_in.k <= rounds]:
            try:
                found = error(bands)
            except ScenarioError:  # too much noise for bands
                break
            if found < least:
                best, least = bands, found
            elif found > 1.05 * least:  # it falls, then rises
                break
        return best

    def noise_of(self, coefficients: Coefficients, multipliers: Iterable[float]) -> Noise:
        """Make what draws the noise; without correlation it is independent noise.

        Args:
            coefficients: c_1, c_2, ..
            multipliers: noise multipliers of the parts.

        Raises:
            ScenarioError: with these multipliers, float64 is not exact.
        """
        if not any(coefficients):
            return IndependentGaussian()
        check_exact(self.scheme, multipliers)
        return self._of(coefficients)

    def _of(self, coefficients: Coefficients) -> Noise:
        """Make the mechanism of these coefficients."""
        return BandedGaussian(coefficients)


class BufferedNoise(BandedNoise):
    """Noise that is correlated over all rounds, from a few buffers (BLT), for rounds at least a given gap apart."""

    scheme: Literal["buffered"]  # type: ignore[assignment]
    # Numbers kept for each of the model; others than 2: of older versions.
    buffers: Annotated[int, Field(ge=1, le=3, strict=True), SkipJsonSchema()] = 2
    bands: Literal["auto"] = Field("auto", description="all rounds")
    costs_add_up = False
    needs = facts.needs_facts(
        facts.ROUNDS_APART, facts.ANY_ROUNDS_APART, facts.CLIP_FIXED, facts.NOISE_ADDED, facts.MODEL_ALONE
    )
    keeps = frozenset()

    @model_validator(mode="after")
    def _as_many_as_bands(self) -> "BufferedNoise":
        """Accept any number of coefficients: there are no bands."""
        return self

    def coefficients_for(
        self, check_in: CheckIn, rounds: int, optimizer: ServerOptimizer, error: Callable[[int], float]
    ) -> Coefficients:
        """Return c_1, .., c_(rounds - 1) for a run; see :meth:`BandedNoise.coefficients_for`."""
        if self.coefficients != "auto":
            return self.coefficients[: rounds - 1]
        assert isinstance(check_in, MinSeparation), "validated with the scenario"
        return _best_buffers(self.buffers, optimizer, rounds, check_in.k, check_in.count)

    def _of(self, coefficients: Coefficients) -> Noise:
        """Make the mechanism of these coefficients.

        Raises:
            ScenarioError: they are of no few buffers.
        """
        try:
            return BufferedGaussian(coefficients)
        except ValueError as error:
            raise ScenarioError(f"privacy.noise: {error}") from None


@lru_cache(maxsize=64)
def _best_coefficients(bands: int, optimizer: ServerOptimizer, rounds: int) -> Coefficients:
    """Find coefficients once for each setting, because plans are made often."""
    return best_coefficients(bands, *optimizer.step_responses(rounds))


@lru_cache(maxsize=64)
def _best_buffers(buffers: int, optimizer: ServerOptimizer, rounds: int, k: int, gap: int) -> Coefficients:
    """Find coefficients of buffers once for each setting, because plans are made often."""
    return best_buffers(buffers, optimizer.step_responses(rounds), k, gap)
