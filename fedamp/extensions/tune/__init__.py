"""Many runs of one scenario: sweeps over values of its keys, and tuning with charge."""

from fedamp.extension import Extension

extension = Extension(
    "tune",
    commands={"sweep": "fedamp.extensions.tune.commands:sweep", "tune": "fedamp.extensions.tune.commands:tune"},
    follows={"sweep": "run", "tune": "sweep"},
    functions={"sweep": "fedamp.extensions.tune.functions:sweep", "tune": "fedamp.extensions.tune.functions:tune"},
    series={"sweep.json": "fedamp.extensions.tune.results:SWEEPS"},
)
