"""Charge people over all uses of their data.

docs/budget.md has the promise and the commands, docs/research/filter.md the theorem.

The idea is the key ``privacy.population`` of a scenario, the key ``population`` of a ledger and of a node's policy, and
the command ``fedamp population``. Costs of uses that are chosen one after another add up as shares of a budget
(:class:`fedamp.accounting.search.Budget`).

:mod:`~fedamp.extensions.population.store` is the file of a population: who is in it, what was reserved and spent, and a
chain that finds changes. :mod:`~fedamp.extensions.population.account` is what one run does with it: reserve before it
asks anybody, settle at its end. :mod:`~fedamp.extensions.population.ledger` is what the ledger of the run says of it,
and :mod:`~fedamp.extensions.population.node` is the budget of the people of one node.

It needs ``privacy.unit: client`` and noise. It breaks the fact that nobody else pays for a run, so a rehearsal
(``privacy.noise_cohort``) is refused beside it.
"""

from fedamp.extension import Extension

extension = Extension(
    name="population",
    commands={"population": "fedamp.extensions.population.commands:app"},
    help_groups={"population": "People"},
    sections={"privacy.population": "fedamp.extensions.population.section:POPULATION"},
    around_run={"population": "fedamp.extensions.population.account:charged"},
    before_runs={"population": "fedamp.extensions.population.account:check_room"},
    ledger_keys={"population": "fedamp.extensions.population.ledger:POPULATION"},
    policy_keys={"population": "fedamp.extensions.population.policy:POPULATION"},
)
