"""Define the key ``privacy.canaries`` of a scenario, and the facts that it needs."""

from typing import Annotated

from pydantic import Field

from fedamp.federation import facts
from fedamp.federation.facts import AnyScenario, Claim, Stance


def canaries_of(scenario: AnyScenario) -> int:
    """The number of units beside the people that are in or out by secret coins."""
    return int(scenario.privacy.canaries)


CANARIES = Annotated[
    int,
    Field(  # one round has them all as orders
        0,
        ge=0,
        le=10**6,
        strict=True,
        exclude_if=lambda number: number == 0,
        description="units beside the people that are in or out by secret coins, for fedamp audit RUN",
    ),
    Stance(
        needs=tuple(
            Claim(fact, "", "0, and fedamp audit SCENARIO", lambda scenario: canaries_of(scenario) > 0)
            for fact in (
                facts.SERVER_ADDS_NOISE,
                facts.SIMULATED,
                facts.TRAINED_HERE,
                facts.WHOLE_MODEL,
                facts.NOISE_ALONE,
                facts.CLIP_FIXED,
                facts.NOISE_ADDED,
                facts.OWN_NOISE,
                facts.MODEL_ALONE,
                facts.UNITS_INDEPENDENT,
                facts.UNITS_ALIKE,
                facts.GLOBAL_MODEL,
                facts.LINEAR_STEP,
            )
        ),
        keeps=facts.FACTS,
    ),
]
