"""The budget of people over all uses of their data. docs/budget.md has the promise, the theorem and the commands.

``store`` is the file of a population: who is in it, what was reserved and spent, and a chain that finds changes.
``account`` is what one run does with it: reserve before it asks anybody, settle at its end.
"""
