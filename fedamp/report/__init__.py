"""Show plans and runs to people: tables, pictures, words, the progress of a run, and views for notebooks.

Everything shown comes from a plan or from a run folder; no number is computed here that decides something. The texts of
all commands, pictures and pages are in :mod:`fedamp.report.words`, so that one fact is said in one way. The commands
(:mod:`fedamp.cli`) and the Python interface (:mod:`fedamp.api`) call these modules; extensions add tables of their own.
"""
