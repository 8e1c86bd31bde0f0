"""Define the key ``client.scaffold``, and what it needs of a scenario."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fedamp.base.section import NeedsHooks
from fedamp.federation import facts
from fedamp.federation.facts import AnyScenario, Declared


class Scaffold(Declared):
    """SCAFFOLD (Karimireddy et al. 2020, option II): gradients are corrected by control variates."""

    needs = facts.needs_facts(
        facts.UNIT_IS_CLIENT,
        facts.WHOLE_MODEL,
        facts.GLOBAL_MODEL,
        facts.TRAINED_HERE,
        facts.SIMULATED,
        facts.ONE_MACHINE,
        facts.SERVER_ADDS_NOISE,
        facts.NOISE_INDEPENDENT,
    )
    keeps = facts.FACTS - {facts.SHOWN_ONCE}  # the variate remembers the noise of earlier rounds

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse local training whose number and length of steps are not the same for all clients and rounds."""
        client = scenario.client
        given = {"epochs": client.epochs, "momentum": client.momentum}
        given |= {"optimizer": client.optimizer != "sgd", "learning_rate": len(client.learning_rates) > 1}
        if wrong := next((key for key, value in given.items() if value), None):
            expected = "steps of plain sgd with one learning rate, which the variates divide by"
            raise ValueError(f"client.{wrong} does not go with client.scaffold; expected: {expected}")


def _of_truth(raw: Any) -> Any:
    """Read ``true`` as the section, and ``false`` as none."""
    return ({} if raw else None) if isinstance(raw, bool) else raw


SCAFFOLD = Annotated[
    Scaffold | None,
    Field(
        None,
        exclude_if=lambda found: found is None,
        description="true: correct gradients by control variates (SCAFFOLD, Karimireddy et al. 2020, option II)",
    ),
    BeforeValidator(_of_truth, json_schema_input_type=bool | Scaffold | None),
    NeedsHooks("a custom app keeps no control variates"),
]
"""The key ``client.scaffold`` of a scenario."""
