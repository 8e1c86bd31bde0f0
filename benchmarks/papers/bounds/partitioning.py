"""Dong, Chen, Özgür 2025, "Leveraging Randomness in Model and Data Partitioning for Privacy Amplification".

A person's contribution, of norm at most the clipping norm, lands in ``chosen`` of ``blocks`` blocks that are drawn
uniformly and kept hidden: one of ``blocks`` submodels in a round (``chosen = 1``), or ``chosen`` of ``blocks`` rounds
(balanced iteration subsampling, Theorem 3.8). With noise of standard deviation ``noise_multiplier`` clipping norms in
every block, the pair is P, a mixture of N(mu, s^2 I) over the binary vectors mu with ``chosen`` ones, against
Q = N(0, s^2 I). "Forward" is D(P || Q), a person removed; "reverse" is D(Q || P), a person added.

All divergences are in nats, one for every order, shape (orders,). Orders are integers of at least 2.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

from benchmarks.papers.bounds.arguments import Floats, check_count, check_orders, check_positive, check_probability
from benchmarks.papers.bounds.rowsums import log_weighted_matrices

__all__ = [
    "epsilon_from_rdp",
    "forward_rdp",
    "forward_rdp_upper",
    "partial_split_rdp",
    "partial_split_rdp_added_separately",
    "poisson_rdp",
    "poisson_rdp_of_moments",
    "reverse_divergence_as_printed",
    "reverse_rdp_upper",
    "submodel_rdp",
]


def forward_rdp(noise_multiplier: float, blocks: int, orders: ArrayLike, chosen: int = 1) -> Floats:
    """Theorem 3.1, first term of Eq. (2): the forward divergence, exact.

    The sum over tuples of mixture components is ``E[X^order]`` of the likelihood ratio X. For ``chosen = 1`` it is read
    off the ``blocks``-th power of an exponential generating function; for more, counted column by column
    (:mod:`rowsums`), at a cost of about ``order^(2 chosen)`` operations an order.

    Raises:
        ValueError: if counting would take too long; :func:`forward_rdp_upper` is then the bound to use.
    """
    blocks, chosen = _check_pair(noise_multiplier, blocks, chosen)
    order = check_orders(orders, integer=True).astype(int)
    if chosen == 1:
        return _mean_log_moments(noise_multiplier, blocks, int(order.max()))[order] / (order - 1)
    tuples = order * (gammaln(blocks + 1) - gammaln(chosen + 1) - gammaln(blocks - chosen + 1))
    pair = 1 / noise_multiplier**2
    totals = np.array([log_weighted_matrices(int(a), blocks, chosen, pair) for a in order])
    return (totals - tuples) / (order - 1)


def forward_rdp_upper(noise_multiplier: float, blocks: int, orders: ArrayLike, chosen: int = 1) -> Floats:
    """Corollary 3.14, first term of Eq. (3): an upper bound of :func:`forward_rdp` in ``O(chosen)`` an order."""
    blocks, chosen = _check_pair(noise_multiplier, blocks, chosen)
    order = check_orders(orders, integer=True)
    overlap = np.arange(max(0, 2 * chosen - blocks), chosen + 1)
    log_probability = (
        _log_binomial(chosen, overlap)
        + _log_binomial(blocks - chosen, chosen - overlap)
        - _log_binomial(blocks, np.asarray(chosen))
    )
    return np.asarray(logsumexp(log_probability + order[:, None] * overlap / (2 * noise_multiplier**2), axis=1))


def reverse_divergence_as_printed(
    noise_multiplier: float, blocks: int, orders: ArrayLike, chosen: int = 1, misprint: bool = False
) -> Floats:
    """Corollaries 3.17 and 3.19: **not** an upper bound of the reverse divergence, kept to show that it is none.

    With noise multiplier 1 and one of two blocks, the exact reverse divergence of order 2 is 0.56904, this gives
    0.55017; at order 5, 1.36912 and 1.34154. The proof of Lemma 3.18 drops one dimension and then uses all of them, and
    two densities need not have equal mass along a ray. Use :func:`reverse_rdp_upper` instead.

    Args:
        misprint: take the exponent as Eq. (2) and (3) print it, ``chosen (blocks - chosen) / (s^2 blocks^2)``, where
            Corollary 3.19 derives ``chosen (blocks - chosen) / (s^2 blocks)``.
    """
    blocks, chosen = _check_pair(noise_multiplier, blocks, chosen)
    order = check_orders(orders, integer=True)
    spread = chosen * (blocks - chosen) / (noise_multiplier**2 * blocks)
    shift = order * chosen**2 / (2 * noise_multiplier**2 * blocks)
    numerator = order * (spread / blocks if misprint else spread)
    denominator = blocks * np.log1p(order * np.expm1(spread / blocks))
    return shift + (numerator - denominator) / (2 * (order - 1))


def reverse_rdp_upper(noise_multiplier: float, blocks: int, orders: ArrayLike, chosen: int = 1) -> Floats:
    """A sound bound of the reverse divergence, in place of Lemma 3.18: ``k (1 + (a - 1) k / d) / (2 s^2)``.

    The likelihood ratio is the mean of products of ``k`` of ``d`` variables, at least their geometric mean, and
    ``x^(1 - a)`` decreases. (Feldman and Shenfeld 2025 use the same step for their Theorem 4.9.) Exact for k = d.
    """
    blocks, chosen = _check_pair(noise_multiplier, blocks, chosen)
    order = check_orders(orders, integer=True)
    return chosen * (1 + (order - 1) * chosen / blocks) / (2 * noise_multiplier**2)


def poisson_rdp(noise_multiplier: float, rate: float, orders: ArrayLike) -> Floats:
    """Theorem 3.11 (Zhu and Wang 2019): one step of the Gaussian mechanism under Poisson sampling at ``rate``."""
    check_positive("noise_multiplier", noise_multiplier)
    order = check_orders(orders, integer=True).astype(int)
    return poisson_rdp_of_moments(_gaussian_log_moments(noise_multiplier, int(order.max())), rate, order)


def poisson_rdp_of_moments(log_moments: ArrayLike, rate: float, orders: ArrayLike) -> Floats:
    """The binomial sum of Theorem 3.11 for any mechanism: the divergences of ``(1 - rate) + rate X``.

    Args:
        log_moments: ``log E[X^l]`` of the likelihood ratio X for l = 0..(largest order), shape (largest order + 1,).
        rate: in [0, 1].
    """
    check_probability("rate", rate)
    order = check_orders(orders, integer=True).astype(int)
    moments = np.asarray(log_moments, dtype=float)
    if moments.ndim != 1 or len(moments) <= order.max():
        raise ValueError(f"log_moments must hold the orders 0 to {order.max()}, got shape {moments.shape}")
    taken = np.arange(order.max() + 1)
    left = order[:, None] - taken
    kept = np.maximum(left, 0)
    log_binomial = gammaln(order + 1)[:, None] - gammaln(taken + 1) - gammaln(kept + 1)
    terms = log_binomial + xlogy(taken, rate) + xlog1py(kept, -rate) + moments[taken]
    return np.asarray(logsumexp(np.where(left >= 0, terms, -np.inf), axis=1) / (order - 1))


def submodel_rdp(noise_multiplier: float, count: int, orders: ArrayLike) -> Floats:
    """Theorems 3.4, 3.5, Corollary 3.7: one round, one of ``count`` disjoint submodels, drawn for every person anew.

    The splitting may itself be random (Theorem 3.5); dropout of every node with probability 1/2 is ``count = 2``
    (Corollary 3.7). The papers' larger direction, forward; what they prove of the other rests on Lemma 3.18.
    """
    return forward_rdp(noise_multiplier, check_count("count", count), orders)


def partial_split_rdp(noise_multiplier: float, count: int, rate: float, orders: ArrayLike) -> Floats:
    """One Poisson-sampled step with a shared part and a part split into ``count`` submodels (section 3.2.2, Table 1).

    Both parts have their own clipping norm and noise of ``noise_multiplier`` times it. They see the same sampling
    event, so their moments are multiplied first and subsampled then: this reproduces Table 1 (3.31 without
    amplification, that is ``count = 1``, 2.72 for three submodels, 2.49 for eight).
    """
    check_positive("noise_multiplier", noise_multiplier)
    order = check_orders(orders, integer=True).astype(int)
    top = int(order.max())
    shared = _gaussian_log_moments(noise_multiplier, top)
    split = _mean_log_moments(noise_multiplier, check_count("count", count), top)
    return poisson_rdp_of_moments(shared + split, rate, order)


def partial_split_rdp_added_separately(noise_multiplier: float, count: int, rate: float, orders: ArrayLike) -> Floats:
    """Section 3.2.2 read literally: subsample each part, then add. **Understates** the cost; for comparison only.

    It would give 3.21, 2.66 and 2.46 for Table 1, where the paper has 3.31, 2.72 and 2.49 (:func:`partial_split_rdp`).
    """
    check_positive("noise_multiplier", noise_multiplier)
    order = check_orders(orders, integer=True).astype(int)
    split = _mean_log_moments(noise_multiplier, check_count("count", count), int(order.max()))
    return poisson_rdp(noise_multiplier, rate, order) + poisson_rdp_of_moments(split, rate, order)


def epsilon_from_rdp(rdp: ArrayLike, orders: ArrayLike, delta: float) -> float:
    """Proposition 2.3: the smallest ``rdp + log(1 / delta) / (order - 1)``, the loose conversion of the paper's tables.

    Args:
        rdp: divergences in nats, shape (orders,).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")
    order = check_orders(orders)
    return float(np.min(np.asarray(rdp) - np.log(delta) / (order - 1)))


