"""Define the key ``statistics`` of a ledger: means and deviations that were released before the first round."""

from typing import Any

from fedamp.accounting.verify import Check, Json, LedgerKey


class StatisticsKey(LedgerKey):
    """Checks of what a ledger says about released means and deviations; their charge is in the mechanism."""

    record = "fedamp.extensions.standardise.transform:PrivateStandardise"
    shared = "private means"
    other = "with other means of the inputs"
    first_release = "means and deviations of inputs"
    labels = ("mean", "deviation")

    def check_value(self, told: Json) -> Check:
        """Say how many numbers were released: the chain alone shows a change of them."""
        return Check("statistics", "pass", f"{len(told['mean'])} means and deviations, released before the first round")

    def is_asked(self, scenario: Any) -> bool:
        """Say whether a scenario has a private step."""
        from fedamp.extensions.standardise.transform import private_steps

        return bool(private_steps(scenario.data))

    def run_identity(self, told: Json) -> Json:
        """Return all of them: noise makes them differ between runs."""
        return told


STATISTICS = StatisticsKey()
