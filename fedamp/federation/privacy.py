"""What is protected, and what hides it: who takes part when, with which part of the model, mixing, noise."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedamp.base.section import Count, NoiseMultiplier, Positive, Probability, Section, Share, no_truth
from fedamp.federation.training import check_steps

if TYPE_CHECKING:
    from fedamp.federation.scenario import Scenario

# fmt: off
__all__ = [
    "AdaptiveClip", "AllCheckIn", "BalancedCheckIn", "CappedPoissonCheckIn", "CheckIn", "DisjointSubmodels",
    "DropoutSubmodels", "Mixing", "NoSubmodels", "PoissonCheckIn", "Privacy", "StratifiedCheckIn", "Submodels",
]
# fmt: on


class AllCheckIn(Section):
    """Everybody takes part in every round."""

    scheme: Literal["all"] = "all"


class PoissonCheckIn(Section):
    """In every round everybody takes part with the same probability, independently."""

    scheme: Literal["poisson"]
    rate: Probability


class CappedPoissonCheckIn(Section):
    """In as many rounds as coins come to, one a round, but in no more than a cap; which rounds these are is hidden."""

    scheme: Literal["capped-poisson"]
    rate: Probability
    at_most: Count = Field(description="the most rounds that a unit takes part in")

    def check(self, scenario: "Scenario") -> None:
        _check_most("at_most", self.at_most, scenario)


class _KOfRounds(Section):
    """Everybody is scheduled for k hidden rounds."""

    scheme: str
    k: Count

    @model_validator(mode="before")
    @classmethod
    def _no_credit_for_declining(cls, keys: Any) -> Any:
        """Runs wrote ``participation: 1.0`` while it was a key."""
        if not isinstance(keys, dict):
            return keys
        if keys.get("participation", 1) != 1:
            raise ValueError(
                "participation is no key any more: clients who decline may do so in many rounds at once, and only what "
                "the server draws is credited; expected: leave it out, which covers any declining"
            )
        return {key: value for key, value in keys.items() if key != "participation"}

    def check(self, scenario: "Scenario") -> None:
        _check_most("k", self.k, scenario)


class BalancedCheckIn(_KOfRounds):
    """Everybody is scheduled for exactly k hidden rounds, chosen uniformly among all sets of k rounds."""

    scheme: Literal["balanced"]


class StratifiedCheckIn(_KOfRounds):
    """Rounds are cut into k blocks as equal as integers allow; everybody is scheduled for one hidden round of each."""

    scheme: Literal["stratified"]


def _check_most(key: str, number: int, scenario: "Scenario") -> None:
    if number > scenario.rounds:
        raise ValueError(f"check_in.{key} must be at most rounds ({scenario.rounds}), got {number}")


CheckIn = Annotated[
    AllCheckIn | PoissonCheckIn | CappedPoissonCheckIn | BalancedCheckIn | StratifiedCheckIn,
    Field(discriminator="scheme"),
]


class NoSubmodels(Section):
    """Everybody trains the whole model."""

    scheme: Literal["none"] = "none"


class _SplitSubmodels(Section):
    """What is said about a model's shared part."""

    rest: Literal["shared", "dealt", "frozen"] = Field(
        "shared",
        description="what no node owns, such as the output's bias: in the shared part; dealt out like the nodes, one "
        "coordinate at a time; or never trained. Where nothing is shared, a round releases one part and costs less",
    )
    shared_clip: Positive | None = Field(None, description="clipping norm of the shared part; left out: privacy.clip")
    shared_noise_multiplier: Literal["same", "balanced"] | NoiseMultiplier = Field(
        "same",
        description="noise multiplier of the shared part: same as the split part; balanced: the split of the budget "
        "with the least noise in the two parts' mean updates together (docs/strategies.md); or a number",
    )

    @model_validator(mode="after")
    def _no_key_of_nothing(self) -> "_SplitSubmodels":
        given = ["shared_clip"] * (self.shared_clip is not None)
        given += ["shared_noise_multiplier"] * (self.shared_noise_multiplier != "same")
        if given and self.rest != "shared" and not getattr(self, "shared", ()):
            raise ValueError(f"{given[0]} must be left out with rest: {self.rest}: nothing is shared")
        return self


