"""Answer questions about people with noise, charged on the same ledger as training.

docs/studies.md, "Statistics", has an example, docs/research/statistics.md the formulas and measured intervals.

A statistics run has one round. The model is the vector of all answers, and the update of a person is her vector: all
questions together, clipped by person to a norm of 1. So one Gaussian release answers all of them, and everything
that a run has serves it: nodes, secure aggregation, populations, ledgers, certificates and ``fedamp total``.

:mod:`~fedamp.extensions.statistics.questions` says what a question adds to the vector, and how its answer follows from
the noisy sum; :mod:`~fedamp.extensions.statistics.intervals` and :mod:`~fedamp.extensions.statistics.life` have the
formulas. :mod:`~fedamp.extensions.statistics.section` is the key ``questions`` of a scenario,
:mod:`~fedamp.extensions.statistics.vectors` what nodes compute. :mod:`~fedamp.extensions.statistics.answers` reads the
answers of a run, and :mod:`~fedamp.extensions.statistics.asked` keeps them, so that no question is answered twice.
"""

from fedamp.extension import Extension

extension = Extension(
    name="statistics",
    commands={"statistics": "fedamp.extensions.statistics.commands:statistics"},
    help_groups={"statistics": "People"},
    sections={"questions": "fedamp.extensions.statistics.section:QUESTIONS_KEY"},
    fill_ins={"questions": "fedamp.extensions.statistics.section:fill_in"},
    task_keys={"questions": "fedamp.extensions.statistics.section:TOLD_KEY"},
    unit_vectors={"questions": "fedamp.extensions.statistics.vectors:vectors_of"},
    model_libraries={"statistics": "fedamp.extensions.statistics.model:answers_model"},
    around_run={"questions": "fedamp.extensions.statistics.asked:recorded"},
    ledger_keys={"questions": "fedamp.extensions.statistics.ledger:QUESTIONS"},
)
