"""Define the scenario: a validated YAML file. Unknown keys are refused.

Each family of schemes says how its sections behave (:mod:`fedamp.federation.check_in`, ...). Reading is in
:mod:`fedamp.federation.reader`, error messages are in :mod:`fedamp.federation.messages`, and combinations that cannot
be are in :mod:`fedamp.federation.refusals`. What follows from a scenario is a plan (:mod:`fedamp.federation.plan`).
Extensions add keys here through :func:`fedamp.federation.added_keys.extend`.
"""

import json
from functools import partial
from html import escape
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, model_validator

from fedamp.base.section import Count, NoiseMultiplier, Positive, Section, Share, UnitCount, no_truth
from fedamp.data.sections import Data
from fedamp.extension import keys, offered
from fedamp.federation.added_keys import extend
from fedamp.federation.aggregation import PlainAggregation
from fedamp.federation.check_in import AllCheckIn
from fedamp.federation.choices import AnyAggregation, AnyCheckIn, AnyNoise, AnySubmodels, by_name, refuse_unknown_keys
from fedamp.federation.contracts import refuse_unproved
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.noise import IndependentNoise
from fedamp.federation.norms import AdaptiveClip, LayerClip
from fedamp.federation.optimizers import ServerUpdate
from fedamp.federation.optional import OptionalSection
from fedamp.federation.refusals import refuse_contradictions
from fedamp.federation.running import Engine, Faults, Federation, Trackers
from fedamp.federation.side_sums import SideSum, side_sum_of
from fedamp.federation.submodels import NoSubmodels
from fedamp.models.model import Model

LONGEST_RUN = 1_000_000


class NoiseCohort(Section):
    """The federation that a smaller one rehearses: its noise, and its charge."""

    size: UnitCount = Field(description="expected cohort, whose mean update has the noise that the rehearsal adds")
    check_in: AnyCheckIn | None = Field(None, description="who checks in when, in that federation; none: as here")


def _named_group(raw: Any) -> Any:
    """Read a number alone as the size of a noise cohort."""
    return {"size": raw} if isinstance(raw, int | float) else raw


@partial(extend, path="privacy")
class Privacy(Section):
    """The unit of privacy, and how strongly it is protected.

    Give a budget (epsilon) and let the noise follow, or give the noise multiplier and see what it costs.
    """

    unit: Literal["client", "sample"] = Field("client", description="what is protected: a client, or a record")
    clip: Literal["auto"] | Positive | LayerClip | AdaptiveClip = Field(
        description="clipping norm of a unit's update; auto: every update is scaled to one norm, which follows from "
        "rounds, cohort, noise, momentum and local steps"
    )
    noise_multiplier: Literal["auto"] | Annotated[Literal[0], BeforeValidator(no_truth)] | NoiseMultiplier = Field(
        "auto", description="noise standard deviation over clipping norm; 0 trains without privacy; auto: calibrated"
    )
    epsilon: Positive | None = Field(None, description="budget; the run stops before the round that would exceed it")
    delta: Share = Field(1e-5, description="probability that the guarantee does not cover, well below 1 / units")
    precision: Annotated[float, Field(ge=1e-4, le=0.1)] = Field(
        5e-3,  # fedamp.accounting.sampling.PRECISION, without an import that takes long
        description="relative width of epsilon's bracket, where hidden rounds are sampled; 0.05 is quicker",
    )
    amplification: bool = Field(
        True, description="false: charge (and calibrate) as if no randomness were hidden, for comparison"
    )
    unchecked: Annotated[bool, Field(strict=True)] = Field(
        False,
        exclude_if=lambda unchecked: not unchecked,
        description="true: charge schemes of other packages as they say, though they have not met their contract here; "
        "every epsilon then says so",
    )
    group_size: Count = Field(1, le=1000, description="number of units protected together")
    noise: AnyNoise = IndependentNoise()
    noise_cohort: Annotated[NoiseCohort, BeforeValidator(_named_group)] | None = Field(
        None,
        exclude_if=lambda cohort: cohort is None,
        description="a rehearsal with few clients: the mean update gets the noise of a cohort of this size; a number, "
        "or size and check_in. The run itself protects nobody",
    )

    @model_validator(mode="after")
    def _auto_needs_a_budget(self) -> "Privacy":
        """Refuse ``auto`` noise without a budget, and a budget without noise."""
        if self.noise_multiplier == "auto" and self.epsilon is None:
            raise ValueError("noise_multiplier: auto needs a budget: give epsilon, or a number for noise_multiplier")
        if self.noise_multiplier == 0 and self.epsilon is not None:
            raise ValueError("noise_multiplier: 0 protects nothing, so no budget can be kept: leave out epsilon (null)")
        return self


