"""Random selection among trained models, from Yin, Zaheer, Li 2026, "Differentially Private Model Merging"
(Theorems 5.1 and 5.2, Algorithms 1 and 2): one of N models is released, drawn with public weights that do not depend on
the data. It needs only each model's own privacy curve, and the models may be correlated.

Weights have shape (..., models), so a whole grid over the simplex is checked in one call.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from benchmarks.papers.bounds.arguments import Floats, check_orders, check_weights


def random_selection_rdp(curves: ArrayLike, weights: ArrayLike, orders: ArrayLike) -> Floats:
    """Theorem 5.1: Rényi divergences of random selection, shape (..., orders), in nats.

    Args:
        curves: each model's Rényi divergences, shape (models, orders), >= 0; infinity for a model without privacy.
        weights: selection probabilities, shape (..., models).
        orders: real numbers > 1.
    """
    alphas, log_moments = _log_moments(orders, curves)
    selected = check_weights("weights", weights, len(log_moments))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weights = np.log(selected)[..., None]
        # A model that is never selected costs nothing, even one without any privacy.
        terms = np.where(np.isneginf(log_weights), -np.inf, log_weights + log_moments)
    return np.asarray(logsumexp(terms, axis=-2)) / (alphas - 1)


def random_selection_delta(removal: ArrayLike, addition: ArrayLike, weights: ArrayLike) -> Floats:
    """Theorem 5.2 (Algorithm 2): delta of random selection at one epsilon, shape (...).

    Args:
        removal: each model's hockey-stick divergence H(P, Q) at that epsilon, shape (models,).
        addition: each model's H(Q, P) there, shape (models,). All H(P, Q) must mean the same direction (person in
            against person out), because the maximum is taken after mixing.
        weights: selection probabilities, shape (..., models).
    """
    out_of, into = _check_deltas("removal", removal), _check_deltas("addition", addition)
    if out_of.shape != into.shape:
        raise ValueError(f"addition must have as many models as removal, got {into.shape} and {out_of.shape}")
    selected = check_weights("weights", weights, len(out_of))
    return np.asarray(np.maximum(selected @ out_of, selected @ into))


def random_selection_epsilon(curves: ArrayLike, weights: ArrayLike, orders: ArrayLike, delta: float) -> Floats:
    """Algorithm 1, ``DP_Eps``: epsilon of random selection by Rényi divergence, shape (...).

    Weights are feasible for a budget exactly where this does not exceed its epsilon. As the paper does, it converts
    with ``log(1 / delta) / (order - 1)``, which is not the tightest conversion.

    Args:
        curves, weights, orders: as in :func:`random_selection_rdp`.
        delta: in (0, 1).
    """
    alphas = check_orders(orders)
    return np.asarray((random_selection_rdp(curves, weights, alphas) + _price(alphas, delta)).min(axis=-1))


def largest_weight_by_rdp(
    private: ArrayLike, other: ArrayLike, orders: ArrayLike, epsilon: float, delta: float
) -> float | None:
    """The boundary of Algorithm 1 for two models: the largest probability of releasing the other model.

    At each order the constraint is linear in that probability, so it is solved, not searched.

    Args:
        private, other: Rényi divergences of the two models, shape (orders,). The first is usually the more private.
        orders: real numbers > 1.
        epsilon, delta: the budget.

    Returns:
        The largest feasible probability in [0, 1], or None where no probability is feasible.
    """
    alphas, (low, high) = _log_moments(orders, np.stack([np.asarray(private, float), np.asarray(other, float)]))
    limits = (alphas - 1) * (epsilon - _price(alphas, delta))
    feasible = [_largest(a, b, limit) for a, b, limit in zip(low, high, limits, strict=True)]
    return max((weight for weight in feasible if weight is not None), default=None)


def largest_weight_by_delta(removal: ArrayLike, addition: ArrayLike, delta: float) -> float | None:
    """The boundary of Algorithm 2 for two models: the largest probability of releasing the second one.

    Args:
        removal, addition: both models' hockey-stick divergences at the target epsilon, each of shape (2,).
        delta: the budget at that epsilon, in [0, 1].

    Returns:
        The largest feasible probability in [0, 1], or None where no probability is feasible.
    """
    low, high = 0.0, 1.0
    for pair in (_check_deltas("removal", removal), _check_deltas("addition", addition)):
        if pair.shape != (2,):
            raise ValueError(f"removal and addition must hold one value for each of two models, got shape {pair.shape}")
        first, second = float(pair[0]), float(pair[1])
        if min(first, second) > delta:
            return None
        if second > delta:
            high = min(high, (delta - first) / (second - first))
        elif first > delta:
            low = max(low, (first - delta) / (first - second))
    return high if low <= high else None


def _log_moments(orders: ArrayLike, curves: ArrayLike) -> tuple[Floats, Floats]:
    """The orders and ``(order - 1) * curve``, shape (models, orders)."""
    alphas, divergences = check_orders(orders), np.asarray(curves, dtype=float)
    if divergences.ndim != 2 or divergences.shape[1] != len(alphas):
        raise ValueError(f"curves must have shape (models, {len(alphas)}), got {divergences.shape}")
    if not np.all(divergences >= 0):
        raise ValueError("curves must be >= 0")
    return alphas, (alphas - 1) * divergences


def _price(alphas: Floats, delta: float) -> Floats:
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    return math.log(1 / delta) / (alphas - 1)


def _largest(first: float, second: float, limit: float) -> float | None:
    """Largest w in [0, 1] with ``(1 - w) exp(first) + w exp(second) <= exp(limit)``, or None."""
    if second <= limit:
        return 1.0
    if first > limit:
        return None
    # exp(limit - second) scaled by how much of the way from the first to the second is left.
    return math.exp(limit - second) * -math.expm1(first - limit) / -math.expm1(first - second)


def _check_deltas(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"{name} must be a one-dimensional sequence of numbers in [0, 1], got {array}")
    return array
