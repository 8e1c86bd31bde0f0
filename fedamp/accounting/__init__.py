"""Accounting of differential privacy amplified by hidden randomness; usable without the rest of fedamp."""

from fedamp.accounting.allocation import Allocation, AllocationPrefix
from fedamp.accounting.basic import Gaussian, Laplace, NotPrivate, RandomisedResponse
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.calibration import calibrate, calibrate_count
from fedamp.accounting.composition import Compose, RandomSelection, Repeat
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.rounds import epsilon_over_rounds
from fedamp.accounting.sampling import Dropout, Poisson, Submodels
from fedamp.accounting.serialisation import from_json

__all__ = [
    "Allocation",
    "AllocationPrefix",
    "Bounds",
    "Compose",
    "Dropout",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "NotPrivate",
    "Poisson",
    "RandomSelection",
    "RandomisedResponse",
    "Repeat",
    "Submodels",
    "calibrate",
    "calibrate_count",
    "epsilon_over_rounds",
    "from_json",
]
