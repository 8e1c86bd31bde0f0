"""Define the key ``population`` of a ledger.

It is checked by the accountant alone where the population's file is not here.
"""

from pathlib import Path
from typing import Any

from fedamp.accounting.search import Budget
from fedamp.accounting.verify import Check, Json, LedgerKey, compare_claim
from fedamp.base import numbers
from fedamp.base.numbers import at_most


class PopulationKey(LedgerKey):
    """Checks and words of what a run's ledger says about the population that paid for it."""

    record = "fedamp.extensions.population.record:PopulationRecord"
    shared = "a use of a population"
    other = "charged to another use of a population"

    def check_value(self, told: Json) -> Check:
        """Check that the numbers go together, where the population's file is not here."""
        spent = Budget(told["budget_epsilon"], told["delta"]).spent_epsilon(told["share"])
        again = compare_claim("population", "adaptive_epsilon", told["adaptive_epsilon"], spent)
        unknown = f"use {told['use']} of population {told['id']}, whose file is not here: its numbers were not checked"
        return Check("population", "caution", unknown) if again.passed else again

    def check_run(self, told: Json, run: Path, scenario: Any) -> Check:
        """Check that the population of a run's scenario knows the run, and computes the same numbers."""
        from fedamp.extensions.population.account import known_to
        from fedamp.extensions.population.section import population_file
        from fedamp.extensions.population.store import Population

        file = population_file(scenario) if scenario else None
        return self.check_value(told) if file is None or not file.is_file() else known_to(Population(file), run, told)

    def is_asked(self, scenario: Any) -> bool:
        """Say whether people of a population pay for the runs of a scenario."""
        from fedamp.extensions.population.section import population_file

        return population_file(scenario) is not None

    def run_identity(self, told: Json) -> Any:
        """Return the id of the use: of two runs with one of them, the people have paid for one."""
        return told.get("use")

    def for_people(self, value: Any) -> str:
        """Write what all uses that are charged to the population cost together."""
        fixed = value.fixed_epsilon
        known = "" if fixed is None else f" ({at_most(fixed, 3)} had they been fixed in advance)"
        promised = f"epsilon <= {value.budget_epsilon:g} at delta = {numbers.power(value.delta)}"
        needed = f"{value.uses} so far need {at_most(value.adaptive_epsilon, 3)}{known}"
        return f"{promised} for all uses charged to this population, however they are chosen; {needed}"


POPULATION = PopulationKey()
