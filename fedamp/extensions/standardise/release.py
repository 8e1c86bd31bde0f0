"""Release means and deviations before the first round: one round with a sum of other vectors than updates.

Its "model" is the mean of the units' vectors (:class:`fedamp.extensions.standardise.transform.PrivateStandardise`), its
"update" is one unit's vector, and its denominator is the public number of units. So clipping, exact sums, quorum,
faults, noise and the protocol of a deployment are those of training.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedamp import rng
from fedamp.base.start import Later
from fedamp.extensions.standardise.transform import PrivateStandardise, private_steps, with_numbers
from fedamp.federation import facts
from fedamp.federation.facts import AnyScenario, Claim
from fedamp.federation.first_releases import FirstRelease
from fedamp.federation.optional import AnyPlan

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism
    from fedamp.federation.plan import Plan
else:
    accounting = Later("fedamp.accounting")  # a node charges nothing

KEY = "statistics"
"""Key of the released numbers in ledger and task, and name of the only array of the round."""
_NUMBERS = "numbers for mean and deviation"


class PrivateMeans(FirstRelease):
    """A release of all units before the first round: the sums of their inputs, with noise.

    Attributes:
        step: the private step of ``data.transform``; each unit's vector has norm at most 1.
    """

    path = "data.transform"
    step: PrivateStandardise
    needs = (Claim(facts.SERVER_ADDS_NOISE, accepted=_NUMBERS),)
    breaks = (Claim(facts.ROUNDS_ALONE, accepted=_NUMBERS),)
    keeps = facts.FACTS - {facts.ROUNDS_ALONE}

    @classmethod
    def asked_by(cls, scenario: AnyScenario) -> Self | None:
        return next((cls(step=step) for step in private_steps(scenario.data)), None)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the largest vector."""
        assert self.step.noise_multiplier is not None, "a private step has it"
        return self.step.noise_multiplier

    @property
    def assumption(self) -> str:
        return (
            "Before the first round, means and deviations of inputs were released, of all units, with noise multiplier "
            f"{self.noise_multiplier:g}."
        )

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse two private steps."""
        if len(private_steps(scenario.data)) > 1:
            raise ValueError(
                "data.transform: two steps with mean: private; expected: one, the other with public numbers"
            )

    def releases_beside(self, plan: AnyPlan) -> "tuple[Mechanism, ...]":
        return (plan.check_in.known_cost(accounting.Gaussian(self.noise_multiplier)),)

    def costs_without(self, scenario: AnyScenario) -> Mapping[str, Mapping[str, Any]]:
        return {"noise_multiplier of private means in data.transform": {"data": with_numbers(scenario.data, None)}}

    @classmethod
    def data_with(cls, data: Any, told: PrivateStandardise) -> Any:
        return with_numbers(data, None if told.is_private else told)

    def release(self, inputs: Any, grid: Any, units_left: frozenset[int]) -> PrivateStandardise:
        from fedamp.federation.losses import form_of  # these are the server's
        from fedamp.strategies.aggregation import ModelParts
        from fedamp.strategies.pipeline import ReleasePipeline, undivided
        from fedamp.strategies.private import PrivateStrategy

        plan, task = _plan_of(self.step, inputs.plan), inputs.task.model_copy(update={KEY: self.step})
        before = plan.scenario.data.load(task.data_seed, Path(), form_of(task.client, task.model))
        parameters = {KEY: np.zeros((2, before.input_shape[0]), np.float32)}
        pipeline = ReleasePipeline(plan, ModelParts.of(parameters), undivided, plan.noise)
        strategy = PrivateStrategy(pipeline, task, pipeline.start(parameters))
        asked = strategy.order_round(1, grid, units_left=units_left)
        replies = grid.send_and_receive(asked.messages, timeout=plan.scenario.federation.round_deadline)
        release = strategy.release(1, strategy.sum_replies(asked, replies))
        return self.step.released(release.parameters[KEY], plan.units)


def _plan_of(step: PrivateStandardise, plan: "Plan") -> "Plan":
    """Plan the round that releases them: all units, clipping norm 1, the step's noise. The run's own charge has it."""
    from fedamp.federation.check_in import AllCheckIn
    from fedamp.federation.noise import IndependentNoise
    from fedamp.federation.optimizers import ServerUpdate
    from fedamp.federation.submodels import NoSubmodels

    asked, noise = plan.scenario, {"noise_multiplier": step.noise_multiplier, "noise": IndependentNoise()}
    planted = {"canaries": 0} if hasattr(asked.privacy, "canaries") else {}
    changes: dict[str, Any] = {
        "data": with_numbers(asked.data, None),
        "privacy": asked.privacy.model_copy(update={"clip": 1.0, "epsilon": None, **planted, **noise}),
        "check_in": AllCheckIn(),
        "submodels": NoSubmodels(),
        "server": ServerUpdate(),
        **dict.fromkeys(asked.sections),
        "rounds": 1,
    }
    scenario = asked.model_copy(update=changes)
    return replace(plan, scenario=scenario, seed=rng.public_seed(plan.seed, KEY))
