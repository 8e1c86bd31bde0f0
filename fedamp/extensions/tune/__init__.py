"""Run one scenario many times: sweeps over values of its keys, and private tuning (docs/studies.md, docs/budget.md).

The commands are ``fedamp sweep``, ``fedamp study`` and ``fedamp tune``, in Python functions of these names.
:mod:`~fedamp.extensions.tune.sweep` plays the runs and reads them back; nothing is charged for choosing among them.
:mod:`~fedamp.extensions.tune.study` plays a sweep with named variants from a file, and writes its table and figure.
:mod:`~fedamp.extensions.tune.tune` pays for trials and for the run that follows from one budget.

A sweep needs something that scores its runs; tuning needs a charged ``evaluation``, ``privacy.epsilon`` and a secret
seed. No key of a scenario is added. Tables, pictures and progress are beside them; the core reads a sweep's folder by
:mod:`~fedamp.extensions.tune.results`.
"""

from fedamp.extension import Extension

extension = Extension(
    "tune",
    commands={
        "study": "fedamp.extensions.tune.commands:study",
        "sweep": "fedamp.extensions.tune.commands:sweep",
        "tune": "fedamp.extensions.tune.commands:tune",
    },
    help_groups={"study": "Compare", "sweep": "Compare", "tune": "Train"},
    functions={
        "study": "fedamp.extensions.tune.functions:study",
        "sweep": "fedamp.extensions.tune.functions:sweep",
        "tune": "fedamp.extensions.tune.functions:tune",
    },
    series={
        "study.json": "fedamp.extensions.tune.study:SERIES",  # before the sweep that it contains
        "sweep.json": "fedamp.extensions.tune.results:SWEEPS",
    },
)
