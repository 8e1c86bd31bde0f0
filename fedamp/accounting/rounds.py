"""What a run has spent after each of its rounds."""

import math
from collections.abc import Sequence

import numpy as np

from fedamp.accounting import checks, renyi
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.moments import Array
from fedamp.accounting.renyi import HIGHEST_ORDER

CHECKPOINTS = 12
"""At how many rounds the numerical law is asked: at all of a short run."""


def epsilon_over_rounds(mechanism: Mechanism, delta: float, rounds: Sequence[int] | None = None) -> Array:
    """Upper ends of epsilon after each round: what has been spent when that many rounds are out.

    The numerical law at some rounds, and Rényi bounds for every round where the law is not much tighter; then what is
    spent at a round is at most what is spent at any later one, so the curve never falls, never exceeds the whole, and
    ends at ``mechanism.epsilon(delta).upper``.

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
    whole = mechanism.epsilon(delta).upper
    spent = np.full(len(asked) + 1, np.inf)
    spent[-1] = whole
    for i in _checkpoints(len(asked)):
        spent[i] = _by_law(mechanism.after(asked[i]), delta)
    if not np.isfinite(spent[_checkpoints(len(asked))]).all() or _by_law(mechanism, delta) > 1.01 * whole:
        spent[:-1] = np.minimum(spent[:-1], _by_moments(mechanism, delta, asked))
    return np.minimum.accumulate(spent[::-1])[::-1][:-1]


def _by_moments(mechanism: Mechanism, delta: float, rounds: list[int]) -> Array:
    orders = renyi.search_orders(HIGHEST_ORDER)
    spent = np.empty(len(rounds))
    for chunk in np.array_split(np.arange(len(rounds)), max(1, math.ceil(len(rounds) / 1000))):
        if len(chunk):
            log_moments = mechanism._log_moments_over_rounds([rounds[i] for i in chunk], HIGHEST_ORDER)
            spent[chunk] = renyi.epsilons(orders, renyi.at_orders(log_moments, orders), delta).min(axis=-1)
    return spent


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
