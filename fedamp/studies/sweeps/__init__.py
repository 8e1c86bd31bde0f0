"""Many runs of one scenario: a grid of settings, several seeds for each, and the results."""

from fedamp.studies.sweeps.results import Sweep, read_sweep
from fedamp.studies.sweeps.sweep import sweep

__all__ = ["Sweep", "read_sweep", "sweep"]
