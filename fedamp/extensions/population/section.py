"""Define the key ``privacy.population`` of a scenario, and the fact that it breaks."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedamp.base.section import Before, NeedsHooks, OwnersFile
from fedamp.federation.facts import FACTS, NOBODY_PAYS, Claim, Stance

POPULATION = Annotated[
    str | None,
    Field(
        None,
        min_length=1,
        exclude_if=lambda file: file is None,
        description="file of fedamp population, whose people pay for the run; none: this run stands alone",
    ),
    Before("noise_cohort"),
    OwnersFile(),
    NeedsHooks("a custom app charges no people"),
    Stance(breaks=(Claim(NOBODY_PAYS),), keeps=FACTS - {NOBODY_PAYS}, concerns=frozenset({NOBODY_PAYS})),
]


def population_file(scenario: Any) -> Path | None:
    """Return the file of the population that pays for a scenario's runs; None: they stand alone."""
    file = scenario.privacy.population
    return None if file is None else Path(file)
