"""Accounting of differential privacy amplified by hidden randomness; usable without the rest of fedamp."""

from fedamp.accounting.allocation import Allocation, AllocationPrefix
from fedamp.accounting.basic import Gaussian, Laplace, NotPrivate, RandomisedResponse
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.calibration import calibrate, calibrate_count
from fedamp.accounting.composition import Compose, RandomSelection, Repeat
from fedamp.accounting.groups import Group, GroupPoissonGaussian, group
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.merging import LinearCombination
from fedamp.accounting.mixtures import GaussianMixture
from fedamp.accounting.modelmix import MixedCoordinate, ModelMix
from fedamp.accounting.renyi import epsilon_from_rdp
from fedamp.accounting.replacement import WithoutReplacement
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
    "GaussianMixture",
    "Group",
    "GroupPoissonGaussian",
    "Laplace",
    "LinearCombination",
    "Mechanism",
    "MixedCoordinate",
    "ModelMix",
    "NotPrivate",
    "Poisson",
    "RandomSelection",
    "RandomisedResponse",
    "Repeat",
    "Submodels",
    "WithoutReplacement",
    "calibrate",
    "calibrate_count",
    "epsilon_from_rdp",
    "epsilon_over_rounds",
    "from_json",
    "group",
]
