"""Random selection: one of several models is released, drawn with weights that do not depend on the data.

Yin, Zaheer, Li 2026: the cost follows from each model's own cost. Models may be correlated, because only one of them
is released (Theorems 5.1 and 5.2). The weights that keep a budget are a union of half-spaces: one by privacy loss,
``sum of w_i delta_i(epsilon) <= delta``, and one for every Rényi order a,
``sum of w_i E[X_i^a] <= exp((a - 1) epsilon')``. Both are written as ``costs @ w <= 1`` below.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedamp.accounting import Bounds, Mechanism, RandomSelection
from fedamp.accounting.bounds import log_deltas, search_orders
from fedamp.errors import MergeError
from fedamp.studies.merging.candidates import Candidates
from fedamp.studies.merging.decision import FIXED_WEIGHTS, Array, Decision, MergeRequest, Weights, exact

Rank = Callable[[Weights], Any]  # to maximise: linear or lexicographic, so that a vertex attains the maximum

BY_PRIVACY_LOSS, BY_RENYI = "privacy loss", "Rényi divergences"
ONE_DRAW = "The model was drawn once, and no draw was discarded."

# Rounding: the second model is drawn this much less often than a half-space allows. The first margin that keeps the
# budget is taken.
_MARGINS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0)
_ORDERS = search_orders(256)


def select(request: MergeRequest, candidates: Candidates) -> Decision:
    """The weights of a random selection.

    Raises:
        MergeError: no weights are within the budget.
    """
    mechanisms, best, delta, utility = candidates.mechanisms, dict[str, Weights](), request.delta, request.utility
    assumptions: tuple[str, ...] = (ONE_DRAW, FIXED_WEIGHTS)
    if request.weights is not None:
        weights, chosen_by = request.weights, "given"
    else:
        rank: Rank
        if isinstance(utility, tuple):
            rank, chosen_by = partial(np.dot, utility), f"largest expected utility of {list(utility)}"
        else:
            rank, chosen_by = least_private_first(mechanisms, delta), "least private model first"
            assumptions = (ONE_DRAW,)
        best = best_weights(mechanisms, rank, request.epsilon, delta)
        if not best:
            cheapest = min(part.epsilon(delta).upper for part in mechanisms)
            raise MergeError(
                f"no weights keep epsilon <= {request.epsilon:g} at delta = {delta:g}; "
                f"the most private model alone costs {cheapest:.4g}"
            )
        weights = max(best.values(), key=rank)
    mechanism, cost = RandomSelection(mechanisms, weights), selection_epsilon(mechanisms, weights, delta)
    costs = partial(selection_epsilons, mechanisms, delta=delta)
    return Decision(tuple(mechanism.weights), mechanism, cost, chosen_by, assumptions, costs, best)


def least_private_first(mechanisms: Sequence[Mechanism], delta: float) -> Rank:
    """The rank that keeps probability away from the most private model first, then from the next one, and so on.

    It depends on the mechanisms alone, not on the data. Less noise is usually more accurate.
    """
    order = np.argsort([part.epsilon(delta).upper for part in mechanisms], kind="stable")
    return lambda weights: tuple(-round(weights[index], 12) for index in order)


def selection_epsilon(mechanisms: Sequence[Mechanism], weights: Sequence[float], delta: float) -> Bounds:
    """The cost of random selection: the accountant's bracket, with the upper end of Theorem 5.2 where that is smaller.

    Theorem 5.2 uses the tightest bound of each model: an exact law of one, Rényi divergences of another. A model
    without privacy costs all of its weight in delta, for every epsilon.
    """
    used = [(part, weight) for part, weight in zip(mechanisms, weights, strict=True) if weight > 0]
    if len(used) == 1:
        return used[0][0].epsilon(delta)
    cost = RandomSelection(mechanisms, weights).epsilon(delta)

    def fits(epsilon: float) -> bool:
        spent = math.fsum(weight * part.delta(epsilon).upper for part, weight in used)
        return spent * (1 + 2**-51) <= delta  # products and sum are rounded, by 2**-53 each

    if math.isinf(cost.upper) or not fits(cost.upper):
        return cost
    low, high = cost.lower, cost.upper
    while high - low > 1e-10 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return Bounds(min(cost.lower, high), high, f"random selection by {BY_PRIVACY_LOSS}")


def best_weights(mechanisms: Sequence[Mechanism], rank: Rank, epsilon: float, delta: float) -> dict[str, Weights]:
    """The weights of the highest rank by each accounting; an accounting without weights in the budget has none.

    ``mechanisms`` are the costs of each model's release; ``NotPrivate`` for a model without privacy.
    """
    models, best = len(mechanisms), {}
    for name, by in ((BY_PRIVACY_LOSS, _costs_by_privacy_loss), (BY_RENYI, _costs_by_renyi)):
        edges = [edge for costs in by(mechanisms, epsilon, delta) for edge in _edges(costs)]
        if edges:
            first, second, share = max(edges, key=lambda edge: rank(_weights(models, *edge)))
            tried = (_weights(models, first, second, share * (1 - margin)) for margin in _MARGINS)
            best[name] = next(row for row in tried if selection_epsilon(mechanisms, row, delta).upper <= epsilon)
    return best


def _costs_by_privacy_loss(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> Array:
    """Theorem 5.2, shape (1, models)."""
    costs = np.array([part.delta(epsilon).upper / delta for part in mechanisms])
    # Epsilon and delta are inverse only up to rounding; a model that just keeps the budget must stay in it.
    alone = np.array([part.epsilon(delta).upper <= epsilon for part in mechanisms])
    return np.where(alone, np.minimum(costs, 1.0), np.maximum(costs, np.nextafter(1.0, 2.0)))[None]


def _costs_by_renyi(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> Array:
    """Theorem 5.1; shape (orders, models)."""
    logs = np.stack([log_deltas(_ORDERS, part.rdp(_ORDERS), epsilon) for part in mechanisms], axis=1)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(logs - math.log(delta)))


def _edges(costs: Array) -> Iterator[tuple[int, int, float]]:
    """The corners of {w on the simplex: costs @ w <= 1}: two models, and the weight of the second."""
    for first in np.flatnonzero(costs <= 1):
        yield int(first), int(first), 1.0
        for second in np.flatnonzero(costs > 1):
            yield int(first), int(second), float((1 - costs[first]) / (costs[second] - costs[first]))


def _weights(models: int, first: int, second: int, share: float) -> Weights:
    weights = np.zeros(models)
    weights[first] = 1 - share
    weights[second] = 1.0 if first == second else share
    return exact(weights.tolist())


def selection_epsilons(mechanisms: Sequence[Mechanism], grid: Array, delta: float) -> Array:
    """An upper bound on the cost of each row of weights by privacy loss; shape (rows,).

    For pictures: accurate to 1 per cent of the most expensive private model. It is infinite above four times that cost,
    which happens if a model without privacy is drawn with a probability near delta.
    """
    alone = np.array([part.epsilon(delta).upper for part in mechanisms])
    highest, steps = max(alone, default=1.0), 101
    if np.isinf(alone).any():
        highest, steps = 4 * max(alone[np.isfinite(alone)], default=1.0), 401
    epsilons = np.linspace(0.0, highest, steps)
    deltas = np.array([[part.delta(float(epsilon)).upper for part in mechanisms] for epsilon in epsilons])
    enough = grid @ deltas.T <= delta
    # Before rounding can hide it: no epsilon makes up for the delta of a model without privacy.
    enough &= (grid @ np.isinf(alone) < delta)[:, None]
    smallest = np.where(enough.any(axis=1), epsilons[enough.argmax(axis=1)], math.inf)
    return np.where(grid.max(axis=1) == 1, alone[grid.argmax(axis=1)], smallest)
