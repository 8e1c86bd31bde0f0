"""What a run has spent after each of its rounds."""

import math
from collections.abc import Sequence

import numpy as np

from fedamp.accounting import checks, renyi
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.moments import Array
from fedamp.accounting.renyi import HIGHEST_ORDER

CHECKPOINTS = 16
"""At how many rounds the numerical law is asked: at all of a short run."""


def epsilon_over_rounds(mechanism: Mechanism, delta: float, rounds: Sequence[int] | None = None) -> Array:
    """Upper ends of epsilon after each round: what has been spent when that many rounds are out.

    Rényi bounds for every round, the numerical law at some; then what is spent at a round is at most what is spent at
    any later one, so the curve never falls, never exceeds the whole, and ends at ``mechanism.epsilon(delta).upper``.

    Args:
        mechanism: the whole run.
        delta: in (0, 1).
        rounds: which rounds, ascending, each from 0 to ``mechanism.span``; all from 1 on if left out.

    Returns:
        shape (len(rounds),).
    """
    checks.delta(delta)
    asked = list(range(1, mechanism.span + 1)) if rounds is None else list(rounds)
    for number in asked:
        checks.count("rounds", number, 0, mechanism.span)
    if sorted(asked) != asked:
        raise ValueError("rounds must be ascending")
    if not mechanism.is_private:
        return np.array([mechanism.after(number).epsilon(delta).upper for number in asked])
    orders = renyi.search_orders(HIGHEST_ORDER)
    spent = np.empty(len(asked))
    for chunk in np.array_split(np.arange(len(asked)), max(1, math.ceil(len(asked) / 1000))):
        if len(chunk):
            log_moments = mechanism._log_moments_over_rounds([asked[i] for i in chunk], HIGHEST_ORDER)
            spent[chunk] = renyi.epsilons(orders, renyi.at_orders(log_moments, orders), delta).min(axis=-1)
    spent = np.append(spent, mechanism.epsilon(delta).upper)
    for i in _checkpoints(len(asked)):
        spent[i] = min(spent[i], _by_law(mechanism.after(asked[i]), delta))
    return np.minimum.accumulate(spent[::-1])[::-1][:-1]


def _checkpoints(count: int) -> list[int]:
    """At most ``CHECKPOINTS`` of the numbers 0..count-1, denser at first, where the curve is steep."""
    steps = (np.arange(CHECKPOINTS + 1) / CHECKPOINTS) ** 1.5
    return np.unique((steps[:-1] * count).astype(int)).tolist() if count > CHECKPOINTS else list(range(count))


def _by_law(mechanism: Mechanism, delta: float) -> float:
    """Upper end of the numerical law, at few points; infinite where there is none."""
    from fedamp.accounting.law import NotEvaluable

    try:
        return mechanism._law_upper(delta, 300)
    except NotEvaluable:
        return math.inf
