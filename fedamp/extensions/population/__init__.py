"""The budget of people over all uses of their data. docs/budget.md has the promise, the theorem and the commands.

``store`` is the file of a population: who is in it, what was reserved and spent, and a chain that finds changes.
``account`` is what one run does with it: reserve before it asks anybody, settle at its end. ``ledger`` is what the
ledger of the run says of it, and ``node`` is the budget of the people of one node.
"""

from fedamp.extension import Extension

extension = Extension(
    name="population",
    commands={"population": "fedamp.extensions.population.commands:app"},
    sections={"privacy.population": "fedamp.extensions.population.section:POPULATION"},
    around_run={"population": "fedamp.extensions.population.account:charged"},
    before_runs={"population": "fedamp.extensions.population.account:check_room"},
    ledger_keys={"population": "fedamp.extensions.population.ledger:POPULATION"},
    policy_keys={"population": "fedamp.extensions.population.policy:POPULATION"},
)
