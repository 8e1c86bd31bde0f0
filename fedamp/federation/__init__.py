"""Define what a person writes (the scenario), and what follows from it (the plan and its cost).

Read :mod:`fedamp.federation.scenario` first, then :mod:`fedamp.federation.plan` and :mod:`fedamp.federation.charge`.
Each section of a scenario has a module here, or in the room that uses it. Nothing here trains or sends anything; torch
is imported only where a model or a loss is built.
"""
