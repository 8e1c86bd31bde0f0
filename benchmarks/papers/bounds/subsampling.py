"""Amplification by subsampling, from Schuchardt, Stoian, Kosmala, Günnemann 2024, "Group Privacy Amplification and
Unified Amplification by Subsampling for Rényi Differential Privacy" (Theorems 3.6, 3.7, F.2, F.3 and the baselines
E.2, E.4, E.5). Their Psi is here always turned into the Rényi divergence ``log(Psi) / (order - 1)`` in nats.

``base`` is a function of :mod:`benchmarks.papers.bounds.base`; every result has shape (orders,).
"""

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp, xlog1py, xlogy
from scipy.stats import hypergeom

from benchmarks.papers.bounds.arguments import Floats, check_count, check_orders, check_positive, check_probability
from benchmarks.papers.bounds.base import BaseDivergence, log_moments
from benchmarks.papers.bounds.mixtures import renyi_of_mixtures


def substitution_by_enumeration(
    laws: ArrayLike, distances: ArrayLike, fraction: float, orders: ArrayLike, reach: int = 1
) -> Floats:
    """Theorem 3.6 (``reach`` 1, substitution distances between batches) and Theorem F.2 (``reach`` 2,
    insertion/removal distances), evaluated exactly for a base mechanism with finitely many batches and outputs.

    Sampling without replacement, one record of the dataset substituted.

    Args:
        laws: output probabilities, shape (batches, outputs), each row summing to 1.
        distances: distances between batches, shape (batches, batches).
        fraction: batch size over dataset size, in [0, 1].
        orders: real numbers > 1.
        reach: how far apart the theorem's batches may be.
    """
    alphas, w = check_orders(orders), check_probability("fraction", fraction)
    outputs, apart = finite_base(laws, distances)
    near = apart <= reach
    worst = np.zeros(len(alphas))
    for rest in range(len(outputs)):
        around = np.flatnonzero(near[rest])
        with_old, with_new = np.meshgrid(around, around, indexing="ij")
        allowed = near[with_old, with_new]
        first = (1 - w) * outputs[rest] + w * outputs[with_old[allowed]]
        second = (1 - w) * outputs[rest] + w * outputs[with_new[allowed]]
        worst = np.maximum(worst, renyi_of_finite(alphas, first, second).max(axis=1))
    return worst


def substitution_randomized_response(true_response: float, fraction: float, orders: ArrayLike) -> Floats:
    """Theorem 3.7 (tight): randomised response on a sample drawn without replacement, one record substituted.

    Args:
        true_response: probability of answering truly, in [0, 1].
        fraction: batch size over dataset size, in [0, 1].
        orders: real numbers > 1.
    """
    alphas, w = check_orders(orders), check_probability("fraction", fraction)
    theta = check_probability("true_response", true_response)
    rest, old, new = (np.array(column) for column in zip(*itertools.product((theta, 1 - theta), repeat=3), strict=True))
    first, second = (1 - w) * rest + w * old, (1 - w) * rest + w * new
    pair = renyi_of_finite(alphas, np.stack([first, 1 - first], axis=1), np.stack([second, 1 - second], axis=1))
    return np.asarray(pair.max(axis=1))


def substitution_gaussian(noise_multiplier: float, fraction: float, orders: ArrayLike, reach: int = 1) -> Floats:
    """An upper bound of Theorem 3.6 (``reach`` 1) and F.2 (``reach`` 2) for the Gaussian mechanism.

    The paper leaves the maximum over three means open. It is not always attained on a line: for small ``fraction`` the
    equilateral triangle is worse than any collinear choice. This function drops the constraint between the two
    substituted batches, after which Theorem H.12 puts them on opposite sides of the third.

    Args:
        noise_multiplier: noise standard deviation over the l2 sensitivity of one step of the batch relation.
        fraction: batch size over dataset size, in [0, 1].
        orders: real numbers > 1.
        reach: 1 where a step is a substitution, 2 where it is an insertion or a removal.
    """
    w, shift = check_probability("fraction", fraction), _shift(noise_multiplier, reach)
    weights = np.array([1 - w, w])
    return renyi_of_mixtures(orders, weights, np.array([0.0, shift]), weights, np.array([0.0, -shift]))


