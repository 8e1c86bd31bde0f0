"""The scenario's ``privacy`` section: what is protected, and how strongly."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedamp.accounting.sampling import PRECISION
from fedamp.base.section import Count, NoiseMultiplier, Positive, Section, Share, no_truth
from fedamp.federation.check_in import AnyCheckIn
from fedamp.federation.noise import AnyNoise, IndependentNoise
from fedamp.federation.norms import AdaptiveClip


class NoiseCohort(Section):
    """The federation that a smaller one rehearses: its noise, and its charge."""

    size: Count = Field(description="expected cohort, whose mean update has the noise that the rehearsal adds")
    check_in: AnyCheckIn | None = Field(None, description="who checks in when, in that federation; none: as here")


def _named(raw: Any) -> Any:
    return {"size": raw} if isinstance(raw, int | float) else raw


class Privacy(Section):
    """The unit of privacy, and how strongly it is protected."""

    unit: Literal["client", "sample"] = Field("client", description="what is protected: a client, or a record")
    clip: Literal["auto"] | Positive | AdaptiveClip = Field(
        description="clipping norm of a unit's update; auto: every update is scaled to one norm, which follows from "
        "rounds, cohort, noise, momentum and local steps"
    )
    noise_multiplier: Literal["auto"] | Annotated[Literal[0], BeforeValidator(no_truth)] | NoiseMultiplier = Field(
        "auto", description="noise standard deviation over clipping norm; 0 trains without privacy; auto: calibrated"
    )
    epsilon: Positive | None = Field(None, description="budget; the run stops before the round that would exceed it")
    delta: Share = Field(1e-5, description="probability that the guarantee does not cover, well below 1 / units")
    precision: Annotated[float, Field(ge=1e-4, le=0.1)] = Field(
        PRECISION,
        description="relative width of epsilon's bracket, where hidden rounds are sampled; 0.05 is quicker",
    )
    amplification: bool = Field(
        True, description="false: charge (and calibrate) as if no randomness were hidden, for comparison"
    )
    group_size: Count = Field(1, description="number of units protected together")
    noise: AnyNoise = IndependentNoise()
    population: str | None = Field(
        None,
        min_length=1,
        exclude_if=lambda file: file is None,
        description="file of fedamp population, whose people pay for the run; none: this run stands alone",
    )
    noise_cohort: Annotated[NoiseCohort, BeforeValidator(_named)] | None = Field(
        None,
        exclude_if=lambda cohort: cohort is None,
        description="a rehearsal with few clients: the mean update gets the noise of a cohort of this size; a number, "
        "or size and check_in. The run itself protects nobody",
    )

    canaries: Annotated[int, Field(ge=0, strict=True)] = Field(
        0,
        exclude_if=lambda number: number == 0,
        description="units beside the people that are in or out by secret coins, for fedamp audit RUN",
    )

    @model_validator(mode="after")
    def _auto_needs_a_budget(self) -> "Privacy":
        if self.noise_multiplier == "auto" and self.epsilon is None:
            raise ValueError("noise_multiplier: auto needs a budget: give epsilon, or a number for noise_multiplier")
        if self.noise_multiplier == 0 and self.epsilon is not None:
            raise ValueError("noise_multiplier: 0 protects nothing, so no budget can be kept: leave out epsilon (null)")
        return self
