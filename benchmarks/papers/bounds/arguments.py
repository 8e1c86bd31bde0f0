"""Checks of the arguments that every paper's functions share. Each raises ``ValueError`` naming the argument."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def check_orders(orders: ArrayLike, integer: bool = False) -> Floats:
    """``orders`` as a one-dimensional float array; each must be finite and > 1 (an integer >= 2 if ``integer``)."""
    array = np.atleast_1d(np.asarray(orders, dtype=float))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"orders must be a number or a non-empty one-dimensional sequence, got shape {array.shape}")
    if not np.all(np.isfinite(array)) or not np.all(array > 1):
        raise ValueError(f"orders must be finite and > 1, got {array}")
    if integer and np.any(array != np.round(array)):
        raise ValueError(f"orders must be integers >= 2 for this bound, got {array}")
    return array


def check_positive(name: str, value: float) -> float:
    """``value`` if it is finite and > 0."""
    if not np.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be > 0, got {value}")
    return float(value)


def check_probability(name: str, value: float) -> float:
    """``value`` if it lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return float(value)


def check_count(name: str, value: int, least: int = 1) -> int:
    """``value`` as an int if it is a whole number >= ``least``."""
    if value != value or value != int(value) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value}")
    return int(value)


def check_weights(name: str, weights: ArrayLike, models: int) -> Floats:
    """``weights`` of shape (..., models), each row on the probability simplex (to 1e-9)."""
    array = np.asarray(weights, dtype=float)
    if array.ndim == 0 or array.shape[-1] != models:
        raise ValueError(f"{name} must have {models} entries in the last axis, got shape {array.shape}")
    if not np.all(array >= 0) or not np.allclose(array.sum(axis=-1), 1, rtol=0, atol=1e-9):
        raise ValueError(f"{name} must be >= 0 and sum to 1, got {array}")
    return array


def check_sequence(name: str, values: Sequence[float], length: int) -> Floats:
    """``values`` as a float array of shape (length,) without NaN."""
    array = np.asarray(values, dtype=float)
    if array.shape != (length,) or np.any(np.isnan(array)):
        raise ValueError(f"{name} must hold {length} numbers, got {values}")
    return array
