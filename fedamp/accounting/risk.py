"""What a privacy guarantee means for people: error rates of attacks instead of epsilon and delta.

An attacker decides, from everything that is released, whether a person took part. No attack exceeds the upper end of a
risk. A promise below the lower end would be false. docs/risk.md has more.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from fedamp.accounting import checks
from fedamp.accounting.arithmetic import Array
from fedamp.accounting.convolve import DEFAULT_POINTS
from fedamp.accounting.events import Mechanism, Relation
from fedamp.accounting.theorems import normal
from fedamp.accounting.tradeoff import TradeOff

_LARGEST_EPSILON = 50.0
"""Grids end here: tests that need larger likelihood ratios have false positive rates below e^-50."""


def privacy_profile(mechanism: Mechanism, epsilons: ArrayLike) -> tuple[Array, Array]:
    """delta at each epsilon, as a bracket.

    Args:
        mechanism: what is released.
        epsilons: each >= 0, any shape.

    Returns:
        Lower and upper ends, of the shape of ``epsilons``, in [0, 1].
    """
    return _profile(mechanism, np.asarray(epsilons, dtype=np.float64), None)


def _profile(mechanism: Mechanism, grid: Array, points: int | None) -> tuple[Array, Array]:
    answers = [mechanism.delta(epsilon, points=points) for epsilon in grid.ravel().tolist()]
    lower, upper = ([getattr(answer, end) for answer in answers] for end in ("lower", "upper"))
    return np.clip(lower, 0.0, 1.0).reshape(grid.shape), np.clip(upper, 0.0, 1.0).reshape(grid.shape)


@lru_cache(maxsize=64)
def trade_off(mechanism: Mechanism, values: int = 100) -> TradeOff:
    """The trade-off function of a mechanism.

    Args:
        mechanism: what is released.
        values: about so many values of the privacy profile are taken, at least 20: evenly from 0 to where delta is
            1e-2, on to 1e-9 and 1e-15 (not beyond epsilon = 50), and where they help most. What is not known between
            them is part of every bracket, whose width falls with the square of this number, down to that of delta (as
            the default grid gives it, hidden rounds not sampled).
    """
    checks.count("values", values, 20)
    body, tail, end = (
        min(mechanism.epsilon(delta, points=DEFAULT_POINTS).upper, _LARGEST_EPSILON) for delta in (1e-2, 1e-9, 1e-15)
    )
    mechanism = normal(mechanism)
    start = np.linspace(0.0, body, 7 * values // 20), np.linspace(body, tail, values // 4)
    epsilons = np.unique(np.concatenate(start))
    curve = TradeOff(epsilons, *_profile(mechanism, epsilons, DEFAULT_POINTS))
    for step in range(5):
        more = curve.coarsest(values // 10) if step < 4 else np.linspace(tail, end, values // 4 + 1)
        more = np.setdiff1d(more, curve.epsilons)  # both ends may be the same
        known, new = (curve.epsilons, curve.lower, curve.upper), (more, *_profile(mechanism, more, DEFAULT_POINTS))
        order = np.argsort(np.r_[curve.epsilons, more])
        curve = TradeOff(*(np.r_[old, fresh][order] for old, fresh in zip(known, new, strict=True)))
    return curve


def in_words(mechanism: Mechanism, false_positive_rate: float = 0.01, whom: str = "you") -> str:
    """The true positive rate at a false positive rate, rounded up, as a sentence for the people concerned.

    It holds for every test by an attacker who knows all but the noise, the hidden choices, and whether the person took
    part (under substitution: which data was used).

    Args:
        mechanism: the whole run.
        false_positive_rate: in (0, 1); taken at three digits.
        whom: the guarantee is about: "you", or what "it" can stand for.
    """
    rate = float(f"{checks.probability('false_positive_rate', false_positive_rate):.3g}")
    if not 0 < rate < 1:
        raise ValueError(f"false_positive_rate must be in (0, 1), got {false_positive_rate!r}")
    again = "you" if whom == "you" else "it"
    claim, denied, true = f"{whom} took part", f"{again} did not", f"{again} did"
    if mechanism.relation is Relation.SUBSTITUTION:
        claim, denied, true = "certain data was used and not certain other data", "the other was", "it was"
    curve = trade_off(mechanism)
    if curve.advantage.upper == 0:
        return f"Nothing that is released depends on whether {claim}: a suspicion stays a guess."
    people = 10 ** max(2, math.ceil(-math.log10(rate)))
    right = math.ceil(float(curve.true_positive_rate(rate)[1]) * people * 10) / 10
    number = f"{right:.1f}".removesuffix(".0")
    share = f"at most {number} of {people} cases" if right < people else "possibly every case"
    return (
        f"Somebody who suspects that {claim}, and accepts a false alarm in {rate * people:.4g} of {people} cases "
        f"in which {denied}, is right in {share} in which {true}."
    )
