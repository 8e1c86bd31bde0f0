"""The base of all sections of a scenario, and the numbers that stand in them."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

if TYPE_CHECKING:
    from fedamp.federation.scenario import Scenario

__all__ = ["Count", "NoiseMultiplier", "NotNegative", "Positive", "Probability", "Rate", "Section", "Share", "no_truth"]


class Section(BaseModel):
    """Base of all sections: frozen, and strict about keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def check(self, scenario: "Scenario") -> None:
        """Refuse (ValueError, one line) what cannot go with the rest of the scenario. By default everything can."""


def no_truth(value: Any) -> Any:
    """YAML reads ``on`` and ``yes`` as truths, which Python takes for numbers."""
    if isinstance(value, bool):
        raise ValueError(f"got {value}, as YAML reads on, off, yes and no; expected: a number")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(no_truth)]
Count = Annotated[int, Field(ge=1, strict=True)]
NoiseMultiplier = Annotated[float, Field(ge=1e-6, le=1e12), BeforeValidator(no_truth)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
