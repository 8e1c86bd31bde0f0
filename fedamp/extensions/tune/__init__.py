"""Run one scenario many times: sweeps over values of its keys, and private tuning (docs/studies.md, docs/budget.md).

The commands are ``fedamp sweep`` and ``fedamp tune``, in Python ``fedamp.sweep`` and ``fedamp.tune``.
:mod:`~fedamp.extensions.tune.sweep` plays the runs and reads them back; nothing is charged for choosing among them.
:mod:`~fedamp.extensions.tune.tune` pays for trials and for the run that follows from one budget.

A sweep needs something that scores its runs; tuning needs a charged ``evaluation``, ``privacy.epsilon`` and a secret
seed. No key of a scenario is added. Tables, pictures and progress are beside them; the core reads a sweep's folder by
:mod:`~fedamp.extensions.tune.results`.
"""

from fedamp.extension import Extension

extension = Extension(
    "tune",
    commands={"sweep": "fedamp.extensions.tune.commands:sweep", "tune": "fedamp.extensions.tune.commands:tune"},
    help_groups={"sweep": "Compare", "tune": "Train"},
    functions={"sweep": "fedamp.extensions.tune.functions:sweep", "tune": "fedamp.extensions.tune.functions:tune"},
    series={"sweep.json": "fedamp.extensions.tune.results:SWEEPS"},
)
