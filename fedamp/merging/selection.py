"""Random selection: one of several models is released, drawn with weights that do not depend on the data.

Yin, Zaheer, Li 2026: a model's own cost is all that is needed, and the models may be correlated, because only one of
them is ever released (Theorems 5.1 and 5.2). The weights that keep a budget are a union of half-spaces: one by privacy
loss, ``sum of w_i delta_i(epsilon) <= delta``, and one for every Rényi order a,
``sum of w_i E[X_i^a] <= exp((a - 1) epsilon')``. Both are cut to ``costs @ w <= 1`` below.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting import Bounds, Mechanism, RandomSelection, renyi

Array = NDArray[np.float64]
Rank = Callable[[tuple[float, ...]], Any]
"""What to maximise over weights; linear or lexicographic in them, so that a vertex attains the maximum."""

MARGIN = 1e-6  # by which mixed weights stay inside the budget, so that rounding cannot put them outside
BY_PRIVACY_LOSS, BY_RENYI = "privacy loss", "Rényi divergences"


@dataclass(frozen=True)
class Feasible:
    """Weights within a budget.

    Attributes:
        weights: shape (models,), >= 0, sum 1.
        accounting: which accounting shows that they are within it.
    """

    weights: tuple[float, ...]
    accounting: str


def best_weights(mechanisms: Sequence[Mechanism], rank: Rank, epsilon: float, delta: float) -> dict[str, Feasible]:
    """The best feasible weights by each accounting; an accounting by which no weights are feasible is left out.

    Args:
        mechanisms: what each model's release costs; ``NotPrivate`` for a model without privacy.
        rank: what to maximise.
        epsilon, delta: the budget.
    """
    best = {}
    for accounting, rows in (
        (BY_PRIVACY_LOSS, _costs_by_privacy_loss(mechanisms, epsilon, delta)),
        (BY_RENYI, _costs_by_renyi(mechanisms, epsilon, delta)),
    ):
        feasible = [weights for costs in rows for weights in _vertices(costs)]
        if feasible:
            best[accounting] = Feasible(max(feasible, key=rank), accounting)
    return best


def least_private_first(mechanisms: Sequence[Mechanism], delta: float) -> Rank:
    """The rank that keeps probability away from the most private model first, then from the next one, and so on.

    It depends on the mechanisms alone, not on the data. Less noise is usually more accurate.
    """
    order = np.argsort([part.epsilon(delta).upper for part in mechanisms], kind="stable")
    return lambda weights: tuple(-round(weights[index], 12) for index in order)


def most_accurate_first(accuracies: Sequence[float]) -> Rank:
    """The rank that gives probability to the most accurate model first, then to the next one, and so on."""
    order = np.argsort(-np.asarray(accuracies), kind="stable")
    return lambda weights: tuple(round(weights[index], 12) for index in order)


def selection_epsilon(mechanisms: Sequence[Mechanism], weights: Sequence[float], delta: float) -> Bounds:
    """What random selection costs: the smaller of the bounds by privacy loss and by Rényi divergences.

    A model without privacy costs all of its weight in delta, whatever epsilon is.
    """
    used = [(part, weight) for part, weight in zip(mechanisms, weights, strict=True) if weight > 0]
    if len(used) == 1:
        return used[0][0].epsilon(delta)
    mixture = RandomSelection(mechanisms, weights).epsilon(delta)
    if mixture.upper == math.inf:  # a model without privacy is drawn too often, or no cost is known
        return mixture
    parts, shares = zip(*used, strict=True)
    by_loss = _smallest_epsilon(parts, shares, delta)
    orders = renyi.search_orders(renyi.HIGHEST_ORDER)
    by_renyi = renyi.best_epsilon(orders, _selection_rdp(parts, shares, orders), delta)
    upper, method = min((by_loss, BY_PRIVACY_LOSS), (by_renyi.value, f"{BY_RENYI}, order {by_renyi.order:g}"))
    # The models may be told apart, so that the mixture's lower end holds; its upper end is rounded once more.
    return Bounds(min(mixture.lower, upper), upper, f"random selection by {method}")


def selection_epsilons(mechanisms: Sequence[Mechanism], grid: Array, delta: float) -> Array:
    """What each row of a grid of weights costs by privacy loss, at most; shape (rows,).

    For pictures: to 1 per cent of the dearest private model, and infinite where it is more than four times that, as
    it can be where a model without privacy is drawn with a probability near delta.
    """
    alone = [part.epsilon(delta).upper for part in mechanisms]
    finite = [epsilon for epsilon in alone if math.isfinite(epsilon)]
    highest = max(finite, default=1.0) * (1 if len(finite) == len(alone) else 4)
    epsilons = np.linspace(0.0, highest, 101 if len(finite) == len(alone) else 401)
    deltas = np.array([[part.delta(float(epsilon)).upper for part in mechanisms] for epsilon in epsilons])
    enough = grid @ deltas.T <= delta
    # Said before rounding can hide it: what a model without privacy takes of delta, epsilon cannot buy back.
    enough &= (grid @ np.isinf(alone) < delta)[:, None]
    smallest = np.where(enough.any(axis=1), epsilons[enough.argmax(axis=1)], math.inf)
    pure = grid.max(axis=1) == 1
    return np.where(pure, np.array(alone)[grid.argmax(axis=1)], smallest)


# --- the half-spaces --------------------------------------------------------------------------------------------------


def _costs_by_privacy_loss(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> Array:
    """Theorem 5.2, shape (1, models)."""
    costs = [part.delta(epsilon).upper / delta for part in mechanisms]
    # Epsilon and delta are inverse up to rounding only; a model that just keeps the budget must not fall out of it.
    alone = [part.epsilon(delta).upper <= epsilon for part in mechanisms]
    return np.array([[min(cost, 1.0) if fits else cost for cost, fits in zip(costs, alone, strict=True)]])


def _costs_by_renyi(mechanisms: Sequence[Mechanism], epsilon: float, delta: float) -> Array:
    """Theorem 5.1 with the tight conversion to epsilon, shape (orders, models)."""
    orders = renyi.search_orders(renyi.HIGHEST_ORDER)
    limits = (orders - 1) * (epsilon - renyi.prices(orders, delta))
    log_moments = (orders - 1) * np.stack([part.rdp(orders) for part in mechanisms])
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(log_moments - limits).T)


def _vertices(costs: Array) -> Iterator[tuple[float, ...]]:
    """The corners of {w on the simplex: costs @ w <= 1}; on its cut edges a little inside."""
    for first, cost in enumerate(costs):
        if cost <= 1:
            yield _weights(len(costs), first, first, 0.0)
            for second in np.flatnonzero(costs > 1):
                with np.errstate(invalid="ignore"):
                    share = (1 - cost) / (costs[second] - cost) * (1 - MARGIN)
                yield _weights(len(costs), first, int(second), float(share))


def _weights(models: int, first: int, second: int, share: float) -> tuple[float, ...]:
    weights = np.zeros(models)
    weights[first], weights[second] = 1 - share, share
    if first == second:
        weights[first] = 1.0
    return tuple(weights.tolist())


# --- the cost of given weights ----------------------------------------------------------------------------------------


def _smallest_epsilon(parts: Sequence[Mechanism], shares: Sequence[float], delta: float) -> float:
    """Smallest epsilon with ``sum of w_i delta_i(epsilon) <= delta``, from above to 1e-10; infinite above 1e4."""

    def fits(epsilon: float) -> bool:
        return sum(w * part.delta(epsilon).upper for part, w in zip(parts, shares, strict=True)) <= delta

    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
        if high > 1e4:
            return math.inf
    while high - low > 1e-10 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _selection_rdp(parts: Sequence[Mechanism], shares: Sequence[float], orders: Array) -> Array:
    log_moments = (orders - 1) * np.stack([part.rdp(orders) for part in parts])
    return np.asarray(np.logaddexp.reduce(log_moments + np.log(shares)[:, None], axis=0) / (orders - 1))
