"""Accounting of differential privacy that hidden randomness amplifies; usable without the rest of fedamp.

In reading order (docs/accounting.md has the mathematics, docs/k-of-t.md that of sampling):

1. ``events``: what happened, frozen expressions. ``theorems``: from an event to simpler ones, a theorem each.
2. ``answers``: epsilon or delta, the smallest bracket of all evaluators, among them closed forms for little noise.
   ``bounds``: questions, and what answers them: brackets and trade-off functions.
3. The evaluators. ``law``: the numerical law of each kind, on the finite laws of ``convolve``. ``sampling``: several
   hidden rounds, whose likelihood ratio is in ``hidden_rounds``. ``outcomes``: few outcomes, exactly. ``renyi``: Rényi
   divergences.
4. Built on answers. ``search``: risks, noise for a budget, the cost after each round, budgets for many uses.
   ``verify``: ledgers, released bundles, the numbers of somebody's code. ``interop``: other people's accountants.

``checks`` and ``arithmetic`` (with all bounds of rounding errors, and compiled loops) are below all of them.
"""

from fedamp.accounting import answers
from fedamp.accounting.bounds import Bounds, TradeOff, epsilon_from_rdp
from fedamp.accounting.events import (
    FIXED_GRADIENTS,
    JOINT_RELEASE,
    Accountant,
    Allocation,
    AllocationPrefix,
    Approximate,
    BallsInBins,
    CappedPoisson,
    Compose,
    Cyclic,
    Dropout,
    FiniteOutcomes,
    Gaussian,
    GaussianMixture,
    Group,
    GroupPoissonGaussian,
    Laplace,
    LinearCombination,
    Mechanism,
    MixedCoordinate,
    ModelMix,
    NotPrivate,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Relation,
    Repeat,
    Spaced,
    Submodels,
    SubstitutedPoissonGaussian,
    WithoutReplacement,
    from_json,
)
from fedamp.accounting.renyi import rdp
from fedamp.accounting.search import (
    calibrate,
    calibrate_count,
    calibrate_risk,
    epsilon_over_rounds,
    in_words,
    privacy_profile,
    trade_off,
)
from fedamp.accounting.theorems import group, unamplified
from fedamp.accounting.verify import Claims

__all__ = [
    "FIXED_GRADIENTS",
    "JOINT_RELEASE",
    "Allocation",
    "AllocationPrefix",
    "Approximate",
    "BallsInBins",
    "Bounds",
    "CappedPoisson",
    "Claims",
    "Compose",
    "Cyclic",
    "Dropout",
    "FiniteOutcomes",
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
    "Spaced",
    "Submodels",
    "SubstitutedPoissonGaussian",
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

# The only place where mechanisms meet evaluators.
Mechanism.accountant = Accountant(answers.epsilon, answers.delta, rdp, trade_off, unamplified)
