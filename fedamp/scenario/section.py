"""The base of all sections of a scenario."""

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from fedamp.scenario.schema import Scenario


class Section(BaseModel):
    """Base of all sections: frozen, and strict about keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def check(self, scenario: "Scenario") -> None:
        """Refuse (ValueError, one line) what cannot go with the rest of the scenario. By default everything can."""
