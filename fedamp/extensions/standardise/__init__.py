"""Standardise inputs by means and deviations that are released with noise before the first round.

The core's step ``standardise`` of ``data.transform`` has public numbers. With ``mean: private`` they come from all
units and a public range, and the charge is part of the run's epsilon. docs/data.md, "Private means and deviations",
has an example.

:mod:`~fedamp.extensions.standardise.transform` is the step with this value, which takes the place of the core's.
:mod:`~fedamp.extensions.standardise.release` charges the release and plays its round,
:mod:`~fedamp.extensions.standardise.vectors` is what nodes add up for it, and
:mod:`~fedamp.extensions.standardise.ledger` its key of a ledger.
"""

from fedamp.extension import Extension

extension = Extension(
    name="standardise",
    choices={"data.transform": ("fedamp.extensions.standardise.transform:PrivateStandardise",)},
    first_releases={"statistics": "fedamp.extensions.standardise.release:PrivateMeans"},
    task_keys={"statistics": "fedamp.extensions.standardise.transform:TOLD_KEY"},
    unit_vectors={"statistics": "fedamp.extensions.standardise.vectors:vectors_of"},
    ledger_keys={"statistics": "fedamp.extensions.standardise.ledger:STATISTICS"},
)
