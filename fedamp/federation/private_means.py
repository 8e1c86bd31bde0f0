"""Charge private means and deviations of the inputs, which ``data.transform: standardise`` releases before training.

The round that releases them is in :mod:`fedamp.server.moments`, each unit's vector in
:class:`fedamp.data.transforms.Standardise`. A plan treats the release as an optional section under ``data.transform``.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from fedamp.base.start import Later
from fedamp.federation import facts
from fedamp.federation.facts import AnyScenario
from fedamp.federation.optional import AnyPlan, OptionalSection

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism
else:
    accounting = Later("fedamp.accounting")  # a node charges nothing


class PrivateMeans(OptionalSection):
    """A release of all units before the first round: the sums of their inputs, with noise.

    Attributes:
        noise_multiplier: standard deviation of the noise; each unit's vector has norm at most 1.
    """

    noise_multiplier: float
    keeps = facts.FACTS - {facts.ROUNDS_ALONE}

    @classmethod
    def from_scenario(cls, scenario: AnyScenario) -> Self | None:
        """Make the release that a scenario's data ask for; None: they ask for none, or its numbers are known."""
        step = scenario.data.statistics
        noise = None if step is None else step.noise_multiplier
        return None if noise is None else cls(noise_multiplier=noise)

    def releases_beside(self, plan: AnyPlan) -> "tuple[Mechanism, ...]":
        return (plan.check_in.known_cost(accounting.Gaussian(self.noise_multiplier)),)

    def costs_without(self, scenario: AnyScenario) -> Mapping[str, Mapping[str, Any]]:
        data = scenario.data.with_statistics(None)
        return {"noise_multiplier of private means in data.transform": {"data": data}}
