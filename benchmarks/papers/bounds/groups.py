"""Schuchardt, Stoian, Kosmala, Günnemann 2024: baselines and bounds of groups under subsampling.

Results are Rényi divergences in nats, shape (orders,), the larger of both directions. The paper's Psi is
``exp((order - 1) * divergence)``. Theorem 4.2 is ``mixtures.sampled_gaussian_rdp``.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp
from scipy.stats import hypergeom

from benchmarks.papers.bounds.mixtures import Floats

Curve = Callable[[Floats], Floats]
"""Divergences at orders."""


def group_property(individual: Curve, size: int, orders: Floats, printed: bool = False) -> Floats:
    """Appendix B.1: the group property from one person's curve, halving the group log2(size) times.

    Corrected: Mironov 2017, Corollary 4, has no factor ``a / (a - 1)`` in the last term; ``printed`` adds it.
    """
    if size == 1:
        return individual(orders)
    doubled = group_property(individual, size // 2, 2 * orders, printed)
    last = group_property(individual, size // 2, 2 * orders - 1, printed)
    return (orders - 0.5) / (orders - 1) * doubled + (orders / (orders - 1) if printed else 1.0) * last


def response_rdp(true_response: float, rate: float, size: int, orders: Floats) -> Floats:
    """Theorem G.1 (tight): randomised response on a Poisson sample, for a group.

    Corrected: the second term's numerator is to the power alpha, not alpha - 1, which would charge log(2) / (alpha - 1)
    even at rate 0. The worst answers are those where the bit turns if anybody of the group is in the batch.
    """
    turned = true_response + (1 - (1 - rate) ** size) * (1 - 2 * true_response)
    return np.maximum(coin_rdp(turned, true_response, orders), coin_rdp(true_response, turned, orders))


def substituted_response_rdp(true_response: float, fraction: float, orders: Floats) -> Floats:
    """Theorem 3.7 (tight): randomised response on a batch without replacement, one record substituted.

    ``fraction`` is the batch size over the number of records.
    """
    answers = itertools.product((true_response, 1 - true_response), repeat=3)
    pairs = (
        ((1 - fraction) * rest + fraction * old, (1 - fraction) * rest + fraction * new) for rest, old, new in answers
    )
    return np.max([coin_rdp(one, other, orders) for one, other in pairs], axis=0)


def coin_rdp(one: float, other: float, orders: Floats) -> Floats:
    """The divergence of two biased coins."""
    heads = orders * math.log(one) + (1 - orders) * math.log(other)
    tails = orders * math.log1p(-one) + (1 - orders) * math.log1p(-other)
    return np.maximum(np.logaddexp(heads, tails) / (orders - 1), 0.0)


def substitution_baseline(base: Curve, pure: float, fraction: float, orders: Floats) -> Floats:
    """Wang, Balle, Kasiviswanathan 2019, Theorem 9: a batch without replacement, one record substituted.

    Args:
        base: of the mechanism without sampling, for substitution.
        pure: its epsilon at delta 0; may be infinite.
        fraction: batch size over the number of records.
        orders: whole, >= 2.
    """
    powers = np.arange(2, int(orders.max()) + 1, dtype=float)
    moments = (powers - 1) * base(powers)
    log_growth = math.log(math.expm1(pure)) if pure < 700 else pure
    others = moments + powers * log_growth
    square = float(base(np.array([2.0]))[0])
    others[0] = min(others[0], math.log(4 * math.expm1(square)) if square < 700 else math.inf)
    log_terms = np.minimum(math.log(2) + moments, others)

    def divergence(order: float) -> float:
        kept = powers[: int(order) - 1]
        log_choose = gammaln(order + 1) - gammaln(kept + 1) - gammaln(order - kept + 1)
        terms = log_choose + kept * math.log(fraction) + log_terms[: len(kept)]
        return float(np.logaddexp(0.0, logsumexp(terms))) / (order - 1)

    return np.array([divergence(order) for order in orders.tolist()])


def group_transport_rdp(noise_multiplier: float, batch: int, population: int, size: int, orders: Floats) -> Floats:
    """Proposition E.5 (Daigavane et al. 2022): Gaussian noise on a batch without replacement, a group substituted.

    Corrected: the paper prints Psi_k where the order stays alpha and k is the distance; as printed, one record would
    cost nothing. The noise is in sizes of one substitution.
    """
    hit = np.arange(min(size, batch) + 1)
    log_psi = (orders - 1) * orders * hit[:, None] ** 2 / (2 * noise_multiplier**2)
    log_hit = hypergeom.logpmf(hit, population, size, batch)[:, None]
    return np.asarray(logsumexp(log_hit + log_psi, axis=0) / (orders - 1))
