"""Many runs of one scenario: a grid of settings, each with several seeds, and what came of them."""

from fedamp.sweeps.results import Sweep, read_sweep
from fedamp.sweeps.sweep import sweep

__all__ = ["Sweep", "read_sweep", "sweep"]
