"""Accounting of differential privacy that hidden randomness amplifies; usable without the rest of fedamp.

A mechanism is an expression for what happened, such as ``Repeat(Poisson(Gaussian(1.0), 0.01), 1000)``. It answers
``epsilon(delta)`` and ``delta(epsilon)`` with a bracket that contains the true value. A budget spends the upper end.

Example:
    >>> from fedamp.accounting import Gaussian, Poisson, Repeat
    >>> cost = Repeat(Poisson(Gaussian(1.0), 0.01), 1000).epsilon(delta=1e-5)
    >>> print(cost)
    1.829 (at least 1.828)
    >>> cost.method
    'numerical law, 1200 points'

In reading order (docs/research/accounting.md has the mathematics, docs/research/k-of-t.md that of sampling):

1. ``mechanism``: the base of all mechanisms, their questions, what a kind tells the evaluators, and how the smallest
   bracket of all evaluators is found. ``bounds``: checks of arguments, questions, and brackets.
2. Mechanisms, each kind in one file with all its evaluators. ``releases``: of one participation, and one after another.
   ``hidden``: sampling, submodels, hidden rounds. ``groups``: several people. Extensions offer others, which are names
   of this package, too: for example ``ModelMix``, ``Spaced`` (correlated noise), ``WithoutReplacement`` (batches of a
   fixed size) and ``LinearCombination`` (merged models).
3. The evaluators, which know no mechanism. ``law``: numerical laws, and closed forms for little noise. ``sampling``:
   several hidden rounds; ``blocks``: few of very many. ``outcomes``: few outcomes, exactly. ``renyi``: Rényi moments
   and divergences.
4. Built on answers. ``risk``: trade-off functions. ``search``: noise for a budget, the cost after each round, budgets
   for many uses. ``verify``: ledgers and released bundles.

``arithmetic`` (with all bounds of rounding errors, and compiled loops) is below all of them.

Symbols: f is what all others contribute, v the person's contribution, of norm at most 1 (the clipping norm), z the
noise, s the noise multiplier. P is the law of the release with the person in, Q that with the person out, X = dP/dQ
their likelihood ratio. *Remove* is the direction H(P, Q), *add* is H(Q, P); every answer is the larger of both.
"""

from typing import Any

from fedamp.accounting.bounds import (
    Bounds,
    CountField,
    NotEvaluable,
    ProbabilityField,
    Relation,
    ScaleField,
    check_count,
    epsilon_from_rdp,
)
from fedamp.accounting.groups import Group, group
from fedamp.accounting.hidden import (
    Allocation,
    AllocationPrefix,
    CappedPoisson,
    Dropout,
    GroupPoissonGaussian,
    Poisson,
    Submodels,
    SubstitutedPoissonGaussian,
)
from fedamp.accounting.law import Detail, Law
from fedamp.accounting.mechanism import Hidden, Mechanism, OfOne, Release, from_json
from fedamp.accounting.releases import (
    NOTHING,
    Approximate,
    Compose,
    FiniteOutcomes,
    Gaussian,
    GaussianMixture,
    Laplace,
    NotPrivate,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    composed,
)
from fedamp.accounting.renyi import Moments
from fedamp.accounting.risk import TradeOff, in_words, privacy_profile, trade_off
from fedamp.accounting.search import calibrate, calibrate_count, calibrate_risk, epsilon_over_rounds
from fedamp.extension import offered

__all__ = [
    "FIXED_GRADIENTS",
    "JOINT_RELEASE",
    "NOTHING",
    "Allocation",
    "AllocationPrefix",
    "Approximate",
    "BallsInBins",
    "Bounds",
    "CappedPoisson",
    "Claims",
    "Compose",
    "CountField",
    "Cyclic",
    "Detail",
    "Dropout",
    "FiniteOutcomes",
    "Gaussian",
    "GaussianMixture",
    "Group",
    "GroupPoissonGaussian",
    "Hidden",
    "Laplace",
    "Law",
    "LinearCombination",
    "Mechanism",
    "MixedCoordinate",
    "ModelMix",
    "Moments",
    "NotEvaluable",
    "NotPrivate",
    "OfOne",
    "Poisson",
    "ProbabilityField",
    "RandomSelection",
    "RandomisedResponse",
    "Relation",
    "Release",
    "Repeat",
    "ScaleField",
    "Spaced",
    "Submodels",
    "SubstitutedPoissonGaussian",
    "TradeOff",
    "TruncatedPoisson",
    "WithoutReplacement",
    "calibrate",
    "calibrate_count",
    "calibrate_risk",
    "check_count",
    "composed",
    "epsilon_from_rdp",
    "epsilon_over_rounds",
    "from_json",
    "group",
    "in_words",
    "privacy_profile",
    "trade_off",
]


def __getattr__(name: str) -> Any:
    """Import what an extension offers, such as the mechanism ``ModelMix``, when it is first asked for."""
    if not name.startswith("_"):
        for found in offered("accounting", name):
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List all names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