def _check_pair(noise_multiplier: float, blocks: int, chosen: int) -> tuple[int, int]:
    check_positive("noise_multiplier", noise_multiplier)
    blocks, chosen = check_count("blocks", blocks), check_count("chosen", chosen)
    if chosen > blocks:
        raise ValueError(f"chosen must not exceed blocks, got {chosen} of {blocks}")
    return blocks, chosen


def _log_binomial(n: int, k: NDArray[np.int64]) -> Floats:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def _gaussian_log_moments(noise_multiplier: float, top: int) -> Floats:
    """``log E[X^a]`` of the Gaussian mechanism for a = 0..top."""
    order = np.arange(top + 1)
    return order * (order - 1) / (2 * noise_multiplier**2)


def _mean_log_moments(noise_multiplier: float, copies: int, top: int) -> Floats:
    """``log E[X^a]``, a = 0..top, of the mean X of ``copies`` independent Gaussian likelihood ratios."""
    order = np.arange(top + 1)
    factor = _gaussian_log_moments(noise_multiplier, top) - gammaln(order + 1)
    power = np.where(order == 0, 0.0, -np.inf)
    exponent = copies
    while exponent:
        if exponent & 1:
            power = _series_product(power, factor)
        exponent >>= 1
        if exponent:
            factor = _series_product(factor, factor)
    return power + gammaln(order + 1) - order * np.log(copies)


def _series_product(first: Floats, second: Floats) -> Floats:
    """Log-coefficients of the product of two power series with positive terms, so that nothing cancels."""
    index = np.arange(len(first))
    lag = index[:, None] - index
    return np.asarray(logsumexp(np.where(lag >= 0, first + second[np.maximum(lag, 0)], -np.inf), axis=1))
