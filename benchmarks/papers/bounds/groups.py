"""Group privacy under Poisson sampling, from Schuchardt, Stoian, Kosmala, Günnemann 2024, "Group Privacy Amplification
and Unified Amplification by Subsampling for Rényi Differential Privacy" (Theorems 4.1, 4.2, G.1; baselines 2.10, B.1).

Groups of ``size`` people are inserted or removed together. Results are Rényi divergences in nats, shape (orders,), the
larger of both directions. The paper's Psi is ``exp((order - 1) * divergence)``.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.papers.bounds.arguments import Floats, check_count, check_orders, check_positive, check_probability
from benchmarks.papers.bounds.mixtures import renyi_of_mixtures
from benchmarks.papers.bounds.subsampling import finite_base, log_binomial, renyi_of_finite

_MOST_CHAINS = 1_000_000


def group_poisson_by_enumeration(
    laws: ArrayLike, distances: ArrayLike, rate: float, size: int, orders: ArrayLike
) -> Floats:
    """Theorem 4.1, evaluated exactly for a base mechanism with finitely many batches and outputs.

    Args:
        laws: output probabilities, shape (batches, outputs).
        distances: insertion/removal distances between batches, shape (batches, batches).
        rate: Poisson sampling rate in [0, 1].
        size: people in the group.
        orders: real numbers > 1.

    Raises:
        ValueError: if the chains of ``size + 1`` batches to try are more than a million.
    """
    alphas, weights = check_orders(orders), group_weights(rate, size)
    outputs, apart = finite_base(laws, distances)
    if len(outputs) ** (size + 1) > _MOST_CHAINS:
        raise ValueError(f"size must leave at most {_MOST_CHAINS} chains of batches, got {len(outputs)}^{size + 1}")
    chains = np.array(list(itertools.product(range(len(outputs)), repeat=size + 1)))
    for one, two in itertools.combinations(range(size + 1), 2):
        chains = chains[apart[chains[:, one], chains[:, two]] <= two - one]
    mixed, none = np.einsum("k,cko->co", weights, outputs[chains]), outputs[chains[:, 0]]
    return _both_directions(alphas, mixed, none)


def group_poisson_gaussian(noise_multiplier: float, rate: float, size: int, orders: ArrayLike) -> Floats:
    """Theorem 4.2 (tight): the Gaussian mechanism on a Poisson sample, for a group.

    The batch holds i people of the group with binomial probability, and i of them move its output by at most i
    sensitivities; the worst case has them all on one line.

    Args:
        noise_multiplier: noise standard deviation over the l2 sensitivity of one insertion.
        rate: Poisson sampling rate in [0, 1].
        size: people in the group.
        orders: real numbers > 1.
    """
    check_positive("noise_multiplier", noise_multiplier)
    weights = group_weights(rate, size)
    means = np.arange(size + 1) / noise_multiplier
    one, zero = np.array([1.0]), np.array([0.0])
    removal = renyi_of_mixtures(orders, weights, means, one, zero)
    return np.maximum(removal, renyi_of_mixtures(orders, one, zero, weights, means))


def group_poisson_randomized_response(true_response: float, rate: float, size: int, orders: ArrayLike) -> Floats:
    """Theorem G.1 (tight): randomised response on a Poisson sample, for a group.

    Corrected: the second term's numerator is to the power alpha, not alpha - 1, which would charge log(2) / (alpha - 1)
    even at rate 0. The maximum over the answers of the ``size + 1`` batches needs no search: the mixture is furthest
    from the batch without the group when all the others answer the opposite, so the group counts as one person sampled
    at rate ``1 - (1 - rate)^size``.

    Args:
        true_response: probability of answering truly, in [0, 1].
        rate: Poisson sampling rate in [0, 1].
        size: people in the group.
        orders: real numbers > 1.
    """
    alphas, theta = check_orders(orders), check_probability("true_response", true_response)
    nobody = float(group_weights(rate, size)[0])
    none = np.array([[theta, 1 - theta]])
    return _both_directions(alphas, nobody * none + (1 - nobody) * none[:, ::-1], none)


def group_property(individual: Callable[[Floats], Floats], size: int, orders: ArrayLike) -> Floats:
    """Appendix B.1: group privacy from the individual curve alone, halving the group log2(size) times.

    Corrected: Mironov 2017, Corollary 4 is ``D_a(p, q) <= (a - 1/2) / (a - 1) D_2a(p, r) + D_(2a - 1)(r, q)``. The
    paper prints a factor ``a / (a - 1)`` in the last term, which is a valid but looser bound.

    Args:
        individual: the curve of one person, a function from orders of shape (n,) to divergences of shape (n,),
            holding in both directions.
        size: people in the group, a power of two.
        orders: real numbers > 1.
    """
    alphas = check_orders(orders)
    if check_count("size", size) & (size - 1):
        raise ValueError(f"size must be a power of two, got {size}")
    if size == 1:
        return np.asarray(individual(alphas))
    doubled = group_property(individual, size // 2, 2 * alphas)
    return (alphas - 0.5) / (alphas - 1) * doubled + group_property(individual, size // 2, 2 * alphas - 1)


def group_property_simple(individual: Callable[[Floats], Floats], size: int, orders: ArrayLike) -> Floats:
    """Proposition 2.10 (Mironov 2017, Proposition 2): ``3^log2(size)`` times the curve at ``size`` times the order.

    Args:
        individual: the curve of one person, holding in both directions.
        size: people in the group, a power of two.
        orders: real numbers >= 2.
    """
    alphas = check_orders(orders)
    if np.any(alphas < 2):
        raise ValueError(f"orders must be >= 2 for this bound, got {alphas}")
    if check_count("size", size) & (size - 1):
        raise ValueError(f"size must be a power of two, got {size}")
    return 3.0 ** math.log2(size) * np.asarray(individual(size * alphas))


def group_weights(rate: float, size: int) -> Floats:
    """Probabilities that 0, 1, ..., ``size`` people of the group are in a Poisson sample at ``rate``."""
    return np.asarray(np.exp(log_binomial(check_count("size", size), check_probability("rate", rate))))


def _both_directions(alphas: Floats, mixed: Floats, none: Floats) -> Floats:
    """The larger of both divergences, over all pairs of rows of output probabilities."""
    forward, reverse = renyi_of_finite(alphas, mixed, none), renyi_of_finite(alphas, none, mixed)
    return np.asarray(np.maximum(forward, reverse).max(axis=1))
