"""Keep what a run leaves: its folder, its ledger, its checkpoints, and the checks of them.

Read :mod:`fedamp.runs.records` for the keys of each file, then :mod:`fedamp.runs.ledger`. The server writes through
these modules (:mod:`fedamp.server.journal`); reports read a run through :mod:`fedamp.runs.run`.
"""