@extend
class Scenario(Section):
    """One federation, from data to privacy budget.

    Every key but data, model, rounds, privacy and name has a default. A scenario is immutable; a run's folder holds it
    with all defaults.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80, description="of the run")]
    description: str = Field("", description="what it is about, for people")
    seed: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="of partition and first model, both public")
    known_seed: Annotated[bool, Field(strict=True)] = Field(
        False, description="true: noise and hidden choices follow from seed, too; for research, it protects nobody"
    )
    data: Data
    model: Model
    rounds: Annotated[Count, Field(le=LONGEST_RUN, description="number of rounds, each with one release")]
    check_in: AnyCheckIn = AllCheckIn()
    submodels: AnySubmodels = NoSubmodels()
    client: LocalTraining = LocalTraining()
    server: ServerUpdate = ServerUpdate()
    privacy: Privacy
    aggregation: AnyAggregation = PlainAggregation()
    engine: Engine = Engine()
    federation: Federation = Federation()
    faults: Faults | None = None
    trackers: Trackers = Field((), description="who receives the public numbers")

    @property
    def sections(self) -> dict[str, Any]:
        """Optional sections that the scenario has, by key; the plan asks them what they cost and do."""
        found = {key: getattr(self, key) for key in keys("sections") if "." not in key}
        return {key: each for key, each in found.items() if isinstance(each, OptionalSection)}

    @property
    def side_sum(self) -> SideSum | None:
        """Section for which rounds add up more than the model's updates; None: there is none."""
        return side_sum_of(self.sections.values())

    @property
    def evaluates(self) -> bool:
        """Say whether the scenario declares test records public, and has models evaluated on them."""
        return self.federation.evaluate_every != 0 and getattr(self.data, "test_is_public", True)

    def to_yaml(self) -> str:
        """Write the scenario with every default; reading it back gives an equal scenario."""
        return yaml.safe_dump(json.loads(self.model_dump_json()), sort_keys=False, allow_unicode=True)

    def with_bands(self, bands: int, coefficients: tuple[float, ...] | Literal["auto"] = "auto") -> "Scenario":
        """Copy the scenario with a number of bands of the noise, and their coefficients, instead of ``auto``.

        Args:
            bands: number of rounds over which noise is correlated; 1: independent noise.
            coefficients: c_1, c_2, .. of length ``bands - 1``, or ``auto``.
        """
        noise = self.privacy.noise.with_bands(bands, coefficients)
        return self.model_copy(update={"privacy": self.privacy.model_copy(update={"noise": noise})})

    def _repr_html_(self) -> str:
        """Show the scenario as YAML in a notebook."""
        return f"<pre>{escape(self.to_yaml(), quote=False)}</pre>"

    @model_validator(mode="before")
    @classmethod
    def _schemes_by_path(cls, raw: Any) -> Any:
        """Replace import paths of schemes by the names that their extensions give them."""
        return by_name(raw)

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, raw: Any) -> Any:
        """Add what follows from keys of extensions, and is not given."""
        for key in keys("fill_ins") if isinstance(raw, dict) else ():
            for fill in offered("fill_ins", key) if raw.get(key) is not None else ():
                raw = fill(raw)
        return raw

    @model_validator(mode="before")
    @classmethod
    def _precision_of_training(cls, raw: Any) -> Any:
        """Read ``precision`` where older versions have it: in ``engine``."""
        engine, client = (raw.get(key, {}) if isinstance(raw, dict) else None for key in ("engine", "client"))
        if not (isinstance(engine, dict) and isinstance(client, dict) and "precision" in engine):
            return raw
        others = {key: value for key, value in engine.items() if key != "precision"}
        return raw | {"engine": others, "client": {"precision": engine["precision"]} | client}

    @model_validator(mode="after")
    def _possible_together(self) -> "Scenario":
        """Refuse keys that cannot stand together, and schemes of other packages without a contract."""
        self.check_in.check_rounds(self.rounds)
        side_sum_of(self.sections.values())  # refuses several
        refuse_contradictions(self)
        refuse_unproved(self)
        return self


refuse_unknown_keys()
