"""Accounting of differential privacy that hidden randomness amplifies; usable without the rest of fedamp.

What each module answers, in reading order (docs/accounting.md has the mathematics, docs/k-of-t.md that of sampling):

1. What happened? ``mechanism`` (the base of all expressions), ``releases``, ``amplification``, ``merging``, ``groups``.
2. What is it charged as, and what of it is attained? ``reductions``, with ``participation`` (choices of hidden rounds).
3. What was asked? ``conversion`` (epsilon or delta, and what Rényi divergences prove); ``bounds`` holds every answer.
4. Numerical law, from both sides: ``points`` (finite laws), ``pairing`` (means, short products), ``fourier`` (long
   products), ``law`` (the operations), ``laws`` (the law of each kind, and its answer).
5. Rényi divergences: ``moments`` (their algebra), ``renyi`` (each kind), ``renyi_releases`` (single releases).
   ``group_bounds``: groups and batches, by law and by Rényi.
6. Several hidden rounds, by sampling: ``hidden_rounds`` (the likelihood ratio), ``certificate`` (means of bounded
   draws), ``proposals`` (what to draw from), ``sampled`` (the answer). ``revealed``: closed forms, for little noise.
7. ``answers``: the smallest of all. ``prefixes``: the cost after each round. ``calibration``: noise for a budget.
   ``risk``, ``tradeoff``: error rates of attacks. ``claims``: the numbers of somebody's code. ``interop``: other
   people's accountants. ``ledgers``, ``bundle``: verification of what a run has left or released.

``checks``, ``numeric``, ``compiled`` and ``loops`` are arithmetic and arguments.
"""

from fedamp.accounting import answers, renyi, renyi_releases  # noqa: F401 (renyi_releases registers its kinds)
from fedamp.accounting.amplification import (
    Allocation,
    AllocationPrefix,
    CappedPoisson,
    Cyclic,
    Dropout,
    Poisson,
    Spaced,
    Submodels,
)
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.calibration import calibrate, calibrate_count, calibrate_risk
from fedamp.accounting.claims import Claims
from fedamp.accounting.conversion import epsilon_from_rdp
from fedamp.accounting.groups import Group, WithoutReplacement, group
from fedamp.accounting.mechanism import Accountant, Mechanism, Relation, from_json
from fedamp.accounting.merging import FIXED_GRADIENTS, JOINT_RELEASE, LinearCombination, RandomSelection
from fedamp.accounting.prefixes import epsilon_over_rounds
from fedamp.accounting.releases import (
    Approximate,
    Compose,
    FiniteOutcomes,
    Gaussian,
    GaussianMixture,
    GroupPoissonGaussian,
    Laplace,
    MixedCoordinate,
    ModelMix,
    NotPrivate,
    RandomisedResponse,
    Repeat,
    SubstitutedPoissonGaussian,
)
from fedamp.accounting.risk import in_words, privacy_profile, trade_off
from fedamp.accounting.tradeoff import TradeOff

__all__ = [
    "FIXED_GRADIENTS",
    "JOINT_RELEASE",
    "Allocation",
    "AllocationPrefix",
    "Approximate",
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
Mechanism.accountant = Accountant(answers.epsilon, answers.delta, renyi.rdp, trade_off)