def substitution_baseline(
    base: BaseDivergence, fraction: float, orders: ArrayLike, distance: int = 1, tightened: bool = False
) -> Floats:
    """Proposition E.2 (Wang, Balle, Kasiviswanathan 2019): sampling without replacement, one record substituted.

    With ``distance`` 2 and a base known for insertion/removal it is the corollary that follows Theorem F.2.

    Args:
        base: divergence of the base mechanism.
        fraction: batch size over dataset size, in [0, 1].
        orders: integers >= 2.
        distance: steps of the batch relation that one substitution takes.
        tightened: use the full Theorem 9 of Wang et al. (the baseline of the paper's experiments), whose terms are
            the smaller of three bounds of the ternary divergence.
    """
    alphas, w = check_orders(orders, integer=True), check_probability("fraction", fraction)
    powers = np.arange(2, int(alphas.max()) + 1, dtype=float)
    log_terms = math.log(2) + log_moments(base, powers, distance)
    if tightened:
        log_terms = np.minimum(log_terms, _ternary_bounds(base, powers, distance))
    return np.array([_binomial_tail_sum(a, w, log_terms) / (a - 1) for a in alphas])


def poisson_baseline(base: BaseDivergence, rate: float, orders: ArrayLike, symmetric: bool = False) -> Floats:
    """Proposition E.4 (Zhu, Wang 2019): Poisson sampling at ``rate``, one record inserted or removed.

    Args:
        base: divergence of the base mechanism under insertion/removal.
        rate: sampling rate in [0, 1].
        orders: integers >= 2.
        symmetric: leave out the factor 2, as the paper does in its experiments. Only for a base mechanism whose two
            worst outputs mirror each other, such as Gaussian (Mironov, Talwar, Zhang 2019, Theorem 5).
    """
    return _binomial_mixture(check_orders(orders, integer=True), check_probability("rate", rate), base, 1, symmetric)


def insertion_removal_without_replacement(
    base: BaseDivergence, batch_size: int, more_than: int, orders: ArrayLike, distance: int = 2
) -> Floats:
    """Theorem F.3: a sample of fixed size drawn without replacement, one record inserted or removed.

    Corrected: the theorem says Poisson subsampling, its proof and its weights are those of sampling without
    replacement. Its maximum over N > Q is at N = Q + 1, because the sum is a mean, over a binomial variable that grows
    with w = q / N, of moments that do not fall. (The proof's w is that of the smaller dataset; a record of the larger
    one is drawn with probability q / (N + 1), so the bound stands.)

    Args:
        base: divergence of the base mechanism.
        batch_size: size of every sample, q >= 1.
        more_than: Q > q: every dataset has more than this many records.
        orders: integers >= 2.
        distance: 2 for a base known for insertion/removal of a batch's record, 1 for one known for substitution (the
            remark on hybrid relations after the theorem).
    """
    check_count("batch_size", batch_size)
    if check_count("more_than", more_than) <= batch_size:
        raise ValueError(f"more_than must exceed batch_size {batch_size}, got {more_than}")
    return _binomial_mixture(check_orders(orders, integer=True), batch_size / (more_than + 1), base, distance, False)


def group_substitution_without_replacement(
    base: BaseDivergence, batch_size: int, dataset_size: int, size: int, orders: ArrayLike
) -> Floats:
    """Proposition E.5 (Daigavane et al. 2022): a sample without replacement, ``size`` records substituted.

    Corrected: the paper prints Psi_k where the order stays alpha (Psi_1 is 1: one record would cost nothing); k is the
    distance.

    Args:
        base: divergence of the base mechanism under substitution.
        batch_size, dataset_size: q <= N, whole numbers.
        size: number of substituted records, at most ``dataset_size``.
        orders: real numbers > 1.
    """
    alphas = check_orders(orders)
    check_count("dataset_size", dataset_size)
    if check_count("batch_size", batch_size) > dataset_size:
        raise ValueError(f"batch_size must not exceed dataset_size {dataset_size}, got {batch_size}")
    if check_count("size", size) > dataset_size:
        raise ValueError(f"size must not exceed dataset_size {dataset_size}, got {size}")
    hit = np.arange(min(size, batch_size) + 1)
    log_hit = hypergeom.logpmf(hit, dataset_size, size, batch_size)
    log_psi = np.stack([np.zeros(len(alphas))] + [(alphas - 1) * base(alphas, int(k)) for k in hit[1:]])
    return np.asarray(logsumexp(log_hit[:, None] + log_psi, axis=0)) / (alphas - 1)


