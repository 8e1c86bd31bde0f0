"""Rényi divergences of both directions, and their conversion to (epsilon, delta).

A table of *log moments* has shape (A + 1,) and holds, at index a, the larger of log E[X^a] (remove direction) and log
E[X^(1-a)] (add direction); the Rényi divergence of order a is that over a - 1. log E[X^a] is convex in a and 0 at a =
1, so straight lines between whole orders are upper bounds.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedamp.accounting import checks
from fedamp.accounting.bounds import Array

Conversion = Literal["tight", "loose"]

HIGHEST_ORDER = 256


class Best(NamedTuple):
    """The best value over all orders, and the order that gave it."""

    value: float
    order: float


def search_orders(highest: int) -> Array:
    """The orders searched by conversions: dense below 10, whole ones above; shape (n,)."""
    dense = np.concatenate([1 + np.geomspace(0.01, 1, 20)[:-1], np.linspace(2, 10, 81)])
    return np.concatenate([dense[dense < min(10, highest)], np.arange(min(10, highest), highest + 1)])


def at_orders(log_moments: Array, orders: Array) -> Array:
    """Rényi divergences at any orders in (1, A], by linear interpolation of ``(a - 1) * divergence``; leading axes
    are kept.
    """
    low = np.clip(np.floor(orders).astype(int), 1, log_moments.shape[-1] - 2)
    part = orders - low
    low_moments, high_moments = log_moments[..., low], log_moments[..., low + 1]
    with np.errstate(invalid="ignore"):
        between = np.where(part > 0, low_moments + part * (high_moments - low_moments), low_moments)
    return np.asarray(np.where(np.isnan(between), np.inf, np.maximum(between, 0.0)) / (orders - 1))


def checked_orders(orders: Sequence[float] | Array | float) -> Array:
    """Orders as an array of shape (n,), each > 1 and finite, or ValueError."""
    array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if array.ndim != 1 or not array.size or not np.all((array > 1) & (array < np.inf)):
        raise ValueError(f"orders must be > 1 and finite, got {orders!r}")
    return array


def prices(orders: Array, delta: float, conversion: Conversion = "tight") -> Array:
    """What the conversion to (epsilon, delta) adds to the divergence of each order; the shape of ``orders``.

    "tight": Canonne, Kamath and Steinke 2020, Proposition 12 (also Balle et al. 2020, Theorem 21); "loose": Mironov
    2017, Proposition 3, which the tables of Dong, Chen and Özgür 2025 use.
    """
    price = -np.log(delta) / (orders - 1)
    if conversion == "tight":
        price = price + np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
    elif conversion != "loose":
        raise ValueError(f'conversion must be "tight" or "loose", got {conversion!r}')
    return np.asarray(price)


def epsilons(orders: Array, divergences: Array, delta: float, conversion: Conversion = "tight") -> Array:
    """epsilon that each order gives at ``delta``; the shape of ``divergences``. See ``prices`` for the conversions."""
    return np.maximum(divergences + prices(orders, delta, conversion), 0.0)


def epsilon_from_rdp(
    orders: Sequence[float] | Array,
    divergences: Sequence[float] | Array,
    delta: float,
    conversion: Conversion = "tight",
) -> float:
    """epsilon at ``delta`` of Rényi divergences at some orders, both of shape (n,); see ``prices`` for the
    conversions.
    """
    checked, values = checked_orders(orders), np.asarray(divergences, dtype=np.float64)
    if values.shape != checked.shape or not np.all(values >= 0):
        raise ValueError(f"divergences must be >= 0 and one for each order, got {divergences!r}")
    return best_epsilon(checked, values, delta, conversion).value


def best_epsilon(orders: Array, divergences: Array, delta: float, conversion: Conversion = "tight") -> Best:
    """Smallest epsilon over all orders."""
    values = epsilons(orders, divergences, checks.delta(delta), conversion)
    best = int(np.argmin(values))
    return Best(float(values[best]), float(orders[best]))


def best_delta(orders: Array, divergences: Array, epsilon: float) -> Best:
    """Smallest delta over all orders (Canonne, Kamath and Steinke 2020, Proposition 12), at most 1."""
    with np.errstate(over="ignore"):
        logs = (orders - 1) * (divergences - epsilon) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
    best = int(np.argmin(logs))
    return Best(float(np.exp(min(logs[best], 0.0))), float(orders[best]))