class DisjointSubmodels(_SplitSubmodels):
    """The split part of the model is cut into disjoint submodels; everybody trains one hidden one a round."""

    scheme: Literal["disjoint"]
    count: Annotated[int, Field(ge=2, strict=True)]
    shared: tuple[str, ...] = Field((), description="layers that every submodel holds, by name or prefix")
    partition: Literal["fixed", "fresh"] = Field("fixed", description="one partition for the run, or a new one a round")


class DropoutSubmodels(_SplitSubmodels):
    """Every node of the named layers is kept with probability ``keep``, in one mask a unit and round."""

    scheme: Literal["dropout"]
    keep: Share = 0.5
    layers: tuple[str, ...] = Field((), description="hidden layers to mask; left out: all hidden layers")


Submodels = Annotated[NoSubmodels | DisjointSubmodels | DropoutSubmodels, Field(discriminator="scheme")]


class AdaptiveClip(Section):
    """The clipping norm follows a quantile of the update norms (Andrew et al. 2021), charged for its own noise."""

    initial: Positive = 0.1
    quantile: Share = 0.5
    learning_rate: Positive = 0.2
    noise_multiplier: NoiseMultiplier = Field(10.0, description="noise on the count below the norm, in counts")


class Privacy(Section):
    """What is protected, and how strongly."""

    unit: Literal["client", "sample"] = "client"
    clip: Literal["auto"] | Positive | AdaptiveClip = Field(
        description="clipping norm of a unit's update; auto: every update is scaled to one norm, which follows from "
        "rounds and momentum, so that there is none to choose"
    )
    noise_multiplier: Literal["auto"] | Annotated[Literal[0], BeforeValidator(no_truth)] | NoiseMultiplier = Field(
        "auto", description="noise standard deviation over clipping norm; 0 trains without privacy; auto: calibrated"
    )
    epsilon: Positive | None = Field(None, description="budget; the run stops before the round that would exceed it")
    delta: Share = 1e-5
    amplification: bool = Field(
        True, description="false: charge (and calibrate) as if no randomness were hidden, for comparison"
    )
    group_size: Count = Field(1, description="number of units protected together")

    @model_validator(mode="after")
    def _auto_needs_a_budget(self) -> "Privacy":
        if self.noise_multiplier == "auto" and self.epsilon is None:
            raise ValueError("noise_multiplier: auto needs a budget: give epsilon, or a number for noise_multiplier")
        if self.noise_multiplier == 0 and self.epsilon is not None:
            raise ValueError("noise_multiplier: 0 protects nothing, so no budget can be kept: leave out epsilon (null)")
        return self

    def check(self, scenario: "Scenario") -> None:
        client = scenario.client
        if self.unit == "sample" and (client.steps not in (None, 1) or client.epochs is not None):
            raise ValueError("client.steps must be 1 (or left out) when privacy.unit is sample: one gradient a record")


class Mixing(Section):
    """ModelMix: the server takes its step from a random mixture of the last two models; clients train the last one."""

    width: Positive | Annotated[tuple[tuple[Count, Positive], ...], Field(min_length=1)] = Field(
        description="enforced distance tau of the two models in every coordinate; or a list of [first round, tau], "
        "the first of them for round 1"
    )
    linf_coordinates: Count = Field(1, description="p: every coordinate of an update is truncated at clip / sqrt(p)")

    @model_validator(mode="after")
    def _from_round_one_on(self) -> "Mixing":
        check_steps("width", self.steps)
        return self

    @property
    def steps(self) -> tuple[tuple[int, float], ...]:
        """The first round and the enforced distance of every step of the schedule."""
        return self.width if isinstance(self.width, tuple) else ((1, self.width),)

    def check(self, scenario: "Scenario") -> None:
        server = scenario.server
        if server.optimizer != "sgd" or server.momentum > 0:
            used = f"momentum {server.momentum:g}" if server.optimizer == "sgd" else server.optimizer
            raise ValueError(
                f"mixing needs server.optimizer sgd without momentum, got {used}: each round's noise would show again "
                "in the next model, and the mixing hides it only once"
            )
        if isinstance(scenario.privacy.clip, AdaptiveClip):
            raise ValueError(
                "mixing needs a number or auto for privacy.clip: what the width hides is relative to the clipping "
                "norm, which an adaptive norm would change after it was charged"
            )
        if self.steps[-1][0] > scenario.rounds:
            raise ValueError(f"mixing.width names round {self.steps[-1][0]}, but rounds is {scenario.rounds}")