def renyi_of_finite(orders: Floats, first: Floats, second: Floats) -> Floats:
    """Rényi divergences, shape (orders, pairs), of two arrays of output probabilities of shape (pairs, outputs)."""
    # An output that both never give counts for nothing; one that only the second never gives makes it infinite.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_first, log_second = np.log(np.clip(first, 0, None)), np.log(np.clip(second, 0, None))
        terms = orders[:, None, None] * log_first + (1 - orders[:, None, None]) * log_second
    terms = np.where(np.asarray(first) <= 0, -np.inf, terms)
    return np.maximum(np.asarray(logsumexp(terms, axis=2)) / (orders[:, None] - 1), 0.0)


def log_binomial(trials: int, rate: float) -> Floats:
    """Log probabilities of 0, 1, ..., ``trials`` successes (scipy's own overflow at rates near the smallest double)."""
    hits = np.arange(trials + 1.0)
    log_choose = gammaln(trials + 1) - gammaln(hits + 1) - gammaln(trials - hits + 1)
    return np.asarray(log_choose + xlogy(hits, rate) + xlog1py(trials - hits, -rate))


def finite_base(laws: ArrayLike, distances: ArrayLike) -> tuple[Floats, Floats]:
    """A finite base mechanism, checked: laws of shape (batches, outputs) and distances of shape (batches, batches)."""
    outputs, apart = np.asarray(laws, dtype=float), np.asarray(distances, dtype=float)
    if outputs.ndim != 2 or not np.all(outputs >= 0) or not np.allclose(outputs.sum(axis=1), 1, rtol=0, atol=1e-9):
        raise ValueError(f"laws must be rows of probabilities that sum to 1, got shape {outputs.shape}")
    if apart.shape != (len(outputs), len(outputs)):
        raise ValueError(f"distances must have shape {(len(outputs), len(outputs))}, got {apart.shape}")
    return outputs, apart


def _shift(noise_multiplier: float, reach: int) -> float:
    if reach not in (1, 2):
        raise ValueError(f"reach must be 1 or 2, got {reach}")
    return reach / check_positive("noise_multiplier", noise_multiplier)


def _ternary_bounds(base: BaseDivergence, powers: Floats, distance: int) -> Floats:
    """Logs of the other two bounds in Theorem 9 of Wang et al. 2019, for powers 2, 3, ..."""
    pure = float(base(np.array([np.inf]), distance)[0])
    log_growth = math.log(math.expm1(pure)) if 0 < pure < 700 else (-np.inf if pure == 0 else pure)
    bounds = np.asarray(log_moments(base, powers, distance) + powers * log_growth)
    square = float(base(np.array([2.0]), distance)[0])
    if square < 700:
        bounds[0] = min(bounds[0], math.log(4 * math.expm1(square)) if square > 0 else -np.inf)
    return bounds


def _binomial_tail_sum(order: float, weight: float, log_terms: Floats) -> float:
    """``log(1 + sum over l >= 2 of C(order, l) weight^l exp(log_terms[l - 2]))``."""
    if weight == 0:
        return 0.0
    powers = np.arange(2, int(order) + 1, dtype=float)
    log_choose = gammaln(order + 1) - gammaln(powers + 1) - gammaln(order - powers + 1)
    return float(np.logaddexp(0.0, logsumexp(log_choose + powers * math.log(weight) + log_terms[: len(powers)])))


def _binomial_mixture(alphas: Floats, weight: float, base: BaseDivergence, distance: int, symmetric: bool) -> Floats:
    """``log([2] sum over l of Binom(l; order, weight) Psi_l) / (order - 1)``."""
    log_psi = log_moments(base, np.arange(0, int(alphas.max()) + 1, dtype=float), distance)
    factor = 0.0 if symmetric else math.log(2)

    def divergence(order: float) -> float:
        log_weights = log_binomial(int(order), weight)
        terms = np.where(np.isneginf(log_weights), -np.inf, log_weights + log_psi[: len(log_weights)])
        return float(factor + logsumexp(terms)) / (order - 1)

    return np.array([divergence(order) for order in alphas])
