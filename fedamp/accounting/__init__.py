"""Accounting of differential privacy amplified by hidden randomness; usable without the rest of fedamp.

To read it, in this order (docs/accounting.md has the mathematics, docs/k-of-t.md that of sampling):

1. What happened: ``mechanism`` (the base of all expressions), ``releases``, ``amplification``, ``merging``, ``groups``;
   ``bounds`` is what every answer is.
2. What it is charged as, and what of it is attained: ``reductions``, theorems and real mechanisms (with ``coins``).
3. The privacy loss distribution from both sides: ``points`` (finite laws, pessimistic and optimistic), ``pairing``
   (means and short products), ``fourier`` (long products), ``law`` (the operations), ``laws`` (of every kind).
4. Rényi divergences: ``moments`` (their algebra), ``renyi`` (of every kind).
5. k hidden rounds of T by sampling: ``ratios`` (of one round), ``hidden_rounds`` (of the run), ``tilted`` (overlaps,
   exact moments and draws), ``certificate`` (how sure a mean is), ``sampled`` (epsilon and delta).
6. ``revealed`` (closed forms, for little noise), ``group_bounds`` (groups and batches), ``answers`` (the smallest of
   all), ``calibration``, ``risk``, ``interop``.
"""

from fedamp.accounting import answers, renyi, renyi_releases
from fedamp.accounting.amplification import Allocation, AllocationPrefix, CappedPoisson, Dropout, Poisson, Submodels
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.calibration import calibrate, calibrate_count, calibrate_risk, epsilon_over_rounds
from fedamp.accounting.conversion import epsilon_from_rdp
from fedamp.accounting.groups import Group, WithoutReplacement, group
from fedamp.accounting.mechanism import Accountant, Mechanism, Relation, from_json
from fedamp.accounting.merging import FIXED_GRADIENTS, JOINT_RELEASE, LinearCombination, RandomSelection
from fedamp.accounting.releases import (
    Compose,
    Gaussian,
    GaussianMixture,
    GroupPoissonGaussian,
    Laplace,
    MixedCoordinate,
    ModelMix,
    NotPrivate,
    RandomisedResponse,
    Repeat,
)
from fedamp.accounting.risk import in_words, plot, privacy_profile, trade_off
from fedamp.accounting.tradeoff import TradeOff

__all__ = [
    "FIXED_GRADIENTS",
    "JOINT_RELEASE",
    "Allocation",
    "AllocationPrefix",
    "Bounds",
    "CappedPoisson",
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
    "Relation",
    "Repeat",
    "Submodels",
    "TradeOff",
    "WithoutReplacement",
    "calibrate",
    "calibrate_count",
    "calibrate_risk",
    "epsilon_from_rdp",
    "epsilon_over_rounds",
    "from_json",
    "group",
    "in_words",
    "privacy_profile",
    "trade_off",
]

# The one place where what happened meets what it costs.
Mechanism.accountant = Accountant(answers.epsilon, answers.delta, renyi.rdp, trade_off, plot)
